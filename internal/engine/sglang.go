package engine

import (
	"math"
	"strconv"
)

// appendSGLang writes what an SGLang server of about 0.5.11 serves with --enable-metrics. Its client
// always runs in several processes: no _created series, and a series is there from its first use.
// (A real server sends itself a request to warm up, which the model does not.)
//
// A scheduler tells of itself with its ranks; what the tokenizer's process sees has none. The label
// dp_rank is there with data-parallel attention only, which here is more than one engine.
func appendSGLang(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, pythonMulti, "sglang:")
	model := []string{"engine_type", "unified", "model_name", x.ModelName}
	var leaders, every []series // of the tensor-parallel ranks of each scheduler
	for i, e := range engines {
		for tp := range max(x.TensorParallel, 1) {
			labels := append([]string(nil), model...)
			labels = append(labels, "moe_ep_rank", "0", "pp_rank", "0", "tp_rank", strconv.Itoa(i*max(x.TensorParallel, 1)+tp))
			if len(engines) > 1 {
				labels = append(labels, "dp_rank", strconv.Itoa(i))
			}
			if e.cfg.PriorityScheduling {
				labels = append(labels, "priority", "") // the sum over all
			}
			s := series{labels: labels, view: view{e}}
			every = append(every, s)
			if tp == 0 {
				leaders = append(leaders, s)
			}
		}
	}

	tokens := func(blocks func(*Engine) int) func(view) float64 {
		return count(func(e *Engine) int { return blocks(e) * e.cfg.BlockSize })
	}
	capacity := func(e *Engine) int { return e.cfg.NumGPUBlocks - 1 }
	used := tokens(func(e *Engine) int { return e.metrics.blocksUsed })
	// Radix-cached tokens could be given up for new requests and are not in any usage; the model
	// caches nothing, so what is not used is available.
	available := tokens(func(e *Engine) int { return capacity(e) - e.metrics.blocksUsed })

	// Constants, from the start.
	w.write(leaders,
		gauge("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", tokens(capacity)),
		gauge("page_size", "KV cache page size in tokens.", count(func(e *Engine) int { return e.cfg.BlockSize })),
		gauge("num_pages", "Number of KV cache pages.", count(capacity)),
		gauge("context_len", "Maximum context length.", count(func(e *Engine) int { return e.cfg.MaxModelLen })))
	// Until about 0.5.10 the capacity was told in labels. The gateway's table still names this one,
	// so it is shown beside the gauges.
	var infos []series
	for _, s := range leaders {
		e := s.view[0]
		labels := append(append([]string(nil), s.labels...), "page_size", strconv.Itoa(e.cfg.BlockSize), "num_pages", strconv.Itoa(capacity(e)))
		infos = append(infos, series{labels: labels, view: s.view})
	}
	w.write(infos, gauge("cache_config_info", "Information of the cache configuration.", constant(1))) // HELP's wording is not known

	gauges := []metric{
		gauge("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", none),
		gauge("gen_throughput", "The generation throughput (token/s).", sum(func(e *Engine) float64 { return e.metrics.throughput })),
		gauge("cache_hit_rate", "The prefix cache hit rate.", sum(func(e *Engine) float64 { return e.metrics.hitRate })),
		gauge("token_usage", "The token usage.", kvUsage),
		gauge("full_token_usage", "The token usage for full attention layers.", kvUsage),
		gauge("swa_token_usage", "The token usage for SWA layers.", none),
		gauge("mamba_usage", "The token usage for Mamba layers.", none),
		gauge("num_used_tokens", "The number of used tokens.", used),
		gauge("kv_available_tokens", "Number of free token slots in the KV cache pool.", available),
		gauge("kv_evictable_tokens", "Number of evictable (radix-cached) token slots in the KV cache pool.", none),
		gauge("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", used),
		gauge("num_retracted_reqs", "The number of retracted requests.", count(func(e *Engine) int { return e.metrics.last.preempted })),
		gauge("num_paused_reqs", "The number of paused requests by async weight sync.", none),
		gauge("num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue.", none),
		gauge("num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue.", none),
		gauge("num_decode_prealloc_queue_reqs", "The number of requests in the decode prealloc queue.", none),
		gauge("num_decode_transfer_queue_reqs", "The number of requests in the decode transfer queue.", none),
		gauge("pending_prealloc_token_usage", "The token usage for pending preallocated tokens (not preallocated yet).", none),
		gauge("utilization", "The utilization.", none),
		gauge("fwd_occupancy", "Forward pass GPU occupancy percentage.", constant(math.NaN())),
	}
	w.write(byPriority(leaders, func(c priorityCount) int { return c.running }),
		gauge("num_running_reqs", "The number of running requests.", running).after(stepped))
	w.write(byPriority(leaders, func(c priorityCount) int { return c.waiting }),
		gauge("num_queue_reqs", "The number of requests in the waiting queue.", waiting).after(stepped))
	for _, g := range gauges {
		w.write(leaders, g.after(stepped))
	}

	w.write(leaders,
		counter("num_retracted_requests_total", "Total number of retracted requests.", preemptions).afterFirst(),
		counter("num_retracted_input_tokens_total", "Total number of retracted input tokens.",
			count(func(e *Engine) int { return e.metrics.preemptedInput })).afterFirst(),
		counter("num_retracted_output_tokens_total", "Total number of retracted output tokens.",
			count(func(e *Engine) int { return e.metrics.preemptedOutput })).afterFirst(),
		counter("realtime_tokens_total", "Total number of tokens processed (updated on each log interval). "+
			"mode: prefill_compute, prefill_cache, decode.", nil).
			by("mode", []string{"prefill_compute", "prefill_cache", "decode"}, func(v view, i int) float64 {
				return count(func(e *Engine) int {
					return []int{e.metrics.prefillTokens, e.metrics.prefillCached, e.metrics.decodeTokens}[i]
				})(v)
			}).afterFirst())
	// Every tensor-parallel rank observes it, so that the sum counts a request once for each.
	w.write(every, hist("queue_time_seconds", "Histogram of queueing time in seconds.", sglangQueueEdges,
		func(m *metrics) *histogram { return &m.admissionTime }).afterFirst())

	// The tokenizer's: one process, which sees requests and not engines. All clients stream here.
	finished := func(f func(*metrics) int) func(view) float64 {
		return count(func(e *Engine) int { return f(&e.metrics) })
	}
	streaming := func(m metric) metric { return m.with("is_streaming", "true").afterFirst() }
	w.write(together(engines, model...),
		streaming(counter("prompt_tokens_total", "Number of prefill tokens processed.",
			finished(func(m *metrics) int { return m.finishedPrompt }))),
		streaming(counter("generation_tokens_total", "Number of generation tokens processed.",
			finished(func(m *metrics) int { return m.finishedGeneration }))),
		counter("cached_tokens_total", "Number of cached prompt tokens by source (device/host/storage).",
			finished(func(m *metrics) int { return m.finishedCached })).with("cache_source", "device").afterFirst(),
		streaming(counter("num_requests_total", "Number of requests processed.", succeeded)),
		counter("num_aborted_requests_total", "Number of requests aborted.", aborted).afterFirst(),
		hist("prompt_tokens_histogram", "Histogram of prompt token length.", sglangTokenEdges, promptOf).afterFirst(),
		hist("uncached_prompt_tokens_histogram", "Histogram of uncached (compute) prompt token length.", sglangTokenEdges,
			func(m *metrics) *histogram { return &m.prefillComputed }).afterFirst(),
		hist("generation_tokens_histogram", "Histogram of generation token length.", sglangTokenEdges, generationOf).afterFirst(),
		streaming(hist("time_to_first_token_seconds", "Histogram of time to first token in seconds.", sglangFirstTokenEdges, ttftOf)),
		hist("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", sglangTokenTimeEdges, itlOf).afterFirst(),
		streaming(hist("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", sglangRequestEdges, e2eOf)))
	return w.b
}

// byPriority is the schedulers' series, and beside each one for every priority that has been seen:
// with priority scheduling the sum over all series is twice the truth.
func byPriority(all []series, of func(priorityCount) int) []series {
	var on []series
	for _, s := range all {
		on = append(on, s)
		for _, p := range s.view[0].metrics.knownPriorities() {
			labels := append([]string(nil), s.labels...)
			labels[len(labels)-1] = strconv.Itoa(p) // priority is the last
			on = append(on, series{labels: labels, view: s.view, value: count(func(e *Engine) int { return of(e.metrics.priorities[p]) })})
		}
	}
	return on
}
