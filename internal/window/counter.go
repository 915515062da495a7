package window

import (
	"math"
	"slices"
	"time"
)

// Increase returns how much a counter grew from its oldest to its newest sample. A value below its
// predecessor means that the engine restarted and counts from 0 again. What was counted before the
// oldest sample, and between the last sample of a run and its end, is not known and not guessed.
// ok is false with fewer than two samples, or when the growth is not a number.
func Increase(samples []Sample) (delta float64, ok bool) {
	if len(samples) < 2 {
		return 0, false
	}
	delta = samples[len(samples)-1].V - samples[0].V
	for i := 1; i < len(samples); i++ {
		if samples[i].V < samples[i-1].V {
			delta += samples[i-1].V
		}
	}
	return delta, isFinite(delta)
}

// LastIncrease returns the time of the newest sample that shows a counter to have counted: it is
// greater than its predecessor, or the first of a new run and not 0. ok is false when none does.
func LastIncrease(samples []Sample) (t int64, ok bool) {
	for i := len(samples) - 1; i > 0; i-- {
		if v, before := samples[i].V, samples[i-1].V; v > before || v < before && v > 0 {
			return samples[i].T, true
		}
	}
	return 0, false
}

// Interval returns the scrape interval that the samples show: the median of the newest gaps, at
// most 12 of them, so that it follows a change within a window. Of two middle gaps the smaller
// counts, because a missed scrape lengthens a gap and nothing shortens one. It is 0 with fewer
// than two samples.
func Interval(samples []Sample) time.Duration {
	const most = 12
	if len(samples) < 2 {
		return 0
	}
	samples = samples[max(0, len(samples)-most-1):]
	var buf [most]int64
	gaps := buf[:len(samples)-1]
	for i := range gaps {
		gaps[i] = samples[i+1].T - samples[i].T
	}
	slices.Sort(gaps)
	return time.Duration(gaps[(len(gaps)-1)/2]) * time.Millisecond
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
