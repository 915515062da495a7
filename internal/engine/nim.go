package engine

// appendNIM writes what a NIM for LLMs of the vLLM V0 era serves on /v1/metrics: V0's metrics
// without any prefix, and counts of its own. NIM is not open; names are documented, HELP and the
// bucket edges are taken to be V0's, and so is when series appear. Several engines are shown as one.
func appendNIM(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, python.withoutCreated(), "")
	all := together(engines, "model_name", x.ModelName)
	w.write(all,
		gauge("num_requests_running", "Number of requests currently running on GPU.", running),
		gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting),
		gauge("num_request_max", "Max number of concurrently running requests.", count(func(e *Engine) int { return e.cfg.MaxNumSeqs })),
		gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", kvUsage),
		counter("prompt_tokens_total", "Number of prefill tokens processed.", promptTokens),
		counter("generation_tokens_total", "Number of generation tokens processed.", generationTokens))
	for _, m := range []metric{
		hist("time_to_first_token_seconds", "Histogram of time to first token in seconds.", oldFirstTokenEdges, ttftOf),
		hist("time_per_output_token_seconds", "Histogram of time per output token in seconds.", oldTokenTimeEdges, itlOf),
		hist("e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", oldRequestTimeEdges, e2eOf),
		tokensHist("request_prompt_tokens", "Number of prefill tokens processed.", promptOf),
		tokensHist("request_generation_tokens", "Number of generation tokens processed.", generationOf),
		counter("request_finish_total", "Count of processed requests, with label indicating finish reason.", nil).
			by("finished_reason", []string{"stop", "length", "abort"}, func(v view, i int) float64 {
				if i == 2 {
					return aborted(v)
				}
				return finishedFor(v, i)
			}),
		// Success is a reason of stop or length, failure any other.
		counter("request_success_total", "Count of successful requests.", succeeded),
		counter("request_failure_total", "Count of failed requests.", aborted),
	} {
		w.write(all, m.afterFirst())
	}
	return w.b
}
