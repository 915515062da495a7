package signals

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file says whether the samples of a stat are fresh, and whether after a gap they cover the window again
// that signals describe.

// leastSkew is what the clocks of the source and of what writes to it may differ by at the least.
const leastSkew = 2 * time.Second

// windowReads is how many scrape intervals a window has at the least.
const windowReads = 4

// freshFor is how old the newest sample may be: two intervals, and never less than ten seconds.
func (st *stat) freshFor() time.Duration { return max(2*st.interval, 10*time.Second) }

// check says why the samples cannot be used now, or "".
func (st *stat) check(fs []found, at At) string {
	age := at.Now.Sub(time.UnixMilli(st.newest))
	if age > st.freshFor() {
		return fmt.Sprintf("the newest sample of %s is %s old, and stale after %s", st.name, age.Round(time.Second), st.freshFor().Round(time.Second))
	}
	if age < -max(st.interval, leastSkew) {
		// Also after the source's clock was set back: until it is where it was, what is read is older than
		// what was read before, and does not count.
		return fmt.Sprintf("the newest sample of %s lies %s in the future: the clocks of the source and of what writes to it differ", st.name, (-age).Round(time.Second))
	}
	e, m := fs[0].engine, fs[0].mapping
	if at.Ready.IsZero() && !e.pool || m.beside != "" {
		return ""
	}
	// One series that reaches back is enough for its target: others may be younger by right (a
	// label value that came up, a bucket that is written another way now).
	begins := map[string]int64{}
	for _, f := range fs {
		begin := unbroken(f.samples, st.window)
		if at.Ready.IsZero() && begin == f.samples[0].T {
			begin = math.MinInt64 // nothing says that it was there before
		}
		if b, ok := begins[f.instance]; !ok || begin < b {
			begins[f.instance] = begin
		}
	}
	expected := int64(math.MinInt64) // of a pool it is not known since when it is there
	if !at.Ready.IsZero() {
		expected = at.Ready.Add(st.window).UnixMilli()
	}
	w := (st.window - st.interval).Milliseconds()
	begin := slices.Max(slices.Collect(maps.Values(begins))) // what came last decides for all
	if begin <= expected {
		return ""
	}
	if begin > st.newest-w {
		short := fmt.Sprintf("the samples of %s cover %s of the window of %s since the last gap", st.name,
			max(0, time.Duration(st.newest-begin)*time.Millisecond), st.window)
		if !empty(fs) {
			return short
		}
		st.short = short
	}
	st.regained = begin > st.newest-2*w
	return ""
}

// empty reports whether the series say that a pool has no replica: then there is none that a low answer could
// take away, and who waits for the first must not wait for a window, too.
func empty(ready []found) bool {
	return ready[0].engine.pool && !slices.ContainsFunc(ready, func(f found) bool { return f.samples[len(f.samples)-1].V != 0 })
}

// unbroken returns the time of the first sample after the last gap that is longer than the window,
// looking back over two of them. After such an outage the HPA may have forgotten what it
// recommended, and would act on the first low answer without stabilizing it: so that answer has to
// be backed by a whole window again.
func unbroken(samples []window.Sample, w time.Duration) int64 {
	last := len(samples) - 1
	start := samples[last].T
	for i := last - 1; i >= 0 && start > samples[last].T-2*w.Milliseconds(); i-- {
		if start-samples[i].T > w.Milliseconds() {
			break
		}
		start = samples[i].T
	}
	return start
}
