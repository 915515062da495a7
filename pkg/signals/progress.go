package signals

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// This file tells a replica that has nothing to do from one that makes no progress: both finish
// nothing, and only the second must not answer a low figure.

// work is what a replica was seen to be busy with, at its newest samples.
type work struct {
	waiting, running float64
	// unknown says why the above cannot be told; "" when it can.
	unknown string
}

func (w work) none() bool { return w.unknown == "" && w.waiting == 0 && w.running == 0 }

func (w work) String() string {
	return fmt.Sprintf("%g waiting and %g running", w.waiting, w.running)
}

func (r *replica) work() work {
	queue, reason := r.get(Queue)
	if reason != "" {
		return work{unknown: reason}
	}
	running, reason := r.get(Running)
	if reason != "" {
		return work{unknown: reason}
	}
	w := work{waiting: r.level(Queue, queue), running: r.level(Running, running)}
	if w.none() && r.engine.refresh > 0 {
		// It sets its gauges as it begins a step, to what was there before: they are 0 while the first
		// request after a time without any is prefilled.
		if st, since := r.lastStep(); st != nil && st.newest-since < st.freshFor().Milliseconds() {
			w.unknown = fmt.Sprintf("%s and %s are 0, and %s grew %s before: it may have begun after they were set", queue.name, running.name, st.name,
				time.Duration(st.newest-since)*time.Millisecond)
		}
	}
	return w
}

// lastStep is when any part of the engine was last seen to compute a token, and by which series; nil
// when it never was.
func (r *replica) lastStep() (by *stat, t int64) {
	for _, c := range []Canonical{Generated, Prompt} {
		st, reason := r.get(c)
		if reason != "" || st.absent {
			continue
		}
		for _, joint := range st.joints() {
			if grown, _ := st.growth(joint); grown > t {
				by, t = st, grown
			}
		}
	}
	return by, t
}

// prefilling says that prompts are computed while no token has come since: of an engine that sets its gauges
// as it begins a step these may be 0 all the while. "" when nothing says so.
func (r *replica) prefilling() string {
	if r.engine.refresh == 0 {
		return ""
	}
	prompt, reason := r.get(Prompt)
	if reason != "" || prompt.absent {
		return ""
	}
	generated, reason := r.get(Generated)
	if reason != "" {
		return ""
	}
	for _, joint := range prompt.joints() {
		computed, _ := prompt.growth(joint)
		came, _ := generated.growth(joint)
		if ago := prompt.newest - computed; computed > came && ago < prompt.freshFor().Milliseconds() {
			return fmt.Sprintf("%s grew %s before, and no token has come since: a prompt is computed that no gauge tells of yet",
				prompt.name, time.Duration(ago)*time.Millisecond)
		}
	}
	return ""
}

// told is until when a gauge says what there is: not since the last step while an engine may have left
// it as it was then. What was before its first sample is not known.
func (r *replica) told(gauge []window.Sample) int64 {
	newest := gauge[len(gauge)-1].T
	if r.engine.refresh == 0 {
		return newest
	}
	_, step := r.lastStep()
	step = max(step, gauge[0].T)
	if newest-step > r.engine.refresh.Milliseconds() {
		return newest
	}
	return step
}

// withoutToken is how long requests have been waiting or running while no token was generated; the
// longest such time among the parts. It is measured from sample to sample, so it starts at 0.
func (r *replica) withoutToken() time.Duration {
	generated, reason := r.get(r.engine.progress())
	if reason != "" {
		return 0
	}
	var longest int64
	for _, joint := range generated.joints() {
		came, until := generated.growth(joint)
		for _, c := range []Canonical{Queue, Running} {
			for _, b := range r.busy(c, joint) {
				longest = max(longest, min(b.until, until)-max(b.since, came))
			}
		}
	}
	return time.Duration(longest) * time.Millisecond
}

// withoutFirstToken is how long somebody has been waiting for a first token while none came; the
// longest such time among the parts. Somebody waits while requests are queued, and while requests
// run that generate no token at all: those are being prefilled.
//
// Where first tokens are seen as requests finish only, somebody waits for certain while nobody leaves the queue.
func (r *replica) withoutFirstToken(ttft *stat) time.Duration {
	if r.engine.series[TTFT].atFinish {
		return r.withoutScheduling(ttft)
	}
	generated, _ := r.get(Generated)
	var longest int64
	for _, p := range ttft.parts {
		came := observed(p)
		for _, b := range r.busy(Queue, p.joint) {
			longest = max(longest, min(b.until, p.newest)-max(b.since, came))
		}
		if len(generated.joint(p.joint)) == 0 {
			continue
		}
		token, until := generated.growth(p.joint)
		for _, b := range r.busy(Running, p.joint) {
			longest = max(longest, min(b.until, p.newest, until)-max(b.since, came, token))
		}
	}
	return time.Duration(longest) * time.Millisecond
}

