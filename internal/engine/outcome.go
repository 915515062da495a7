package engine

import "time"

// TTFT is the time from the request's arrival to its first token.
func (o Outcome) TTFT() time.Duration { return o.FirstToken.Sub(o.Arrival) }

// TPOT is the mean time of each token after the first, and 0 where there is none.
func (o Outcome) TPOT() time.Duration {
	if o.OutputTokens < 2 {
		return 0
	}
	return o.Finished.Sub(o.FirstToken) / time.Duration(o.OutputTokens-1)
}

// E2E is the time from the request's arrival to its last token.
func (o Outcome) E2E() time.Duration { return o.Finished.Sub(o.Arrival) }

// QueueTime is the time until the request was first scheduled.
func (o Outcome) QueueTime() time.Duration { return o.Scheduled.Sub(o.Arrival) }

// SLO is what a good request keeps to; 0 is no objective.
type SLO struct{ TTFT, TPOT, E2E time.Duration }

// Meets reports whether the request was good: within every objective.
func (o Outcome) Meets(s SLO) bool {
	within := func(got, want time.Duration) bool { return want == 0 || got <= want }
	return within(o.TTFT(), s.TTFT) && within(o.TPOT(), s.TPOT) && within(o.E2E(), s.E2E)
}
