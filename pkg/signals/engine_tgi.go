package signals

// Text Generation Inference: its router, which has one backend and no label for the model. A family
// is there from its first event on. Gauges are among them: a router that has had no request says
// nothing of its queue, and that is not known to be 0.
var tgi = &Engine{
	Name:   "TGI",
	Prefix: "tgi_",
	series: map[Canonical]mapping{
		Queue:     {kind: Gauge, spellings: []string{"tgi_queue_size"}},
		Running:   {kind: Gauge, spellings: []string{"tgi_batch_current_size"}},
		E2E:       {kind: Histogram, spellings: []string{"tgi_request_duration"}, lazy: true},
		QueueTime: {kind: Histogram, spellings: []string{"tgi_request_queue_duration"}, lazy: true},
		Arrived:   {kind: Counter, spellings: []string{"tgi_request_count"}, lazy: true},
		// With other values of err: those that are not valid, and those that failed in the engine.
		Rejected: {kind: Counter, spellings: []string{"tgi_request_failure"}, match: map[string]string{"err": "overloaded"}, lazy: true},
		Finished: {kind: Counter, spellings: []string{"tgi_request_success"}, lazy: true},
		Steps:    {kind: Counter, spellings: []string{"tgi_batch_inference_count"}, within: []string{"method"}, lazy: true},
	},
	unsupported: declined(
		declinedByEngines("TGI"),
		declinedDemand("TGI"),
		because("TGI does not observe the time to first token", TTFT),
		because("TGI's mean time per token includes the prefill", TPOT),
		because("TGI observes the time of its batches, and not that between the outputs of a request", ITL),
		because("TGI exports how many tokens its batch has reserved, and not how many are in the KV cache", KVUsed, KVCapacity),
		because("TGI counts the tokens of a prompt when the request arrives, and not as they are prefilled", Prompt, PromptComputed),
		because("TGI counts the output tokens of a request when it finishes, and not as they are generated", Generated),
		because("TGI does not say what the requests in its queue wait for", QueueByReason),
		because("TGI does not put running requests back", Preemptions),
		because("TGI does not count what its prefix cache holds", PrefixQueries, PrefixHits),
	),
	own:    true,
	owners: ownPod,
}
