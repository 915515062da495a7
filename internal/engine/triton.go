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
	types := func(m metric, label string, of ...typed) metric {
		values := make([]string, len(of))
		for i, k := range of {
			values[i] = k.name
		}
		return m.by(label, values, func(v view, i int) float64 { return of[i].value(v) })
	}
	w.write(all,
		types(gauge("trt_llm_request_metrics", "TRT LLM request metrics", nil), "request_type",
			typed{"waiting", waiting},
			typed{"context", last(func(s scheduled) int { return s.context })},
			typed{"scheduled", last(func(s scheduled) int { return s.context + s.generation })},
			typed{"max", count(func(e *Engine) int { return e.cfg.MaxNumSeqs })},
			typed{"active", running}).after(stepped),
		types(gauge("trt_llm_kv_cache_block_metrics", "TRT LLM KV cache block metrics", nil), "kv_cache_block_type",
			typed{"fraction", func(v view) float64 { return blocksUsed(v) / blocks(v) }},
			typed{"tokens_per", constant(float64(engines[0].cfg.BlockSize))},
			typed{"used", blocksUsed},
			typed{"free", free},
			typed{"max", blocks}).after(stepped),
		types(gauge("trt_llm_inflight_batcher_metrics", "TRT LLM inflight_batcher-specific metrics", nil), "inflight_batcher_specific_metric",
			typed{"micro_batch_id", none},
			typed{"generation_requests", last(func(s scheduled) int { return s.generation })},
			typed{"total_context_tokens", last(func(s scheduled) int { return s.contextTokens })},
			typed{"paused_requests", last(func(s scheduled) int { return s.preempted })}).after(stepped),
		counter("inference_request_success", "Number of successful inference requests, all batch sizes", succeeded),
		types(counter("inference_request_failure", "Number of failed inference requests, all batch sizes", nil), "reason",
			typed{"REJECTED", rejected}, typed{"CANCELED", aborted}, typed{"BACKEND", none}, typed{"OTHER", none}),
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

type typed struct {
	name  string
	value func(view) float64
}
