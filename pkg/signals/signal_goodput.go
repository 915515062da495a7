package signals

import (
	"fmt"
	"math"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// Goodput is the rate of requests that met every objective. Engines export one histogram for each
// objective, so for every objective the number of requests that met it is known, but not how many
// met all of them. That number is bounded: at worst the misses are all different requests, at
// best they are the same ones. With N finished requests of which A_i met objective i,
//
//	max(0, N - Σ(N - A_i))  <=  good  <=  min(A_i)
//
// (Fréchet's inequalities). Both bounds are taken for each part of the replica and then added,
// which only tightens them. An objective between two bucket edges counts at the edge below for the
// lower bound and at the edge above for the upper one.
func goodputBounds() []definition {
	sloSignal := func(name, unit, help string) definition {
		return definition{
			name: name, unit: unit, help: help,
			needs: []Canonical{E2E},
			reads: []Canonical{TTFT, TPOT, Queue, Running, Generated, Rejected},
			slo:   true,
			roles: oneRole,
		}
	}
	lower := sloSignal("goodput", "requests/s", "Requests per second of the window that are guaranteed to have met every objective (the lower bound that the engine's histograms allow).")
	lower.formula = "Σ over parts of max(0, N − Σ misses of each objective) / window, with N finished requests; Fréchet's lower bound"
	lower.eval = judged(0, func(v verdict) Measure { return v.with(v.lower) })
	lower.merge = addedOnly
	lower.overload = "falls"
	lower.target = "no: it falls under overload, and an HPA would scale in"

	upper := sloSignal("goodput_upper", "requests/s", "Requests per second of the window that can have met every objective (the upper bound that the engine's histograms allow).")
	upper.formula = "Σ over parts of min over the objectives of the requests that met it / window; Fréchet's upper bound"
	upper.eval = judged(0, func(v verdict) Measure { return v.with(v.upper) })
	upper.merge = added
	upper.overload = "falls"
	upper.target = "no: it falls under overload, and an HPA would scale in"

	attainment := sloSignal("slo_attainment", "0..1", "Part of the window's finished requests that is guaranteed to have met every objective; 0 where requests got first tokens and none of them finished.")
	attainment.formula = "goodput / rate of finished requests"
	attainment.eval = judged(1, func(v verdict) Measure {
		offered := v.finished + v.left
		m := v.with(v.lower / offered)
		m.sum, m.weight = v.lower, offered
		return m
	})
	attainment.merge = divided(1)
	attainment.says = map[State]string{Idle: "1: nothing finished in the window, nor got a first token, and nothing is in the engine"}
	attainment.overload = "falls"
	attainment.target = "no: it falls under overload, and an HPA would scale in"

	misses := sloSignal("slo_miss_rate", "requests/s", "Requests per second of the window that are not guaranteed to have met every objective, with those that were turned away: offered less good.")
	misses.formula = "rate of finished requests + Δ rejected / window − goodput; it says nothing of requests that the client gave up, unless all did: those that got a first token count where none finished"
	misses.eval = missRate
	misses.merge = added
	misses.overload = "rises from 0, a request's length late"
	misses.target = "no: for alerts; it is 0 with enough replicas, and stays up on objectives that no number of replicas meets"
	return []definition{lower, upper, attainment, misses}
}

// bounds are on the number of good requests among finished ones.
type bounds struct {
	finished, lower, upper float64
	span                   time.Duration
}

// verdict is how many requests finished per second, and the bounds on how many of them were good.
type verdict struct {
	finished, lower, upper float64
	// left is how many requests per second got a first token and did not finish, where none did.
	left float64
	Measure
}

// judged makes an eval of what is to be made of a verdict, and of the value of idleness.
func judged(idle float64, of func(verdict) Measure) func(*replica, args) Measure {
	return func(r *replica, p args) Measure {
		v := r.judge(p)
		if v.finished == 0 && v.left == 0 { // there is none, or nothing to judge
			if v.HasValue {
				v.Value = idle
			}
			return v.Measure
		}
		m := of(v)
		if math.IsNaN(m.Value) {
			return r.boundless()
		}
		m.State = Value // nothing good of what finished is a finding, and no idleness
		return m
	}
}

func missRate(r *replica, p args) Measure {
	v := r.judge(p)
	if v.State != Value && v.State != Idle {
		return v.Measure
	}
	missed := v.finished + v.left - v.lower
	if math.IsNaN(missed) {
		return r.boundless()
	}
	if st, reason := r.get(Rejected); reason == "" {
		_, rejected, _, ok := st.increase()
		if !ok {
			return unknown(st.tooFew())
		}
		missed += rejected
	}
	m := v.Measure
	m.Value = missed
	if missed > 0 {
		m.State = Value
	}
	return m
}

// boundless answers a lower bound that is not 0, but not known.
func (r *replica) boundless() Measure {
	return unknown("how many requests were in the engine when the window began, and may have missed slo.ttft before, is not known: " + r.work().unknown)
}

// judge counts the good requests of the window. Without any that finished it holds what to answer then.
func (r *replica) judge(p args) verdict {
	e2e, reason := r.get(E2E)
	if reason != "" {
		return verdict{Measure: unknown(reason)}
	}
	if out, stuck := r.stuck(e2e); stuck {
		return verdict{Measure: out}
	}
	hists := map[Canonical]*stat{E2E: e2e}
	used := []*stat{e2e}
	for _, o := range p.SLO.objectives() {
		if o.limit == 0 {
			continue
		}
		st, reason := r.get(o.canonical)
		if reason != "" {
			return verdict{Measure: unknown(fmt.Sprintf("slo.%s cannot be checked: %s; leave the objective out for an engine that does not export it", o.canonical, reason))}
		}
		hists[o.canonical] = st
		used = append(used, st)
	}

	var v verdict
	var counters [][]window.Sample
	for _, part := range e2e.parts {
		counters = append(counters, countOf(part.buckets))
		b, reason := r.goodOf(part.joint, hists, e2e.window, p.SLO)
		if reason != "" {
			return verdict{Measure: unknown(reason)}
		}
		v.finished += b.finished / b.span.Seconds()
		v.lower += b.lower / b.span.Seconds()
		v.upper += b.upper / b.span.Seconds()
	}
	if v.finished == 0 {
		v.Measure = r.nothingFinished(e2e)
		if v.HasValue {
			v.Time = readAt(used...) // up to which all of them were compared
		}
		if v.State == Idle {
			v.left = r.leftEarly(e2e)
		}
		return v
	}
	if reason := r.resumed(e2e, counters...); reason != "" {
		return verdict{Measure: unknown(reason)}
	}
	v.Measure = Measure{Result: Result{State: Value, HasValue: true, Time: readAt(used...), Window: e2e.window}}
	return v
}

// leftEarly is how many requests per second got a first token in a window in which none finished, though none
// is in the engine any more: their clients gave up, or the engine was restarted. 0 where nothing says so.
func (r *replica) leftEarly(e2e *stat) float64 {
	ttft, reason := r.get(TTFT)
	if reason != "" || ttft.absent || r.engine.series[TTFT].atFinish {
		return 0
	}
	var perSecond float64
	for _, p := range ttft.parts {
		until := min(p.newest, e2e.newest)
		h, span, ok := window.Increases(upTo(p.buckets, until), until-ttft.window.Milliseconds())
		if ok && r.inEngineAt(p.joint, until) == 0 {
			perSecond += count(h) / span.Seconds()
		}
	}
	return perSecond
}

// goodOf bounds the good requests of one part.
func (r *replica) goodOf(joint string, hists map[Canonical]*stat, w time.Duration, slo SLO) (bounds, string) {
	// The histograms may have been fetched one scrape apart: compare them up to the same instant.
	until := int64(math.MaxInt64)
	for _, st := range hists {
		parts := st.joint(joint)
		if len(parts) != 1 {
			return bounds{}, fmt.Sprintf("%s is missing for a part of the replica", st.name)
		}
		until = min(until, parts[0].newest)
	}
	from := until - w.Milliseconds()
	if in := window.Since(countOf(hists[E2E].joint(joint)[0].buckets), from); len(in) > 0 {
		from = in[0].T // growth is seen from this sample on
	}
	all, span, ok := window.Increases(upTo(hists[E2E].joint(joint)[0].buckets, until), from)
	if !ok {
		return bounds{}, fmt.Sprintf("%s has not been read twice in the window of %s yet", hists[E2E].name, w)
	}
	n := count(all)
	b := bounds{finished: n, lower: n, upper: n, span: span}
	if n == 0 {
		return b, ""
	}
	for _, o := range slo.objectives() {
		if o.limit == 0 {
			continue
		}
		buckets := upTo(hists[o.canonical].joint(joint)[0].buckets, until)
		if math.IsInf(buckets[0].LE, 1) {
			return bounds{}, fmt.Sprintf("%s has no finite bound: are buckets dropped on the way?", hists[o.canonical].name)
		}
		if o.canonical == TTFT && !r.engine.series[TTFT].atFinish {
			missed, met, ok := r.firstTokensOf(joint, buckets, from, longest(all), o.limit, n)
			if !ok {
				return bounds{}, fmt.Sprintf("%s has not been read twice in the window of %s yet", hists[TTFT].name, w)
			}
			if math.IsInf(missed, 1) {
				missed = math.NaN() // the lower bound is not 0 because of that, it is not known
			}
			b.lower -= missed
			b.upper = min(b.upper, met)
			continue
		}
		h, _, ok := window.Increases(buckets, from)
		if !ok {
			return bounds{}, fmt.Sprintf("%s has not been read twice in the window of %s yet", hists[o.canonical].name, w)
		}
		lower, upper := window.AtMost(h, o.limit.Seconds())
		b.lower -= n - min(n, lower)
		// Of those that it did not observe (outputs of one token; what finished before the engine was
		// upgraded to a release that has it) any may have met the objective.
		b.upper = min(b.upper, upper+max(0, n-count(h)))
	}
	b.lower = max(0, b.lower)
	return b, ""
}

// firstTokensOf bounds the TTFT misses, from above, and hits, from above, of the requests that
// finished since from. A first token is counted when it comes, which for a request that decodes
// long is well before its finish: so misses are looked for over the window and the longest decode
// before it. Where the samples do not reach back so far, or where it is less, whatever was in the
// engine when the window began may have missed.
func (r *replica) firstTokensOf(joint string, buckets []window.BucketSeries, from int64, decode time.Duration, limit time.Duration, finished float64) (missed, met float64, ok bool) {
	h, _, ok := window.Increases(buckets, from)
	if !ok {
		return 0, 0, false
	}
	before := r.inEngineAt(joint, from)
	lower, upper := window.AtMost(h, limit.Seconds())
	// First tokens may be read for a shorter time than finishes: of the rest nothing is known.
	unseen := max(0, finished-count(h)-before)
	missed, met = count(h)-lower+before+unseen, upper+before+unseen

	// Growth is seen from sample to sample, so what came after a time is counted from the sample before.
	if long, ok := sampleBefore(buckets, from-decode.Milliseconds()); ok && decode > 0 {
		if h, _, ok := window.Increases(buckets, long); ok {
			lower, upper := window.AtMost(h, limit.Seconds())
			unseen := max(0, finished-count(h))
			missed, met = min(missed, count(h)-lower+unseen), min(met, upper+unseen)
		}
	}
	return missed, met, true
}

// countOf returns the samples of a histogram's count.
func countOf(buckets []window.BucketSeries) []window.Sample { return buckets[len(buckets)-1].Samples }

// sampleBefore is the time of the newest sample of a histogram's count not after t.
func sampleBefore(buckets []window.BucketSeries, t int64) (int64, bool) {
	all := countOf(buckets)
	i := len(all) - len(window.Since(all, t+1))
	if i == 0 {
		return 0, false
	}
	return all[i-1].T, true
}

// inEngineAt is how many requests were in a part at the newest sample not after t, or at its oldest.
// Unknown gauges bound nothing.
func (r *replica) inEngineAt(joint string, t int64) float64 {
	var sum float64
	for _, c := range []Canonical{Queue, Running} {
		st, _ := r.get(c)
		if st != nil && st.absent {
			continue
		}
		parts := st.joint(joint)
		if len(parts) == 0 {
			return math.Inf(1)
		}
		for _, p := range parts {
			for _, samples := range p.series {
				sum += valueAt(samples, t)
			}
		}
	}
	return sum
}

// valueAt is the value at the newest sample not after t, or at the oldest.
func valueAt(samples []window.Sample, t int64) float64 {
	v := samples[0].V
	for _, s := range samples {
		if s.T > t {
			break
		}
		v = s.V
	}
	return v
}

// longest is the upper bound of the highest bucket that was hit, 0 when that is unbounded.
func longest(hist []window.Bucket) time.Duration {
	for _, b := range hist {
		if b.Count == count(hist) && !math.IsInf(b.LE, 1) {
			return time.Duration(b.LE * float64(time.Second))
		}
	}
	return 0
}

// upTo cuts off the samples after t.
func upTo(buckets []window.BucketSeries, t int64) []window.BucketSeries {
	out := make([]window.BucketSeries, len(buckets))
	for i, b := range buckets {
		n := len(b.Samples)
		for n > 0 && b.Samples[n-1].T > t {
			n--
		}
		out[i] = window.BucketSeries{LE: b.LE, Samples: b.Samples[:n]}
	}
	return out
}
