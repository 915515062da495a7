package engine

import "strconv"

// appendVLLMV0 writes what a vLLM server of about 0.6.6 to 0.7 serves with its first engine, V0:
// one engine, without a label for it. A server has no data-parallel ranks then, so several engines
// are shown as one.
//
// Series are made when they are first used: the gauges and counters of the periodic log are there
// from the start, a histogram's with its first observation, a finish reason's with its first
// request. Unlike V1 it counts the clients that go away.
func appendVLLMV0(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, python.withoutCreated(), "vllm:")
	all := together(engines, "model_name", x.ModelName)
	e := engines[0]
	total := count(func(e *Engine) int { return e.cfg.NumGPUBlocks })(engines)
	w.write(together(engines), gauge("cache_config_info", "Information of the LLMEngine CacheConfig", constant(1)).
		with("block_size", strconv.Itoa(e.cfg.BlockSize), "cache_dtype", "auto", "enable_prefix_caching", "False",
			"gpu_memory_utilization", "0.9", "num_cpu_blocks", "0", "num_gpu_blocks", strconv.Itoa(int(total))))
	w.write(all,
		gauge("num_requests_running", "Number of requests currently running on GPU.", running),
		gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting),
		gauge("num_requests_swapped", "Number of requests swapped to CPU.", none),
		gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", kvUsage),
		gauge("cpu_cache_usage_perc", "CPU KV-cache usage. 1 means 100 percent usage.", none),
		// -1 says that prefix caching is off, as it is by default.
		gauge("cpu_prefix_cache_hit_rate", "CPU prefix cache block hit rate.", constant(-1)),
		gauge("gpu_prefix_cache_hit_rate", "GPU prefix cache block hit rate.", constant(-1)),
		counter("num_preemptions_total", "Cumulative number of preemption from the engine.", preemptions),
		counter("prompt_tokens_total", "Number of prefill tokens processed.", promptTokens),
		counter("generation_tokens_total", "Number of generation tokens processed.", generationTokens))
	histograms := []metric{
		hist("time_to_first_token_seconds", "Histogram of time to first token in seconds.", oldFirstTokenEdges, ttftOf),
		hist("time_per_output_token_seconds", "Histogram of time per output token in seconds.", oldTokenTimeEdges, itlOf),
		hist("e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", oldRequestTimeEdges, e2eOf),
		hist("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", oldRequestTimeEdges, queueOf),
		hist("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", oldRequestTimeEdges, inferenceOf),
		hist("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", oldRequestTimeEdges, prefillOf),
		hist("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", oldRequestTimeEdges, decodeOf),
		hist("time_in_queue_requests", "Histogram of time the request spent in the queue in seconds.", oldRequestTimeEdges, queueOf),
		tokensHist("request_prompt_tokens", "Number of prefill tokens processed.", promptOf),
		tokensHist("request_generation_tokens", "Number of generation tokens processed.", generationOf),
		tokensHist("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
			func(m *metrics) *histogram { return &m.maxGeneration }),
		hist("request_params_n", "Histogram of the n request parameter.", paramsNEdges,
			func(m *metrics) *histogram { return &m.paramsN }),
		tokensHist("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
			func(m *metrics) *histogram { return &m.paramsMaxTokens }),
	}
	for _, h := range histograms {
		w.write(all, h.afterFirst())
	}
	w.write(all, counter("request_success_total", "Count of successfully processed requests.", nil).
		by("finished_reason", []string{"stop", "length", "abort"}, func(v view, i int) float64 {
			if i == 2 {
				return aborted(v)
			}
			return finishedFor(v, i)
		}).afterFirst())
	return w.b
}
