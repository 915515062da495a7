package window

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var inf = math.Inf(1)

func TestIncreases(t *testing.T) {
	tests := []struct {
		name    string
		buckets []BucketSeries
		from    int64
		want    []Bucket // nil: not ok
		span    time.Duration
	}{
		{
			name:    "two buckets in any order",
			buckets: []BucketSeries{{inf, every(1000, 0, 5, 9)}, {1, every(1000, 0, 1, 2)}},
			want:    []Bucket{{1, 2}, {inf, 9}},
			span:    2 * time.Second,
		},
		{
			name:    "from the middle on",
			buckets: []BucketSeries{{1, every(1000, 0, 1, 3)}, {inf, every(1000, 0, 5, 9)}},
			from:    1000,
			want:    []Bucket{{1, 2}, {inf, 4}},
			span:    time.Second,
		},
		{
			name:    "a restart before the window is over",
			buckets: []BucketSeries{{1, every(1000, 9, 1, 3)}, {inf, every(1000, 9, 5, 9)}},
			from:    1000,
			want:    []Bucket{{1, 2}, {inf, 4}},
			span:    time.Second,
		},
		{
			name:    "a restart that one finite bucket shows",
			buckets: []BucketSeries{{1, every(1000, 3, 1)}, {inf, every(1000, 3, 7)}},
			want:    []Bucket{{1, 1}, {inf, 7}},
			span:    time.Second,
		},
		{
			name: "a restart that falls into the gap of another bucket",
			buckets: []BucketSeries{
				{1, []Sample{{0, 3}, {2000, 5}}},
				{inf, every(1000, 9, 4, 6)},
			},
			want: []Bucket{{1, 5}, {inf, 6}},
			span: 2 * time.Second,
		},
		{
			name:    "a bucket that holds less than one below it is raised",
			buckets: []BucketSeries{{1, every(1000, 0, 5)}, {2, every(1000, 0, 4)}, {inf, every(1000, 0, 6)}},
			want:    []Bucket{{1, 5}, {2, 5}, {inf, 6}},
			span:    time.Second,
		},
		{
			name:    "a bucket with one sample, and one with none",
			buckets: []BucketSeries{{1, every(1000, 4)}, {2, nil}, {inf, every(1000, 4, 6)}},
			want:    []Bucket{{inf, 2}},
			span:    time.Second,
		},
		{
			name: "other bounds after a restart in which nothing fell",
			buckets: []BucketSeries{
				{1, every(1000, 0, 0, 5, 9)},
				{2, []Sample{{0, 0}, {1000, 0}}},
				{3, []Sample{{2000, 6}, {3000, 12}}},
				{inf, every(1000, 0, 0, 8, 20)},
			},
			want: []Bucket{{1, 9}, {inf, 20}},
			span: 3 * time.Second,
		},
		{
			name: "the spelling changed in mid-window",
			buckets: []BucketSeries{
				{1, []Sample{{0, 1}, {1000, 2}}},
				{inf, every(1000, 1, 3, 5, 7)},
				{1, []Sample{{2000, 4}, {3000, 5}}},
			},
			want: []Bucket{{1, 4}, {inf, 6}},
			span: 3 * time.Second,
		},
		{
			name:    "two spellings that disagree, whichever comes first",
			buckets: []BucketSeries{{1, every(1000, 1, 5)}, {1, every(1000, 2, 4)}, {2, every(1000, 2, 4)}, {2, every(1000, 1, 5)}, {inf, every(1000, 2, 9)}},
			want:    []Bucket{{1, 3}, {2, 3}, {inf, 7}},
			span:    time.Second,
		},
		{
			name:    "no bucket is NaN",
			buckets: []BucketSeries{{math.NaN(), every(1000, 0, 50)}, {inf, every(1000, 0, 5)}},
			want:    []Bucket{{inf, 5}},
			span:    time.Second,
		},
		{name: "nothing"},
		{name: "no +Inf", buckets: []BucketSeries{{1, every(1000, 0, 1, 2)}}},
		{name: "+Inf once", buckets: []BucketSeries{{1, every(1000, 0, 1, 2)}, {inf, every(1000, 4)}}},
		{name: "+Inf once in the window", from: 1000, buckets: []BucketSeries{{1, every(1000, 0, 1)}, {inf, every(1000, 0, 4)}}},
		{name: "+Inf is not a number", buckets: []BucketSeries{{1, every(1000, 0, 1)}, {inf, every(1000, 0, math.NaN())}}},
		{name: "a bucket is infinite", buckets: []BucketSeries{{1, every(1000, 0, inf)}, {inf, every(1000, 0, 2)}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, span, ok := Increases(test.buckets, test.from)
			if ok != (test.want != nil) {
				t.Fatalf("ok = %v", ok)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if span != test.span {
				t.Errorf("span = %v, want %v", span, test.span)
			}
		})
	}
}

// TestIncreasesAgainstTruth draws what an engine observes between scrapes, restarts included, and
// asks for it back. After a restart any bucket may be as high as before or higher, as long as one
// of them is lower. The order of the buckets, and a bucket that is split over two spellings, with
// or without an overlap, must not matter.
func TestIncreasesAgainstTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := bounds(t)
		at := times(t)
		buckets := make([]BucketSeries, len(all))
		want := make([]Bucket, len(all))
		for b, le := range all {
			buckets[b].LE, want[b].LE = le, le
		}
		observe := func(most int) []float64 { // cumulative
			out := make([]float64, len(all))
			sum := 0
			for b := range out {
				sum += rapid.IntRange(0, most).Draw(t, "observed")
				out[b] = float64(sum)
			}
			return out
		}
		counts := observe(20)
		for i, ts := range at {
			if i > 0 {
				seen := observe(4)
				below := func(i int) bool { return seen[i] < counts[i] }
				if rapid.IntRange(0, 5).Draw(t, "restart") == 0 && slices.ContainsFunc(indices(len(all)), below) {
					clear(counts)
				}
				for b := range counts {
					counts[b] += seen[b]
					want[b].Count += seen[b]
				}
			}
			for b := range buckets {
				buckets[b].Samples = append(buckets[b].Samples, Sample{ts, counts[b]})
			}
		}

		b := rapid.IntRange(0, len(all)-1).Draw(t, "split bucket")
		samples := buckets[b].Samples
		cut := rapid.IntRange(0, len(samples)).Draw(t, "old spelling until")
		overlap := rapid.IntRange(0, cut).Draw(t, "both spellings for")
		buckets[b].Samples = samples[:cut]
		buckets = append(buckets, BucketSeries{LE: all[b], Samples: samples[cut-overlap:]})
		buckets = rapid.Permutation(buckets).Draw(t, "order")
		asked := slices.Clone(buckets)

		got, span, ok := Increases(buckets, at[0])
		if !ok || span.Milliseconds() != at[len(at)-1]-at[0] {
			t.Fatalf("ok = %v, span = %v", ok, span)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(asked, buckets); diff != "" {
			t.Fatalf("the caller's buckets changed (-before +after):\n%s", diff)
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// Quantiles and bounds of whole histograms are held to PromQL in oracle_test.go.
func TestSum(t *testing.T) {
	at := func(from int64, vs ...float64) []Sample {
		out := every(1000, vs...)
		for i := range out {
			out[i].T += from
		}
		return out
	}
	for _, tc := range []struct {
		name string
		of   [][]BucketSeries
		want []BucketSeries
	}{
		{
			name: "one is itself",
			of:   [][]BucketSeries{{{1, at(0, 1, 2)}, {inf, at(0, 3, 4)}}},
			want: []BucketSeries{{1, at(0, 1, 2)}, {inf, at(0, 3, 4)}},
		},
		{
			name: "two, in any order of their bounds",
			of:   [][]BucketSeries{{{1, at(0, 1, 2)}, {inf, at(0, 3, 4)}}, {{inf, at(0, 10, 20)}, {1, at(0, 5, 6)}}},
			want: []BucketSeries{{1, at(0, 6, 8)}, {inf, at(0, 13, 24)}},
		},
		{
			name: "one begins with its first event",
			of:   [][]BucketSeries{{{inf, at(0, 3, 4, 5)}}, {{inf, at(2000, 7)}}},
			want: []BucketSeries{{inf, at(0, 3, 4, 12)}},
		},
		{
			name: "one was not read",
			of:   [][]BucketSeries{{{inf, at(0, 3, 4, 5)}}, {{inf, []Sample{{0, 7}, {2000, 9}}}}},
			want: []BucketSeries{{inf, at(0, 10, 11, 14)}},
		},
		{
			name: "one is no longer read",
			of:   [][]BucketSeries{{{inf, at(0, 3, 4, 5)}}, {{inf, at(0, 7)}}},
			want: []BucketSeries{{inf, at(0, 10, 11, 12)}},
		},
		{
			name: "a restart, after which one has had no event",
			of:   [][]BucketSeries{{{inf, at(0, 3, 4, 1, 2)}}, {{inf, at(0, 7, 8)}}},
			want: []BucketSeries{{inf, at(0, 10, 12, 1, 2)}},
		},
		{
			name: "a restart, after which one has its first event later",
			of:   [][]BucketSeries{{{inf, at(0, 3, 1, 2, 3)}}, {{inf, []Sample{{0, 7}, {2000, 1}, {3000, 2}}}}},
			want: []BucketSeries{{inf, at(0, 10, 1, 3, 5)}},
		},
		{
			name: "le=1 beside le=1.0 is one bucket of one histogram",
			of:   [][]BucketSeries{{{1, at(0, 1)}, {1, at(0, 1)}, {inf, at(0, 3)}}, {{1, at(0, 5)}, {inf, at(0, 9)}}},
			want: []BucketSeries{{1, at(0, 6)}, {inf, at(0, 12)}},
		},
		{
			name: "a bound that one of them does not have",
			of:   [][]BucketSeries{{{1, at(0, 1, 2)}, {2, at(0, 1, 3)}, {inf, at(0, 3, 4)}}, {{1, at(0, 5, 6)}, {inf, at(0, 9, 9)}}},
			want: []BucketSeries{{1, at(0, 6, 8)}, {inf, at(0, 12, 13)}},
		},
		{
			name: "a bound that one of them has no more",
			of:   [][]BucketSeries{{{1, at(0, 1, 2)}, {inf, at(0, 3, 4)}}, {{1, at(0, 5)}, {inf, at(0, 9, 12)}}},
			want: []BucketSeries{{1, at(0, 6)}, {inf, at(0, 12, 16)}},
		},
		{
			name: "a bound of one that begins with its first event",
			of:   [][]BucketSeries{{{1, at(0, 1, 2)}, {inf, at(0, 3, 4)}}, {{1, at(1000, 5)}, {inf, at(1000, 9)}}},
			want: []BucketSeries{{1, at(0, 1, 7)}, {inf, at(0, 3, 13)}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Sum(tc.of)); diff != "" {
				t.Errorf("Sum (-want +got):\n%s", diff)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	hist := []Bucket{{0.1, 10}, {0.5, 10}, {1, 20}, {inf, 40}}
	tests := []struct {
		name string
		hist []Bucket
		q    float64
		want float64
	}{
		{"inside the first bucket", hist, 0.125, 0.05},
		{"on an edge, an empty bucket above it", hist, 0.25, 0.1},
		{"inside a bucket", hist, 0.375, 0.75},
		{"in the +Inf bucket", hist, 0.9, 1},
		{"the highest", hist, 1, 1},
		{"q below 0", hist, -0.1, math.NaN()},
		{"q above 1", hist, 1.1, math.NaN()},
		{"q not a number", hist, math.NaN(), math.NaN()},
		{"no observations", []Bucket{{1, 0}, {inf, 0}}, 0.5, math.NaN()},
		{"no buckets", nil, 0.5, math.NaN()},
		{"no finite bucket", []Bucket{{inf, 3}}, 0.5, math.NaN()},
		{"no +Inf bucket", []Bucket{{1, 1}, {2, 3}}, 0.5, math.NaN()},
		{"a first bucket at 0", []Bucket{{0, 2}, {inf, 2}}, 0.5, 0},
		{"a first bucket below 0", []Bucket{{-3, 2}, {inf, 2}}, 0.5, -3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Quantile(test.q, test.hist); !near(got, test.want, 1e-12) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestAtMost(t *testing.T) {
	hist := []Bucket{{0.1, 10}, {0.5, 15}, {inf, 40}}
	tests := []struct {
		name         string
		hist         []Bucket
		x            float64
		lower, upper float64
	}{
		{"below the first edge", hist, 0.05, 0, 10},
		{"on the first edge", hist, 0.1, 10, 10},
		{"between edges", hist, 0.3, 10, 15},
		{"on an edge", hist, 0.5, 15, 15},
		{"above the last edge", hist, 7, 15, 40},
		{"at infinity", hist, inf, 40, 40},
		{"only +Inf", hist[2:], 1, 0, 40},
		{"not a number", hist, math.NaN(), math.NaN(), math.NaN()},
		{"no +Inf", hist[:2], 0.1, math.NaN(), math.NaN()},
		{"no buckets", nil, 0.1, math.NaN(), math.NaN()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lower, upper := AtMost(test.hist, test.x)
			if !near(lower, test.lower, 0) || !near(upper, test.upper, 0) {
				t.Errorf("got %v..%v, want %v..%v", lower, upper, test.lower, test.upper)
			}
		})
	}
}

// BenchmarkIncreases is the time to first token of one vLLM replica: 22 buckets, a minute at five
// seconds out of five minutes.
func BenchmarkIncreases(b *testing.B) {
	for name, restart := range map[string]bool{"steady": false, "restart": true} {
		b.Run(name, func(b *testing.B) {
			var buckets []BucketSeries
			for i := range 22 {
				values := make([]float64, 60)
				for j := range values {
					values[j] = float64((i + 1) * j)
					if restart && j >= 55 {
						values[j] = float64(i + 1)
					}
				}
				buckets = append(buckets, BucketSeries{LE: float64(i), Samples: every(5000, values...)})
			}
			buckets[21].LE = inf
			b.ReportAllocs()
			for b.Loop() {
				if _, _, ok := Increases(buckets, 47*5000); !ok {
					b.Fatal("not ok")
				}
			}
		})
	}
}
