package collect

import (
	"slices"
	"time"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// SourceStatus says how the newest collection went, for people.
type SourceStatus struct {
	// Name is the source's, without credentials.
	Name string
	// ClockOffset is the source's clock less ours; 0 while it has not been read.
	ClockOffset time.Duration
	// Took is how long the collection took, fetching and computing.
	Took time.Duration
	// Series and Samples are how many the windows hold.
	Series, Samples int
}

// Source returns how the collection that made the snapshot went. What it met is in Err.
func (s *Snapshot) Source() SourceStatus { return s.source }

// Plans returns what was evaluated, in a fixed order. It must not be changed.
func (s *Snapshot) Plans() []*signals.Plan { return s.plans }

// A Demand is a query that is collected.
type Demand struct {
	Plan *signals.Plan
	// Standing says that an object of the cluster names it.
	Standing bool
	// Until is when it is no longer collected for those who asked, unless they ask again; zero when nobody
	// has asked.
	Until time.Time
}

// Demands returns what is collected, and for whom, in the order of Snapshot.Plans.
func (c *Collector) Demands() []Demand {
	var out []Demand
	standing := *c.demand.standing.Load()
	for q, p := range standing {
		d := Demand{Plan: p, Standing: true}
		if v, ok := c.demand.asked.Load(q); ok {
			d.Until = v.(*asked).until()
		}
		out = append(out, d)
	}
	now := time.Now()
	c.demand.asked.Range(func(q, v any) bool {
		if a := v.(*asked); standing[a.plan.Query] == nil && now.Before(a.until()) {
			out = append(out, Demand{Plan: a.plan, Until: a.until()})
		}
		return true
	})
	slices.SortFunc(out, func(a, b Demand) int { return inOrder(a.Plan, b.Plan) })
	return out
}

func (a *asked) until() time.Time { return time.Unix(a.last.Load(), 0).Add(askedFor) }
