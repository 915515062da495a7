package signals

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/window"
)

// At is the instant of an evaluation and what is known of the pod at it, all on the source's clock.
type At struct {
	// Now is the time.
	Now time.Time
	// Pod is the name of the pod, or of the pool; "" takes all series for its own.
	Pod string
	// Start is when the pod started; older samples belong to an earlier pod of the same name.
	// Zero when unknown.
	Start time.Time
	// Ready is when the pod's readiness last changed. Samples are then expected to be there
	// since; where they begin much later there was an outage. Zero when nothing is expected.
	Ready time.Time
	// Partial says that the source cannot be read in full: a part that is silent may be in what was
	// not read, however long it lasts.
	Partial bool
	// Truncated says that the replica has more series than are kept: what is computed from the rest
	// may lack a part.
	Truncated bool
}

// Evaluate returns what the plans measure of one replica, in their order. series are all its raw series.
func Evaluate(plans []*Plan, series []*window.Series, at At, p Params) []Measure {
	type key struct {
		engine *Engine
		window time.Duration
		where  string
	}
	replicas := map[key]*Replica{}
	own := p.sorted(series, at)
	out := make([]Measure, len(plans))
	for i, pl := range plans {
		if at.Truncated {
			out[i] = unknown("the pod has more series than are kept: parts of it may be missing")
			continue
		}
		e := pl.signal.engine
		if e == nil {
			if e = own.whatever; e == nil {
				out[i] = unknown(own.silence())
				out[i].foreign = own.runs != nil
				continue
			}
			if why := pl.signal.definition.lacks(e); why != "" {
				out[i] = unknown(fmt.Sprintf("not computable on %s, because %s", e.Name, why))
				continue
			}
			if key := pl.misses(e); key != "" {
				// As for any selector: what does not have the label is not chosen by it.
				out[i] = unknown(fmt.Sprintf("the series of %s have no label %s", e.Name, key))
				out[i].foreign = own.runs == e
				continue
			}
		}
		a := pl.args(p)
		k := key{e, a.Window, pl.Where}
		if replicas[k] == nil {
			replicas[k] = newReplica(e, pl, own, at, a.Params)
		}
		r := *replicas[k]
		r.instead, r.keys = pl.instead(e), pl.keys
		out[i] = pl.signal.definition.eval(&r, a)
		if e.serves() && len(r.stats) == 0 && len(r.ended) == 0 {
			out[i].foreign = own.runs != nil && (own.runs != e || r.other && r.down == "")
		}
	}
	return out
}

// sorted are the series of one pod, or pool, by the engine they are of.
type sorted struct {
	of map[*Engine][]located
	// down is a target of the pod that cannot be scraped; "" when all can, or nothing says so.
	down string
	// whatever is the engine that the pod runs, of those that inference_ signals are read of: the first of
	// which it has series that are as new as any. What a predecessor of the same name ran does not count.
	whatever *Engine
	// runs is that of all engines that serve requests; nil for a pod that is silent: what it runs by now
	// is not known.
	runs *Engine
}

// silence says why there is no engine to read signals of.
func (s sorted) silence() string {
	switch {
	case s.runs != nil:
		return fmt.Sprintf("%s stands in front of engines, whose requests it repeats: ask for %s signals by that name", s.runs.Name, s.runs.Prefix+"…")
	case s.down != "":
		return fmt.Sprintf("the target %s of the pod cannot be scraped", s.down)
	}
	return "the source has no sample of an engine in this pod"
}

// located is a series in one of its places.
type located struct {
	*place
	series *window.Series
}

func (p Params) sorted(series []*window.Series, at At) sorted {
	out := sorted{of: map[*Engine][]located{}}
	for _, s := range series {
		for _, pl := range p.placesOf(s) {
			switch {
			case !pl.belongsTo(at.Pod):
			case pl.engine != nil:
				out.of[pl.engine] = append(out.of[pl.engine], located{pl, s})
			case isDown(s):
				out.down = pl.instance
			}
		}
	}
	out.whatever, _ = p.newestEngine(out, at, (*Engine).generic)
	if e, s := p.newestEngine(out, at, (*Engine).serves); e != nil && !s.Ended() {
		st := stat{interval: window.Interval(s.Samples())}
		if at.Now.Sub(time.UnixMilli(lastOf(s, at))) <= st.freshFor() {
			out.runs = e
		}
	}
	return out
}

