package engine

import (
	"math"
	"slices"
	"strings"
)

// Pool is an InferencePool as its endpoint picker sees it. The picker is a process of its own: its
// counters outlive the servers behind it.
type Pool struct {
	Name      string
	ModelName string
	// Held is how many requests the picker's flow control holds back now.
	Held int

	lost *Engine // the counters of engines that are gone
}

// PoolMember is a server of the pool.
type PoolMember struct {
	Pod     string
	Engines []*Engine
	// Stale is a server whose metrics the picker has not been able to read lately.
	Stale bool
}

// Lose keeps what the engines counted, when their process ends. What is in flight on them is lost.
func (p *Pool) Lose(engines []*Engine) {
	for _, e := range engines {
		if p.lost == nil {
			p.lost = &Engine{cfg: e.cfg, metrics: newMetrics(e.cfg)}
		}
		p.lost.stats.Submitted += e.stats.Submitted
		p.lost.stats.Rejected += e.stats.Rejected
		p.lost.stats.Aborted += e.stats.Aborted + len(e.inFlight)
		into, from := p.lost.metrics.histograms(), e.metrics.histograms()
		for i := range into {
			into[i].merge(from[i])
		}
	}
}

// Thresholds of the picker's saturation detector, its defaults.
const (
	saturatedQueue = 5
	saturatedKV    = 0.8
)

// Saturation is how full the picker counts the pool: one without members is full, and so is a member
// that is stale.
func Saturation(members []PoolMember) float64 {
	if len(members) == 0 {
		return 1
	}
	s := 0.0
	for _, m := range members {
		if m.Stale {
			s++
			continue
		}
		s += max(waiting(m.Engines)/saturatedQueue, kvUsage(m.Engines)/saturatedKV)
	}
	return s / float64(len(members))
}

