// Package window keeps the last minutes of raw series in memory and does the arithmetic of
// counters and histograms over them.
//
// A [Store] takes samples from a source and hands them out by group: one group holds the series of
// one replica. The functions over samples say what happened in a stretch of time: growth with
// restarts ([Increase], [Increases]), the last sign of progress ([LastIncrease]), the scrape
// interval ([Interval]), quantiles and bounds of a histogram ([Quantile], [AtMost]). PromQL is
// their oracle: the tests run the same samples through Prometheus's own engine. They differ from
// it where it guesses: nothing is extrapolated to the edges of the window, so a growth is what the
// samples show, over the span that they show it for.
//
// Nothing here reads a clock or does I/O. Times are Unix milliseconds on the source's clock.
package window

import (
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
)

// What one replica can make us keep is bounded, whatever it exports. An engine exports a few
// hundred series, and a window at an interval of one second is a few hundred samples.
const (
	maxSamples        = 1024
	maxSeriesPerGroup = 20_000
)

// A series that is read rarely has few samples in the retention, fewer than it takes to see whether
// they go back over the two windows of four intervals that an outage is told by. So the newest ones
// are kept for longer, up to a multiple of the retention.
const (
	minSamples    = 10
	slowRetention = 4
)

// Store keeps the last minutes of series, grouped. It is not safe for concurrent use: one
// goroutine owns it.
type Store struct {
	retention int64
	groupOf   func(labels.Labels) (string, bool)

	// index finds a series by the hash of its labels; series with one hash are chained.
	index  map[uint64]*Series
	groups map[string]*group

	// after is the time up to which no sample is taken.
	after int64

	series, samples int
	dropped         uint64
}

type group struct {
	series   []*Series
	unsorted bool
	// refused is the time of the newest sample that was refused because the group was full.
	refused int64
}

// New returns a store that keeps the samples of the last retention, and somewhat more of series that
// are read rarely. groupOf names the group of a
// series when it is first seen; ok=false keeps the series out. It is called again for every sample
// of a series that is not kept.
func New(retention time.Duration, groupOf func(labels.Labels) (group string, ok bool)) *Store {
	return &Store{
		retention: retention.Milliseconds(),
		groupOf:   groupOf,
		index:     map[uint64]*Series{},
		groups:    map[string]*group{},
		after:     math.MinInt64,
	}
}

// Retain changes for how long samples are kept, from the next Advance on.
func (s *Store) Retain(retention time.Duration) { s.retention = retention.Milliseconds() }

// Restart forgets everything, and takes no sample that is stamped until then or before: the source's
// clock was set, and what it stamped before says neither when it was read nor what came after what.
func (s *Store) Restart(until int64) {
	s.index, s.groups = map[uint64]*Series{}, map[string]*group{}
	s.series, s.samples = 0, 0
	s.after = max(s.after, until)
}

// Append adds a sample. Samples that are not newer than what was last heard of their series are
// dropped: sources deliver some twice. A stale marker ends the series until a newer sample comes.
// Any other NaN, and an infinity, is no sample, as no signal can be made of it, but it leaves the
// series garbled until a newer sample comes: it is there, and its number is not known.
func (s *Store) Append(ls labels.Labels, t int64, v float64) {
	if t <= s.after {
		return
	}
	hash := ls.Hash()
	series := s.find(hash, ls)
	if series == nil {
		if value.IsStaleNaN(v) {
			return
		}
		if series = s.add(hash, ls, t); series == nil {
			return
		}
	}
	if t <= series.heard {
		return
	}
	series.heard = t
	switch {
	case value.IsStaleNaN(v):
		series.state = ended
	case !isFinite(v):
		series.state = garbled
	default:
		series.state = sampled
		s.samples += series.push(Sample{T: t, V: v})
	}
}

func (s *Store) find(hash uint64, ls labels.Labels) *Series {
	for series := s.index[hash]; series != nil; series = series.next {
		if labels.Equal(series.Labels, ls) {
			return series
		}
	}
	return nil
}

// add returns nil when the series, of which something is heard at t, is not to be kept.
func (s *Store) add(hash uint64, ls labels.Labels, t int64) *Series {
	name, ok := s.groupOf(ls)
	if !ok {
		return nil
	}
	g := s.groups[name]
	if g == nil {
		g = &group{refused: math.MinInt64}
		s.groups[name] = g
	}
	if len(g.series) >= maxSeriesPerGroup {
		s.dropped++
		g.refused = max(g.refused, t)
		return nil
	}
	// A copy: the source's labels may be a slice of a whole exposition.
	series := &Series{Labels: ls.Copy(), heard: math.MinInt64, next: s.index[hash]}
	s.index[hash] = series
	g.series, g.unsorted = append(g.series, series), true
	s.series++
	return series
}

// Advance forgets the samples older than now minus the retention, but for a few of the series that
// are read rarely, then the series that nothing is left of and the groups without series. It also
// forgets a series whose samples lie further ahead of now than the retention: they would keep the true
// ones out.
func (s *Store) Advance(now int64) { s.advance(now, false) }

// Hold is Advance for a time in which the source cannot be read in full: a series that has fallen
// silent is not forgotten, as it may be in what was not read.
func (s *Store) Hold(now int64) { s.advance(now, true) }

func (s *Store) advance(now int64, hold bool) {
	oldest, newest, eldest := now-s.retention, now+s.retention, now-slowRetention*s.retention
	for name, g := range s.groups {
		g.series = slices.DeleteFunc(g.series, func(series *Series) bool {
			if hold && series.heard < oldest {
				return false
			}
			s.samples -= series.trim(oldest, eldest)
			_, garbled := series.Garbled()
			if (len(series.Samples()) > 0 || garbled && series.heard >= oldest) && series.heard <= newest {
				return false
			}
			s.samples -= len(series.Samples())
			s.series--
			s.unlink(series)
			return true
		})
		if len(g.series) == 0 {
			delete(s.groups, name)
		}
	}
}

func (s *Store) unlink(series *Series) {
	hash := series.Labels.Hash()
	head := s.index[hash]
	if head == series {
		if series.next == nil {
			delete(s.index, hash)
		} else {
			s.index[hash] = series.next
		}
		return
	}
	for head.next != series {
		head = head.next
	}
	head.next = series.next
}

// Group returns the series of a group, ordered by their labels. The slice is the store's own, and
// valid until the next Append or Advance.
func (s *Store) Group(name string) []*Series {
	g := s.groups[name]
	if g == nil {
		return nil
	}
	if g.unsorted {
		slices.SortFunc(g.series, func(a, b *Series) int { return labels.Compare(a.Labels, b.Labels) })
		g.unsorted = false
	}
	return g.series
}

// Groups returns the names of the groups, in no order.
func (s *Store) Groups() iter.Seq[string] { return maps.Keys(s.groups) }

// Whole reports whether the group has had room for all its series since from. What is computed from
// the series of one that has not may lack a part.
func (s *Store) Whole(name string, from int64) bool {
	g := s.groups[name]
	return g == nil || g.refused < from
}

// Stats returns how many series and samples are kept.
func (s *Store) Stats() (series, samples int) { return s.series, s.samples }

// Dropped returns how many samples were refused so far because their group was full. While it
// grows, a replica exports more series than any engine does, and some of them are missing here.
func (s *Store) Dropped() uint64 { return s.dropped }