// newestEngine returns the first of the engines that are meant of which there are series that are as new
// as any, and the newest of these.
func (p Params) newestEngine(own sorted, at At, meant func(*Engine) bool) (*Engine, *window.Series) {
	newest := map[*Engine]*window.Series{}
	all := int64(math.MinInt64)
	for e, series := range own.of {
		if !meant(e) {
			continue
		}
		for _, s := range series {
			t := lastOf(s.series, at)
			if was := newest[e]; t > math.MinInt64 && (was == nil || t > lastOf(was, at)) {
				newest[e] = s.series
			}
			all = max(all, t)
		}
	}
	for _, e := range engines {
		if s := newest[e]; s != nil && lastOf(s, at) >= all-p.Window.Milliseconds() {
			return e, s
		}
	}
	return nil, nil
}

// lastOf is when the newest sample of a series was read that is of the pod as it is now.
func lastOf(s *window.Series, at At) int64 {
	samples := s.Samples()
	if len(samples) == 0 || samples[len(samples)-1].T < at.Start.UnixMilli() {
		return math.MinInt64
	}
	return samples[len(samples)-1].T
}

// Serves reports whether there is a series of an engine that serves requests.
func (p Params) Serves(series []*window.Series) bool {
	return slices.ContainsFunc(series, func(s *window.Series) bool {
		return slices.ContainsFunc(p.placesOf(s), func(pl *place) bool { return pl.engine != nil && pl.engine.serves() })
	})
}

// belongsTo reports whether a series is of the pod itself, and not of one whose name differs in a rank.
func (p *place) belongsTo(pod string) bool {
	return pod == "" || p.owner == pod || withoutRank(p.owner) == pod
}

// instead says which canonical series the plan reads in the place of which.
func (p *Plan) instead(e *Engine) map[Canonical]Canonical {
	for _, key := range p.keys {
		if c, ok := p.signal.definition.by[key]; ok {
			return map[Canonical]Canonical{p.signal.definition.first(e)[0]: c}
		}
	}
	return nil
}

// Replica holds the canonical series of one pod and one engine: one spelling of each, read once,
// of the parts that are alive.
type Replica struct {
	engine *Engine
	at     At
	stats  map[Canonical]*stat
	ended  map[Canonical]bool // all series of it are over, as the source says
	unlike map[Canonical]bool // there are series of it, and the query chose none of them
	other  bool               // there are series that say that they are of what the query did not choose
	down   string             // a target that cannot be scraped; "" when all can, or nothing says so
	// instead holds the canonical series that the query at hand reads in the place of others.
	instead map[Canonical]Canonical
	// keys are the labels that the query chooses by.
	keys []string
}

// stat is one canonical series of a replica.
type stat struct {
	name     string // the raw name it was found under
	parts    []*part
	newest   int64         // when the part that was read longest ago was read, Unix ms
	interval time.Duration // between scrapes, as the samples show it
	window   time.Duration // what rates and quantiles of it describe
	fault    string        // why it cannot be used; "" when it can
	// absent says that there is no series, and that it is known all the same to be 0.
	absent bool
	// regained says that the window is the first whole one after an outage, or that less than
	// another window has passed since.
	regained bool
}

// part is one part of a replica: a data-parallel engine, a GPU.
type part struct {
	key     string
	joint   string // as the parts of the other canonical series are told apart
	newest  int64
	factor  float64
	series  [][]window.Sample     // of gauges and counters; several when the part is a sum
	buckets []window.BucketSeries // of histograms
}

// found is a raw series on its way into a stat.
type found struct {
	*place
	name    string
	samples []window.Sample
	newest  int64
	ended   bool   // the source says that it is over
	fault   string // why its newest reading is none; "" when it is one
}

