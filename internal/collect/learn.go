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
	pods    map[types.UID]seen
	// known holds what is known of each variant in the tick at hand.
	known map[string]*signals.Capacity
	role  func(*pods.Pod) string // in the tick at hand
}

// seen is what is kept of a pod.
type seen struct {
	// until is the end of the newest window that was learned of it: windows must not overlap.
	until time.Time
	// start is how long it took to be Ready; 0 when unknown.
	start time.Duration
}

func newLearning() *learning {
	return &learning{pods: map[types.UID]seen{}, known: map[string]*signals.Capacity{}}
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

// begin starts a tick: models are made anew, and pods that have gone are forgotten. What has been learned
// of their variant is not, as it will come back.
func (l *learning) begin(role func(*pods.Pod) string, there func(types.UID) bool) {
	l.role = role
	clear(l.known)
	for uid := range l.pods {
		if !there(uid) {
			delete(l.pods, uid)
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
	c := l.known[name]
	if c == nil {
		c = &signals.Capacity{
			Variant: name, Seats: p.Seats, BatchTokens: p.BatchTokens, Drain: leastDrain,
			Role: map[string]capacity.Role{pods.RolePrefill: capacity.Prefill, pods.RoleDecode: capacity.Decode}[role],
		}
		var err error
		if c.Model, err = l.learner.Model(name); err != nil {
			c.Missing = err.Error()
		}
		l.known[name] = c
	}
	s := l.pods[p.UID]
	if took := p.ReadySince.Sub(p.Start); p.Ready && !p.Start.IsZero() && (s.start == 0 || took < s.start) {
		s.start = took // a pod that is Ready again took no longer at first
		l.pods[p.UID] = s
	}
	if s.start <= mostDrain {
		c.Drain = max(c.Drain, s.start) // the longest of the variant's pods
	}
	return c
}

// watch learns from what was measured of a pod.
func (l *learning) watch(p *pods.Pod, c *signals.Capacity, measures []signals.Measure) {
	if c == nil {
		return
	}
	s := l.pods[p.UID]
	for _, m := range measures {
		if o, ok := m.Observation(); ok && o.At.Sub(s.until) >= o.Span {
			s.until = o.At
			l.pods[p.UID] = s
			l.learner.Observe(c.Variant, o)
		}
	}
}