// AppendPicker appends to b what the pool's endpoint picker serves on :9090. Requests are told of as
// the picker sees them, all of them streamed and of one flow with priority 0. Most families are there
// twice, under their name and the one before.
//
// Names, HELP and buckets are those of mid-2026; a label or two, and the names of the deviations,
// are inferred. The averages are over the members alone. With none there is no average (a real
// picker's keeps its last value), and the pool counts as saturated.
func AppendPicker(b []byte, p *Pool, members []PoolMember) []byte {
	w := &writer{b: b, client: goClient}
	var alive view
	var endpoints []series
	for _, m := range members {
		alive = append(alive, m.Engines...)
		endpoints = append(endpoints, series{labels: []string{"name", p.Name, "model_server_endpoint", m.Pod}, view: m.Engines})
	}
	ever := alive
	if p.lost != nil {
		ever = append(ever[:len(ever):len(ever)], p.lost)
	}
	mean := func(f func(view) float64) func(view) float64 {
		return func(view) float64 { m, _ := moments(members, f); return m }
	}
	deviation := func(f func(view) float64) func(view) float64 {
		return func(view) float64 { _, d := moments(members, f); return d }
	}
	stale := func(view) float64 {
		n := 0.0
		for _, m := range members {
			if m.Stale {
				n++
			}
		}
		return n
	}
	inFlight := count(func(e *Engine) int { return len(e.inFlight) })
	offered := count(func(e *Engine) int { return e.stats.Submitted + e.stats.Rejected })

	pool := []series{{labels: []string{"name", p.Name}, view: alive}}
	inferencePool := []series{{labels: []string{"inference_pool", p.Name}, view: alive}}
	model := []string{"model_name", p.ModelName, "target_model_name", p.ModelName}
	requests := []series{{labels: model, view: ever}}
	flow := []series{{labels: append(model[:4:4], "fairness_id", "default-flow", "priority", "0"), view: ever}}
	flowPool := []series{{labels: append(flow[0].labels[:8:8], "inference_pool", p.Name), view: alive}}
	some := func(view) bool { return len(members) > 0 }
	used := func(view) bool { return p.Held > 0 || offered(ever) > 0 }

	type family struct {
		metric
		on []series
		// twin is the deprecated name, on the series of twinOn if those have other labels.
		twin   string
		twinOn []series
	}
	fs := []family{
		{gauge("average_kv_cache_utilization", "The average kv cache utilization for an inference server pool.",
			mean(kvUsage)).after(some), pool, "inference_pool_average_kv_cache_utilization", nil},
		{gauge("average_queue_size", "The average number of requests pending in the model server queue.",
			mean(waiting)).after(some), pool, "inference_pool_average_queue_size", nil},
		{gauge("average_running_requests", "The average number of running requests across model servers in the pool.",
			mean(running)).after(some), pool, "inference_pool_average_running_requests", nil},
		{gauge("std_dev_kv_cache_utilization", "The standard deviation of the kv cache utilization across model servers in the pool.",
			deviation(kvUsage)).after(some), pool, "", nil},
		{gauge("std_dev_queue_size", "The standard deviation of the queue size across model servers in the pool.",
			deviation(waiting)).after(some), pool, "", nil},
		{gauge("std_dev_running_requests", "The standard deviation of running requests across model servers in the pool.",
			deviation(running)).after(some), pool, "", nil},
		{gauge("ready_endpoints", "The number of ready endpoints in the inference server pool.",
			constant(float64(len(members)))), pool, "inference_pool_ready_pods", nil},
		{gauge("stale_endpoints", "The number of endpoints with stale metrics in the inference server pool.", stale), pool, "", nil},
		{gauge("per_endpoint_queue_size", "The total number of requests pending in the model server queue for each underlying endpoint.",
			waiting), endpoints, "inference_pool_per_pod_queue_size", renamed(endpoints, "model_server_endpoint", "model_server_pod")},
		{gauge("running_requests", "Inference objective number of running requests in each model.", inFlight).after(used),
			[]series{{labels: []string{"model_name", p.ModelName}, view: alive}}, "inference_objective_running_requests", nil},
		{counter("request_total", "Counter of inference objective requests broken out for each model and target model.",
			offered).after(used), flow, "inference_objective_request_total", without(flow, "fairness_id")},
		{counter("request_error_total", "Counter of inference objective requests errors broken out for each model and target model.",
			rejected).with("error_code", "429").afterFirst(), requests, "inference_objective_request_error_total", nil},
		{hist("request_duration_seconds", "Inference objective response latency distribution in seconds for each model and target model.",
			pickerRequestEdges, e2eOf).afterFirst(), flow, "inference_objective_request_duration_seconds", requests},
		{hist("normalized_time_per_output_token_seconds", "Inference objective latency divided by number of output tokens in seconds for each model and target model.",
			pickerNormalizedEdges, func(m *metrics) *histogram { return &m.normalizedPerToken }).afterFirst(), flow,
			"inference_objective_normalized_time_per_output_token_seconds", requests},
		{hist("request_input_tokens", "Inference objective input token count distribution for requests in each model.",
			pickerInputEdges, promptOf).afterFirst(), flow, "inference_objective_input_tokens", requests},
		{hist("request_output_tokens", "Inference objective output token count distribution for requests in each model.",
			pickerOutputEdges, generationOf).afterFirst(), flow, "inference_objective_output_tokens", requests},
		{hist("request_ttft_seconds", "Time to first token in seconds, measured from request received to first response byte. "+
			"For non-streaming requests, this equals total request duration.", pickerFirstTokenEdges, ttftOf).
			with("streaming", "true").afterFirst(), flow, "", nil},
		// An output of one token has no time per token.
		{hist("request_streaming_tpot_seconds", "Average time per output token in seconds for streaming requests, "+
			"computed as (e2e - TTFT) / (output_tokens - 1).", pickerTPOTEdges,
			func(m *metrics) *histogram { return &m.timePerLaterToken }).afterFirst(), flow, "", nil},
		{hist("request_streaming_itl_seconds", "Inter-token latency in seconds for streaming requests, measured as the time "+
			"between consecutive response body chunks.", pickerTokenTimeEdges, itlOf).afterFirst(), flow, "", nil},
		{gauge("flow_control_pool_saturation", "Current saturation level of the inference pool (0.0 = empty, 1.0 = fully saturated).",
			constant(Saturation(members))), inferencePool, "inference_extension_flow_control_pool_saturation", nil},
		{gauge("flow_control_queue_size", "Current number of requests actively held in the Flow Control queue.", constant(float64(p.Held))).after(used),
			flowPool, "inference_extension_flow_control_queue_size", nil},
		{counter("flow_control_requests_total", "Total number of requests that left the Flow Control layer, by outcome.", offered).
			with("outcome", "Dispatched").afterFirst(), []series{{labels: flowPool[0].labels, view: ever}}, "", nil},
	}
	var all []family
	for _, f := range fs {
		name := "llm_d_epp_" + f.name
		if f.twin != "" {
			old := f
			old.name, old.help = f.twin, "[ALPHA] [Deprecated: Use "+name+"] "+f.help
			if f.twinOn != nil {
				old.on = f.twinOn
			}
			all = append(all, old)
		}
		f.name, f.help = name, "[ALPHA] "+f.help
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b family) int { return strings.Compare(a.name, b.name) })
	for _, f := range all {
		w.write(f.on, f.metric)
	}
	return w.b
}

// moments are the mean and the standard deviation of a value over the pool's members.
func moments(members []PoolMember, f func(view) float64) (mean, deviation float64) {
	n := float64(len(members))
	for _, m := range members {
		mean += f(m.Engines) / n
	}
	for _, m := range members {
		d := f(m.Engines) - mean
		deviation += d * d / n
	}
	return mean, math.Sqrt(deviation)
}

// renamed are the series with one label called otherwise.
func renamed(all []series, label, as string) []series {
	out := slices.Clone(all)
	for i := range out {
		out[i].labels = slices.Clone(out[i].labels)
		out[i].labels[slices.Index(out[i].labels, label)] = as
	}
	return out
}

// without are the series less one label.
func without(all []series, label string) []series {
	out := slices.Clone(all)
	for i := range out {
		at := slices.Index(out[i].labels, label)
		out[i].labels = slices.Delete(slices.Clone(out[i].labels), at, at+2)
	}
	return out
}
