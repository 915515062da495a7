package signals

import (
	"fmt"
	"slices"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// Rates of counters over the window.

var requestRate = definition{
	name:     "request_rate",
	unit:     "requests/s",
	help:     "Requests finished per second of the window, for whatever reason they finished.",
	formula:  "Δ finished / window; aborts by the client are not in it where the engine does not count them",
	needs:    []Canonical{Finished},
	reads:    []Canonical{Queue, Running, Generated},
	eval:     rateOf(Finished, func(w work) bool { return w.waiting > 0 || w.running > 0 }),
	merge:    added,
	roles:    decodeRole,
	overload: "rises to the capacity and stops there",
	target:   "no: it cannot rise above what the replicas can do",
}

var promptTokensRate = definition{
	name:     "prompt_tokens_rate",
	unit:     "tokens/s",
	help:     "Prompt tokens per second of the window, cached or not, counted as their prefill completes.",
	formula:  "Δ prompt / window",
	needs:    []Canonical{Prompt},
	reads:    []Canonical{Queue, Running, Generated},
	eval:     rateOf(Prompt, func(w work) bool { return w.waiting > 0 }),
	merge:    added,
	roles:    prefillRole,
	overload: "rises to the capacity and stops there",
	target:   "no: it cannot rise above what the replicas can do",
}

var generationTokensRate = definition{
	name:     "generation_tokens_rate",
	unit:     "tokens/s",
	help:     "Output tokens per second of the window.",
	formula:  "Δ generated / window",
	needs:    []Canonical{Generated},
	reads:    []Canonical{Queue, Running},
	eval:     rateOf(Generated, func(w work) bool { return w.waiting > 0 || w.running > 0 }),
	merge:    added,
	roles:    decodeRole,
	overload: "rises to the capacity and stops there; falls as prefill takes its place",
	target:   "with care: as the throughput that a replica sustains within its objectives",
}

var preemptionRate = definition{
	name:     "preemption_rate",
	unit:     "preemptions/s",
	help:     "Running requests put back per second of the window, as the KV cache had no block left for them.",
	formula:  "Δ preemptions / window",
	needs:    []Canonical{Preemptions},
	reads:    []Canonical{Queue, Running, Generated},
	eval:     rateOf(Preemptions, func(work) bool { return false }),
	merge:    added,
	overload: "rises from 0 where the cache is what is short",
	target:   "no: for alerts; it is 0 with enough replicas, and with far too many",
}

// rateOf is the growth of a counter per second. waits says what work it is that the counter must
// count for; while there is such work and nothing is counted, the rate is not known to be 0.
func rateOf(c Canonical, waits func(work) bool) func(*replica, args) Measure {
	return func(r *replica, _ args) Measure {
		st, reason := r.get(c)
		if reason != "" {
			return unknown(reason)
		}
		if out, stuck := r.stuck(st); stuck {
			return out
		}
		delta, perSecond, counters, ok := st.increase()
		if !ok {
			return unknown(st.tooFew())
		}
		if delta == 0 {
			// The evaluation is shared by all queries: what holds for one of them must not stay.
			waited := waits
			if r.chosen(c) {
				waited = func(work) bool { return false }
			}
			return r.noneCounted(st, waited)
		}
		if reason := r.resumed(st, counters...); reason != "" {
			return unknown(reason)
		}
		return Measure{Result: Result{State: Value, HasValue: true, Value: perSecond, Time: readAt(st), Window: st.window}}
	}
}

// chosen reports whether the query takes some of what a counter tells apart: that none of it is counted
// is a finding as long as tokens come, whoever is in the engine.
func (r *replica) chosen(c Canonical) bool {
	_, reason := r.get(Generated)
	return reason == "" && slices.ContainsFunc(r.keys, func(k string) bool { return slices.Contains(r.engine.series[c].within, k) })
}

// increase is how much the counters grew in the window, and how fast.
func (st *stat) increase() (delta, perSecond float64, counters [][]window.Sample, ok bool) {
	for _, p := range st.parts {
		for _, samples := range p.series {
			counters = append(counters, samples)
			samples = window.Since(samples, p.newest-st.window.Milliseconds())
			d, ok := window.Increase(samples)
			if !ok {
				return 0, 0, nil, false
			}
			delta += d
			perSecond += d / seconds(samples)
		}
	}
	return delta, perSecond, counters, true
}

func (st *stat) tooFew() string {
	return fmt.Sprintf("%s has not been read twice in the window of %s yet", st.name, st.window)
}

func seconds(samples []window.Sample) float64 {
	return float64(samples[len(samples)-1].T-samples[0].T) / 1000
}

// stuck answers a rate while no token is generated though requests are there: without a value, as
// with every scrape less of the window would be of the time before.
func (r *replica) stuck(st *stat) (Measure, bool) {
	stalled := r.withoutToken()
	if stalled <= st.freshFor() {
		return Measure{}, false
	}
	return Measure{Result: Result{
		State:  Stalled,
		Time:   readAt(st),
		Window: st.window,
		Reason: fmt.Sprintf("no token for %s with %s", stalled.Round(time.Second), r.work()),
	}}, true
}

// nothingFinished answers a rate of finished requests of which there was none.
func (r *replica) nothingFinished(st *stat) Measure {
	return r.noneCounted(st, func(w work) bool { return w.waiting > 0 || w.running > 0 })
}

// noneCounted answers a rate of what did not happen. With nothing to do that is a rate of 0. With work
// it must be counted for it says nothing: that may be long, or the engine may hang, and a 0 would scale
// it down.
func (r *replica) noneCounted(st *stat, waits func(work) bool) Measure {
	w := r.work()
	out := Measure{Result: Result{State: Idle, HasValue: true, Time: readAt(st), Window: st.window}}
	switch {
	case w.unknown != "":
		return unknown(fmt.Sprintf("%s did not grow in the window, and whether any request is in the engine is not known: %s", st.name, w.unknown))
	case waits(w):
		out.State, out.HasValue = Stalled, false
		out.Reason = fmt.Sprintf("%s did not grow for %s with %s", st.name, st.window.Round(time.Second), w)
	case !w.none():
		out.State = Value
	}
	return out
}