func newReplica(e *Engine, plan *Plan, own sorted, at At, p Params) *Replica {
	r := &Replica{engine: e, at: at, ended: map[Canonical]bool{}, unlike: map[Canonical]bool{}}
	if e.own {
		r.down = own.down
	}
	raw := map[half][]found{}
	for _, s := range own.of[e] {
		if !plan.chosen(s.place) {
			r.unlike[s.canonical] = true
			r.other = r.other || plan.told(s.place)
			continue
		}
		if f, ok := find(s.series, s.place, at); ok {
			h := half{s.canonical, s.second}
			raw[h] = append(raw[h], f)
		}
	}
	for h := range raw {
		if beside := e.series[h.canonical].beside; beside != "" && !at.Partial {
			raw[h] = present(raw[h], raw[half{beside, false}], p)
		}
	}
	r.stats = make(map[Canonical]*stat, len(raw))
	seconds := map[Canonical]*stat{}
	for h, fs := range raw {
		switch {
		case len(fs) == 0:
		case !slices.ContainsFunc(fs, func(f found) bool { return !f.ended }):
			// One that ended beside others that go on is a part that was lost, like one that is silent.
			r.ended[h.canonical] = true
		case h.second:
			seconds[h.canonical] = newStat(fs, at, p)
		default:
			r.stats[h.canonical] = newStat(fs, at, p)
		}
	}
	for c, st := range r.stats {
		if m := e.series[c]; m.second() != nil {
			r.stats[c] = m.combine(st, seconds[c])
		}
	}
	r.partsLacking()
	for c, st := range r.stats {
		// What comes and goes is read as long as what is always written beside it is.
		if beside := r.stats[e.series[c].beside]; beside != nil {
			st.fault = cmp.Or(st.fault, beside.fault)
			st.regained = beside.regained
		}
	}
	return r
}

// partsLacking faults gauges of load that lack a part which another one of them has: an engine that has not
// set it yet, or whose series got lost on the way. The sum of the other parts would be a low lie, unless
// the part is known to be 0.
func (r *Replica) partsLacking() {
	gauges := []Canonical{Queue, Running, KVUsed}
	faults := map[*stat]string{}
	for _, c := range gauges {
		st, m := r.stats[c], r.engine.series[c]
		if st == nil || st.fault != "" {
			continue
		}
		for _, other := range gauges {
			o := r.stats[other]
			if o == nil || o == st || o.fault != "" || !slices.Equal(m.part, r.engine.series[other].part) {
				continue
			}
			for _, p := range o.parts {
				if st.part(p.key) == nil && !r.provenZeroIn(m, p.key) {
					faults[st] = fmt.Sprintf("a part of %s has no sample of %s", o.name, st.name)
				}
			}
		}
	}
	for st, fault := range faults {
		st.fault = fault
	}
}

// provenZeroIn reports whether the part of a gauge that is not there is 0, as others of the same part prove.
func (r *Replica) provenZeroIn(m mapping, key string) bool {
	for _, c := range m.zeroWith {
		w := r.stats[c]
		if w == nil || w.fault != "" {
			return false
		}
		p := w.part(key)
		if p == nil || slices.ContainsFunc(p.series, func(s []window.Sample) bool { return s[len(s)-1].V != 0 }) {
			return false
		}
	}
	return len(m.zeroWith) > 0
}

// part returns the part of that key; nil when there is none.
func (st *stat) part(key string) *part {
	i, found := slices.BinarySearchFunc(st.parts, key, func(p *part, key string) int { return strings.Compare(p.key, key) })
	if !found {
		return nil
	}
	return st.parts[i]
}

// half is a canonical series, or the one that it is combined with.
type half struct {
	canonical Canonical
	second    bool
}

// present drops the series of things that are gone: their target goes on writing what it always
// writes, beside, and them no more. Those of a target that is gone itself are dropped once it has been
// silent for a window, as parts are.
func present(fs, beside []found, p Params) []found {
	if len(beside) == 0 {
		return fs
	}
	reads := slices.MaxFunc(beside, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.newest, b.newest), cmp.Compare(len(a.samples), len(b.samples)))
	})
	st := stat{interval: window.Interval(reads.samples)}
	st.window = max(p.Window, windowReads*st.interval)
	written := map[string]int64{} // until when, by target
	for _, b := range beside {
		if !b.ended {
			written[b.instance] = max(written[b.instance], b.newest)
		}
	}
	return slices.DeleteFunc(fs, func(f found) bool {
		until := written[f.instance]
		if f.ended && until >= f.newest || f.newest < until-st.freshFor().Milliseconds() {
			return true
		}
		return f.newest < reads.newest-st.window.Milliseconds() && len(window.Since(reads.samples, f.newest+1)) >= windowReads
	})
}

