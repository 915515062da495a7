package signals

// NVIDIA NIM for LLMs, on /v1/metrics. It writes the metrics of vLLM's V0 engine without any prefix, and a
// few of its own, with the label model_name and no other. Its names are so common (num_requests_running,
// prompt_tokens_total) that other programs' series would be taken for its own: a series without model_name
// is not read, nor one with a label of its own that NIM does not have and others are known for. NIMs that
// write vllm: are vLLM here, which is asked first.
var nim = &Engine{
	Name:   "NIM",
	Prefix: "nim_",
	series: map[Canonical]mapping{
		Queue:   nimMapping(mapping{kind: Gauge, spellings: []string{"num_requests_waiting"}}),
		Running: nimMapping(mapping{kind: Gauge, spellings: []string{"num_requests_running"}}),
		KVUsed:  nimMapping(mapping{kind: Gauge, spellings: []string{"gpu_cache_usage_perc"}, fold: Mean}),
		TTFT:    nimMapping(mapping{kind: Histogram, spellings: []string{"time_to_first_token_seconds"}, lazy: true}),
		// Per output, as V0's.
		ITL:       nimMapping(mapping{kind: Histogram, spellings: []string{"time_per_output_token_seconds"}, lazy: true}),
		E2E:       nimMapping(mapping{kind: Histogram, spellings: []string{"e2e_request_latency_seconds"}, lazy: true}),
		Finished:  nimMapping(mapping{kind: Counter, spellings: []string{"request_finish_total"}, within: []string{"finished_reason"}, lazy: true}),
		Prompt:    nimMapping(mapping{kind: Counter, spellings: []string{"prompt_tokens_total"}}),
		Generated: nimMapping(mapping{kind: Counter, spellings: []string{"generation_tokens_total"}}),
	},
	unsupported: declined(
		declinedByEngines("NIM"),
		declinedDemand("NIM"),
		because("NIM does not say what its requests wait for", QueueByReason),
		because("NIM does not say how large its KV cache is", KVCapacity),
		because("NIM has a histogram of the time between outputs only: ask for itl", TPOT),
		because("NIM does not measure how long requests wait", QueueTime),
		because("NIM counts requests when they finish, and not when they arrive", Arrived),
		because("NIM does not count requests that it turns away", Rejected),
		because("NIM does not say which prompt tokens it computed", PromptComputed),
		because("NIM does not count preemptions", Preemptions),
		because("NIM does not count what it looks up in its prefix cache", PrefixQueries, PrefixHits),
		because("NIM does not count its steps", Steps),
	),
	part:   []string{"model_name"},
	model:  "model_name",
	own:    true,
	owners: ownPod,
}

// nimMapping keeps to series that can be NIM's: TensorRT-LLM wrote the same names once, with engine_type,
// vLLM's V1 has engine, its descendants dp_rank, and routers that repeat what servers say have server.
func nimMapping(m mapping) mapping {
	m.has = "model_name"
	m.match = map[string]string{"engine": "", "engine_type": "", "dp_rank": "", "server": ""}
	return m
}
