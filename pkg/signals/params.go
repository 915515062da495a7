package signals

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Params are the user's choices that signals depend on.
type Params struct {
	// Window is the stretch of time that rates and quantiles describe. A replica whose scrape
	// interval is longer than a quarter of it gets four intervals.
	Window time.Duration
	// SLO is what a request must meet to count as good.
	SLO SLO
	// Full is what saturation is relative to.
	Full Full
	// Capacity is what is known of how much a replica can do; nil when nothing is.
	Capacity *Capacity
	// PodLabels are pairs of labels by which series name their pod. They are believed before those
	// that are built in.
	PodLabels []PodLabels
}

// PodLabels is a pair of labels of a series that name the pod it was read from.
type PodLabels struct{ Namespace, Pod string }

// Full says when a replica is full, as the gateway's endpoint picker sees it.
type Full struct {
	// Queue is how many waiting requests fill a replica.
	Queue float64
	// KV is the fraction of the KV cache that fills a replica.
	KV float64
}

// SLO is a service level objective for single requests. A zero field is no objective.
type SLO struct {
	// TTFT is the longest good time to first token.
	TTFT time.Duration
	// TPOT is the longest good mean time per output token.
	TPOT time.Duration
	// E2E is the longest good end-to-end latency.
	E2E time.Duration
}

// DefaultParams has objectives that lie on edges of vLLM's buckets.
func DefaultParams() Params {
	return Params{
		Window: time.Minute,
		SLO:    SLO{TTFT: 2500 * time.Millisecond, TPOT: 100 * time.Millisecond},
		Full:   Full{Queue: 5, KV: 0.8},
	}
}

// MinWindow and MaxWindow bound Params.Window: below, it would hold too few samples of any
// scrape; above, signals would answer for load that is long gone, and hold memory for it.
const (
	MinWindow = 10 * time.Second
	MaxWindow = 10 * time.Minute
)

// MaxObjective bounds objectives: no engine has a bucket as high.
const MaxObjective = 24 * time.Hour

// Validate returns every fault of the parameters, named by their field in the configuration file.
func (p Params) Validate() error {
	var errs []error
	if p.Window < MinWindow || p.Window > MaxWindow {
		errs = append(errs, fmt.Errorf("window: %s is outside %s to %s", p.Window, MinWindow, MaxWindow))
	}
	for _, o := range p.SLO.objectives() {
		switch {
		case o.limit < 0:
			errs = append(errs, fmt.Errorf("slo.%s: %s is negative; leave it out for no objective", o.canonical, o.limit))
		case o.limit > MaxObjective:
			errs = append(errs, fmt.Errorf("slo.%s: %s is above %s; leave it out for no objective", o.canonical, o.limit, MaxObjective))
		}
	}
	if p.SLO == (SLO{}) {
		errs = append(errs, errors.New("slo: no objective is set; goodput needs at least one of ttft, tpot, e2e"))
	}
	if !(p.Full.Queue > 0 && p.Full.Queue <= 1e6) {
		errs = append(errs, fmt.Errorf("saturation.queue: %g waiting requests are not above 0, or above 1e6", p.Full.Queue))
	}
	if !(p.Full.KV > 0 && p.Full.KV <= 1) {
		errs = append(errs, fmt.Errorf("saturation.kv: %g is not above 0, or above 1", p.Full.KV))
	}
	return errors.Join(errs...)
}

// or returns the objectives of other, and those of s where it has none.
func (s SLO) or(other SLO) SLO {
	return SLO{TTFT: cmp.Or(other.TTFT, s.TTFT), TPOT: cmp.Or(other.TPOT, s.TPOT), E2E: cmp.Or(other.E2E, s.E2E)}
}

// Warnings says which objectives lie between two edges of an engine's buckets. The engine then
// cannot tell how many requests met them: the guaranteed count is that of the edge below.
func (p Params) Warnings() []string {
	var out []string
	for _, e := range engines {
		for _, o := range p.SLO.objectives() {
			edges := e.series[o.canonical].edges
			if o.limit == 0 || len(edges) == 0 {
				continue
			}
			i, on := slices.BinarySearch(edges, o.limit.Seconds())
			switch {
			case on:
			case i == 0:
				out = append(out, fmt.Sprintf("slo.%s: %s is below the least bucket edge of %s (%gs): its goodput is not guaranteed to be above 0", o.canonical, o.limit, e.Name, edges[0]))
			case i == len(edges):
				out = append(out, fmt.Sprintf("slo.%s: %s is above the greatest bucket edge of %s (%gs), which counts instead", o.canonical, o.limit, e.Name, edges[i-1]))
			default:
				out = append(out, fmt.Sprintf("slo.%s: %s lies between the bucket edges %gs and %gs of %s: goodput counts the requests within %gs", o.canonical, o.limit, edges[i-1], edges[i], e.Name, edges[i-1]))
			}
		}
	}
	return out
}

// stallCap is the most that a latency answers while nothing progresses: twice the objective, so
// that one hung replica cannot drive a fleet to its maximum.
func (p Params) stallCap(c Canonical) time.Duration {
	capped := SLO{TTFT: 2500 * time.Millisecond, TPOT: 100 * time.Millisecond, E2E: time.Minute}.or(p.SLO)
	switch c {
	case TPOT, ITL:
		return 2 * capped.TPOT
	case E2E:
		return 2 * capped.E2E
	default:
		return 2 * capped.TTFT
	}
}

type objective struct {
	canonical Canonical
	limit     time.Duration
}

// objectives lists the objectives with the canonical histogram that each is checked against.
func (s SLO) objectives() []objective {
	return []objective{{TTFT, s.TTFT}, {TPOT, s.TPOT}, {E2E, s.E2E}}
}
