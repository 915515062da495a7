package signals

import (
	"fmt"
	"time"
)

// Gauges of load: what the engine holds right now.

var queueDepth = definition{
	name:  "queue_depth",
	unit:  "requests",
	help:  "Requests waiting to be scheduled, summed over the engines of the pod.",
	needs: []Canonical{Queue},
	reads: []Canonical{Running, Generated},
	eval:  levelOf(Queue),
}

var runningRequests = definition{
	name:  "running_requests",
	unit:  "requests",
	help:  "Requests in the running batch, summed over the engines of the pod.",
	needs: []Canonical{Running},
	reads: []Canonical{Queue, Generated},
	eval:  levelOf(Running),
}

var inflightRequests = definition{
	name:  "inflight_requests",
	unit:  "requests",
	help:  "Requests waiting and running, summed over the engines of the pod.",
	needs: []Canonical{Queue, Running},
	reads: []Canonical{Generated},
	eval:  levelOf(Queue, Running),
}

var kvCacheUsage = definition{
	name:  "kv_cache_usage",
	unit:  "0..1",
	help:  "Allocated part of the KV cache's blocks, over the engines of the pod.",
	needs: []Canonical{KVUsed},
	reads: []Canonical{Queue, Running, Generated},
	eval:  levelOf(KVUsed),
}

var gpuUtilization = definition{
	name:  "gpu_utilization",
	unit:  "0..1",
	help:  "Duty cycle of the pod's GPUs: the part of the time in which some kernel ran, however little it did. It does not follow the load; it is served to be compared with.",
	needs: []Canonical{GPUBusy},
	eval:  levelOf(GPUBusy),
}

// levelOf adds up gauges. Requests that wait or run without any token being generated make them
// lower bounds, as the engine updates its gauges only when it makes a step.
//
// A gauge that comes and goes is 0 at any instant, and only because an HPA remembers its
// recommendations it does not follow each of them. After an outage it may remember none: for the
// time of a window the gauge then answers its highest value in it.
func levelOf(cs ...Canonical) func(*Replica, Params) Result {
	return func(r *Replica, _ Params) Result {
		var sum float64
		var stats []*stat
		var described time.Duration
		for _, c := range cs {
			st, reason := r.get(c)
			if reason != "" {
				return unknown(reason)
			}
			stats = append(stats, st)
			if st.regained {
				sum += r.peak(c, st)
				described = max(described, st.window)
			} else {
				sum += r.level(c, st)
			}
		}
		out := Result{State: Value, HasValue: true, Value: sum, Time: readAt(stats...), Window: described}
		stalled := r.withoutToken()
		switch {
		case stalled > stats[0].freshFor():
			out.State = Stalled
			out.Reason = fmt.Sprintf("no token for %s with %s: a lower bound", stalled.Round(time.Second), r.work())
		case sum == 0:
			out.State = Idle
		}
		return out
	}
}
