package signals

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file sorts the raw series of one pod, or pool, by the engine they are of, and tells which engine the
// pod runs by now: it may have series of others besides, of what stands in front of engines, or of what a
// predecessor of the same name ran.

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
	case s.down != "":
		return fmt.Sprintf("the target %s of the pod cannot be scraped", s.down)
	case s.runs != nil:
		return fmt.Sprintf("%s stands in front of engines, whose requests it repeats: ask for %s signals by that name", s.runs.Name, s.runs.Prefix+"…")
	}
	return "the source has no sample of an engine in this pod"
}

// located is a series in one of its places.
type located struct {
	*place
	series *window.Series
}

// sorted finds the places of a pod's series.
func (p Params) sorted(series []*window.Series, at At) sorted {
	out := sorted{of: map[*Engine][]located{}}
	for _, s := range series {
		for _, pl := range p.placesOf(s) {
			switch {
			case !pl.belongsTo(at.Pod):
			case pl.engine != nil:
				out.of[pl.engine] = append(out.of[pl.engine], located{pl, s})
			case isDown(s, at) && (out.down == "" || pl.instance < out.down):
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

// isDown reports whether a series up says that its target cannot be scraped, of the pod as it is now: a
// StatefulSet's next pod has the name of the last, whose target may be down until it is taken away.
func isDown(up *window.Series, at At) bool {
	if up.Ended() || lastOf(up, at) == math.MinInt64 {
		return false
	}
	samples := up.Samples()
	return samples[len(samples)-1].V == 0
}
