package signals

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// At is the instant of an evaluation and what is known of the pod at it, all on the source's clock.
type At struct {
	// Now is the time.
	Now time.Time
	// Start is when the pod started; older samples belong to an earlier pod of the same name.
	// Zero when unknown.
	Start time.Time
	// Ready is when the pod's readiness last changed. Samples are then expected to be there
	// since; where they begin much later there was an outage. Zero when nothing is expected.
	Ready time.Time
}

// Evaluate returns the signals of one replica, in the order of sigs. series are all its raw series.
func Evaluate(sigs []*Signal, series []*window.Series, at At, p Params) []Result {
	replicas := map[*Engine]*Replica{}
	out := make([]Result, len(sigs))
	for i, s := range sigs {
		r := replicas[s.engine]
		if r == nil {
			r = newReplica(s.engine, series, at, p)
			replicas[s.engine] = r
		}
		out[i] = s.eval(r, p)
	}
	return out
}

// Replica holds the canonical series of one pod and one engine: one spelling of each, read once,
// of the parts that are alive.
type Replica struct {
	engine *Engine
	at     At
	stats  map[Canonical]*stat
	ended  map[Canonical]bool // series that the source says are over
}

// stat is one canonical series of a replica.
type stat struct {
	name     string // the raw name it was found under
	parts    []*part
	newest   int64         // when the part that was read longest ago was read, Unix ms
	interval time.Duration // between scrapes, as the samples show it
	window   time.Duration // what rates and quantiles of it describe
	fault    string        // why it cannot be used; "" when it can
	// regained says that the window is the first whole one after an outage, or that less than
	// another window has passed since.
	regained bool
}

// part is one part of a replica: a data-parallel engine, a GPU.
type part struct {
	key     string
	newest  int64
	series  [][]window.Sample     // of gauges and counters; several when the part is a sum
	buckets []window.BucketSeries // of histograms
}

// found is a raw series on its way into a stat.
type found struct {
	*place
	name    string
	samples []window.Sample
	newest  int64
}

func newReplica(e *Engine, series []*window.Series, at At, p Params) *Replica {
	r := &Replica{engine: e, at: at, ended: map[Canonical]bool{}}
	raw := map[Canonical][]found{}
	for _, s := range series {
		pl := placeOf(s)
		if pl == nil || pl.engine != e {
			continue
		}
		if s.Ended() {
			r.ended[pl.canonical] = true
			continue
		}
		samples := s.Samples()
		if !at.Start.IsZero() {
			samples = window.Since(samples, at.Start.UnixMilli())
		}
		if len(samples) == 0 {
			continue
		}
		last := samples[len(samples)-1]
		if valid := pl.mapping.valid; valid != nil && !valid(last.V) {
			continue
		}
		raw[pl.canonical] = append(raw[pl.canonical], found{pl, s.Labels.Get("__name__"), samples, last.T})
	}
	r.stats = make(map[Canonical]*stat, len(raw))
	for c, fs := range raw {
		r.stats[c] = newStat(fs, at, p)
	}
	return r
}

func newStat(fs []found, at At, p Params) *stat {
	longest := slices.MaxFunc(fs, func(a, b found) int { return cmp.Compare(len(a.samples), len(b.samples)) })
	st := &stat{interval: window.Interval(longest.samples)}
	st.window = max(p.Window, 4*st.interval)

	fs = oneSpelling(fs, st.interval)
	st.name = fs[0].name
	fs = alive(fs, st.window)
	st.parts = partsOf(fs)
	st.newest = slices.MinFunc(st.parts, func(a, b *part) int { return cmp.Compare(a.newest, b.newest) }).newest
	st.fault = st.check(fs, at)
	return st
}

// oneSpelling keeps the preferred one of the spellings that are still written: an engine that is
// being upgraded, or that writes a deprecated twin, must not count twice.
func oneSpelling(fs []found, interval time.Duration) []found {
	newest := map[int]int64{}
	var last int64
	for _, f := range fs {
		newest[f.rank] = max(newest[f.rank], f.newest)
		last = max(last, f.newest)
	}
	slack := max(interval*3/2, time.Second).Milliseconds()
	for _, rank := range slices.Sorted(maps.Keys(newest)) {
		if newest[rank] >= last-slack {
			return slices.DeleteFunc(fs, func(f found) bool { return f.rank != rank })
		}
	}
	return fs
}

// alive drops what a target no longer writes: series that its newest scrape did not bring (an
// engine restarted with fewer parts), and targets that were left behind (a pod that got another
// address) once they have been silent for a window; before that they make the replica unknown,
// because half of a sum would be a low lie.
func alive(fs []found, w time.Duration) []found {
	type bucket struct {
		part string
		le   float64
	}
	newest := map[string]int64{}
	var last int64
	for _, f := range fs {
		newest[f.instance] = max(newest[f.instance], f.newest)
		last = max(last, f.newest)
	}
	begins := map[bucket]int64{}
	for _, f := range fs {
		if f.mapping.kind == Histogram && f.newest == newest[f.instance] {
			begins[bucket{f.part, f.le}] = f.samples[0].T
		}
	}
	return slices.DeleteFunc(fs, func(f found) bool {
		if f.newest < last-w.Milliseconds() {
			return true
		}
		if f.newest == newest[f.instance] {
			return false
		}
		// A bucket whose bound is now written another way (le="1", then le="1.0") goes on in the
		// new series; its past is still needed.
		begin, ok := begins[bucket{f.part, f.le}]
		return !ok || f.newest >= begin
	})
}

