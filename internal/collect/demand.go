package collect

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// askedFor is how long a query is collected after somebody asked it.
const askedFor = 10 * time.Minute

// maxAsked bounds the different queries with parameters that are collected because somebody asked them:
// parameters are free, and each query costs an evaluation of every pod. What HPAs name comes on top, and
// so do signals without parameters, of which there are as many as the catalogue has.
const maxAsked = 100

// demand knows which queries are wanted. Asking is on the path of every request: where the query is
// known it takes no lock.
type demand struct {
	asked    sync.Map // signals.Query to *asked
	mu       sync.Mutex
	count    int // of asked, with parameters
	standing atomic.Pointer[map[signals.Query]*signals.Plan]
	wake     chan struct{}
}

// asked is a query that somebody asked.
type asked struct {
	plan *signals.Plan
	last atomic.Int64 // Unix seconds of the newest request
}

func newDemand() *demand {
	d := &demand{wake: make(chan struct{}, 1)}
	d.standing.Store(&map[signals.Query]*signals.Plan{})
	return d
}

// ask reports whether there was room for the query.
func (d *demand) ask(plan *signals.Plan, now time.Time) bool {
	if d.touch(plan, now) {
		return true
	}
	if _, ok := (*d.standing.Load())[plan.Query]; ok {
		return true // it needs no place of its own
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.touch(plan, now) {
		return true
	}
	if hasParameters(plan.Query) {
		if d.count >= maxAsked {
			return false
		}
		d.count++
	}
	a := &asked{plan: plan}
	a.last.Store(now.Unix())
	d.asked.Store(plan.Query, a)
	return true
}

func hasParameters(q signals.Query) bool { return q != signals.Query{Signal: q.Signal} }

func (d *demand) touch(plan *signals.Plan, now time.Time) bool {
	v, ok := d.asked.Load(plan.Query)
	if !ok {
		return false
	}
	if a, s := v.(*asked), now.Unix(); a.last.Load() != s {
		a.last.Store(s)
	}
	return true
}

// setStanding reports whether the standing demand changed.
func (d *demand) setStanding(plans []*signals.Plan) bool {
	next := make(map[signals.Query]*signals.Plan, len(plans))
	for _, p := range plans {
		next[p.Query] = p
	}
	old := *d.standing.Swap(&next)
	if len(old) != len(next) {
		return true
	}
	for q := range next {
		if old[q] == nil {
			return true
		}
	}
	return false
}

// plans returns what is wanted now, in a fixed order, and how much of it is standing; it forgets what is
// no longer wanted.
func (d *demand) plans(now time.Time) (out []*signals.Plan, standing int) {
	named := *d.standing.Load()
	for _, p := range named {
		out = append(out, p)
	}
	d.asked.Range(func(q, v any) bool {
		a := v.(*asked)
		switch {
		case now.Sub(time.Unix(a.last.Load(), 0)) >= askedFor:
			d.mu.Lock()
			d.asked.Delete(q)
			if hasParameters(a.plan.Query) {
				d.count--
			}
			d.mu.Unlock()
		case named[a.plan.Query] == nil:
			out = append(out, a.plan)
		}
		return true
	})
	slices.SortFunc(out, inOrder)
	return out, len(named)
}

// inOrder compares plans by their queries.
func inOrder(a, b *signals.Plan) int {
	return cmp.Or(
		cmp.Compare(a.Query.Signal, b.Query.Signal),
		cmp.Compare(a.Where, b.Where),
		cmp.Compare(a.Quantile, b.Quantile),
		cmp.Compare(a.Query.Window, b.Query.Window),
		cmp.Compare(a.SLO.TTFT, b.SLO.TTFT),
		cmp.Compare(a.SLO.TPOT, b.SLO.TPOT),
		cmp.Compare(a.SLO.E2E, b.SLO.E2E),
	)
}

// hurry asks for a tick soon.
func (d *demand) hurry() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}
