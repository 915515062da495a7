package engine

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Release picks the spelling of a vLLM release, as far as names and label values differ.
type Release int

const (
	// V0_20 is 0.20 and later.
	V0_20 Release = iota
	// V0_10 is 0.9.2 to 0.10: the KV cache's series under their old and new names at once.
	V0_10
	// V0_9_1 is 0.9.1 and before: gpu_cache_usage_perc, time_per_output_token_seconds.
	V0_9_1
)

var releaseNames = []string{"0.20", "0.10", "0.9.1"}

// String returns the release's number.
func (r Release) String() string { return releaseNames[r] }

// ParseRelease is the inverse of String.
func ParseRelease(s string) (Release, bool) {
	for i, n := range releaseNames {
		if n == s {
			return Release(i), true
		}
	}
	return 0, false
}

// Exposition says how a vLLM server shows its engines.
type Exposition struct {
	ModelName string
	// Created is when the server's process started: the value of every _created series.
	Created time.Time
	Release Release
	// Underscores writes sample names as the Python client does for scrapers that accept
	// OpenMetrics without UTF-8 names: vllm_x, while HELP and TYPE keep vllm:x.
	Underscores bool
}

// AppendVLLM appends to b what /metrics of one vLLM server serves: the series of its engines (the
// data-parallel ranks 0, 1, …), in the text format as the Python client writes it.
func AppendVLLM(b []byte, x Exposition, engines []*Engine) []byte {
	w := writer{b: b, x: x, engines: engines}
	now, old := x.Release != V0_9_1, x.Release != V0_20

	w.gauge("num_requests_running", "Number of requests in model execution batches.",
		func(e *Engine) float64 { return float64(e.metrics.running) })
	w.gauge("num_requests_waiting", "Number of requests waiting to be processed.",
		func(e *Engine) float64 { return float64(e.metrics.waiting) })
	if x.Release == V0_20 {
		w.head("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason. Reason labels: "+
			"'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints "+
			"(LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.")
		for i, e := range engines {
			w.sample("num_requests_waiting_by_reason", i, "reason", "capacity", float64(e.metrics.waiting))
			w.sample("num_requests_waiting_by_reason", i, "reason", "deferred", 0)
		}
		w.head("engine_sleep_state", "gauge", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means "+
			"engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.")
		for i := range engines {
			w.sample("engine_sleep_state", i, "sleep_state", "awake", 1)
			w.sample("engine_sleep_state", i, "sleep_state", "weights_offloaded", 0)
			w.sample("engine_sleep_state", i, "sleep_state", "discard_all", 0)
		}
	}
	kvUsage := func(e *Engine) float64 { return e.metrics.kvUsage }
	prompts := func(e *Engine) float64 { return float64(e.metrics.promptTokens) }
	none := func(*Engine) float64 { return 0 }
	if old {
		w.gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", kvUsage)
		w.counter("gpu_prefix_cache_queries", "GPU prefix cache queries, in terms of number of queried tokens.", prompts)
		w.counter("gpu_prefix_cache_hits", "GPU prefix cache hits, in terms of number of cached tokens.", none)
	}
	if now {
		w.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kvUsage)
		w.counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", prompts)
		w.counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", none)
	}
	if x.Release == V0_20 {
		w.counter("external_prefix_cache_queries", "External prefix cache queries from KV connector cross-instance "+
			"cache sharing, in terms of number of queried tokens.", none)
		w.counter("external_prefix_cache_hits", "External prefix cache hits from KV connector cross-instance "+
			"cache sharing, in terms of number of cached tokens.", none)
		w.counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", none)
		w.counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", none)
	}
	w.counter("num_preemptions", "Cumulative number of preemption from the engine.",
		func(e *Engine) float64 { return float64(e.stats.Preemptions) })
	w.counter("prompt_tokens", "Number of prefill tokens processed.", prompts)
	if x.Release == V0_20 {
		w.counters("prompt_tokens_by_source", "Number of prompt tokens by source.",
			"source", []string{"local_compute", "local_cache_hit", "external_kv_transfer"},
			func(e *Engine, i int) float64 {
				if i == 0 {
					return prompts(e)
				}
				return 0
			})
		w.counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", none)
	}
	w.counter("generation_tokens", "Number of generation tokens processed.",
		func(e *Engine) float64 { return float64(e.metrics.generationTokens) })
	reasons := []string{"stop", "length", "abort", "error", "repetition"}
	if old {
		reasons = reasons[:3]
	}
	w.counters("request_success", "Count of successfully processed requests.", "finished_reason", reasons,
		func(e *Engine, i int) float64 {
			if i < len(e.metrics.success) {
				return float64(e.metrics.success[i])
			}
			return 0 // vLLM creates every reason, and never counts a client that goes away
		})

	w.histogram("request_prompt_tokens", "Number of prefill tokens processed.",
		func(m *metrics) *histogram { return &m.prompt })
	w.histogram("request_generation_tokens", "Number of generation tokens processed.",
		func(m *metrics) *histogram { return &m.generation })
	w.histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.",
		func(m *metrics) *histogram { return &m.iterationTokens })
	w.histogram("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.",
		func(m *metrics) *histogram { return &m.maxGeneration })
	w.histogram("request_params_n", "Histogram of the n request parameter.",
		func(m *metrics) *histogram { return &m.paramsN })
	w.histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.",
		func(m *metrics) *histogram { return &m.paramsMaxTokens })
	w.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.",
		func(m *metrics) *histogram { return &m.timeToFirstToken })
	interToken := func(m *metrics) *histogram { return &m.interToken }
	if old {
		w.histogram("time_per_output_token_seconds", "Histogram of time per output token in seconds.", interToken)
	} else {
		w.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", interToken)
		w.histogram("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.",
			func(m *metrics) *histogram { return &m.timePerOutputToken })
	}
	w.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.",
		func(m *metrics) *histogram { return &m.e2e })
	w.histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
		func(m *metrics) *histogram { return &m.queueTime })
	w.histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
		func(m *metrics) *histogram { return &m.inferenceTime })
	w.histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
		func(m *metrics) *histogram { return &m.prefillTime })
	w.histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
		func(m *metrics) *histogram { return &m.decodeTime })
	if x.Release == V0_20 {
		w.histogram("request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
			func(m *metrics) *histogram { return &m.prefillComputed })
	}
	w.cacheConfig()
	return w.b
}