// combine computes the samples of a series from those of two, of the same part and read at the same time.
func (m mapping) combine(a, b *stat) *stat {
	out := *a
	out.parts = nil
	switch {
	case a.fault != "":
		return a
	case b == nil:
		out.fault = fmt.Sprintf("the source has no sample of %s, with which %s is combined", m.second().names()[0], a.name)
		return &out
	case b.fault != "":
		out.fault = b.fault
		return &out
	}
	for _, pa := range a.parts {
		i := slices.IndexFunc(b.parts, func(pb *part) bool { return pb.key == pa.key })
		if i < 0 {
			out.fault = fmt.Sprintf("a part of %s has no sample of %s", a.name, b.name)
			return &out
		}
		pb := b.parts[i]
		var samples []window.Sample
		others := pb.series[0]
		for _, s := range pa.series[0] {
			// One that is read with others of its target has their time; where the source rounds it they
			// may be a little apart, and the newest before it is the one.
			before := others[:len(others)-len(window.Since(others, s.T+1))]
			if len(before) == 0 {
				continue
			}
			if v := m.of(s.V*pa.factor, before[len(before)-1].V*pb.factor); !math.IsNaN(v) && !math.IsInf(v, 0) {
				samples = append(samples, window.Sample{T: s.T, V: v})
			}
		}
		if len(samples) == 0 || samples[len(samples)-1].T < pa.newest {
			out.fault = fmt.Sprintf("the newest readings of %s and %s make no number", a.name, b.name)
			return &out
		}
		out.parts = append(out.parts, &part{key: pa.key, joint: pa.joint, newest: min(pa.newest, pb.newest), factor: 1, series: [][]window.Sample{samples}})
	}
	out.newest = min(a.newest, b.newest)
	out.regained = a.regained || b.regained
	return &out
}

// of combines two readings. Of two that are taken off each other, and not read at the very same
// instant, the second may be the greater.
func (m mapping) of(a, b float64) float64 {
	switch {
	case m.over != nil:
		return a / b
	case m.times != nil:
		return a * b
	default:
		return max(0, a-b)
	}
}

// isDown reports whether a series up says that its target cannot be scraped.
func isDown(up *window.Series) bool {
	samples := up.Samples()
	return !up.Ended() && len(samples) > 0 && samples[len(samples)-1].V == 0
}

// find reads a series; ok is false when there is nothing of this pod in it.
func find(s *window.Series, pl *place, at At) (f found, ok bool) {
	f = found{place: pl, name: s.Labels.Get(model.MetricNameLabel), samples: s.Samples(), ended: s.Ended()}
	var start int64
	if !at.Start.IsZero() {
		start = at.Start.UnixMilli()
		f.samples = window.Since(f.samples, start)
	}
	if heard, garbled := s.Garbled(); garbled && heard >= start {
		f.newest, f.fault = heard, fmt.Sprintf("the newest reading of %s is no number", f.name)
		return f, true
	}
	if len(f.samples) == 0 {
		return f, false
	}
	last := f.samples[len(f.samples)-1]
	f.newest = last.T
	// Nothing that the catalogue reads can be below 0: it would be taken off the sum of the others.
	if valid := pl.mapping.valid; last.V < 0 || valid != nil && !valid(last.V) {
		f.fault = fmt.Sprintf("the newest reading of %s is %g, which stands for none", f.name, last.V)
	}
	return f, true
}

// leastSkew is what the clocks of the source and of what writes to it may differ by at the least.
const leastSkew = 2 * time.Second

// windowReads is how many scrape intervals a window has at the least.
const windowReads = 4

func newStat(fs []found, at At, p Params) *stat {
	// Of several that are as long the choice must not depend on the order in which series come.
	longest := slices.MaxFunc(fs, func(a, b found) int {
		return cmp.Or(cmp.Compare(len(a.samples), len(b.samples)), cmp.Compare(a.newest, b.newest), cmp.Compare(b.begin(), a.begin()))
	})
	st := &stat{interval: window.Interval(longest.samples)}
	st.window = max(p.Window, windowReads*st.interval)

	fs = oneSpelling(fs, st.interval)
	st.name = fs[0].mapping.names()[0]
	fs = alive(fs, st.window, at.Partial)
	itself := slices.IndexFunc(fs, func(f found) bool { return f.summand == 0 })
	if itself < 0 {
		st.fault = fmt.Sprintf("the source has no sample of %s of this %s, to which others are added", st.name, fs[0].engine.kind())
		return st
	}
	st.name = fs[itself].name
	for _, f := range fs {
		if f.fault != "" {
			st.fault = f.fault // a part without a number: the others would be a low lie
			return st
		}
	}
	st.parts = partsOf(fs)
	st.newest = slices.MinFunc(st.parts, func(a, b *part) int { return cmp.Compare(a.newest, b.newest) }).newest
	st.fault = st.check(fs, at)
	return st
}

