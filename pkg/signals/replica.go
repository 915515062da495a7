package signals

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file is what signals read of one replica: its canonical series, each as a stat that can be used, or
// the reason why it cannot. Which raw series count is told in found.go, how they become a stat in stat.go
// and combine.go, whether that is fresh and whole in coverage.go, and what is not there in absent.go.

// replica holds the canonical series of one pod and one engine: one spelling of each, read once,
// of the parts that are alive.
type replica struct {
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

// newReplica makes the stats of those series of an engine that the plan chooses.
func newReplica(e *Engine, plan *Plan, own sorted, at At, p Params) *replica {
	r := &replica{engine: e, at: at, ended: map[Canonical]bool{}, unlike: map[Canonical]bool{}}
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
		if e.series[h.canonical].lazy && !at.Partial {
			fromZero(raw[h], slices.Concat(raw[half{Queue, false}], raw[half{Running, false}]), p)
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
			st.regained, st.short = beside.regained, beside.short
		}
	}
	return r
}

// of is the canonical series that the query at hand reads for c.
func (r *replica) of(c Canonical) Canonical {
	if other, ok := r.instead[c]; ok {
		return other
	}
	return c
}

// get returns a canonical series that can be used, or why it cannot.
func (r *replica) get(c Canonical) (*stat, string) {
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

// level folds the newest samples of a gauge.
func (r *replica) level(c Canonical, st *stat) float64 {
	return r.fold(c, st, func(s []window.Sample) float64 { return s[len(s)-1].V })
}

// peak folds the highest samples of a gauge's window.
func (r *replica) peak(c Canonical, st *stat) float64 {
	return r.fold(c, st, func(s []window.Sample) float64 {
		in := window.Since(s, s[len(s)-1].T-st.window.Milliseconds())
		return slices.MaxFunc(in, func(a, b window.Sample) int { return cmp.Compare(a.V, b.V) }).V
	})
}

// fold makes one value of a gauge's parts; of says what each of their series counts for.
func (r *replica) fold(c Canonical, st *stat, of func([]window.Sample) float64) float64 {
	if st.absent {
		return 0
	}
	fold := r.engine.series[c].fold
	var out float64
	highest := map[string]float64{} // by target
	for _, p := range st.parts {
		var v float64
		for _, s := range p.series {
			v += of(s) * p.factor
		}
		switch fold {
		case Max:
			out = max(out, v)
		case MaxOfTarget:
			highest[p.target] = max(highest[p.target], v)
		default:
			out += v
		}
	}
	for _, target := range slices.Sorted(maps.Keys(highest)) { // so that the sum is the same each time
		out += highest[target]
	}
	if fold == Mean {
		out /= float64(len(st.parts))
	}
	return out
}
