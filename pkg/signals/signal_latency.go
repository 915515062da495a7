package signals

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// Latencies: quantiles of the engine's histograms, and what is known of the requests that are not in
// them yet.

// latency is a histogram and how to bound what still waits for being observed.
type latency struct {
	name      string
	canonical Canonical
	help      string
	observed  string // when
	overload  string
	// waits says which work is waiting to be observed.
	waits func(work) bool
	// without is how long nothing came though it was waited for, and how many requests that is a bound
	// for; 0 where what the replica counted before is taken to have become as slow.
	without func(*replica, *stat) (d time.Duration, held float64)
	// hidden says why with nothing observed there may be something all the same; "" otherwise.
	hidden func(*replica, *stat, work) string
	// seen names what is observed, and event what comes while there is progress, in messages.
	seen, event string
	// top is the highest bound of the shortest layout that an engine has ever had, in seconds.
	top   float64
	roles roles
}

var latencies = []latency{
	{
		name: "ttft", top: 10, canonical: TTFT, help: "Time to first token", observed: "the first token", seen: "first token", event: "first token",
		overload: "rises without limit", roles: oneRole,
		waits:   func(w work) bool { return w.waiting > 0 },
		without: func(r *replica, st *stat) (time.Duration, float64) { return r.withoutFirstToken(st), 0 },
		hidden:  func(r *replica, _ *stat, w work) string { return r.unheard(w) },
	},
	{
		name: "queue_time", top: 30, canonical: QueueTime, help: "Time from arrival until a request is scheduled", observed: "the finish", seen: "finished request", event: "request from the queue",
		overload: "rises without limit", roles: oneRole,
		waits:   func(w work) bool { return w.waiting > 0 },
		without: func(r *replica, st *stat) (time.Duration, float64) { return r.withoutScheduling(st), 0 },
		hidden: func(r *replica, _ *stat, w work) string {
			if queue, reason := r.get(Queue); reason == "" && w.waiting == 0 && w.running > 0 && r.peak(Queue, queue) > 0 {
				return "how long those waited that run is counted when they finish"
			}
			return ""
		},
	},
	{
		name: "tpot", top: 2.5, canonical: TPOT, help: "Mean time per output token of a request", observed: "the finish", seen: "finished request", event: "token",
		overload: "rises until the batch is full", roles: decodeRole,
		waits:   func(w work) bool { return w.running > 0 },
		without: func(r *replica, st *stat) (time.Duration, float64) { return r.tokenless(st), 0 },
		hidden: func(r *replica, st *stat, w work) string {
			if w.running > 0 && r.tokenless(st) == 0 {
				return cmp.Or(r.unheard(w), "what those take that run is counted when they finish")
			}
			return ""
		},
	},
	{
		name: "itl", top: 2.5, canonical: ITL, help: "Time between two outputs of a request", observed: "each output, however many tokens it has", seen: "second output", event: "token",
		overload: "rises until the batch is full", roles: decodeRole,
		waits:   func(w work) bool { return w.running > 0 },
		without: func(r *replica, st *stat) (time.Duration, float64) { return r.tokenless(st), 0 },
		hidden: func(r *replica, st *stat, w work) string {
			if w.running > 0 && r.tokenless(st) == 0 {
				return cmp.Or(r.unheard(w), "whether those that run will have one is not known")
			}
			return ""
		},
	},
	{
		name: "e2e_latency", top: 60, canonical: E2E, help: "Time from arrival to the finish of a request", observed: "the finish", seen: "finish", event: "finish",
		overload: "rises without limit", roles: decodeRole,
		waits:   func(w work) bool { return w.waiting > 0 || w.running > 0 },
		without: (*replica).withoutFinish,
		hidden:  func(*replica, *stat, work) string { return "" },
	},
}

// defaultQuantile is what a latency answers whose name says none: for control a P90 needs a tenth of
// the requests that a P99 needs.
const defaultQuantile = 0.9

func latencyQuantiles() []definition {
	var out []definition
	for _, l := range latencies {
		for _, percent := range []int{0, 50, 90, 95, 99} {
			d := definition{
				name:     fmt.Sprintf("%s_p%d_seconds", l.name, percent),
				unit:     "seconds",
				help:     fmt.Sprintf("%s that %d %% of the window's requests stayed within, per pod; while nothing progresses, the time without a %s.", l.help, percent, l.event),
				formula:  fmt.Sprintf("quantile of Δ %s over the window, observed at %s; interpolated in its bucket as by PromQL's histogram_quantile, and the bound of the highest bucket seen where less than one observation is expected above it", l.canonical, l.observed),
				needs:    []Canonical{l.canonical},
				reads:    []Canonical{Queue, Running, KVUsed, Generated},
				quantile: float64(percent) / 100,
				fixed:    true,
				slo:      true,
				eval:     l.eval,
				merge:    quantiled,
				roles:    l.roles,
				overload: l.overload,
				target:   "Object, Value; as a Pods metric the HPA averages it, and idle pods hide the slow one",
			}
			if percent == 0 {
				d.name, d.quantile, d.fixed = l.name+"_seconds", defaultQuantile, false
				d.help = fmt.Sprintf("%s that the part of the window's requests stayed within that quantile=… names, 0.9 unless it does, per pod; while nothing progresses, the time without a %s.", l.help, l.event)
			}
			if l.canonical == QueueTime {
				d.reads = append(d.reads, TTFT)
			}
			out = append(out, d)
		}
	}
	return out
}

