package sources

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// wanted are the series that the catalogue asks for.
func wanted() []string { return signals.AllNames() }

// evaluate returns the signals of the catalogue, and queries besides, of a pod at an instant, over a
// window.
func evaluate(t *testing.T, store *window.Store, pod string, at time.Time, over time.Duration, queries ...signals.Query) map[signals.Query]signals.Result {
	t.Helper()
	for _, s := range signals.Catalogue() {
		if !s.OfPool() {
			queries = append(queries, signals.Query{Signal: s.Name})
		}
	}
	var plans []*signals.Plan
	for _, q := range queries {
		plan, err := signals.Prepare(q)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, plan)
	}
	group := store.Group(signals.GroupKey("default", pod))
	params := signals.DefaultParams()
	params.Window = over
	results := map[signals.Query]signals.Result{}
	for i, m := range signals.Evaluate(plans, group, signals.At{Now: at, Pod: pod}, params) {
		results[plans[i].Query] = m.Result
	}
	return results
}

// testSignals: every signal is the same on every store at the same instant, as far as one can be that
// scrapes at another time.
//
// All stores scrape every interval i, each at a phase of its own. A window of the length w up to an
// instant holds the samples of a store from somewhere in its first i to somewhere in its last i: their
// span is w-2i to w. From this follow all tolerances.
func (p *play) testSignals(t *testing.T) {
	t.Run("quiet", p.testQuiet)
	t.Run("frozen", p.testFrozen)
	t.Run("load", p.testLoad)
}

// results are those of every store for one pod, in the order of stores.
func (p *play) results(t *testing.T, pod string, at time.Time, over time.Duration, queries ...signals.Query) []map[signals.Query]signals.Result {
	t.Helper()
	var all []map[signals.Query]signals.Result
	for _, r := range p.recordings {
		all = append(all, evaluate(t, r.until(at, signals.GroupOf), pod, at, over, queries...))
	}
	return all
}

// compare holds the values of every store to those of the first. within gives the bounds of a value;
// ok is false for what cannot be compared. It returns how many values were compared by signal.
func compare(t *testing.T, pod string, all []map[signals.Query]signals.Result, within func(signals.Query, signals.Result) (low, high float64, ok bool)) map[string]int {
	t.Helper()
	compared := map[string]int{}
	for q, want := range all[0] {
		for i, store := range stores {
			got := all[i][q]
			low, high, ok := within(q, want)
			if !ok {
				continue
			}
			if got.State != want.State || got.HasValue != want.HasValue {
				t.Errorf("%s of %s is %v on %s (%s) and %v on %s (%s)", q.Signal, pod, want.State, embedded, want.Reason, got.State, store, got.Reason)
				continue
			}
			if !want.HasValue {
				continue
			}
			slack := 1e-9 * math.Abs(want.Value) // VictoriaMetrics' decimals
			if got.Value < low-slack || got.Value > high+slack || math.IsNaN(got.Value) {
				t.Errorf("%s of %s is %g on %s, want %g to %g as it is %g on %s", q.Signal, pod, got.Value, store, low, high, want.Value, embedded)
			}
			compared[q.Signal]++
		}
	}
	return compared
}

func isRate(q signals.Query) bool { return strings.HasSuffix(unit(q), "/s") }

func unit(q signals.Query) string { return signals.Lookup(q.Signal).Unit }

// testQuiet: where nothing happens at the edges of the window, all stores see the same increases.
// Quantiles and ratios are equal then; rates differ as the spans do that they are over: by 2i/(w-2i).
func (p *play) testQuiet(t *testing.T) {
	compared := map[string]int{}
	for _, pod := range append(p.front.pods(), exporter) {
		all := p.results(t, pod, p.quiet, p.quietSpan)
		for name, n := range compare(t, pod, all, func(q signals.Query, want signals.Result) (low, high float64, ok bool) {
			if isRate(q) {
				d := want.Value * float64(2*interval) / float64(p.quietSpan-2*interval)
				return want.Value - d, want.Value + d, true
			}
			return want.Value, want.Value, true
		}) {
			compared[name] += n
		}
		if pod == exporter {
			continue
		}
		for _, name := range []string{"vllm_request_rate", "vllm_ttft_p99_seconds", "vllm_e2e_latency_p50_seconds", "vllm_goodput"} {
			if pod == old && name == "vllm_goodput" {
				continue // that release has no time per output token of a request
			}
			if r := all[0][signals.Query{Signal: name}]; !r.HasValue || r.Value == 0 {
				t.Errorf("%s of %s is %+v: a burst should be seen", name, pod, r)
			}
		}
	}
	t.Logf("%d signals compared", len(compared))
}

