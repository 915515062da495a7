package signals

// TensorRT-LLM's own server, trtllm-serve, which serves them on /prometheus/metrics (its /metrics is JSON),
// and Dynamo's workers, which pass them through. The gauges need enable_iter_perf_stats, and what is of
// single requests needs return_perf_metrics; without them there is no series, and no signal. The gauges
// are there from the first step of the engine on, the others from the first event.
//
// Names begin with trtllm_; Dynamo wrote trtllm: for a while. Before, they had no prefix at all. Those are
// not read: nothing tells them from another program's num_requests_running.
//
// What is of single requests is observed as a request finishes, all of it: its time to first token, too,
// and its tokens. So a running request is in none of it, an aborted one never, and tokens as they are
// generated are not counted anywhere.
var trtllm = &Engine{
	Name:   "TensorRT-LLM",
	Prefix: "trtllm_",
	series: map[Canonical]mapping{
		Queue:   {kind: Gauge, spellings: trtllmNames("num_requests_waiting")},
		Running: {kind: Gauge, spellings: trtllmNames("num_requests_running")},
		KVUsed:  {kind: Gauge, spellings: trtllmNames("kv_cache_utilization"), fold: Mean},
		KVCapacity: {
			kind: Gauge, spellings: trtllmNames("kv_cache_max_blocks"),
			times: &mapping{kind: Gauge, spellings: trtllmNames("kv_cache_tokens_per_block")},
		},
		TTFT: {kind: Histogram, spellings: trtllmNames("time_to_first_token_seconds"), lazy: true, atFinish: true},
		// Per request, in spite of the name that is per output elsewhere. An output of one token has none.
		TPOT:      {kind: Histogram, spellings: trtllmNames("time_per_output_token_seconds"), lazy: true},
		E2E:       {kind: Histogram, spellings: trtllmNames("e2e_request_latency_seconds"), lazy: true},
		QueueTime: {kind: Histogram, spellings: trtllmNames("request_queue_time_seconds"), lazy: true},
		// Other errors are of requests that could not be served by anyone.
		Rejected: {kind: Counter, spellings: trtllmNames("request_error_total"), match: map[string]string{"http_code": "429"}, lazy: true},
		Finished: {kind: Counter, spellings: trtllmNames("request_success_total"), within: []string{"finished_reason"}, lazy: true},
		Prompt:   {kind: Counter, spellings: trtllmNames("prompt_tokens_total"), lazy: true},
		PromptComputed: {
			kind: Counter, spellings: trtllmNames("prompt_tokens_total"),
			less: &mapping{kind: Counter, spellings: trtllmNames("prompt_cached_tokens_total")},
		},
		PrefixQueries: {kind: Counter, spellings: trtllmNames("prompt_tokens_total"), lazy: true},
		PrefixHits:    {kind: Counter, spellings: trtllmNames("prompt_cached_tokens_total"), lazy: true},
	},
	unsupported: declined(
		declinedByEngines("TensorRT-LLM"),
		declinedDemand("TensorRT-LLM"),
		because("TensorRT-LLM does not say what its requests wait for", QueueByReason),
		because("TensorRT-LLM has a histogram of the mean time per output token of a request only: ask for tpot", ITL),
		because("TensorRT-LLM counts requests when they finish, and not when they arrive", Arrived),
		because("TensorRT-LLM counts output tokens as their request finishes, and not as they are generated", Generated),
		because("TensorRT-LLM says how many requests are paused, and does not count how often that happens", Preemptions),
		because("TensorRT-LLM does not count its steps", Steps),
	),
	part:   []string{"model_name"},
	model:  "model_name",
	own:    true,
	owners: ownPod,
}

func trtllmNames(name string) []string { return []string{"trtllm_" + name, "trtllm:" + name} }
