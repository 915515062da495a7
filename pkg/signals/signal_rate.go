package signals

import (
	"fmt"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

var requestRate = definition{
	name:  "request_rate",
	unit:  "requests/s",
	help:  "Requests finished per second of the window, for whatever reason they finished.",
	needs: []Canonical{Finished},
	reads: []Canonical{Queue, Running, Generated},
	eval:  evalRequestRate,
}

func evalRequestRate(r *Replica, _ Params) Result {
	st, reason := r.get(Finished)
	if reason != "" {
		return unknown(reason)
	}
	if out, stuck := r.stuck(st); stuck {
		return out
	}
	var delta, perSecond float64
	var counters [][]window.Sample
	for _, p := range st.parts {
		for _, samples := range p.series {
			counters = append(counters, samples)
			samples = window.Since(samples, p.newest-st.window.Milliseconds())
			d, ok := window.Increase(samples)
			if !ok {
				return unknown(fmt.Sprintf("%s has not been read twice in the window of %s yet", st.name, st.window))
			}
			delta += d
			perSecond += d / seconds(samples)
		}
	}
	if delta == 0 {
		return r.nothingFinished(st)
	}
	if reason := r.resumed(st, counters...); reason != "" {
		return unknown(reason)
	}
	return Result{State: Value, HasValue: true, Value: perSecond, Time: readAt(st), Window: st.window}
}

func seconds(samples []window.Sample) float64 {
	return float64(samples[len(samples)-1].T-samples[0].T) / 1000
}

// stuck answers a rate while no token is generated though requests are there: without a value, as
// with every scrape less of the window would be of the time before.
func (r *Replica) stuck(st *stat) (Result, bool) {
	stalled := r.withoutToken()
	if stalled <= st.freshFor() {
		return Result{}, false
	}
	return Result{
		State:  Stalled,
		Time:   readAt(st),
		Window: st.window,
		Reason: fmt.Sprintf("no token for %s with %s", stalled.Round(time.Second), r.work()),
	}, true
}

// nothingFinished answers a rate of finished requests of which there was none. With nothing to do
// that is a rate of 0. With requests in the engine it says nothing about their rate: they may be
// long, or the engine may hang, and a 0 would scale it down.
func (r *Replica) nothingFinished(st *stat) Result {
	w := r.work()
	switch {
	case w.none():
		return Result{State: Idle, HasValue: true, Time: readAt(st), Window: st.window}
	case w.some():
		return Result{
			State:  Stalled,
			Time:   readAt(st),
			Window: st.window,
			Reason: fmt.Sprintf("no request finished for %s with %s", st.window.Round(time.Second), w),
		}
	default:
		return unknown("no request finished in the window, and whether any is in the engine is not known: " + w.unknown)
	}
}