// withoutScheduling is how long requests have been queued while none left the queue for the batch; the
// longest such time among the parts. One has left it when there are more running ones than before, or
// when one finished, in whose place another may run.
func (r *replica) withoutScheduling(queueTime *stat) time.Duration {
	running, reason := r.get(Running)
	if reason != "" {
		return 0
	}
	ttft, _ := r.get(TTFT)
	var longest int64
	for _, p := range queueTime.parts {
		left := observed(p)
		for _, q := range ttft.joint(p.joint) {
			left = max(left, observed(q))
		}
		for _, q := range running.joint(p.joint) {
			for _, samples := range q.series {
				left = max(left, lastRise(samples))
			}
		}
		for _, b := range r.busy(Queue, p.joint) {
			longest = max(longest, min(b.until, p.newest)-max(b.since, left))
		}
	}
	return time.Duration(longest) * time.Millisecond
}

// withoutFinish is how long requests have been in the engine while none of them finished, and how many
// they were at the beginning. Those have not finished, so it is a lower bound on their latency.
func (r *replica) withoutFinish(e2e *stat) (d time.Duration, held float64) {
	var longest int64
	for _, p := range e2e.parts {
		came := observed(p)
		for _, c := range []Canonical{Queue, Running} {
			for _, b := range r.busy(c, p.joint) {
				since := max(b.since, came)
				if n := min(b.until, p.newest) - since; n > longest {
					longest, held = n, r.inEngineAt(p.joint, since)
				}
			}
		}
	}
	return time.Duration(longest) * time.Millisecond, held
}

// growth is when the counters of some parts were last seen to have grown, and until when they were read.
func (st *stat) growth(joint string) (grown, until int64) {
	until = math.MaxInt64
	for _, p := range st.joint(joint) {
		grown, until = max(grown, lastGrowth(p.series...)), min(until, p.newest)
	}
	return grown, until
}

// observed is when the newest growth of a histogram's count was seen.
func observed(p *part) int64 {
	all := p.buckets[len(p.buckets)-1]
	return lastGrowth(all.Samples)
}

// lastGrowth is when one of the counters was last seen to have grown.
func lastGrowth(counters ...[]window.Sample) int64 {
	var t int64
	for _, samples := range counters {
		if grown, ok := window.LastIncrease(samples); ok {
			t = max(t, grown)
		}
	}
	return t
}

// lastRise is when a gauge was last seen to be higher than before; 0 when it never was.
func lastRise(samples []window.Sample) int64 {
	for i := len(samples) - 1; i > 0; i-- {
		if samples[i].V > samples[i-1].V {
			return samples[i].T
		}
	}
	return 0
}

// span is a stretch of samples, in Unix milliseconds.
type span struct{ since, until int64 }

// busy returns since when, and until which newest sample, gauges of some parts have been above 0. What was
// before a time without samples does not count: an engine that starts anew may not set them for long.
func (r *replica) busy(c Canonical, joint string) []span {
	st, reason := r.get(c)
	if reason != "" {
		return nil
	}
	var out []span
	for _, p := range st.joint(joint) {
		for _, samples := range p.series {
			i := len(samples)
			for i > 0 && samples[i-1].V > 0 && (i == len(samples) || samples[i].T-samples[i-1].T <= st.freshFor().Milliseconds()) {
				i--
			}
			if i < len(samples) {
				out = append(out, span{samples[i].T, min(p.newest, r.told(samples))})
			}
		}
	}
	return out
}

// resumed says that counters stood still for a window while requests were in the replica, and count
// again for less than one; "" otherwise. The window is then mostly one of the stall: its low rate
// would be the first answer after a time without any, which an HPA that has meanwhile forgotten its
// recommendations follows at once.
func (r *replica) resumed(st *stat, counters ...[]window.Sample) string {
	w := st.window.Milliseconds()
	first := int64(math.MaxInt64)
	for _, samples := range counters {
		// The sample before the window is what its first one is compared with.
		in := window.Since(samples, st.newest-w)
		for n := len(samples) - len(in); n < len(samples); n++ {
			if n > 0 && lastGrowth(samples[n-1:n+1]) > 0 {
				first = min(first, samples[n].T)
				break
			}
		}
	}
	if first == math.MaxInt64 || first <= st.newest-(st.window-st.interval).Milliseconds() {
		return ""
	}
	var stood, oldest int64 = 0, first
	for _, samples := range counters {
		before := samples[:len(samples)-len(window.Since(samples, first))]
		if len(before) > 0 {
			stood, oldest = max(stood, lastGrowth(before)), min(oldest, before[0].T)
		}
	}
	stood = max(stood, oldest)
	if first-stood < w || !r.occupied(first-w, first) {
		return ""
	}
	return fmt.Sprintf("requests finish again for %s, after none for %s: the window of %s is not whole yet",
		time.Duration(st.newest-first)*time.Millisecond, time.Duration(first-stood)*time.Millisecond, st.window)
}

// occupied reports whether requests waited, or ran, in some part at every sample from a time on
// until before another.
func (r *replica) occupied(from, until int64) bool {
	for _, c := range []Canonical{Queue, Running} {
		st, reason := r.get(c)
		if reason != "" {
			continue
		}
		for _, p := range st.parts {
			for _, samples := range p.series {
				in := window.Since(samples, from)
				in = in[:len(in)-len(window.Since(in, until))]
				if len(in) > 0 && !slices.ContainsFunc(in, func(s window.Sample) bool { return s.V <= 0 }) {
					return true
				}
			}
		}
	}
	return false
}
