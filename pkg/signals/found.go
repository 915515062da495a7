package signals

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file chooses which raw series of one canonical series count. The same thing may be there under two
// names, or from two jobs that scrape it, and then counts once; and of what is gone there are series for a
// while, which then count nothing.

// found is a raw series on its way into a stat.
type found struct {
	*place
	name    string
	samples []window.Sample
	newest  int64
	ended   bool   // the source says that it is over
	fault   string // why its newest reading is none; "" when it is one
}

// find reads a series; ok is false when there is nothing of this pod in it.
func find(s *window.Series, pl *place, at At) (f found, ok bool) {
	f = found{place: pl, name: s.Labels.Get(model.MetricNameLabel), samples: s.Samples(), ended: s.Ended()}
	var start int64
	if !at.Start.IsZero() {
		start = at.Start.UnixMilli()
		f.samples = window.Since(f.samples, start)
	}
	if heard, garbled := s.Garbled(); garbled && heard >= start {
		f.newest, f.fault = heard, fmt.Sprintf("the newest reading of %s is no number", f.name)
		return f, true
	}
	if len(f.samples) == 0 {
		return f, false
	}
	last := f.samples[len(f.samples)-1]
	f.newest = last.T
	// Nothing that the catalogue reads can be below 0: it would be taken off the sum of the others.
	if valid := pl.mapping.valid; last.V < 0 || valid != nil && !valid(last.V) {
		f.fault = fmt.Sprintf("the newest reading of %s is %g, which stands for none", f.name, last.V)
	}
	return f, true
}

// begin is when the oldest sample of the series was read.
func (f found) begin() int64 {
	if len(f.samples) == 0 {
		return f.newest
	}
	return f.samples[0].T
}

// oneSpelling keeps the preferred one of the spellings that are still written: an engine that is
// being upgraded, or that writes a deprecated twin, must not count twice.
//
// The targets of a pool are processes of their own, of which one may be upgraded before another: each
// has its own spelling.
func oneSpelling(fs []found, interval time.Duration) []found {
	type target struct {
		instance string
		summand  int
	}
	type key struct {
		target
		rank int
	}
	keyOf := func(f found) key {
		if f.engine.pool {
			return key{target{f.instance, f.summand}, f.rank}
		}
		return key{target{"", f.summand}, f.rank}
	}
	newest := map[key]int64{}
	last := map[target]int64{}
	for _, f := range fs {
		k := keyOf(f)
		newest[k] = max(newest[k], f.newest)
		last[k.target] = max(last[k.target], f.newest)
	}
	slack := max(interval*3/2, time.Second).Milliseconds()
	best := map[target]int{}
	for k, t := range newest {
		if rank, ok := best[k.target]; t >= last[k.target]-slack && (!ok || k.rank < rank) {
			best[k.target] = k.rank
		}
	}
	return slices.DeleteFunc(fs, func(f found) bool { return f.rank != best[keyOf(f).target] })
}

// alive drops what is no longer written: duplicates of newer series, and parts (an engine that
// restarted with fewer of them) and targets (a pod that got another address) that were left behind,
// once they have been silent for a window and for the reads that it has at the least. Before that they
// make the replica unknown as they age: an answer that lacks a part may also be half of one, and half
// of a sum would be a low lie. While the source answers in part they do so for as long as that lasts. So
// does another port of a host that goes on: the pod has not moved, and its engines are still there.
func alive(fs []found, w time.Duration, partial bool) []found {
	type key struct {
		part, within string
		le           float64
	}
	keyOf := func(f found) key { return key{f.part, f.within, f.le} }
	var last int64
	heir := map[key]found{} // the newest of the duplicates, and of those the one that goes back the least
	for _, f := range fs {
		last = max(last, f.newest)
		h, ok := heir[keyOf(f)]
		if !ok || f.newest > h.newest || f.newest == h.newest && f.begin() > h.begin() {
			heir[keyOf(f)] = f
		}
	}
	// The interval is learned late when it grows: then a window is a few reads only.
	reads := slices.MaxFunc(fs, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.newest, b.newest), cmp.Compare(len(a.samples), len(b.samples)))
	}).samples
	left := func(f found) bool {
		return f.newest < last-w.Milliseconds() && len(window.Since(reads, f.newest+1)) >= windowReads
	}
	targets, hosts := map[string]bool{}, map[string]bool{} // that go on
	for _, f := range fs {
		if f.engine.own && !left(f) {
			targets[f.instance], hosts[hostOf(f.instance)] = true, true
		}
	}
	gone := func(f found) bool { return left(f) && (targets[f.instance] || !hosts[hostOf(f.instance)]) }
	return slices.DeleteFunc(fs, func(f found) bool {
		if !partial && gone(f) {
			return true
		}
		h := heir[keyOf(f)]
		if f.newest == h.newest {
			return false
		}
		// A bucket whose bound is now written another way (le="1", then le="1.0") goes on in the
		// new series; its past is still needed.
		return f.mapping.kind != Histogram || f.newest >= h.begin()
	})
}

// hostOf is the host of a target, without its port.
func hostOf(instance string) string {
	if i := strings.LastIndexByte(instance, ':'); i >= 0 {
		return instance[:i]
	}
	return instance
}

// present drops the series of things that are gone: their target goes on writing what it always
// writes, beside, and them no more. Those of a target that is gone itself are dropped once it has been
// silent for a window, as parts are.
func present(fs, beside []found, p Params) []found {
	if len(beside) == 0 {
		return fs
	}
	reads := slices.MaxFunc(beside, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.newest, b.newest), cmp.Compare(len(a.samples), len(b.samples)))
	})
	st := stat{interval: window.Interval(reads.samples)}
	st.window = max(p.Window, windowReads*st.interval)
	written := map[string]int64{} // until when, by target
	for _, b := range beside {
		if !b.ended {
			written[b.instance] = max(written[b.instance], b.newest)
		}
	}
	return slices.DeleteFunc(fs, func(f found) bool {
		until := written[f.instance]
		if f.ended && until >= f.newest || f.newest < until-st.freshFor().Milliseconds() {
			return true
		}
		return f.newest < reads.newest-st.window.Milliseconds() && len(window.Since(reads.samples, f.newest+1)) >= windowReads
	})
}
