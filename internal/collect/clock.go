package collect

import "time"

// clockSlack is by how much a source's clock may seem to go faster or slower between two readings:
// servers tell it in whole seconds, and those of a pair differ a little.
const clockSlack = 3 * time.Second

// sourceClock follows the source's clock by our monotonic one. Our wall clock would not do: it may be
// set while the source is out of reach, and the last samples would pass for fresh.
type sourceClock struct {
	read            time.Time // what it showed, at some time between
	asked, answered time.Time // these two of ours
}

// at returns what the source's clock shows at a time of ours, or somewhat less, as answers take time.
func (c *sourceClock) at(t time.Time) time.Time {
	if c.read.IsZero() {
		return t
	}
	return c.read.Add(t.Sub(c.answered))
}

// offset is the source's clock less our wall clock.
func (c *sourceClock) offset(now time.Time) time.Duration { return c.at(now).Sub(now) }

// set takes a reading that was made between two times of ours. It reports whether the source's clock
// was set since the reading before, and until when samples have stamps of the clock as it was.
func (c *sourceClock) set(read, asked, answered time.Time) (until time.Time, jumped bool) {
	if !c.read.IsZero() {
		earliest := c.at(asked)
		until = c.read.Add(answered.Sub(c.asked))
		jumped = read.Before(earliest.Add(-clockSlack)) || read.After(until.Add(clockSlack))
	}
	c.read, c.asked, c.answered = read, asked, answered
	return until, jumped
}