// oneSpelling keeps the preferred one of the spellings that are still written: an engine that is
// being upgraded, or that writes a deprecated twin, must not count twice.
//
// The targets of a pool are processes of their own, of which one may be upgraded before another: each
// has its own spelling.
func oneSpelling(fs []found, interval time.Duration) []found {
	type target struct {
		instance string
		summand  int
	}
	type key struct {
		target
		rank int
	}
	keyOf := func(f found) key {
		if f.engine.pool {
			return key{target{f.instance, f.summand}, f.rank}
		}
		return key{target{"", f.summand}, f.rank}
	}
	newest := map[key]int64{}
	last := map[target]int64{}
	for _, f := range fs {
		k := keyOf(f)
		newest[k] = max(newest[k], f.newest)
		last[k.target] = max(last[k.target], f.newest)
	}
	slack := max(interval*3/2, time.Second).Milliseconds()
	best := map[target]int{}
	for k, t := range newest {
		if rank, ok := best[k.target]; t >= last[k.target]-slack && (!ok || k.rank < rank) {
			best[k.target] = k.rank
		}
	}
	return slices.DeleteFunc(fs, func(f found) bool { return f.rank != best[keyOf(f).target] })
}

// alive drops what is no longer written: duplicates of newer series, and parts (an engine that
// restarted with fewer of them) and targets (a pod that got another address) that were left behind,
// once they have been silent for a window and for the reads that it has at the least. Before that they
// make the replica unknown as they age: an answer that lacks a part may also be half of one, and half
// of a sum would be a low lie. While the source answers in part they do so for as long as that lasts.
func alive(fs []found, w time.Duration, partial bool) []found {
	type key struct {
		part, within string
		le           float64
	}
	keyOf := func(f found) key { return key{f.part, f.within, f.le} }
	var last int64
	heir := map[key]found{} // the newest of the duplicates, and of those the one that goes back the least
	for _, f := range fs {
		last = max(last, f.newest)
		h, ok := heir[keyOf(f)]
		if !ok || f.newest > h.newest || f.newest == h.newest && f.begin() > h.begin() {
			heir[keyOf(f)] = f
		}
	}
	// The interval is learned late when it grows: then a window is a few reads only.
	reads := slices.MaxFunc(fs, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.newest, b.newest), cmp.Compare(len(a.samples), len(b.samples)))
	}).samples
	return slices.DeleteFunc(fs, func(f found) bool {
		if !partial && f.newest < last-w.Milliseconds() && len(window.Since(reads, f.newest+1)) >= windowReads {
			return true
		}
		h := heir[keyOf(f)]
		if f.newest == h.newest {
			return false
		}
		// A bucket whose bound is now written another way (le="1", then le="1.0") goes on in the
		// new series; its past is still needed.
		return f.mapping.kind != Histogram || f.newest >= h.begin()
	})
}

