package window

import (
	"cmp"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
)

// Sample is one reading of a series.
type Sample struct {
	T int64 // Unix milliseconds on the source's clock
	V float64
}

// Series is what is kept of one series.
type Series struct {
	Labels labels.Labels
	// Tag is the caller's own classification of the series, kept with it so that labels are read once.
	Tag any

	// buf[first:] are the samples; what is before them is free, and reclaimed by moving them down
	// when buf is full. So samples are contiguous, and appending moves few of them.
	buf   []Sample
	first int
	heard int64 // time of the newest sample, stale marker or reading that is no number
	state state
	next  *Series // in Store.index
}

// Samples returns the samples, oldest first, without stale markers. The slice is the store's own,
// and valid until the next Append or Advance.
func (s *Series) Samples() []Sample { return s.buf[s.first:] }

// state is what the newest thing heard of a series was.
type state uint8

const (
	sampled state = iota
	ended         // a stale marker
	garbled       // a NaN or an infinity
)

// Ended reports whether the newest thing heard of the series was a stale marker.
func (s *Series) Ended() bool { return s.state == ended }

// Garbled reports whether the newest reading of the series was no number, and when that was heard.
// The series goes on, so what it is a part of cannot be told without it.
func (s *Series) Garbled() (t int64, ok bool) { return s.heard, s.state == garbled }

// push appends a sample and returns by how many the samples grew.
func (s *Series) push(sample Sample) int {
	grown := 1
	if len(s.Samples()) == maxSamples {
		s.first++
		grown = 0
	}
	if len(s.buf) == cap(s.buf) {
		samples := s.Samples()
		// An eighth free keeps the moves to seven samples per append, and the waste small.
		if s.first > 0 && s.first >= cap(s.buf)/8 {
			s.buf = s.buf[:copy(s.buf, samples)]
		} else {
			s.buf = append(slices.Grow([]Sample(nil), len(samples)+len(samples)/8+4), samples...)
		}
		s.first = 0
	}
	s.buf = append(s.buf, sample)
	return grown
}

// trim forgets the samples older than oldest and returns how many they were. A series that goes on
// keeps its newest minSamples whatever their age, but for those older than eldest.
func (s *Series) trim(oldest, eldest int64) int {
	first, last := s.first, len(s.buf)-1
	spared := 0
	if last >= first && s.buf[last].T >= oldest {
		spared = minSamples
	}
	for s.first <= last {
		t := s.buf[s.first].T
		if t >= oldest || t >= eldest && last-s.first < spared {
			break
		}
		s.first++
	}
	return s.first - first
}

// Since returns the samples from the time from on; it does not copy them.
func Since(samples []Sample, from int64) []Sample {
	i, _ := slices.BinarySearchFunc(samples, from, func(s Sample, t int64) int { return cmp.Compare(s.T, t) })
	return samples[i:]
}
