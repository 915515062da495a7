package signals

import (
	"fmt"
	"slices"
	"time"
)

// Gauges of load: what the engine holds right now.

var queueDepth = definition{
	name:     "queue_depth",
	unit:     "requests",
	help:     "Requests waiting to be scheduled, summed over the engines of the pod.",
	formula:  "Σ queue; with reason=… only those that wait for that, where the engine says so",
	needs:    []Canonical{Queue},
	reads:    []Canonical{Running, KVUsed, Generated},
	by:       map[string]Canonical{"reason": QueueByReason},
	eval:     levelOf(Queue),
	merge:    added,
	overload: "rises without limit: it adds up what arrives too much",
	target:   "Pods or Object, AverageValue; pair it with in-flight or KV cache, as it is 0 at just enough replicas",
}

var runningRequests = definition{
	name:     "running_requests",
	unit:     "requests",
	help:     "Requests in the running batch, summed over the engines of the pod.",
	formula:  "Σ running",
	needs:    []Canonical{Running},
	reads:    []Canonical{Queue, KVUsed, Generated},
	eval:     levelOf(Running),
	merge:    added,
	overload: "rises, and stops at the size of the batch",
	target:   "not alone: it never exceeds the size of the batch, so a target near it is never reached",
}

var inflightRequests = definition{
	name:     "inflight_requests",
	unit:     "requests",
	help:     "Requests waiting and running, summed over the engines of the pod.",
	formula:  "Σ queue + Σ running",
	needs:    []Canonical{Queue, Running},
	reads:    []Canonical{KVUsed, Generated},
	eval:     levelOf(Queue, Running),
	merge:    added,
	overload: "rises without limit",
	target:   "Pods or Object, AverageValue; the right value depends on the mix of requests",
}

var kvCacheUsage = definition{
	name:     "kv_cache_usage",
	unit:     "0..1",
	help:     "Allocated part of the KV cache's blocks, over the engines of the pod.",
	formula:  "mean of kv_used over the engines of a pod; over pods weighted by kv_capacity where all export it",
	needs:    []Canonical{KVUsed},
	reads:    []Canonical{KVCapacity, Queue, Running, Generated},
	eval:     evalKVCacheUsage,
	merge:    averaged,
	overload: "rises to 1 and stops there",
	target:   "Pods, AverageValue (for decode); it does not rise where the batch is full before the cache is",
}

var kvCacheTokensFree = definition{
	name:     "kv_cache_tokens_free",
	unit:     "tokens",
	help:     "Tokens that the KV cache has room for besides those of the requests in it.",
	formula:  "kv_capacity · (1 − kv_used)",
	needs:    []Canonical{KVCapacity, KVUsed},
	reads:    []Canonical{Queue, Running, Generated},
	eval:     evalKVCacheTokensFree,
	merge:    addedOnly,
	says:     map[State]string{Idle: "does not occur: what is free is a value", Stalled: "what the engine last said"},
	overload: "falls to 0",
	target:   "no: it falls as load rises, and an HPA would scale in",
}

var saturation = definition{
	name:     "saturation",
	unit:     "1 is full",
	help:     "How full the pod is, as the gateway's endpoint picker sees it: by its queue or by its KV cache, whichever is more; above 1 it is overfull.",
	formula:  "max(queue / saturation.queue, kv_used / saturation.kv), with 5 requests and 0.8 unless configured; over pods their mean. Gateway API Inference Extension, utilization detector",
	needs:    []Canonical{Queue, KVUsed},
	reads:    []Canonical{Running, Generated},
	eval:     evalSaturation,
	merge:    averaged,
	overload: "rises; its queue arm without limit, its KV arm to 1.25",
	target:   "better for shedding than for scaling: one arm clips, the other adds up",
}

// levelOf adds up gauges. Requests that wait or run without any token being generated make them
// lower bounds, as the engine updates its gauges only when it makes a step.
//
// A gauge that comes and goes is 0 at any instant, and only because an HPA remembers its
// recommendations it does not follow each of them. After an outage it may remember none: for the
// time of a window the gauge then answers its highest value in it.
func levelOf(cs ...Canonical) func(*replica, args) Measure {
	return func(r *replica, _ args) Measure {
		var sum float64
		levels, out := r.levels(cs...)
		for _, v := range levels {
			sum += v
		}
		return out.with(sum)
	}
}

// levels reads gauges that are to be made one: a value for each, and the Measure that they go into.
func (r *replica) levels(cs ...Canonical) ([]float64, Measure) {
	levels := make([]float64, len(cs))
	var stats []*stat
	var described time.Duration
	for i, c := range cs {
		c = r.of(c)
		st, reason := r.get(c)
		if reason != "" {
			return levels, unknown(reason)
		}
		stats = append(stats, st)
		if st.regained {
			levels[i] = r.peak(c, st)
			described = max(described, st.window)
		} else {
			levels[i] = r.level(c, st)
		}
	}
	if slices.Max(levels) == 0 {
		for _, st := range stats {
			if st.short != "" {
				return levels, unknown(st.short)
			}
		}
		if reason := r.prefilling(); reason != "" {
			return levels, unknown(reason)
		}
	}
	out := Measure{Result: Result{State: Value, HasValue: true, Time: readAt(stats...), Window: described}}
	if stalled := r.withoutToken(); stalled > stats[0].freshFor() {
		out.State, out.LowerBound = Stalled, true
		out.Reason = fmt.Sprintf("no token for %s with %s", stalled.Round(time.Second), r.work())
	}
	return levels, out
}

// with gives a Measure its value. A 0 is idleness; but of an engine that makes no progress it is one
// that nobody has looked at since, and no value.
func (m Measure) with(v float64) Measure {
	if !m.HasValue {
		return m
	}
	if v == 0 && m.State == Stalled {
		m.HasValue, m.LowerBound = false, false
		return m
	}
	m.Value, m.sum, m.weight = v, v, 1
	if v == 0 && m.State == Value {
		m.State = Idle
	}
	return m
}

func evalKVCacheUsage(r *replica, _ args) Measure {
	levels, out := r.levels(KVUsed)
	out = out.with(levels[0])
	out.weight = 0
	if capacity, reason := r.get(KVCapacity); reason == "" {
		out.weight = r.level(KVCapacity, capacity)
		out.sum = out.Value * out.weight
	}
	return out
}

// evalKVCacheTokensFree does not take a cache without requests for idle: what is free is a value.
func evalKVCacheTokensFree(r *replica, _ args) Measure {
	levels, out := r.levels(KVCapacity, KVUsed)
	if !out.HasValue {
		return out
	}
	out.Value = levels[0] * (1 - min(1, levels[1]))
	out.LowerBound = false
	return out
}

func evalSaturation(r *replica, p args) Measure {
	levels, out := r.levels(Queue, KVUsed)
	return out.with(max(levels[0]/p.Full.Queue, levels[1]/p.Full.KV))
}
