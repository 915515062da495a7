package prometheus

import (
	"math"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
)

// replicas chooses one of the series by which a pair of servers tells of the same engine. Mixing
// them would be wrong: their clocks differ a little, so a counter that both read can seem to step
// back, which means a restart.
//
// The one that is listened to loses its place when it has missed a scrape and another has not. That
// is soon enough that its last sample is still fresh (younger than two scrape intervals, and than ten
// seconds), so that the death of one of a pair leaves no gap.
type replicas struct {
	label  string
	chosen map[uint64]*replica
}

type replica struct {
	value  string   // of the replica label
	newest int64    // its newest sample
	gaps   [3]int64 // the last ones between its samples; 0 where none is known
	seen   uint64   // the fetch that last chose it
}

const (
	// slowScrape is what a scrape interval is taken for that is not known yet.
	slowScrape = 60_000
	// visible is how long a sample takes to be seen that is not late, in milliseconds: a scrape has to
	// end, and an agent to send it on.
	visible = 2_000
)

// choose returns which points of a series to listen to, at a time on the server's clock.
func (r *replicas) choose(k *knownSeries, points []point, now int64) []point {
	newest := points[len(points)-1].t
	c := r.chosen[k.key]
	switch {
	case c == nil:
		c = &replica{value: k.replica}
		r.chosen[k.key] = c
	case c.value != k.replica:
		interval, ahead := c.interval(), newest-c.newest
		late := ahead > interval+interval/4 || now-c.newest > interval+interval/2+visible
		// Half an interval is left out at the change: more than the clocks of a pair are apart, so that
		// no counter steps back.
		from := c.newest + interval/2
		if !late || newest < from {
			return nil
		}
		for points[0].t < from {
			points = points[1:]
		}
		c.value, c.newest = k.replica, 0
	}
	c.seen = k.seen
	for _, p := range points {
		if p.t <= c.newest {
			continue
		}
		if c.newest > 0 {
			c.gaps[2], c.gaps[1], c.gaps[0] = c.gaps[1], c.gaps[0], p.t-c.newest
		}
		c.newest = p.t
	}
	return points
}

// interval is the smallest of the last gaps: a missed scrape lengthens one, and nothing shortens one.
func (c *replica) interval() int64 {
	least := int64(math.MaxInt64)
	for _, gap := range c.gaps {
		if gap > 0 {
			least = min(least, gap)
		}
	}
	if least == math.MaxInt64 {
		return slowScrape
	}
	return least
}

func (r *replicas) forget(fetch uint64) {
	for key, c := range r.chosen {
		if fetch-c.seen >= keepUnseen {
			delete(r.chosen, key)
		}
	}
}

// replicaKey is alike for the series of a pair's servers that tell of the same. While one of them is
// upgraded from Prometheus 2 to 3, what is le="1" on one is le="1.0" on the other.
func replicaKey(ls labels.Labels) uint64 {
	b := labels.NewBuilder(ls)
	for _, name := range []string{"le", "quantile"} {
		text := ls.Get(name)
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			b.Set(name, strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	return b.Labels().Hash()
}
