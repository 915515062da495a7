package scrape

import "time"

// clock stamps samples. It shows the wall clock's time as the program starts, and runs on evenly from
// there whatever is done to the wall clock: when that is set, no window has to begin anew, no sample
// passes for fresh that is not, and none is held for one of the future.
type clock struct {
	now, wall func() time.Time
}

func newClock() clock {
	start := time.Now()
	return clock{
		now:  func() time.Time { return start.Round(0).Add(time.Since(start)) }, // Since goes by the monotonic clock
		wall: time.Now,
	}
}
