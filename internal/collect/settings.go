package collect

import (
	"fmt"
	"slices"
	"time"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Settings are the user's choices that may change while the collector runs. A snapshot is made under one
// of them, and carries it.
type Settings struct {
	// Params are those of every pod, but for the objectives where SLO has others. PodLabels do not change.
	Params signals.Params
	// SLO returns the objectives of a pod; nil for those of Params everywhere.
	SLO func(*pods.Pod) signals.SLO
	// Role returns whether a pod does prefill or decode, or "" for both; nil for both everywhere.
	Role func(*pods.Pod) string
	// Windows are those that queries may ask for, besides that of Params.
	Windows []time.Duration
}

// complete checks settings, and returns a copy without what is nil.
func (s Settings) complete() (*Settings, error) {
	if err := s.Params.Validate(); err != nil {
		return nil, fmt.Errorf("signal parameters: %w", err)
	}
	for _, w := range s.Windows {
		if w < signals.MinWindow || w > signals.MaxWindow {
			return nil, fmt.Errorf("windows: %s is outside %s to %s", w, signals.MinWindow, signals.MaxWindow)
		}
	}
	s.Windows = slices.Clone(s.Windows)
	if s.SLO == nil {
		own := s.Params.SLO
		s.SLO = func(*pods.Pod) signals.SLO { return own }
	}
	if s.Role == nil {
		s.Role = func(*pods.Pod) string { return "" }
	}
	return &s, nil
}

// retention is for how long samples are kept: an outage is told by two windows.
func (s *Settings) retention() time.Duration {
	longest := s.Params.Window
	for _, w := range s.Windows {
		longest = max(longest, w)
	}
	return max(minRetention, 2*longest)
}

// Configure sets other settings, with the standing queries as they are read under these: from the next
// tick on, which is soon, snapshots are made under both. What was collected is kept. Until samples cover
// a window that is longer than any before, what is measured over it is unknown.
func (c *Collector) Configure(s Settings, standing []*signals.Plan) error {
	next, err := s.complete()
	if err != nil {
		return err
	}
	next.Params.PodLabels = c.podLabels
	c.configured.Lock()
	c.next = next
	c.demand.setStanding(standing)
	c.configured.Unlock()
	c.demand.hurry()
	return nil
}

// begin takes what a tick is made under, and for whom: both at once, as plans are read under settings.
func (c *Collector) begin(now time.Time) (plans []*signals.Plan, standing int) {
	c.configured.Lock()
	defer c.configured.Unlock()
	c.settings = c.next
	if r := c.settings.retention(); r != c.retention {
		c.retention = r
		c.store.Retain(r)
	}
	return c.demand.plans(now)
}
