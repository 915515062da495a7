package collect

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// learning keeps what has been seen of variants, for as long as some query needs it. It belongs to the
// goroutine that ticks.
type learning struct {
	learner capacity.Learner
	// last is the end of the newest window that was learned of a pod: windows must not overlap.
	last map[types.UID]time.Time
	// starts are how long pods of a variant took to be Ready, the longest of them.
	starts map[string]time.Duration
	// known holds what is known of each variant in the tick at hand.
	known map[string]*signals.Capacity
	role  func(*pods.Pod) string
}

func newLearning(role func(*pods.Pod) string) *learning {
	if role == nil {
		role = func(*pods.Pod) string { return "" }
	}
	return &learning{last: map[types.UID]time.Time{}, starts: map[string]time.Duration{}, known: map[string]*signals.Capacity{}, role: role}
}

// learns reports whether one of the plans needs to know what replicas can do.
func learns(plans []*signals.Plan) bool {
	for _, p := range plans {
		if p.Signal().Learns() {
			return true
		}
	}
	return false
}

const (
	// leastDrain and mostDrain bound the time in which a queue is to be served.
	leastDrain = 2 * time.Minute
	mostDrain  = 15 * time.Minute
)

// begin starts a tick: models are made anew, and pods that have gone are forgotten.
func (l *learning) begin(there func(types.UID) bool) {
	clear(l.known)
	for uid := range l.last {
		if !there(uid) {
			delete(l.last, uid)
		}
	}
}

// of returns what is known of a pod's capacity; nil when it is not known what it runs.
func (l *learning) of(p *pods.Pod) *signals.Capacity {
	if p.Variant == "" {
		return nil
	}
	role := l.role(p)
	name := role + "/" + p.Variant
	if took := p.ReadySince.Sub(p.Start); p.Ready && !p.Start.IsZero() && took <= mostDrain {
		l.starts[name] = max(l.starts[name], took)
	}
	c := l.known[name]
	if c == nil {
		c = &signals.Capacity{
			Variant: name, Seats: p.Seats, BatchTokens: p.BatchTokens,
			Drain: max(leastDrain, l.starts[name]),
			Role:  map[string]capacity.Role{pods.RolePrefill: capacity.Prefill, pods.RoleDecode: capacity.Decode}[role],
		}
		var err error
		if c.Model, err = l.learner.Model(name); err != nil {
			c.Missing = err.Error()
		}
		l.known[name] = c
	}
	return c
}

// watch learns from what was measured of a pod.
func (l *learning) watch(p *pods.Pod, c *signals.Capacity, measures []signals.Measure) {
	if c == nil {
		return
	}
	for _, m := range measures {
		if o, ok := m.Observation(); ok && o.At.Sub(l.last[p.UID]) >= o.Span {
			l.last[p.UID] = o.At
			l.learner.Observe(c.Variant, o)
		}
	}
}
