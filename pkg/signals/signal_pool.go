package signals

import (
	"fmt"
	"slices"

	"github.com/inference-metrics/adapter/internal/window"
)

// What the gateway's endpoint picker says of an InferencePool.

var poolQueueDepth = definition{
	name: "pool_queue_depth",
	unit: "requests",
	help: "Requests that wait, of those that came to the gateway for the InferencePool: held back by it, or waiting in one of the pool's replicas.",
	formula: "pool_held + pool_queue: what flow control holds, over all flows and pickers, and the waiting requests of the pool's replicas, as the picker saw them last; " +
		"without flow control the gateway holds none. A pool without replicas has what is held",
	needs:    []Canonical{PoolHeld, PoolQueue},
	reads:    []Canonical{PoolReady, PoolLeft},
	whole:    true,
	eval:     levelOf(PoolHeld, PoolQueue),
	overload: "rises without limit: it adds up what arrives too much",
	target:   "Object, AverageValue; with flow control it scales from zero, as requests are held while there is no replica",
}

var poolHeldRequests = definition{
	name:     "pool_held_requests",
	unit:     "requests",
	help:     "Requests that the gateway holds back in front of the InferencePool, as it is saturated or has no replica.",
	formula:  "pool_held; with priority=… or fairness_id=… only those of such flows. 0 without flow control",
	needs:    []Canonical{PoolHeld},
	reads:    []Canonical{PoolReady, PoolLeft},
	eval:     levelOf(PoolHeld),
	overload: "rises without limit, once the pool is saturated",
	target:   "Object, AverageValue; pair it with pool_saturation or in-flight requests, as it is 0 until the pool is full",
}

var poolArrivalRate = definition{
	name:     "pool_arrival_rate",
	unit:     "requests/s",
	help:     "Requests per second of the window that came to the gateway for the InferencePool, whatever became of them. Only a gateway with flow control counts them.",
	formula:  "(Δ pool_left + growth of pool_held) / window, at least 0",
	needs:    []Canonical{PoolLeft, PoolHeld},
	reads:    []Canonical{PoolReady},
	whole:    true,
	eval:     evalPoolArrivalRate,
	overload: "follows the load, and no limit of the pool",
	target:   "Object, AverageValue, as the rate that a replica sustains within its objectives",
}

var poolSaturation = definition{
	name: "pool_saturation",
	unit: "1 is full",
	help: "How full the InferencePool is, as the gateway's flow control sees it; it dispatches nothing from 1 on, and above 1 the pool is overfull.",
	formula: "greatest pool_saturation of the pickers that see a replica; with stage=prefill or stage=decode that of the stage. By the picker's default the mean over the replicas of " +
		"max(queue / 5, kv / 0.8), where one of which it has no fresh metrics counts as full. " +
		"That of an empty pool, which the picker sets to 1, is no measure, and unknown",
	needs:    []Canonical{PoolSaturation, PoolReady},
	eval:     evalPoolSaturation,
	overload: "rises; with flow control it stays near 1, as the rest is held",
	target:   "Object, Value, below 1; pair it with pool_held_requests, as it does not rise further while requests are held",
}

// evalPoolSaturation leaves out pickers that see no replica. These answer 1, be it that the pool is empty,
// which is no load, or that they are standbys that know nothing of it.
func evalPoolSaturation(r *replica, _ args) Measure {
	st, reason := r.get(PoolSaturation)
	if reason != "" {
		return unknown(reason)
	}
	ready, reason := r.get(PoolReady)
	if reason != "" {
		return unknown(reason)
	}
	seen := *st
	seen.parts = nil
	for _, p := range st.parts {
		for _, rp := range ready.joint(p.joint) {
			if s := rp.series[0]; s[len(s)-1].V > 0 {
				seen.parts = append(seen.parts, p)
				break
			}
		}
	}
	if len(seen.parts) == 0 {
		return unknown("the gateway has fresh metrics of no replica of the pool: it then counts the pool as saturated, which is no measure of load")
	}
	out := Measure{Result: Result{State: Value, HasValue: true, Time: readAt(&seen, ready)}}
	if seen.regained {
		out.Window = seen.window
		return out.with(r.peak(PoolSaturation, &seen))
	}
	return out.with(r.level(PoolSaturation, &seen))
}

// evalPoolArrivalRate adds the growth of what is held to what left: while requests are held those that
// leave are the capacity, and not the load.
func evalPoolArrivalRate(r *replica, _ args) Measure {
	left, reason := r.get(PoolLeft)
	if reason != "" {
		return unknown(reason)
	}
	held, reason := r.get(PoolHeld)
	if reason != "" {
		return unknown(reason)
	}
	_, perSecond, _, ok := left.increase()
	switch {
	case !ok:
		return unknown(left.tooFew())
	case left.short != "":
		return unknown(left.short)
	}
	perSecond = max(0, perSecond+r.heldGrowth(held, left))
	out := Measure{Result: Result{State: Value, HasValue: true, Value: perSecond, Time: readAt(left, held), Window: left.window}}
	if perSecond > 0 {
		return out
	}
	// Nothing came and nothing left. With requests that are held this is a pool that is stuck, and a rate of
	// 0 would scale it in.
	if n := r.level(PoolHeld, held); n > 0 {
		out.State, out.HasValue = Stalled, false
		out.Reason = fmt.Sprintf("%g requests are held, and none left for %s", n, left.window)
		return out
	}
	out.State = Idle
	return out
}

// heldGrowth is by how much what is held grew in the window, per second. A flow that came up in it, after
// its picker was read already, was 0 before. What a picker held as it restarted did not leave: it is gone,
// and had come all the same.
func (r *replica) heldGrowth(held, left *stat) float64 {
	ready, _ := r.get(PoolReady)
	var sum float64
	for _, p := range held.parts {
		since := p.newest - held.window.Milliseconds()
		read := p.newest
		for _, rp := range ready.joint(p.joint) {
			read = rp.series[0][0].T
		}
		restarts := left.restarts(p.joint, since)
		for _, samples := range p.series {
			in := window.Since(samples, since)
			sum += in[len(in)-1].V
			if began := samples[0].T; began < since || began-max(read, since) <= held.interval.Milliseconds() {
				sum -= in[0].V
			}
			for _, before := range restarts {
				if before >= in[0].T {
					sum += valueAt(in, before)
				}
			}
		}
	}
	return sum / held.window.Seconds()
}

// restarts are the last readings before the counters of some parts fell, each since a time.
func (st *stat) restarts(joint string, since int64) []int64 {
	var out []int64
	for _, p := range st.joint(joint) {
		for _, samples := range p.series {
			in := window.Since(samples, since)
			for i := 1; i < len(in); i++ {
				if in[i].V < in[i-1].V {
					out = append(out, in[i-1].T)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out) // all counters of a target are read at once
}
