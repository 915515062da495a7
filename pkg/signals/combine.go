package signals

import (
	"fmt"
	"math"
	"slices"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file computes canonical series that an engine does not export of two series that it does: their
// quotient, product or difference.

// half is a canonical series, or the one that it is combined with.
type half struct {
	canonical Canonical
	second    bool
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
		out.parts = append(out.parts, &part{key: pa.key, joint: pa.joint, target: pa.target, newest: min(pa.newest, pb.newest), factor: 1, series: [][]window.Sample{samples}})
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