// partsOf sorts the series into parts, taking one of each set of duplicates (two jobs that scrape
// the same target, one series for each API server process): the largest, as the others are left over.
func partsOf(fs []found) []*part {
	slices.SortFunc(fs, func(a, b found) int {
		return cmp.Or(
			strings.Compare(a.part, b.part),
			strings.Compare(a.within, b.within),
			cmp.Compare(a.le, b.le),
			cmp.Compare(b.samples[len(b.samples)-1].V, a.samples[len(a.samples)-1].V),
			cmp.Compare(len(b.samples), len(a.samples)),
		)
	})
	var out []*part
	var prev *found
	for i := range fs {
		f := &fs[i]
		if prev == nil || prev.part != f.part {
			out = append(out, &part{key: f.part, newest: f.newest})
		} else if prev.within == f.within && prev.le == f.le && f.mapping.kind != Histogram {
			continue
		}
		pt := out[len(out)-1]
		pt.newest = max(pt.newest, f.newest)
		if f.mapping.kind == Histogram {
			// Equal bounds are left to the window's maths: le="1" and le="1.0" may follow each other.
			pt.buckets = append(pt.buckets, window.BucketSeries{LE: f.le, Samples: f.samples})
		} else {
			pt.series = append(pt.series, f.samples)
		}
		prev = f
	}
	return out
}

// freshFor is how old the newest sample may be: two intervals, and never less than ten seconds.
func (st *stat) freshFor() time.Duration { return max(2*st.interval, 10*time.Second) }

// check says why the samples cannot be used now, or "".
func (st *stat) check(fs []found, at At) string {
	age := at.Now.Sub(time.UnixMilli(st.newest))
	if age > st.freshFor() {
		return fmt.Sprintf("the newest sample of %s is %s old, and stale after %s", st.name, age.Round(time.Second), st.freshFor().Round(time.Second))
	}
	if age < -st.freshFor() {
		return fmt.Sprintf("the newest sample of %s lies %s in the future: the clocks of the source and of what writes to it differ", st.name, (-age).Round(time.Second))
	}
	if at.Ready.IsZero() {
		return ""
	}
	// One series that reaches back is enough for its target: others may be younger by right (a
	// label value that came up, a bucket that is written another way now).
	begins := map[string]int64{}
	for _, f := range fs {
		begin := unbroken(f.samples, st.window)
		if b, ok := begins[f.instance]; !ok || begin < b {
			begins[f.instance] = begin
		}
	}
	expected := at.Ready.Add(st.window).UnixMilli()
	w := (st.window - st.interval).Milliseconds()
	for _, begin := range begins {
		if begin <= expected {
			continue
		}
		if begin > st.newest-w {
			return fmt.Sprintf("the samples of %s cover %s of the window of %s since the last gap", st.name,
				max(0, time.Duration(st.newest-begin)*time.Millisecond), st.window)
		}
		st.regained = st.regained || begin > st.newest-2*w
	}
	return ""
}

// unbroken returns the time of the first sample after the last gap that is longer than the window,
// looking back over two of them. After such an outage the HPA may have forgotten what it
// recommended, and would act on the first low answer without stabilizing it: so that answer has to
// be backed by a whole window again.
func unbroken(samples []window.Sample, w time.Duration) int64 {
	last := len(samples) - 1
	start := samples[last].T
	for i := last - 1; i >= 0 && start > samples[last].T-2*w.Milliseconds(); i-- {
		if start-samples[i].T > w.Milliseconds() {
			break
		}
		start = samples[i].T
	}
	return start
}

// get returns a canonical series that can be used, or why it cannot.
func (r *Replica) get(c Canonical) (*stat, string) {
	st, ok := r.stats[c]
	if !ok {
		m, mapped := r.engine.series[c]
		if !mapped {
			return nil, fmt.Sprintf("not computable: %s", r.engine.unsupported[c])
		}
		if r.ended[c] {
			return nil, fmt.Sprintf("%s ended: its target is gone", m.names()[0])
		}
		return nil, fmt.Sprintf("the source has no sample of %s of this pod", m.names()[0])
	}
	if st.fault != "" {
		return nil, st.fault
	}
	return st, ""
}

// level folds the newest samples of a gauge.
func (r *Replica) level(c Canonical, st *stat) float64 {
	return r.fold(c, st, func(s []window.Sample) float64 { return s[len(s)-1].V })
}

// peak folds the highest samples of a gauge's window.
func (r *Replica) peak(c Canonical, st *stat) float64 {
	return r.fold(c, st, func(s []window.Sample) float64 {
		in := window.Since(s, s[len(s)-1].T-st.window.Milliseconds())
		return slices.MaxFunc(in, func(a, b window.Sample) int { return cmp.Compare(a.V, b.V) }).V
	})
}

func (r *Replica) fold(c Canonical, st *stat, of func([]window.Sample) float64) float64 {
	m := r.engine.series[c]
	var sum float64
	for _, p := range st.parts {
		for _, s := range p.series {
			sum += of(s)
		}
	}
	if m.fold == Mean {
		sum /= float64(len(st.parts))
	}
	if m.scale != 0 {
		sum *= m.scale
	}
	return sum
}

// part returns the part of that key, or nil.
func (st *stat) part(key string) *part {
	if st == nil {
		return nil
	}
	for _, p := range st.parts {
		if p.key == key {
			return p
		}
	}
	return nil
}

// readAt is when the newest sample of the stats that was read longest ago was read.
func readAt(stats ...*stat) time.Time {
	var t int64
	for i, st := range stats {
		if i == 0 || st.newest < t {
			t = st.newest
		}
	}
	return time.UnixMilli(t)
}
