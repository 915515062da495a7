package signals

import (
	"fmt"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file measures: the raw series of one pod, or pool, at one instant make a Measure for each plan.

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
	replicas := map[key]*replica{}
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
				out[i].foreign = own.runs != nil && own.down == ""
				continue
			}
			if why := pl.signal.definition.lacks(e); why != "" {
				out[i] = unknown(fmt.Sprintf("not computable on %s, because %s", e.Name, why))
				continue
			}
			if key := pl.misses(e); key != "" {
				// As for any selector: what does not have the label is not chosen by it.
				out[i] = unknown(fmt.Sprintf("the series of %s have no label %s", e.Name, key))
				out[i].foreign = own.runs == e && own.down == ""
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
			// What cannot be scraped may be the very engine that is asked for, beside another that runs.
			out[i].foreign = own.runs != nil && own.down == "" && (own.runs != e || r.other)
		}
	}
	return out
}
