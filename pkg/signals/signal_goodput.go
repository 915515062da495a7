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
	needs := []Canonical{E2E, TTFT}
	reads := []Canonical{TPOT, Queue, Running, Generated}
	return []definition{
		{
			name:  "goodput",
			unit:  "requests/s",
			help:  "Requests per second of the window that are guaranteed to have met every objective (the lower bound that the engine's histograms allow).",
			needs: needs,
			reads: reads,
			eval:  func(r *Replica, p Params) Result { return goodput(r, p, func(b bounds) float64 { return b.lower }) },
		},
		{
			name:  "goodput_upper",
			unit:  "requests/s",
			help:  "Requests per second of the window that can have met every objective (the upper bound that the engine's histograms allow).",
			needs: needs,
			reads: reads,
			eval:  func(r *Replica, p Params) Result { return goodput(r, p, func(b bounds) float64 { return b.upper }) },
		},
	}
}

// bounds are on the number of good requests among finished ones.
type bounds struct {
	finished, lower, upper float64
	span                   time.Duration
}

func goodput(r *Replica, p Params, pick func(bounds) float64) Result {
	e2e, reason := r.get(E2E)
	if reason != "" {
		return unknown(reason)
	}
	if out, stuck := r.stuck(e2e); stuck {
		return out
	}
	hists := map[Canonical]*stat{E2E: e2e}
	used := []*stat{e2e}
	for _, o := range p.SLO.objectives() {
		if o.limit == 0 {
			continue
		}
		st, reason := r.get(o.canonical)
		if reason != "" {
			return unknown(fmt.Sprintf("slo.%s cannot be checked: %s; leave the objective out for an engine that does not export it", o.canonical, reason))
		}
		hists[o.canonical] = st
		used = append(used, st)
	}

	var finished, perSecond float64
	var counters [][]window.Sample
	for _, part := range e2e.parts {
		counters = append(counters, countOf(part.buckets))
		b, reason := r.goodOf(part.key, hists, e2e.window, p.SLO)
		if reason != "" {
			return unknown(reason)
		}
		finished += b.finished
		perSecond += pick(b) / b.span.Seconds()
	}
	if finished == 0 {
		return r.nothingFinished(e2e)
	}
	if reason := r.resumed(e2e, counters...); reason != "" {
		return unknown(reason)
	}
	if math.IsNaN(perSecond) {
		return unknown("how many requests were in the engine when the window began, and may have missed slo.ttft before, is not known: " + r.work().unknown)
	}
	return Result{State: Value, HasValue: true, Value: perSecond, Time: readAt(used...), Window: e2e.window}
}

// goodOf bounds the good requests of one part.
func (r *Replica) goodOf(key string, hists map[Canonical]*stat, w time.Duration, slo SLO) (bounds, string) {
	// The histograms may have been fetched one scrape apart: compare them up to the same instant.
	until := int64(math.MaxInt64)
	for _, st := range hists {
		p := st.part(key)
		if p == nil {
			return bounds{}, fmt.Sprintf("%s is missing for a part of the replica", st.name)
		}
		until = min(until, p.newest)
	}
	from := until - w.Milliseconds()
	if in := window.Since(countOf(hists[E2E].part(key).buckets), from); len(in) > 0 {
		from = in[0].T // growth is seen from this sample on
	}
	all, span, ok := window.Increases(upTo(hists[E2E].part(key).buckets, until), from)
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
		buckets := upTo(hists[o.canonical].part(key).buckets, until)
		if math.IsInf(buckets[0].LE, 1) {
			return bounds{}, fmt.Sprintf("%s has no finite bound: are buckets dropped on the way?", hists[o.canonical].name)
		}
		if o.canonical == TTFT {
			missed, met, ok := r.firstTokensOf(key, buckets, from, longest(all), o.limit)
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
		b.upper = min(b.upper, upper)
	}
	b.lower = max(0, b.lower)
	return b, ""
}

// firstTokensOf bounds the TTFT misses, from above, and hits, from above, of the requests that
// finished since from. A first token is counted when it comes, which for a request that decodes
// long is well before its finish: so misses are looked for over the window and the longest decode
// before it. Where the samples do not reach back so far, or where it is less, whatever was in the
// engine when the window began may have missed.
func (r *Replica) firstTokensOf(key string, buckets []window.BucketSeries, from int64, decode time.Duration, limit time.Duration) (missed, met float64, ok bool) {
	h, _, ok := window.Increases(buckets, from)
	if !ok {
		return 0, 0, false
	}
	before := r.inEngineAt(key, from)
	lower, upper := window.AtMost(h, limit.Seconds())
	missed, met = count(h)-lower+before, upper+before

	// Growth is seen from sample to sample, so what came after a time is counted from the sample before.
	if long, ok := sampleBefore(buckets, from-decode.Milliseconds()); ok && decode > 0 {
		if h, _, ok := window.Increases(buckets, long); ok {
			lower, upper := window.AtMost(h, limit.Seconds())
			missed, met = min(missed, count(h)-lower), min(met, upper)
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
func (r *Replica) inEngineAt(key string, t int64) float64 {
	var sum float64
	for _, c := range []Canonical{Queue, Running} {
		st, _ := r.get(c)
		p := st.part(key)
		if p == nil {
			return math.Inf(1)
		}
		v := p.series[0][0].V
		for _, s := range p.series[0] {
			if s.T > t {
				break
			}
			v = s.V
		}
		sum += v
	}
	return sum
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