// testFrozen: gauges of engines that stand still are equal, and what the engines say. A latency is the
// time without progress, which ends at the newest sample and began at the newest that showed some: each
// of them is up to i older on one store than on another.
func (p *play) testFrozen(t *testing.T) {
	compared := map[string]int{}
	for _, pod := range append(p.front.pods(), exporter) {
		all := p.results(t, pod, p.frozen, short)
		for name, n := range compare(t, pod, all, func(q signals.Query, want signals.Result) (low, high float64, ok bool) {
			switch {
			case unit(q) == "seconds":
				d := (2 * interval).Seconds()
				return want.Value - d, want.Value + d, true
			case want.Window == 0:
				return want.Value, want.Value, true
			}
			return 0, 0, false // the window began while the burst before was under way
		}) {
			compared[name] += n
		}
	}
	for _, name := range []string{"vllm_queue_depth", "vllm_running_requests", "vllm_inflight_requests", "vllm_kv_cache_usage", "inference_queue_depth"} {
		if compared[name] != len(p.front.pods())*len(stores) {
			t.Errorf("%s was compared %d times", name, compared[name])
		}
	}
	replicas, err := p.engines.Replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range replicas {
		// The gauge is as of the step before the freeze: what came after it is not in it yet.
		q := signals.Query{Signal: "vllm_queue_depth"}
		got := p.results(t, r.Name, p.frozen, short)[0][q]
		served := p.front.scrapes(embedded, r.Name)
		values := parse(t, served[len(served)-1].text)
		want := 0.0
		for id, v := range values {
			if name := nameOf(id); name == "vllm:num_requests_waiting" || name == "vllm_num_requests_waiting" {
				want += v
			}
		}
		if got.Value != want || want == 0 {
			t.Errorf("queue depth of %s is %g, and was served as %g", r.Name, got.Value, want)
		}
	}
}

// testLoad: under a steady load, windows of other phases hold other events at their edges, up to those
// of one i at each.
//
// Rates: N(s, t] events differ from λ(t-s) by at most R, the range of N(t)-λt, whatever s and t are; so a
// rate, which is of the span that the samples cover, differs from λ by R/(w-2i), and two rates by twice
// that. Shares: numerator and denominator differ by the events of two i each. Quantiles: as many events
// move a rank by their part f of all; so a value lies between the quantiles q-f and q+f of another store.
func (p *play) testLoad(t *testing.T) {
	compared := map[string]int{}
	for _, pod := range p.front.pods() {
		if pod == busyDeath {
			continue // what a restart takes with it depends on when the last scrape before was
		}
		for at := p.loadFrom.Add(span + time.Second); at.Before(p.loadTo); at = at.Add(time.Second) {
			truth := p.truth(t, pod, at)
			f := truth.edge
			var wider []signals.Query
			quantiles := map[string]float64{}
			for _, s := range signals.Catalogue() {
				base, percent, ok := cutPercent(s.Name)
				if !ok || signals.Lookup(base) == nil {
					continue
				}
				quantiles[s.Name] = percent
				for _, q := range []float64{math.Max(0.001, percent-f), math.Min(0.999, percent+f)} {
					wider = append(wider, signals.Query{Signal: base, Quantile: q})
				}
			}
			all := p.results(t, pod, at, span, wider...)
			for name, n := range compare(t, pod, all, func(q signals.Query, want signals.Result) (low, high float64, ok bool) {
				percent, isQuantile := quantiles[q.Signal]
				switch {
				case !want.HasValue, want.Window == 0, q.Quantile > 0:
					return 0, 0, false // gauges under load have no one value, nor what depends on one; the rest is wider
				case isQuantile:
					base, _, _ := cutPercent(q.Signal)
					low := all[0][signals.Query{Signal: base, Quantile: math.Max(0.001, percent-f)}]
					high := all[0][signals.Query{Signal: base, Quantile: math.Min(0.999, percent+f)}]
					return low.Value, high.Value, low.HasValue && high.HasValue
				case isRate(q):
					of := truth.requests
					if strings.HasPrefix(unit(q), "tokens") {
						of = truth.tokens
					}
					d := 2 * of / (span - 2*interval).Seconds()
					return want.Value - d, want.Value + d, true
				case unit(q) == "0..1":
					return want.Value - 2*f, want.Value + 2*f, true
				}
				return 0, 0, false
			}) {
				compared[name] += n
			}
			t.Logf("%s: requests/s ± %.2f, tokens/s ± %.1f, ranks ± %.3f", pod,
				2*truth.requests/(span-2*interval).Seconds(), 2*truth.tokens/(span-2*interval).Seconds(), f)
			if f > 0.5 {
				t.Errorf("the edges of a window hold %.2f of its events: this is no steady load", f)
			}
		}
	}
	for _, name := range []string{"vllm_request_rate", "vllm_arrival_rate", "vllm_goodput", "vllm_generation_tokens_rate", "vllm_slo_attainment",
		"vllm_ttft_p50_seconds", "vllm_ttft_p99_seconds", "vllm_tpot_p90_seconds", "vllm_e2e_latency_p95_seconds"} {
		if compared[name] == 0 && signals.Lookup(name) != nil {
			t.Errorf("%s was not compared", name)
		}
	}
}