// begin is when the oldest sample of the series was read.
func (f found) begin() int64 {
	if len(f.samples) == 0 {
		return f.newest
	}
	return f.samples[0].T
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
			labels.Compare(a.labels, b.labels), // so that the choice does not depend on their order
		)
	})
	var out []*part
	var prev *found
	var hists [][]window.BucketSeries // of the newest part, by what is summed inside of it
	for i := range fs {
		f := &fs[i]
		if prev == nil || prev.part != f.part {
			out = append(out, &part{key: f.part, joint: f.joint, newest: f.newest, factor: f.factor})
			hists = nil
		} else if prev.within == f.within && prev.le == f.le && f.mapping.kind != Histogram {
			continue
		}
		pt := out[len(out)-1]
		pt.newest = max(pt.newest, f.newest)
		if f.mapping.kind == Histogram {
			// Equal bounds are left to the window's maths: le="1" and le="1.0" may follow each other.
			if len(hists) == 0 || prev.within != f.within {
				hists = append(hists, nil)
			}
			last := len(hists) - 1
			hists[last] = append(hists[last], window.BucketSeries{LE: f.le, Samples: f.samples})
			if i == len(fs)-1 || fs[i+1].part != f.part {
				pt.buckets = window.Sum(hists)
			}
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
	if age < -max(st.interval, leastSkew) {
		// Also after the source's clock was set back: until it is where it was, what is read is older than
		// what was read before, and does not count.
		return fmt.Sprintf("the newest sample of %s lies %s in the future: the clocks of the source and of what writes to it differ", st.name, (-age).Round(time.Second))
	}
	e, m := fs[0].engine, fs[0].mapping
	if at.Ready.IsZero() && !e.pool || m.beside != "" {
		return ""
	}
	// One series that reaches back is enough for its target: others may be younger by right (a
	// label value that came up, a bucket that is written another way now).
	begins := map[string]int64{}
	for _, f := range fs {
		begin := unbroken(f.samples, st.window)
		if at.Ready.IsZero() && begin == f.samples[0].T {
			begin = math.MinInt64 // nothing says that it was there before
		}
		if b, ok := begins[f.instance]; !ok || begin < b {
			begins[f.instance] = begin
		}
	}
	expected := int64(math.MinInt64) // of a pool it is not known since when it is there
	if !at.Ready.IsZero() {
		expected = at.Ready.Add(st.window).UnixMilli()
	}
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

// of is the canonical series that the query at hand reads for c.
func (r *Replica) of(c Canonical) Canonical {
	if other, ok := r.instead[c]; ok {
		return other
	}
	return c
}

// get returns a canonical series that can be used, or why it cannot.
func (r *Replica) get(c Canonical) (*stat, string) {
	st, ok := r.stats[c]
	if !ok {
		m, mapped := r.engine.series[c]
		if !mapped {
			return nil, fmt.Sprintf("not computable on %s, because %s", r.engine.Name, r.engine.unsupported[c])
		}
		if r.ended[c] {
			return nil, fmt.Sprintf("%s ended: its target cannot be scraped any more", m.names()[0])
		}
		if r.unlike[c] {
			return nil, fmt.Sprintf("no series of %s of this %s has the labels that were asked for", m.names()[0], r.engine.kind())
		}
		if st := r.provenZero(m); st != nil {
			return st, ""
		}
		if r.down != "" {
			return nil, fmt.Sprintf("the target %s of the pod cannot be scraped", r.down)
		}
		return nil, fmt.Sprintf("the source has no sample of %s of this %s%s", m.names()[0], r.engine.kind(), m.hint)
	}
	if st.fault != "" {
		return nil, st.fault
	}
	if r.down != "" {
		return nil, fmt.Sprintf("the target %s of the pod cannot be scraped: a part of %s may be missing", r.down, st.name)
	}
	return st, ""
}

// provenZero stands for a series that is absent where others prove that it is 0; nil where they do not.
func (r *Replica) provenZero(m mapping) *stat {
	witnesses := m.zeroWith
	switch {
	case m.lazy:
		witnesses = []Canonical{Queue, Running}
	case m.noneIsZero:
		witnesses = []Canonical{m.beside}
	}
	if m.noneIsZero && r.at.Partial {
		return nil // it may be in what was not read
	}
	if counted := r.stats[m.unless]; counted != nil && counted.fault == "" {
		if grown, _, _, ok := counted.increase(); !ok || grown > 0 {
			return nil
		}
	}
	var zero *stat
	for _, c := range witnesses {
		w := r.stats[c]
		if w == nil || w.fault != "" || r.down != "" || !m.noneIsZero && r.level(c, w) != 0 || m.lazy && r.peak(c, w) != 0 {
			return nil
		}
		if zero == nil || w.newest < zero.newest {
			zero = w
		}
	}
	if zero == nil {
		return nil
	}
	return &stat{name: m.names()[0], newest: zero.newest, interval: zero.interval, window: zero.window, regained: zero.regained, absent: true}
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
	if st.absent {
		return 0
	}
	fold := r.engine.series[c].fold
	var out float64
	for _, p := range st.parts {
		var v float64
		for _, s := range p.series {
			v += of(s) * p.factor
		}
		if fold == Max {
			out = max(out, v)
		} else {
			out += v
		}
	}
	if fold == Mean {
		out /= float64(len(st.parts))
	}
	return out
}

// joints lists the parts as all canonical series tell them apart.
func (st *stat) joints() []string {
	var out []string
	for _, p := range st.parts {
		if len(out) == 0 || out[len(out)-1] != p.joint {
			out = append(out, p.joint)
		}
	}
	return out
}

// joint returns the parts that another canonical series sees as one.
func (st *stat) joint(key string) []*part {
	if st == nil {
		return nil
	}
	// They are sorted: a hostile target may have thousands of parts, each of which is looked for.
	first, _ := slices.BinarySearchFunc(st.parts, key, func(p *part, key string) int { return strings.Compare(p.joint, key) })
	n := first
	for n < len(st.parts) && st.parts[n].joint == key {
		n++
	}
	return st.parts[first:n]
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