// writer appends families, each with the series of all engines.
type writer struct {
	b       []byte
	x       Exposition
	engines []*Engine
}

func (w *writer) head(name, typ, help string) {
	w.b = append(w.b, "# HELP vllm:"...)
	w.b = append(w.b, name...)
	w.b = append(w.b, ' ')
	w.b = append(w.b, help...)
	w.b = append(w.b, "\n# TYPE vllm:"...)
	w.b = append(w.b, name...)
	w.b = append(w.b, ' ')
	w.b = append(w.b, typ...)
	w.b = append(w.b, '\n')
}

// sample writes one sample with the labels engine, model_name and, unless label is empty, one more;
// the Python client sorts them by name.
func (w *writer) sample(name string, engine int, label, value string, v float64) {
	w.b = append(w.b, "vllm"...)
	if w.x.Underscores {
		w.b = append(w.b, '_')
	} else {
		w.b = append(w.b, ':')
	}
	w.b = append(w.b, name...)
	w.b = append(w.b, `{engine="`...)
	w.b = strconv.AppendInt(w.b, int64(engine), 10)
	w.b = append(w.b, '"')
	extra := func() {
		w.b = append(w.b, ',')
		w.b = append(w.b, label...)
		w.b = append(w.b, `="`...)
		w.b = append(w.b, value...)
		w.b = append(w.b, '"')
	}
	if label != "" && label < "model_name" {
		extra()
	}
	w.b = append(w.b, `,model_name="`...)
	w.b = append(w.b, labelEscaper.Replace(w.x.ModelName)...)
	w.b = append(w.b, '"')
	if label > "model_name" {
		extra()
	}
	w.b = append(w.b, "} "...)
	w.b = appendFloat(w.b, v)
	w.b = append(w.b, '\n')
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (w *writer) gauge(name, help string, f func(*Engine) float64) {
	w.head(name, "gauge", help)
	for i, e := range w.engines {
		w.sample(name, i, "", "", f(e))
	}
}

func (w *writer) counter(name, help string, f func(*Engine) float64) {
	w.counters(name, help, "", []string{""}, func(e *Engine, _ int) float64 { return f(e) })
}

// counters writes a counter with one series per value of a label.
func (w *writer) counters(name, help, label string, values []string, f func(e *Engine, i int) float64) {
	w.head(name+"_total", "counter", help)
	for i, e := range w.engines {
		for j, v := range values {
			w.sample(name+"_total", i, label, v, f(e, j))
		}
	}
	w.created(name, help, label, values)
}

func (w *writer) created(name, help, label string, values []string) {
	w.head(name+"_created", "gauge", help)
	created := float64(w.x.Created.UnixNano()) / 1e9
	for i := range w.engines {
		for _, v := range values {
			w.sample(name+"_created", i, label, v, created)
		}
	}
}

func (w *writer) histogram(name, help string, f func(*metrics) *histogram) {
	w.head(name, "histogram", help)
	for i, e := range w.engines {
		h := f(&e.metrics)
		count := 0
		for j, c := range h.counts {
			count += c
			edge := math.Inf(1)
			if j < len(h.edges) {
				edge = h.edges[j]
			}
			var le [24]byte
			w.sample(name+"_bucket", i, "le", string(appendFloat(le[:0], edge)), float64(count))
		}
		w.sample(name+"_count", i, "", "", float64(count))
		w.sample(name+"_sum", i, "", "", h.sum)
	}
	w.created(name, help, "", []string{""})
}

// cacheConfig writes cache_config_info: it has no model_name, and every engine repeats the number
// of blocks that all engines have together.
func (w *writer) cacheConfig() {
	w.head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	blocks := 0
	for _, e := range w.engines {
		blocks += e.cfg.NumGPUBlocks
	}
	prefix := "vllm:"
	if w.x.Underscores {
		prefix = "vllm_"
	}
	for i, e := range w.engines {
		w.b = append(w.b, prefix+`cache_config_info{block_size="`+strconv.Itoa(e.cfg.BlockSize)+
			`",cache_dtype="auto",enable_prefix_caching="True",engine="`+strconv.Itoa(i)+
			`",gpu_memory_utilization="0.92",num_cpu_blocks="None",num_gpu_blocks="`+strconv.Itoa(blocks)+"\"} 1.0\n"...)
	}
}

// appendFloat writes a float as the Python client does: as repr(), except that numbers from a
// million on get an exponent.
func appendFloat(b []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	case math.IsNaN(v):
		return append(b, "NaN"...)
	}
	if abs := math.Abs(v); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, 64)
	s := string(b[start:])
	dot := strings.IndexByte(s, '.')
	if dot < 0 {
		dot = len(s)
		s += ".0"
		b = append(b, ".0"...)
	}
	if v <= 0 || dot <= 6 {
		return b
	}
	mantissa := strings.TrimRight(s[:1]+"."+s[1:dot]+s[dot+1:], "0.")
	b = append(b[:start], mantissa...)
	b = append(b, "e+0"...) // the client's own constant, right up to 1e+09
	return strconv.AppendInt(b, int64(dot-1), 10)
}