// cutPercent takes the percentile out of a signal's name.
func cutPercent(name string) (base string, quantile float64, ok bool) {
	for _, percent := range []int{50, 90, 95, 99} {
		if base, ok := strings.CutSuffix(name, fmt.Sprintf("_p%d_seconds", percent)); ok {
			return base + "_seconds", float64(percent) / 100, true
		}
	}
	return "", 0, false
}

// A truth is what an engine did in the window up to an instant, from all that was served of it.
type truth struct {
	// requests and tokens are R: the most that their counts were off a steady rate.
	requests, tokens float64
	// edge is f: which part of the events of a window were at most within its edges.
	edge float64
}

func (p *play) truth(t *testing.T, pod string, at time.Time) truth {
	t.Helper()
	type point struct{ at, v float64 }
	counters := map[string][]point{}
	var all []exposition
	for _, store := range stores {
		all = append(all, p.front.scrapes(store, pod)...)
	}
	slices.SortFunc(all, func(a, b exposition) int { return a.at.Compare(b.at) })
	queue := 0.0
	for _, s := range all {
		if s.at.Before(at.Add(-span-interval)) || s.at.After(at) {
			continue
		}
		for id, v := range parse(t, s.text) {
			name := strings.Replace(nameOf(id), "vllm_", "vllm:", 1)
			switch {
			case name == "vllm:num_requests_waiting":
				queue = math.Max(queue, v)
			case strings.HasSuffix(name, "_total"), strings.HasSuffix(name, "_bucket"):
				counters[id] = append(counters[id], point{s.at.Sub(at).Seconds(), v})
			}
		}
	}
	var out truth
	for id, points := range counters {
		first, last := points[0], points[len(points)-1]
		rate := (last.v - first.v) / (last.at - first.at)
		if rate == 0 {
			continue
		}
		low, high, step, edge := math.Inf(1), math.Inf(-1), 0.0, 0.0
		from := 0
		for i, x := range points {
			low, high = math.Min(low, x.v-rate*x.at), math.Max(high, x.v-rate*x.at)
			if i > 0 {
				step = math.Max(step, x.v-points[i-1].v)
			}
			for x.at-points[from].at > interval.Seconds() {
				from++
			}
			edge = math.Max(edge, x.v-points[from].v)
		}
		// Between two readings the count may have been either.
		spread := high - low + step
		switch name := nameOf(id); {
		case strings.Contains(name, "_tokens"):
			out.tokens = math.Max(out.tokens, spread)
		case strings.Contains(name, "success"), strings.Contains(name, "first_token"), strings.Contains(name, "e2e_request"):
			out.requests = math.Max(out.requests, spread)
			if !strings.Contains(name, "_bucket") || strings.Contains(id, "+Inf") { // which all events are in
				out.edge = math.Max(out.edge, 2*(edge+step)/(rate*(span-2*interval).Seconds()))
			}
		}
	}
	out.requests += queue // arrivals are counted by the growth of the queue
	return out
}
