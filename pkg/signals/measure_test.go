package signals

import (
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"pgregory.net/rapid"

	"github.com/inference-metrics/adapter/internal/window"
)

func TestMerge(t *testing.T) {
	at := time.UnixMilli(60_000)
	has := func(name, role string, v float64) Member {
		return Member{Name: name, Role: role, Measure: Measure{Result: Result{State: Value, HasValue: true, Value: v, Time: at}, sum: v, weight: 1}}
	}
	idle := func(name string) Member {
		return Member{Name: name, Measure: Measure{Result: Result{State: Idle, HasValue: true, Time: at}, weight: 1}}
	}
	lost := func(name, role string) Member { return Member{Name: name, Role: role, Measure: unknown("gone")} }
	foreign := func(name string) Member {
		m := lost(name, "")
		m.foreign = true
		return m
	}
	for _, tc := range []struct {
		name    string
		signal  string
		members []Member
		want    string
	}{
		{"nobody", "vllm_queue_depth", nil, "unknown (there is no replica that has been Ready)"},
		{"nobody knows", "vllm_queue_depth", []Member{lost("a", "")}, "unknown (0 of 1 replicas have a value: a: gone)"},
		{"other engines only", "vllm_queue_depth", []Member{foreign("a")}, "unknown (no replica has it: a: gone)"},
		{"another engine beside", "vllm_queue_depth", []Member{has("a", "", 3), foreign("b"), foreign("c")}, "value 3 at 1m0s"},
		{"another engine beside idle", "vllm_queue_depth", []Member{idle("a"), foreign("b")}, "idle 0 at 1m0s"},
		{"a lost one beside idle", "vllm_queue_depth", []Member{idle("a"), lost("b", "")}, "unknown (the 1 replicas that have a value make 0, and 1 have none: b: gone)"},
		{"many lost are counted, and not all named", "vllm_queue_depth",
			[]Member{has("a", "", 1), has("b", "", 1), has("c", "", 1), has("d", "", 1), lost("e", ""), lost("f", ""), lost("g", ""), lost("h", "")},
			"value 8 at 1m0s (4 of 8 replicas have no value: e: gone; f: gone; g: gone; and 1 more)"},
		{"roles that add up", "vllm_queue_depth", []Member{has("a", Prefill, 1), has("b", Decode, 2), has("c", "", 4)}, "value 7 at 1m0s"},
		{"decode counts, and who does both", "vllm_request_rate", []Member{has("a", Prefill, 1), has("b", Decode, 2), has("c", "", 4)}, "value 6 at 1m0s"},
		{"prefill counts", "vllm_prompt_tokens_rate", []Member{has("a", Prefill, 1), has("b", Decode, 2)}, "value 1 at 1m0s"},
		{"a lost one of the role that does not count", "vllm_request_rate", []Member{lost("a", Prefill), has("b", Decode, 2)}, "value 2 at 1m0s"},
		{"a lost one of the role that counts", "vllm_request_rate", []Member{has("a", Prefill, 1), lost("b", Decode)}, "unknown (0 of 1 replicas have a value: b: gone)"},
		{"one role only", "vllm_request_rate", []Member{has("a", Prefill, 1), has("b", "", 4)}, "value 5 at 1m0s"},
		{"neither role tells", "vllm_goodput", []Member{has("a", Prefill, 1), has("b", Decode, 2)},
			"unknown (the group has prefill and decode replicas, and each of them sees a part of a request: choose role=prefill or role=decode)"},
		{"a guarantee does not extend to others", "vllm_goodput", []Member{has("a", "", 3), lost("b", "")}, "value 3 at 1m0s (1 of 2 replicas have no value: b: gone)"},
		{"a mean is of those there are", "vllm_saturation", []Member{has("a", "", 3), has("b", "", 1), lost("c", "")}, "value 2 at 1m0s (1 of 3 replicas have no value: c: gone)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := slices.Clone(tc.members)
			got := plan(t, tc.signal).Merge(tc.members, DefaultParams())
			got.Time = got.Time.Add(epoch.Sub(time.UnixMilli(0)))
			if !got.HasValue {
				got.Time = time.Time{}
			}
			if written(got) != tc.want {
				t.Errorf("got  %s\nwant %s", written(got), tc.want)
			}
			for i := range before {
				if tc.members[i].Name != before[i].Name {
					t.Fatalf("the caller's members were moved: %d is %s", i, tc.members[i].Name)
				}
			}
		})
	}
}