func (l latency) eval(r *replica, p args) Measure {
	st, reason := r.get(l.canonical)
	if reason != "" {
		return unknown(reason)
	}
	hist, ok := st.growthOfAll()
	if !ok {
		return unknown(st.tooFew())
	}
	if len(hist) == 1 {
		return unknown(fmt.Sprintf("%s has no finite bound that its parts share: are buckets dropped on the way?", st.name))
	}
	w := r.work()
	stallCap := p.stallCap(l.canonical)
	out := Measure{Result: Result{State: Value, HasValue: true, Time: readAt(st), Window: st.window}, hist: hist}
	if count(hist) > 0 {
		q := quantileOf(p.quantile, [][]window.Bucket{hist})
		out.Value, out.LowerBound, out.Resolution = q.Value, q.LowerBound, q.Resolution
		// Above the highest bound the quantile is that bound at the least. Where buckets are dropped on
		// the way that may be far too low.
		if q.LowerBound && out.Value < min(l.top, stallCap.Seconds()) {
			return unknown(fmt.Sprintf("it is above %g s, the highest finite bound there is of %s: are buckets dropped on the way?", out.Value, st.name))
		}
	} else if w.unknown != "" {
		return unknown(fmt.Sprintf("no %s in the window, and whether anybody waits for one is not known: %s", l.seen, w.unknown))
	} else if reason := l.hidden(r, st, w); reason != "" {
		return unknown(fmt.Sprintf("no %s in the window, and %s", l.seen, reason))
	}

	// The requests that still wait are not in the histogram. That none of them was observed for a
	// while says at least so much about their latency.
	without, held := l.without(r, st)
	bound := min(without, stallCap)
	observed := count(hist)
	switch {
	case observed > 0 && bound.Seconds() > out.Value && held > 0 && rank(p.quantile, observed+held) <= observed:
		// So many others were faster that it moves the quantile among those.
		q := quantileOf(p.quantile*(observed+held)/observed, [][]window.Bucket{hist})
		out.Value, out.LowerBound, out.Resolution = q.Value, q.LowerBound, q.Resolution
	case bound.Seconds() > out.Value, observed == 0 && (l.waits(w) || bound > 0):
		out.State, out.LowerBound, out.Resolution = Stalled, true, nil
		out.Value = max(out.Value, bound.Seconds())
		if out.Value == 0 { // as long as nothing proves more, that is what it would say of nobody
			out.HasValue, out.LowerBound = false, false
		}
		out.stuck = held
		if held == 0 {
			out.stuck, out.slowed = max(1, w.waiting), true
		}
		out.Reason = fmt.Sprintf("no %s for %s with %s", l.event, without.Round(time.Second), w)
	case observed == 0:
		out.State = Idle
	}
	return out
}

// unheard says that it cannot be told whether the running requests have had a token; "" when it can.
func (r *replica) unheard(w work) string {
	if _, reason := r.get(r.engine.progress()); w.running > 0 && reason != "" {
		return "whether the running requests have had theirs is not known: " + reason
	}
	return ""
}

// tokenless is withoutToken, once it is longer than a long prefill takes.
func (r *replica) tokenless(st *stat) time.Duration {
	if d := r.withoutToken(); d > st.freshFor() {
		return d
	}
	return 0
}

// growthOfAll returns how much the histogram grew in its window, all parts together.
func (st *stat) growthOfAll() (hist []window.Bucket, ok bool) {
	if st.absent {
		return nil, true
	}
	for _, p := range st.parts {
		h, _, grown := window.Increases(p.buckets, p.newest-st.window.Milliseconds())
		if !grown {
			return nil, false
		}
		hist = merge(hist, h)
	}
	return hist, len(st.parts) > 0
}

// merge adds two cumulative histograms. Where their bounds differ the common ones remain: counts
// at a bound that only one of them has cannot be added.
func merge(a, b []window.Bucket) []window.Bucket {
	if a == nil {
		return b
	}
	out := make([]window.Bucket, 0, len(a))
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i].LE < b[j].LE:
			i++
		case a[i].LE > b[j].LE:
			j++
		default:
			out = append(out, window.Bucket{LE: a[i].LE, Count: a[i].Count + b[j].Count})
			i++
			j++
		}
	}
	return out
}

// count is the number of observations.
func count(hist []window.Bucket) float64 {
	if len(hist) == 0 {
		return 0
	}
	return hist[len(hist)-1].Count
}

// above reports whether a quantile is above the highest finite bound.
func above(q float64, hist []window.Bucket) bool {
	return hist[len(hist)-2].Count < rank(q, count(hist))
}

// quantile is PromQL's, but for few observations: where less than one of them is expected above
// the quantile it is the greatest observation that is asked for, and the answer is the bound of
// the highest bucket seen. An interpolated guess would be low by chance.
func quantile(q float64, hist []window.Bucket) float64 {
	if rank(q, count(hist)) < count(hist) {
		return window.Quantile(q, hist)
	}
	finite := 0.0
	for _, b := range hist {
		if math.IsInf(b.LE, 1) {
			break
		}
		finite = b.LE
		if b.Count == count(hist) {
			break
		}
	}
	return finite
}
