package signals

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"pgregory.net/rapid"

	"github.com/inference-metrics/adapter/internal/window"
)

func plan(t interface{ Fatal(...any) }, signal string) *Plan {
	p, err := Prepare(Query{Signal: signal})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGoodputBoundsHoldTheTruth draws requests one by one, scrapes the histograms an engine would
// have kept of them, and holds the bounds against the requests that really met every objective.
func TestGoodputBoundsHoldTheTruth(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const interval = 5
		history := rapid.IntRange(70, 300).Draw(t, "history")
		p := Params{Window: time.Minute, SLO: SLO{TTFT: 2500 * time.Millisecond, TPOT: 100 * time.Millisecond}}
		if rapid.Bool().Draw(t, "off-edge") {
			p.SLO.TTFT = 2 * time.Second
		}
		if rapid.Bool().Draw(t, "with e2e") {
			p.SLO.E2E = 20 * time.Second
		}

		type request struct{ arrival, ttft, tpot, e2e float64 }
		requests := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) request {
			r := request{
				arrival: rapid.Float64Range(0, float64(history)).Draw(t, "arrival"),
				ttft:    rapid.Float64Range(0.01, 8).Draw(t, "ttft"),
				tpot:    rapid.Float64Range(0.02, 0.3).Draw(t, "tpot"),
			}
			r.e2e = r.ttft + r.tpot*float64(rapid.IntRange(0, 400).Draw(t, "tokens"))
			return r
		}), 1, 60).Draw(t, "requests")

		store := window.New(time.Hour, GroupOf)
		series := func(name string, extra ...string) labels.Labels {
			return labels.FromStrings(append([]string{"__name__", name, "namespace", "ns", "pod", "p"}, extra...)...)
		}
		observe := func(name string, edges []float64, now float64, value, at func(request) float64) {
			for _, le := range append(edges[:len(edges):len(edges)], math.Inf(1)) {
				var n float64
				for _, r := range requests {
					if r.arrival+at(r) <= now && value(r) <= le {
						n++
					}
				}
				store.Append(series(name+"_bucket", "le", strconv.FormatFloat(le, 'g', -1, 64)), int64(now*1000), n)
			}
		}
		ttft := func(r request) float64 { return r.ttft }
		tpot := func(r request) float64 { return r.tpot }
		e2e := func(r request) float64 { return r.e2e }
		last := 0
		for now := 0; now <= history; now += interval {
			last = now
			observe("vllm:time_to_first_token_seconds", vllm.series[TTFT].edges, float64(now), ttft, ttft)
			observe("vllm:request_time_per_output_token_seconds", vllm.series[TPOT].edges, float64(now), tpot, e2e)
			observe("vllm:e2e_request_latency_seconds", vllm.series[E2E].edges, float64(now), e2e, e2e)
			var in float64
			for _, r := range requests {
				if r.arrival <= float64(now) && r.arrival+r.e2e > float64(now) {
					in++
				}
			}
			store.Append(series("vllm:num_requests_waiting"), int64(now*1000), 0)
			store.Append(series("vllm:num_requests_running"), int64(now*1000), in)
		}

		var finished, good float64
		for _, r := range requests {
			if done := r.arrival + r.e2e; done > float64(last-60) && done <= float64(last) {
				finished++
				if r.ttft <= p.SLO.TTFT.Seconds() && r.tpot <= p.SLO.TPOT.Seconds() && (p.SLO.E2E == 0 || r.e2e <= p.SLO.E2E.Seconds()) {
					good++
				}
			}
		}
		got := Evaluate([]*Plan{plan(t, "vllm_goodput"), plan(t, "vllm_goodput_upper")}, store.Group("ns/p"), At{Now: time.UnixMilli(int64(last * 1000))}, p)
		if finished == 0 {
			if got[0].State == Value {
				t.Fatalf("nothing finished, yet goodput is %v", got[0].Value)
			}
			return
		}
		if strings.HasPrefix(got[0].Reason, "requests finish again") {
			return // the transcripts have it
		}
		lower, upper, truth := got[0].Value*60, got[1].Value*60, good
		if got[0].State != Value || got[1].State != Value {
			t.Fatalf("no value: %+v", got)
		}
		if lower > truth+1e-6 || upper < truth-1e-6 {
			sort.Slice(requests, func(i, j int) bool { return requests[i].arrival < requests[j].arrival })
			t.Fatalf("of %v finished %v were good; the bounds say %v to %v\n%s", finished, truth, lower, upper, fmt.Sprint(requests))
		}
	})
}
