package engine

// appendTRTLLM returns what writes the exposition of trtllm-serve, whose names have begun with
// trtllm_, with trtllm: (through Dynamo), and with nothing. The gauges need enable_iter_perf_stats
// and the rest return_perf_metrics; both are taken to be on. Several engines are shown as one.
//
// Names, buckets and HELP are those of the collector of 2026, under every prefix: which of them the
// earlier ones had is not known. Nor is whether a real server's gauges carry the label pid, as the
// Python client gives those that are shared by processes unless told otherwise; it is left out.
func appendTRTLLM(prefix string) func([]byte, Exposition, []*Engine) []byte {
	return func(b []byte, x Exposition, engines []*Engine) []byte {
		w := x.writer(b, pythonMulti, prefix)
		all := together(engines, "engine_type", "trtllm", "model_name", x.ModelName)
		for _, g := range []metric{
			gauge("kv_cache_hit_rate", "KV cache hit rate", sum(func(e *Engine) float64 { return e.metrics.hitRate })),
			gauge("kv_cache_utilization", "KV cache utilization", kvUsage),
			gauge("num_requests_running", "Number of active requests", running),
			gauge("num_requests_waiting", "Number of queued requests", waiting),
			gauge("max_num_active_requests", "Maximum number of active requests", count(func(e *Engine) int { return e.cfg.MaxNumSeqs })),
			gauge("kv_cache_max_blocks", "Maximum number of KV cache blocks", blocks),
			gauge("kv_cache_free_blocks", "Number of free KV cache blocks", func(v view) float64 { return blocks(v) - blocksUsed(v) }),
			gauge("kv_cache_used_blocks", "Number of used KV cache blocks", blocksUsed),
			gauge("kv_cache_tokens_per_block", "Number of tokens per KV cache block", constant(float64(engines[0].cfg.BlockSize))),
			gauge("num_context_requests", "Number of context (prefill) requests", count(func(e *Engine) int { return e.metrics.last.context })),
			gauge("num_generation_requests", "Number of generation (decode) requests", count(func(e *Engine) int { return e.metrics.last.generation })),
			gauge("num_paused_requests", "Number of paused requests", count(func(e *Engine) int { return e.metrics.last.preempted })),
			gauge("num_scheduled_requests", "Number of scheduled requests",
				count(func(e *Engine) int { return e.metrics.last.context + e.metrics.last.generation })),
			gauge("total_context_tokens", "Total number of context tokens", count(func(e *Engine) int { return e.metrics.last.contextTokens })),
		} {
			w.write(all, g.after(stepped))
		}
		finished := func(f func(*metrics) int) func(view) float64 {
			return count(func(e *Engine) int { return f(&e.metrics) })
		}
		for _, m := range []metric{
			counter("request_success_total", "Count of successfully processed requests.", nil).
				by("finished_reason", []string{"stop", "length"}, finishedFor),
			counter("num_requests_completed_total", "Total number of completed requests across iterations", succeeded),
			counter("request_error_total", "Total request errors, labeled by HTTP status code.", rejected).with("http_code", "429"),
			// A request's tokens are counted when it has finished.
			counter("prompt_tokens_total", "Cumulative number of prompt (input) tokens processed.",
				finished(func(m *metrics) int { return m.finishedPrompt })),
			counter("generation_tokens_total", "Cumulative number of generation (output) tokens produced.",
				finished(func(m *metrics) int { return m.finishedGeneration })),
			hist("e2e_request_latency_seconds", "Histogram of end to end request latency in seconds.", requestTimeEdges, e2eOf),
			// It, too, is observed when the request has finished: an aborted one leaves nothing.
			hist("time_to_first_token_seconds", "Histogram of time to first token in seconds.", firstTokenEdges,
				func(m *metrics) *histogram { return &m.finishedTTFT }),
			hist("time_per_output_token_seconds", "Histogram of time per output token in seconds.", tokenTimeEdges, tpotOf),
			hist("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requestTimeEdges, queueOf),
			hist("request_prefill_time_seconds", "Histogram of prefill (context) phase duration in seconds (first_token_time - first_scheduled_time).",
				trtllmPrefillEdges, prefillOf),
			hist("request_decode_time_seconds", "Histogram of decode (generation) phase duration in seconds (last_token_time - first_token_time).",
				requestTimeEdges, decodeOf),
			hist("request_inference_time_seconds", "Histogram of total inference duration in seconds (last_token_time - first_scheduled_time).",
				requestTimeEdges, inferenceOf),
		} {
			w.write(all, m.afterFirst())
		}
		// The one counter that is made before it is used.
		w.write(all, counter("prompt_cached_tokens_total", "Process-lifetime total prompt tokens served from KV cache. "+
			"Resets only when the serving process restarts, not when the KV cache is flushed or evicted.",
			finished(func(m *metrics) int { return m.finishedCached })))
		return w.b
	}
}
