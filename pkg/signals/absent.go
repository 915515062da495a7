package signals

import (
	"fmt"
	"slices"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file tells a series that is not there because there is nothing to count from one that is missing. An
// engine may write a series, or that of a part, only once there is something to say; what was lost on the
// way looks the same. So its absence is a 0 where other series prove it, and nowhere else.

// partsLacking faults gauges of load that lack a part which another one of them has: an engine that has not
// set it yet, or whose series got lost on the way. The sum of the other parts would be a low lie, unless
// the part is known to be 0. It does so to counters and histograms that lack one of the engines too, where they
// have others: which of them an engine writes with its first event only may be missing by right.
func (r *replica) partsLacking() {
	gauges := []Canonical{Queue, QueueByReason, Running, KVUsed}
	faults := map[*stat]string{}
	for _, c := range gauges {
		st, m := r.stats[c], r.engine.series[c]
		if st == nil || st.fault != "" {
			continue
		}
		for _, other := range gauges {
			o := r.stats[other]
			if o == nil || o == st || o.fault != "" || !slices.Equal(m.part, r.engine.series[other].part) {
				continue
			}
			for _, p := range o.parts {
				if st.part(p.key) == nil && !r.provenZeroIn(m, p.key) {
					faults[st] = fmt.Sprintf("a part of %s has no sample of %s", o.name, st.name)
				}
			}
		}
	}
	if running := r.stats[Running]; running != nil && running.fault == "" {
		joints := running.joints()
		for c, st := range r.stats {
			if m := r.engine.series[c]; m.kind == Gauge || m.lazy || st.fault != "" {
				continue
			}
			has := func(joint string) bool { return len(st.joint(joint)) > 0 }
			if slices.ContainsFunc(joints, has) && slices.ContainsFunc(joints, func(j string) bool { return !has(j) }) {
				faults[st] = fmt.Sprintf("a part of %s has no sample of %s", running.name, st.name)
			}
		}
	}
	for st, fault := range faults {
		st.fault = fault
	}
}

// provenZeroIn reports whether the part of a gauge that is not there is 0, as others of the same part prove.
func (r *replica) provenZeroIn(m mapping, key string) bool {
	for _, c := range m.zeroWith {
		w := r.stats[c]
		if w == nil || w.fault != "" {
			return false
		}
		p := w.part(key)
		if p == nil || slices.ContainsFunc(p.series, func(s []window.Sample) bool { return s[len(s)-1].V != 0 }) {
			return false
		}
	}
	return len(m.zeroWith) > 0
}

// fromZero has series that appear with their first event begin at the 0 that they were not written for: else
// the first burst of a new engine counts nothing. It was 0 at the scrape before, if gauges of the same target
// were read then, and had been 0 for a window; the series of a target that was busy may have been lost.
func fromZero(lazy, gauges []found, p Params) {
	begins := map[string]int64{}
	for _, f := range lazy {
		if b, ok := begins[f.instance]; !ok || f.begin() < b {
			begins[f.instance] = f.begin()
		}
	}
	before := map[string][]window.Sample{} // the scrapes before, by target; none of one that was busy
	for instance, begin := range begins {
		for _, g := range gauges {
			if g.instance != instance {
				continue
			}
			interval := window.Interval(g.samples)
			w := max(p.Window, windowReads*interval)
			if w > max(p.Window, LoadWindow/2) {
				return // of what is read so rarely less may have been fetched than gauges have
			}
			samples := g.samples[:len(g.samples)-len(window.Since(g.samples, begin))]
			idle := window.Since(samples, begin-w.Milliseconds())
			if len(idle) == 0 {
				continue
			}
			if begin-idle[len(idle)-1].T > (interval*3/2).Milliseconds() || slices.ContainsFunc(idle, func(s window.Sample) bool { return s.V != 0 }) {
				delete(before, instance)
				break
			}
			if len(idle) > len(before[instance]) {
				before[instance] = idle
			}
		}
	}
	for i := range lazy {
		f := &lazy[i]
		if zeros := before[f.instance]; len(zeros) > 0 && len(f.samples) > 0 && f.begin() == begins[f.instance] {
			f.samples = slices.Concat(zeros, f.samples)
		}
	}
}

// provenZero stands for a series that is absent where others prove that it is 0; nil where they do not.
func (r *replica) provenZero(m mapping) *stat {
	witnesses := m.zeroWith
	switch {
	case m.lazy:
		witnesses = []Canonical{Queue, Running}
	case m.noneIsZero:
		witnesses = []Canonical{m.beside}
	}
	if (m.noneIsZero || m.lazy) && r.at.Partial {
		return nil // it may be in what was not read
	}
	// What is counted beside it must stand still: else there were events, and the series of them was lost.
	others := []Canonical{m.unless}
	if m.lazy {
		others = []Canonical{r.engine.progress()}
	}
	for _, c := range others {
		counted := r.stats[c]
		if counted == nil || counted.absent {
			continue
		}
		if counted.fault != "" {
			return nil
		}
		if grown, _, _, ok := counted.increase(); !ok || grown > 0 {
			return nil
		}
	}
	var zero *stat
	for _, c := range witnesses {
		w := r.stats[c]
		if w == nil || w.fault != "" || r.down != "" || !m.noneIsZero && r.level(c, w) != 0 || m.lazy && r.peak(c, w) != 0 {
			return nil
		}
		if zero == nil || w.newest < zero.newest {
			zero = w
		}
	}
	if zero == nil {
		return nil
	}
	return &stat{name: m.names()[0], newest: zero.newest, interval: zero.interval, window: zero.window,
		regained: zero.regained, short: zero.short, absent: true}
}
