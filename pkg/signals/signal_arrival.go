package signals

import (
	"fmt"

	"github.com/inference-metrics/adapter/internal/window"
)

var arrivalRate = definition{
	name: "arrival_rate",
	unit: "requests/s",
	help: "Requests that arrived per second of the window, also those that still wait, and those that were turned away: the load that is offered, however much of it is served.",
	formula: "Δ arrived / window where it is counted. Otherwise (max(Δ first tokens, Δ finished + Δ running) + Δ queue + Δ rejected) / window, each engine of a pod by itself. " +
		"That is a lower bound: who gives up in the queue leaves no trace. A request that runs without a first token is seen at the latest as that comes; while requests are preempted it is an estimate, as they are queued again",
	needs: []Canonical{Arrived},
	or:    [][]Canonical{{TTFT, Queue}},
	reads: []Canonical{Queue, Running, KVUsed, Generated, Finished, Rejected, Preemptions},
	says: map[State]string{
		Stalled: "what came as a lower bound, where the queue is still seen to grow; otherwise no value, as a rate that sinks to 0 would scale the engine in",
	},
	eval:     evalArrivalRate,
	merge:    added,
	roles:    decodeRole, // every request gets there, if late while prefill is behind; not every one needs prefill elsewhere
	overload: "rises with the load, without limit",
	target:   "Object, AverageValue: the requests per second that a replica sustains within its objectives; it knows nothing of how long they are",
}

func evalArrivalRate(r *replica, _ args) Measure {
	if r.engine.has([]Canonical{Arrived}) {
		return r.arrived()
	}
	return r.arrivals()
}

// arrived is the rate where arrivals are counted. Whoever counts them does so whether the engine makes
// progress or not, so that without growth nobody came.
func (r *replica) arrived() Measure {
	st, reason := r.get(Arrived)
	if reason != "" {
		return unknown(reason)
	}
	_, perSecond, _, ok := st.increase()
	if !ok {
		return unknown(st.tooFew())
	}
	out := Measure{Result: Result{State: Value, HasValue: true, Time: readAt(st), Window: st.window}}
	if perSecond == 0 {
		return r.noneCounted(st, func(w work) bool { return w.waiting > 0 })
	}
	return out.with(perSecond)
}

// arrivals is the rate as what became of those who arrived shows it. They wait; or they had their first
// token; or they run without one, and then those that run are more than before, or one has finished.
func (r *replica) arrivals() Measure {
	ttft, reason := r.get(TTFT)
	if reason != "" {
		return unknown(reason)
	}
	queue, reason := r.get(Queue)
	if reason != "" {
		return unknown(reason)
	}
	var total float64
	var alive [][]window.Sample // what shows that the engine is: first tokens, and changes of the queue
	for _, joint := range ttft.joints() {
		first, queued := ttft.joint(joint), queue.joint(joint)
		if len(queued) == 0 && !queue.absent {
			return unknown(fmt.Sprintf("%s is missing for a part of the replica", queue.name))
		}
		from, until := first[0].newest-ttft.window.Milliseconds(), first[0].newest
		for _, q := range queued {
			until = min(until, q.newest)
			alive = append(alive, q.series...)
		}
		for _, p := range first[1:] {
			until = min(until, p.newest)
		}
		var firsts [][]window.Sample
		for _, p := range first {
			firsts = append(firsts, between(countOf(p.buckets), from, until))
			alive = append(alive, countOf(p.buckets))
		}
		came, ok := r.arrivalsOf(joint, queue, firsts)
		if !ok {
			return unknown(ttft.tooFew())
		}
		total += came
	}
	out := Measure{Result: Result{State: Value, HasValue: true, LowerBound: true, Time: readAt(ttft, queue), Window: ttft.window}}
	if st, reason := r.get(Preemptions); reason == "" {
		preempted, _, _, ok := st.increase()
		out.LowerBound = ok && preempted == 0
	}
	if st, reason := r.get(Rejected); reason == "" {
		_, rejected, _, ok := st.increase()
		if !ok {
			return unknown(st.tooFew())
		}
		total += rejected
	}

	// An engine that hangs does not update its gauges: with every scrape less of the window would be of
	// the time before. Where the queue is seen to grow all the same, they say what came.
	if stuck, is := r.stuck(ttft); is {
		for _, p := range queue.parts {
			for _, samples := range p.series {
				if lastRise(samples) > p.newest-queue.freshFor().Milliseconds() && total > 0 {
					stuck.HasValue, stuck.LowerBound, stuck.Value = true, true, total
				}
			}
		}
		return stuck
	}
	if total == 0 {
		if w := r.work(); w.unknown == "" && w.waiting == 0 && r.peak(Queue, queue) > 0 {
			return unknown(fmt.Sprintf("requests left the queue in the window of %s without a first token: how many came meanwhile is not known", ttft.window))
		}
		return r.noneCounted(ttft, func(w work) bool { return w.waiting > 0 })
	}
	if reason := r.resumed(ttft, alive...); reason != "" {
		return unknown(reason)
	}
	out.Value = total
	return out
}

// arrivalsOf is a lower bound on the arrivals per second in a part, over the samples of its counts of
// first tokens.
func (r *replica) arrivalsOf(joint string, queue *stat, firsts [][]window.Sample) (perSecond float64, ok bool) {
	var tokens float64
	for _, samples := range firsts {
		d, ok := window.Increase(samples)
		if !ok {
			return 0, false
		}
		tokens += d
	}
	counter := firsts[0]
	from, until := counter[0].T, counter[len(counter)-1].T
	queued := queue.risenBy(joint, counter)
	var known float64 // without a look at first tokens
	if running, reason := r.get(Running); reason == "" {
		known = running.risenBy(joint, counter)
	}
	if finished, reason := r.get(Finished); reason == "" {
		for _, p := range finished.joint(joint) {
			for _, samples := range p.series {
				if d, ok := window.Increase(between(samples, from, until)); ok {
					known += d
				}
			}
		}
	}
	return max(0, max(tokens, known)+queued) / seconds(counter), true
}

// risenBy is how much the gauges of some parts are higher at the last of the samples of a counter than at
// the first. What they held before a restart of it is gone.
func (st *stat) risenBy(joint string, counter []window.Sample) float64 {
	var sum float64
	for _, p := range st.joint(joint) {
		for _, samples := range p.series {
			at := func(i int) float64 { return valueAt(samples, counter[i].T) }
			sum += at(len(counter)-1) - at(0)
			for i := 1; i < len(counter); i++ {
				if counter[i].V < counter[i-1].V {
					sum += at(i - 1)
				}
			}
		}
	}
	return sum
}

// between returns the samples from a time on, and not after another.
func between(samples []window.Sample, from, until int64) []window.Sample {
	samples = window.Since(samples, from)
	return samples[:len(samples)-len(window.Since(samples, until+1))]
}
