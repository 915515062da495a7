package signals

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file makes a stat of the raw series of one canonical series: sorted into the parts of the replica, and
// with the reason why it cannot be used, where there is one.

// stat is one canonical series of a replica.
type stat struct {
	name     string // the raw name it was found under
	parts    []*part
	newest   int64         // when the part that was read longest ago was read, Unix ms
	interval time.Duration // between scrapes, as the samples show it
	window   time.Duration // what rates and quantiles of it describe
	fault    string        // why it cannot be used; "" when it can
	// absent says that there is no series, and that it is known all the same to be 0.
	absent bool
	// regained says that the window is the first whole one after an outage, or that less than
	// another window has passed since.
	regained bool
	// short says why the window of an empty pool is not whole yet. What waits is read all the same, and only
	// that nothing does is not known.
	short string
}

// part is one part of a replica: a data-parallel engine, a GPU.
type part struct {
	key     string
	joint   string // as the parts of the other canonical series are told apart
	target  string // what it was read from, and the worker behind it
	newest  int64
	factor  float64
	series  [][]window.Sample     // of gauges and counters; several when the part is a sum
	buckets []window.BucketSeries // of histograms
}

// newStat makes a stat of the raw series of a canonical one, of which there is at least one.
func newStat(fs []found, at At, p Params) *stat {
	// Of several that are as long the choice must not depend on the order in which series come.
	longest := slices.MaxFunc(fs, func(a, b found) int {
		return cmp.Or(cmp.Compare(len(a.samples), len(b.samples)), cmp.Compare(a.newest, b.newest), cmp.Compare(b.begin(), a.begin()))
	})
	st := &stat{interval: window.Interval(longest.samples)}
	st.window = max(p.Window, windowReads*st.interval)

	fs = oneSpelling(fs, st.interval)
	st.name = fs[0].mapping.names()[0]
	fs = alive(fs, st.window, at.Partial)
	itself := slices.IndexFunc(fs, func(f found) bool { return f.summand == 0 })
	if itself < 0 {
		st.fault = fmt.Sprintf("the source has no sample of %s of this %s, to which others are added", st.name, fs[0].engine.kind())
		return st
	}
	st.name = fs[itself].name
	for _, f := range fs {
		if f.fault != "" {
			st.fault = f.fault // a part without a number: the others would be a low lie
			return st
		}
	}
	st.parts = partsOf(fs)
	st.newest = slices.MinFunc(st.parts, func(a, b *part) int { return cmp.Compare(a.newest, b.newest) }).newest
	st.fault = st.check(fs, at)
	return st
}

// partsOf sorts the series into parts, taking one of each set of duplicates (two jobs that scrape
// the same target, one series for each API server process): the largest, as the others are left over.
func partsOf(fs []found) []*part {
	slices.SortFunc(fs, func(a, b found) int {
		return cmp.Or(
			strings.Compare(a.part, b.part),
			strings.Compare(a.within, b.within),
			cmp.Compare(a.le, b.le),
			cmp.Compare(b.samples[len(b.samples)-1].V, a.samples[len(a.samples)-1].V),
			cmp.Compare(len(b.samples), len(a.samples)),
			labels.Compare(a.labels, b.labels), // so that the choice does not depend on their order
		)
	})
	var out []*part
	var prev *found
	var hists [][]window.BucketSeries // of the newest part, by what is summed inside of it
	for i := range fs {
		f := &fs[i]
		if prev == nil || prev.part != f.part {
			out = append(out, &part{key: f.part, joint: f.joint, target: f.target, newest: f.newest, factor: f.factor})
			hists = nil
		} else if prev.within == f.within && prev.le == f.le && f.mapping.kind != Histogram {
			continue
		}
		pt := out[len(out)-1]
		pt.newest = max(pt.newest, f.newest)
		if f.mapping.kind == Histogram {
			// Equal bounds are left to the window's maths: le="1" and le="1.0" may follow each other.
			if len(hists) == 0 || prev.within != f.within {
				hists = append(hists, nil)
			}
			last := len(hists) - 1
			hists[last] = append(hists[last], window.BucketSeries{LE: f.le, Samples: f.samples})
			if i == len(fs)-1 || fs[i+1].part != f.part {
				pt.buckets = window.Sum(hists)
			}
		} else {
			pt.series = append(pt.series, f.samples)
		}
		prev = f
	}
	return out
}

// part returns the part of that key; nil when there is none.
func (st *stat) part(key string) *part {
	i, found := slices.BinarySearchFunc(st.parts, key, func(p *part, key string) int { return strings.Compare(p.key, key) })
	if !found {
		return nil
	}
	return st.parts[i]
}

// joints lists the parts as all canonical series tell them apart.
func (st *stat) joints() []string {
	var out []string
	for _, p := range st.parts {
		if len(out) == 0 || out[len(out)-1] != p.joint {
			out = append(out, p.joint)
		}
	}
	return out
}

// joint returns the parts that another canonical series sees as one.
func (st *stat) joint(key string) []*part {
	if st == nil {
		return nil
	}
	// They are sorted: a hostile target may have thousands of parts, each of which is looked for.
	first, _ := slices.BinarySearchFunc(st.parts, key, func(p *part, key string) int { return strings.Compare(p.joint, key) })
	n := first
	for n < len(st.parts) && st.parts[n].joint == key {
		n++
	}
	return st.parts[first:n]
}

// readAt is when the newest sample of the stats that was read longest ago was read.
func readAt(stats ...*stat) time.Time {
	var t int64
	for i, st := range stats {
		if i == 0 || st.newest < t {
			t = st.newest
		}
	}
	return time.UnixMilli(t)
}
