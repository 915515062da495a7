package engine

import "strconv"

// appendVLLM writes what a vLLM V1 server serves.
func appendVLLM(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, python, "vllm:")
	if x.Multiprocess {
		w.client = pythonMulti
	}
	all := ranks(engines, "engine", "model_name", x.ModelName)
	current := x.Release == V0_20 || x.Release == V0_32
	renamed, old := current || x.Release == V0_10, !current

	// A gauge of several processes is their most recent value, of which there is none at first.
	set := func(g metric) metric {
		if x.Multiprocess {
			return g.after(stepped)
		}
		return g
	}
	w.write(all,
		set(gauge("num_requests_running", "Number of requests in model execution batches.", running)),
		set(gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)))
	if current {
		w.write(all,
			set(gauge("num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: "+
				"'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints "+
				"(LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.", nil).
				by("reason", []string{"capacity", "deferred"}, first(waiting))),
			gauge("engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means "+
				"engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.", nil).
				by("sleep_state", []string{"awake", "weights_offloaded", "discard_all"}, first(constant(1))))
	}
	if old {
		w.write(all,
			set(gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", kvUsage)),
			counter("gpu_prefix_cache_queries_total", "GPU prefix cache queries, in terms of number of queried tokens.", promptTokens),
			counter("gpu_prefix_cache_hits_total", "GPU prefix cache hits, in terms of number of cached tokens.", cachedTokens))
	}
	if renamed {
		w.write(all,
			set(gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kvUsage)),
			counter("prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", promptTokens),
			counter("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", cachedTokens))
	}
	if current {
		w.write(all,
			counter("external_prefix_cache_queries_total", "External prefix cache queries from KV connector cross-instance "+
				"cache sharing, in terms of number of queried tokens.", none),
			counter("external_prefix_cache_hits_total", "External prefix cache hits from KV connector cross-instance "+
				"cache sharing, in terms of number of cached tokens.", none),
			counter("mm_cache_queries_total", "Multi-modal cache queries, in terms of number of queried items.", none),
			counter("mm_cache_hits_total", "Multi-modal cache hits, in terms of number of cached items.", none))
	}
	w.write(all,
		counter("num_preemptions_total", "Cumulative number of preemption from the engine.", preemptions),
		counter("prompt_tokens_total", "Number of prefill tokens processed.", promptTokens))
	if current {
		w.write(all,
			counter("prompt_tokens_by_source_total", "Number of prompt tokens by source.", nil).
				by("source", []string{"local_compute", "local_cache_hit", "external_kv_transfer"}, func(v view, i int) float64 {
					return []float64{promptTokens(v) - cachedTokens(v), cachedTokens(v), 0}[i]
				}),
			counter("prompt_tokens_cached_total", "Number of cached prompt tokens (local + external).", cachedTokens))
	}
	reasons := []string{"stop", "length", "abort", "error", "repetition"}
	if old {
		reasons = reasons[:3]
	}
	w.write(all,
		counter("generation_tokens_total", "Number of generation tokens processed.", generationTokens),
		// Every reason is there from the start, and a client that goes away is never counted.
		counter("request_success_total", "Count of successfully processed requests.", nil).
			by("finished_reason", reasons, finishedFor))
	if x.Release == V0_32 {
		// It has no engine: the front end turns requests away. The values of reason are not known
		// from public sources, nor whether they are there at 0; a value that no dashboard can know
		// is not made up as a 0.
		w.write(together(engines, "model_name", x.ModelName),
			counter("admission_rejections_total", "Number of admission attempts rejected", nil).
				by("reason", []string{"queue_full"}, first(rejected)).afterFirst())
	}

	w.write(all,
		tokensHist("request_prompt_tokens", "Number of prefill tokens processed.", promptOf),
		tokensHist("request_generation_tokens", "Number of generation tokens processed.", generationOf),
		hist("iteration_tokens_total", "Histogram of number of tokens per engine_step.", iterationEdges, iterationOf),
		tokensHist("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
			func(m *metrics) *histogram { return &m.maxGeneration }),
		hist("request_params_n", "Histogram of the n request parameter.", paramsNEdges,
			func(m *metrics) *histogram { return &m.paramsN }),
		tokensHist("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
			func(m *metrics) *histogram { return &m.paramsMaxTokens }))

	ttft, token, request := firstTokenEdges, tokenTimeEdges, requestTimeEdges
	if x.Release == V0_8 {
		ttft, token, request = oldFirstTokenEdges, oldTokenTimeEdges, oldRequestTimeEdges
	}
	w.write(all, hist("time_to_first_token_seconds", "Histogram of time to first token in seconds.", ttft, ttftOf))
	if old {
		w.write(all, hist("time_per_output_token_seconds", "Histogram of time per output token in seconds.", token, itlOf))
	} else {
		w.write(all,
			hist("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", token, itlOf),
			hist("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", token, tpotOf))
	}
	w.write(all,
		hist("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", request, e2eOf),
		hist("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", request, queueOf),
		hist("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", request, inferenceOf),
		hist("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", request, prefillOf),
		hist("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", request, decodeOf))
	if current {
		w.write(all, tokensHist("request_prefill_kv_computed_tokens",
			"Histogram of new KV tokens computed during prefill (excluding cached tokens).",
			func(m *metrics) *histogram { return &m.prefillComputed }))
	}

	// It has no model_name, and every engine repeats the number of blocks that all have together.
	total := count(func(e *Engine) int { return e.cfg.NumGPUBlocks })(engines)
	w.write(ranks(engines, "engine"), gauge("cache_config_info", "Information of the LLMEngine CacheConfig", constant(1)).
		with("block_size", strconv.Itoa(engines[0].cfg.BlockSize), "cache_dtype", "auto", "enable_prefix_caching", "True",
			"gpu_memory_utilization", "0.92", "num_cpu_blocks", "None", "num_gpu_blocks", strconv.Itoa(int(total))))
	return w.b
}

// first gives the first value of a label what there is to tell, and the others 0.
func first(f func(view) float64) func(view, int) float64 {
	return func(v view, i int) float64 {
		if i > 0 {
			return 0
		}
		return f(v)
	}
}
