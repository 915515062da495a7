package capacity_test

import (
	"math"
	"time"
)

// hpa is the law of a HorizontalPodAutoscaler with one Object metric and an AverageValue target.
type hpa struct {
	target, tolerance float64
	least, most       int
	// up is the scale-up policy per period: the greater of a percentage and a number of pods.
	upPercent, upPods float64
	upPeriod          time.Duration
	downWindow        time.Duration

	wanted []stamped // what was recommended
	events []stamped // pods that were added
}

type stamped struct {
	at time.Duration
	n  int
}

// step returns the new number of replicas. An error of the metric holds.
func (h *hpa) step(at time.Duration, replicas int, value float64, err error) int {
	if err != nil {
		return replicas
	}
	wanted := replicas
	if ratio := value / (h.target * float64(replicas)); math.Abs(ratio-1) > h.tolerance {
		wanted = int(math.Ceil(value/h.target - 1e-9))
	}
	h.wanted = append(h.wanted, stamped{at, wanted})
	next := wanted
	for i := len(h.wanted) - 1; i >= 0 && h.wanted[i].at > at-h.downWindow; i-- {
		next = max(next, h.wanted[i].n)
	}
	// The highest recommendation of the window stops a scale-down, and starts no scale-up.
	if wanted < replicas {
		next = min(next, replicas)
	} else {
		next = wanted
	}
	if next > replicas {
		start := replicas
		for _, e := range h.events {
			if e.at > at-h.upPeriod {
				start -= e.n
			}
		}
		limit := max(float64(start)+h.upPods, math.Ceil(float64(start)*(1+h.upPercent/100)))
		next = max(replicas, min(next, int(limit)))
	}
	next = min(max(next, h.least), h.most)
	if next > replicas {
		h.events = append(h.events, stamped{at, next - replicas})
	}
	return next
}
