package signals

import (
	"fmt"
	"math"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

// ttftQuantiles are the quantiles of the time to first token.
func ttftQuantiles() []definition {
	var out []definition
	for _, p := range []int{50, 90, 95, 99} {
		q := float64(p) / 100
		out = append(out, definition{
			name:  fmt.Sprintf("ttft_p%d_seconds", p),
			unit:  "seconds",
			help:  fmt.Sprintf("Time to first token that %d %% of the window's requests stayed within, per pod; while nothing progresses, the time without a first token.", p),
			needs: []Canonical{TTFT},
			reads: []Canonical{Queue, Running, Generated},
			eval:  func(r *Replica, p Params) Result { return ttftQuantile(r, p, q) },
		})
	}
	return out
}

func ttftQuantile(r *Replica, p Params, q float64) Result {
	ttft, reason := r.get(TTFT)
	if reason != "" {
		return unknown(reason)
	}
	hist, _, ok := ttft.growth()
	if !ok {
		return unknown(fmt.Sprintf("%s has not been read twice in the window of %s yet", ttft.name, ttft.window))
	}
	if len(hist) < 2 {
		return unknown(fmt.Sprintf("%s has no finite bound that its parts share: are buckets dropped on the way?", ttft.name))
	}
	w := r.work()
	out := Result{State: Value, HasValue: true, Time: readAt(ttft), Window: ttft.window}
	if count(hist) > 0 {
		out.Value = quantile(q, hist)
		// Above the highest bound the quantile is that bound at the least. Where buckets are dropped on
		// the way that may be far too low.
		if above(q, hist) && out.Value < p.StallCap().Seconds() {
			return unknown(fmt.Sprintf("it is above %g s, the highest finite bound there is of %s: are buckets dropped on the way?", out.Value, ttft.name))
		}
	} else if w.unknown != "" {
		return unknown("no first token in the window, and whether anybody waits for one is not known: " + w.unknown)
	} else if _, reason := r.get(Generated); w.running > 0 && reason != "" {
		return unknown("no first token in the window, and whether the running requests have had theirs is not known: " + reason)
	}

	// The requests that still wait are not in the histogram. That none of them got its first token
	// for a while says at least so much about their latency.
	bound := min(r.withoutFirstToken(ttft), p.StallCap())
	switch {
	case bound.Seconds() > out.Value, count(hist) == 0 && (w.waiting > 0 || bound > 0):
		out.State = Stalled
		out.Value = max(out.Value, bound.Seconds())
		out.Reason = fmt.Sprintf("no first token for %s with %s", r.withoutFirstToken(ttft).Round(time.Second), w)
	case count(hist) == 0:
		out.State = Idle
	}
	return out
}

// growth returns how much the histogram grew in its window, all parts together.
func (st *stat) growth() (hist []window.Bucket, span time.Duration, ok bool) {
	for _, p := range st.parts {
		h, s, grown := window.Increases(p.buckets, p.newest-st.window.Milliseconds())
		if !grown {
			return nil, 0, false
		}
		hist, span = merge(hist, h), max(span, s)
	}
	return hist, span, len(st.parts) > 0
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
func count(hist []window.Bucket) float64 { return hist[len(hist)-1].Count }

// above reports whether a quantile is above the highest finite bound.
func above(q float64, hist []window.Bucket) bool {
	finite := hist[len(hist)-2].Count
	if count(hist)*(1-q) >= 1 {
		return finite < q*count(hist)
	}
	return finite < count(hist)
}

// quantile is PromQL's, but for few observations: where less than one of them is expected above
// the quantile it is the greatest observation that is asked for, and the answer is the bound of
// the highest bucket seen. An interpolated guess would be low by chance.
func quantile(q float64, hist []window.Bucket) float64 {
	if count(hist)*(1-q) >= 1 {
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
