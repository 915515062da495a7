package engine

// appendLlamaCPP writes what llama.cpp's server serves with --metrics: no labels, no histograms, no
// time to first token, and no more than six digits of any number. A request's output is counted
// when it has finished, and the cache's usage is no longer told.
func appendLlamaCPP(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, iostream, "llamacpp:")
	// The names are not subject to content negotiation: the server writes the text itself.
	w.prefix = w.head
	seconds := func(f func(*metrics) float64) func(view) float64 {
		return sum(func(e *Engine) float64 { return f(&e.metrics) })
	}
	computed := func(v view) float64 { return promptTokens(v) - cachedTokens(v) }
	prefill := seconds(func(m *metrics) float64 { return m.prefillSeconds })
	predicted := count(func(e *Engine) int { return e.metrics.finishedGeneration })
	predicting := seconds(func(m *metrics) float64 { return m.decodeSeconds })
	steps := count(func(e *Engine) int { return e.metrics.steps })
	// The server's own averages are over the time since the last scrape; here they are over all of
	// it, as a scrape must not change what the next one sees.
	per := func(n, d func(view) float64) func(view) float64 {
		return func(v view) float64 {
			if d(v) == 0 {
				return 0
			}
			return n(v) / d(v)
		}
	}
	w.write(together(engines),
		counter("prompt_tokens_total", "Number of prompt tokens processed, excluding cached tokens", computed),
		counter("prompt_tokens_cached_total", "Number of prompt tokens reused from the cache", cachedTokens),
		counter("prompt_seconds_total", "Total time spent processing prompts", prefill),
		counter("tokens_predicted_total", "Number of generation tokens processed", predicted),
		counter("tokens_predicted_seconds_total", "Total time spent generating tokens", predicting),
		counter("n_decode_total", "Total number of llama_decode() calls, excluding speculative decoding and multimodal decoding", steps),
		counter("n_tokens_max", "Largest observed sequence length (prompt + generation)", func(v view) float64 {
			most := 0
			for _, e := range v {
				most = max(most, e.metrics.longest)
			}
			return float64(most)
		}),
		counter("spec_decode_num_draft_tokens_total", "Speculative: Total draft tokens generated", none),
		counter("spec_decode_num_accepted_tokens_total", "Speculative: Total draft tokens accepted by the target model", none),
		counter("spec_decode_num_drafts_total", "Speculative: Total speculative decoding verification steps", none),
		gauge("prompt_tokens_seconds", "Average prompt throughput in tokens/s", per(computed, prefill)),
		gauge("predicted_tokens_seconds", "Average generation throughput in tokens/s", per(predicted, predicting)),
		gauge("requests_processing", "Number of requests processing", running),
		gauge("requests_deferred", "Number of requests deferred", waiting),
		gauge("n_busy_slots_per_decode", "Average number of busy slots per llama_decode() call",
			per(count(func(e *Engine) int { return e.metrics.busySlots }), steps)))
	return w.b
}
