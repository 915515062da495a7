package signals

// LMDeploy's api_server. engine is the data-parallel rank.
var lmdeploy = &Engine{
	Name:   "LMDeploy",
	Prefix: "lmdeploy_",
	series: map[Canonical]mapping{
		// The front end hands requests to the engine while it has handles for them; those without one
		// wait in front of the engine's own queue.
		Queue:   {kind: Gauge, spellings: lmdeployNames("num_requests_waiting"), also: [][]string{lmdeployNames("num_api_requests_waiting")}},
		Running: {kind: Gauge, spellings: lmdeployNames("num_requests_running")},
		KVUsed:  {kind: Gauge, spellings: lmdeployNames("gpu_cache_usage_perc"), fold: Mean},
		TTFT:    {kind: Histogram, spellings: lmdeployNames("time_to_first_token_seconds")},
		// Both are observed with each output; time_per_output_token_seconds is divided by the tokens in
		// it, and older releases have only that.
		ITL:       {kind: Histogram, spellings: lmdeployNames("iter_token_latency", "time_per_output_token_seconds")},
		E2E:       {kind: Histogram, spellings: lmdeployNames("e2e_request_latency_seconds")},
		QueueTime: {kind: Histogram, spellings: lmdeployNames("request_queue_time_seconds")},
		// num_requests_succeeded counts the same, and says that it is a gauge.
		Finished:  {kind: Counter, spellings: lmdeployNames("request_success_total"), within: []string{"finished_reason"}},
		Prompt:    {kind: Counter, spellings: lmdeployNames("prompt_tokens_total")},
		Generated: {kind: Counter, spellings: lmdeployNames("generation_tokens_total")},
		Steps:     {kind: Counter, spellings: lmdeployNames("iteration_tokens_total_count")},
	},
	unsupported: declined(
		declinedByEngines("LMDeploy"),
		declinedDemand("LMDeploy"),
		because("LMDeploy observes the time per output token with every output, and not once for each request: ask for itl", TPOT),
		because("LMDeploy does not export how many tokens its KV cache holds", KVCapacity),
		because("LMDeploy does not say what the requests in its queue wait for", QueueByReason),
		because("LMDeploy counts requests when they finish, and not when they arrive", Arrived),
		because("LMDeploy does not count the requests that it turns away apart from those that fail", Rejected),
		because("LMDeploy does not tell cached prompt tokens from computed ones", PromptComputed),
		because("LMDeploy does not count preemptions", Preemptions),
		because("LMDeploy exports the hit rate of its prefix cache since its start, and not its look-ups", PrefixQueries, PrefixHits),
	),
	part:   []string{"engine", "model_name"},
	model:  "model_name",
	own:    true,
	owners: ownPod,
}

// lmdeployNames spells the given names as LMDeploy's series are stored: as it exports them, and with the
// colon replaced by content negotiation.
func lmdeployNames(names ...string) []string {
	return prefixed([]string{"lmdeploy:", "lmdeploy_"}, names)
}