// layout draws the finite bounds of a histogram.
func layout(t *rapid.T) []float64 {
	out := rapid.SliceOfNDistinct(rapid.SampledFrom([]float64{0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40}), 1, 8, rapid.ID[float64]).Draw(t, "layout")
	slices.Sort(out)
	return out
}

func histogram(bounds, values []float64) []window.Bucket {
	var out []window.Bucket
	for _, le := range append(slices.Clone(bounds), math.Inf(1)) {
		n := 0.0
		for _, v := range values {
			if v <= le {
				n++
			}
		}
		out = append(out, window.Bucket{LE: le, Count: n})
	}
	return out
}

// Replicas of one version have one layout, and their quantile is PromQL's of the sum; but where less than one
// of the observations is expected above it, which is the bound of the highest one.
func TestQuantilesOfOneLayoutArePromQLs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bounds := layout(t)
		values := rapid.SliceOfN(rapid.SliceOfN(rapid.Float64Range(0, 50), 1, 60), 1, 5).Draw(t, "values")
		q := rapid.SampledFrom([]float64{0.01, 0.5, 0.9, 0.95, 0.99}).Draw(t, "quantile")
		var hists [][]window.Bucket
		var all []float64
		for _, vs := range values {
			hists = append(hists, histogram(bounds, vs))
			all = append(all, vs...)
		}
		var buckets promql.Buckets
		for _, b := range histogram(bounds, all) {
			buckets = append(buckets, promql.Bucket{UpperBound: b.LE, Count: b.Count})
		}
		few := float64(len(all))*(1-q) < 1
		want := q
		if few {
			want = 1
		}
		oracle, _, _, _, _, _ := promql.BucketQuantile(want, buckets)
		got := quantileOf(q, hists)
		if math.Abs(got.Value-oracle) > 1e-9 {
			t.Fatalf("%v of %v over %v is %v, PromQL says %v", q, all, bounds, got.Value, oracle)
		}
		if above := slices.Max(bounds); got.LowerBound != (got.Value == above && math.IsInf(got.Resolution.High, 1)) {
			t.Fatalf("lower bound %v of %v in %+v", got.LowerBound, got.Value, *got.Resolution)
		}
	})
}

// Whatever bounds the replicas have, the true quantile is in the bucket that is told, the answer is in it
// too, and a lower bound is one.
func TestQuantilesOfSeveralLayoutsHoldTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := rapid.SampledFrom([]float64{0.1, 0.5, 0.9, 0.95, 0.99}).Draw(t, "quantile")
		var hists [][]window.Bucket
		var all []float64
		for range rapid.IntRange(1, 4).Draw(t, "replicas") {
			vs := rapid.SliceOfN(rapid.Float64Range(0, 50), 1, 40).Draw(t, "values")
			hists = append(hists, histogram(layout(t), vs))
			all = append(all, vs...)
		}
		sort.Float64s(all)
		n := float64(len(all))
		truth := all[int(math.Ceil(rank(q, n)))-1]
		got := quantileOf(q, hists)
		res := got.Resolution
		if res.Events != n {
			t.Fatalf("of %v observations, there are %v", res.Events, n)
		}
		if truth < res.Low || truth > res.High {
			t.Fatalf("the %v-quantile of %v is %v, and not in %v..%v", q, all, truth, res.Low, res.High)
		}
		if got.Value < res.Low || got.Value > res.High || got.LowerBound && truth < got.Value {
			t.Fatalf("answered %v (lower bound %v) in %v..%v, the truth is %v", got.Value, got.LowerBound, res.Low, res.High, truth)
		}
	})
}
