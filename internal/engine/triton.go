package engine

// appendTriton writes what a Triton server with the TensorRT-LLM backend serves on :8002: the
// backend's gauges, which it sets as it steps, and the core's counters of requests, in microseconds.
// What the model has nothing to say of (memory, the GPU's own metrics) is left out.
func appendTriton(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, cpp, "nv_")
	all := together(engines, "model", "tensorrt_llm", "version", "1")
	last := func(f func(scheduled) int) func(view) float64 {
		return count(func(e *Engine) int { return f(e.metrics.last) })
	}
	free := func(v view) float64 { return blocks(v) - blocksUsed(v) }
	micro := func(f func(*metrics) float64) func(view) float64 {
		return sum(func(e *Engine) float64 { return float64(int64(f(&e.metrics) * 1e6)) })
	}
	kinds := func(m metric, label string, of ...kindOf) metric {
		values := make([]string, len(of))
		for i, k := range of {
			values[i] = k.name
		}
		return m.by(label, values, func(v view, i int) float64 { return of[i].value(v) })
	}
	w.write(all,
		kinds(gauge("trt_llm_request_metrics", "TRT LLM request metrics", nil), "request_type",
			kindOf{"waiting", waiting},
			kindOf{"context", last(func(s scheduled) int { return s.context })},
			kindOf{"scheduled", last(func(s scheduled) int { return s.context + s.generation })},
			kindOf{"max", count(func(e *Engine) int { return e.cfg.MaxNumSeqs })},
			kindOf{"active", running}).after(stepped),
		kinds(gauge("trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics", nil), "kv_cache_block_type",
			kindOf{"fraction", func(v view) float64 { return blocksUsed(v) / blocks(v) }},
			kindOf{"tokens_per", constant(float64(engines[0].cfg.BlockSize))},
			kindOf{"used", blocksUsed},
			kindOf{"free", free},
			kindOf{"max", blocks}).after(stepped),
		kinds(gauge("trt_llm_inflight_batcher_metrics", "TRT LLM inflight_batcher-specific metrics", nil), "inflight_batcher_specific_metric",
			kindOf{"micro_batch_id", none},
			kindOf{"generation_requests", last(func(s scheduled) int { return s.generation })},
			kindOf{"total_context_tokens", last(func(s scheduled) int { return s.contextTokens })},
			kindOf{"paused_requests", last(func(s scheduled) int { return s.preempted })}).after(stepped),
		counter("inference_request_success", "Number of successful inference requests, all batch sizes", succeeded),
		kinds(counter("inference_request_failure", "Number of failed inference requests, all batch sizes", nil), "reason",
			kindOf{"REJECTED", rejected}, kindOf{"CANCELED", aborted}, kindOf{"BACKEND", none}, kindOf{"OTHER", none}),
		counter("inference_count", "Number of inferences performed (does not include cached requests)", succeeded),
		counter("inference_exec_count", "Number of model executions performed (does not include cached requests)", succeeded),
		counter("inference_request_duration_us", "Cumulative inference request duration in microseconds (includes cached requests)",
			micro(func(m *metrics) float64 { return m.total })),
		// The backend takes a request off Triton's queue as soon as it is there and lets it wait in
		// one of its own, so that the core has nothing pending; inferred, not recorded.
		counter("inference_queue_duration_us", "Cumulative inference queuing duration in microseconds (includes cached requests)", none),
		counter("inference_compute_input_duration_us", "Cumulative compute input duration in microseconds (does not include cached requests)", none),
		counter("inference_compute_infer_duration_us", "Cumulative compute inference duration in microseconds (does not include cached requests)",
			micro(func(m *metrics) float64 { return m.total })),
		counter("inference_compute_output_duration_us", "Cumulative inference compute output duration in microseconds (does not include cached requests)", none),
		gauge("inference_pending_request_count", "Instantaneous number of pending requests awaiting execution per-model.", none))
	// Opt-in, for decoupled models.
	first := hist("inference_first_response_histogram_ms", "Duration from request to first response in milliseconds",
		tritonFirstResponseEdges, ttftOf)
	first.scale = 1000
	w.write(all, first)
	return w.b
}

type kindOf struct {
	name  string
	value func(view) float64
}
