package engine

// appendTGI writes what a Text Generation Inference router (3.x, the last) serves. There is no label
// for the model and no time to first token, counters have no _total, and a family appears with its
// first event. The router has one backend: several engines are shown as one.
func appendTGI(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, rustMetrics, "tgi_")
	all := together(engines)
	seconds := func(name, help string, h func(*metrics) *histogram) metric {
		return hist(name, help, tgiTimeEdges, h).afterFirst()
	}
	tokens := func(name, help string, h func(*metrics) *histogram) metric {
		m := hist(name, help, nil, h).afterFirst()
		m.edges = tgiTokenEdges
		return m
	}
	prefills := count(func(e *Engine) int { return e.metrics.prefillSteps })
	decodes := count(func(e *Engine) int { return e.metrics.steps - e.metrics.prefillSteps })
	method := func(m metric) metric {
		return m.by("method", []string{"prefill", "decode"}, func(v view, i int) float64 {
			return []func(view) float64{prefills, decodes}[i](v)
		}).afterFirst()
	}
	offered := func(v view) float64 {
		return count(func(e *Engine) int { return e.stats.Submitted + e.stats.Rejected })(v)
	}
	arrived := func(v view) bool { return offered(v) > 0 }

	w.write(all,
		counter("request_count", "Total number of requests", offered).after(arrived),
		counter("request_success", "Number of successful requests", succeeded).afterFirst(),
		// Who is turned away is told of as overloaded. Validation errors, which the model does not
		// have, are another value of err.
		counter("request_failure", "Number of failed requests", rejected).with("err", "overloaded").afterFirst(),
		method(counter("batch_inference_count", "Inference calls per method (prefill or decode)", nil)),
		method(counter("batch_inference_success", "Number of successful inference calls per method (prefill or decode)", nil)),
		// The router's own queue, as it is now; what the batch holds, as of its last step.
		gauge("queue_size", "Current queue size", count(func(e *Engine) int { return e.waiting.len() })).after(arrived),
		gauge("batch_current_size", "Current batch size", running).after(stepped),
		// What the batch's requests may come to, prompts and longest outputs: reserved, not used.
		gauge("batch_current_max_tokens", "Maximum tokens for the current batch",
			count(func(e *Engine) int { return e.metrics.reserved })).after(stepped),
		gauge("batch_max_total_tokens", "Maximum total tokens of a batch",
			count(func(e *Engine) int { return (e.cfg.NumGPUBlocks - 1) * e.cfg.BlockSize })), // HELP's wording is not known
		seconds("request_duration", "Request duration", e2eOf),
		// Validation is instant here.
		seconds("request_queue_duration", "Time spent in the queue per request", queueOf),
		seconds("request_inference_duration", "Request inference duration", inferenceOf),
		// Inference, prefill included, by the number of tokens.
		seconds("request_mean_time_per_token_duration", "Mean time per token per request",
			func(m *metrics) *histogram { return &m.inferencePerToken }),
		tokens("request_input_length", "Input token length per request", promptOf),
		tokens("request_generated_tokens", "Generated tokens per request", generationOf),
		tokens("request_max_new_tokens", "Maximum new tokens per request",
			func(m *metrics) *histogram { return &m.paramsMaxTokens }))

	// A step with a chunk of a prompt is a prefill to TGI, whatever decodes along with it.
	w.write([]series{
		{labels: []string{"method", "prefill"}, view: engines},
		{labels: []string{"method", "decode"}, view: engines, hist: func(m *metrics) *histogram { return &m.decodeStep }},
	}, seconds("batch_inference_duration", "Batch inference duration", func(m *metrics) *histogram { return &m.prefillStep }))
	return w.b
}
