package window

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// every returns samples at 0, step, 2*step …
func every(step int64, values ...float64) []Sample {
	out := []Sample{}
	for i, v := range values {
		out = append(out, Sample{T: int64(i) * step, V: v})
	}
	return out
}

func TestSince(t *testing.T) {
	samples := every(10, 0, 1, 2)
	for from, want := range map[int64][]Sample{
		-1: samples, 0: samples, 1: samples[1:], 10: samples[1:], 20: samples[2:], 21: {},
	} {
		got := Since(samples, from)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("since %d (-want +got):\n%s", from, diff)
		}
		if len(got) > 0 && &got[len(got)-1] != &samples[len(samples)-1] {
			t.Errorf("since %d: a copy", from)
		}
	}
	if got := Since(nil, 5); len(got) != 0 {
		t.Errorf("since 5 of nothing: %v", got)
	}
}

// Growth over resets is held to PromQL in oracle_test.go; here is what PromQL has no word for.
func TestIncreaseThatIsNoNumber(t *testing.T) {
	for name, samples := range map[string][]Sample{
		"none":      nil,
		"one":       every(1, 5),
		"infinite":  every(1, 1, math.Inf(1)),
		"NaN":       every(1, math.NaN(), 1),
		"overflows": every(1, -math.MaxFloat64, math.MaxFloat64),
	} {
		if delta, ok := Increase(samples); ok {
			t.Errorf("%s: %v, want not ok", name, delta)
		}
	}
}

func TestLastIncrease(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   int64 // -1: none
	}{
		{"none", nil, -1},
		{"one sample has no predecessor", []float64{5}, -1},
		{"flat", []float64{5, 5, 5}, -1},
		{"grew at the end", []float64{5, 5, 6}, 20},
		{"grew once", []float64{5, 6, 6}, 10},
		{"restarted and counted", []float64{5, 5, 3, 3}, 20},
		{"restarted and did not count", []float64{5, 5, 0, 0}, -1},
		{"counted, then restarted", []float64{5, 6, 0, 0}, 10},
		{"counts after its restart", []float64{5, 0, 1}, 20},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, ok := LastIncrease(every(10, test.values...))
			if ok != (test.want >= 0) || ok && got != test.want {
				t.Errorf("got %d, %v; want %d", got, ok, test.want)
			}
		})
	}
}

// TestLastIncreaseAgreesWithIncrease: it is the last sample up to which there is more growth than
// up to the one before it.
func TestLastIncreaseAgreesWithIncrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var values []float64
		for _, v := range rapid.SliceOfN(rapid.IntRange(0, 3), 0, 12).Draw(t, "values") {
			values = append(values, float64(v))
		}
		samples := every(10, values...)
		want, wantOK := int64(0), false
		for i := 1; i < len(samples); i++ {
			before, _ := Increase(samples[:i])
			if until, _ := Increase(samples[:i+1]); until > before {
				want, wantOK = samples[i].T, true
			}
		}
		if got, ok := LastIncrease(samples); got != want || ok != wantOK {
			t.Fatalf("got %d, %v; want %d, %v", got, ok, want, wantOK)
		}
	})
}

func TestInterval(t *testing.T) {
	tests := []struct {
		name  string
		times []int64
		want  time.Duration
	}{
		{"none", nil, 0},
		{"one", []int64{5000}, 0},
		{"two", []int64{0, 5000}, 5 * time.Second},
		{"jitter", []int64{0, 5000, 9900, 15100}, 5 * time.Second},
		{"a missed scrape", []int64{0, 5000, 15000, 20000}, 5 * time.Second},
		{"a missed scrape of two gaps", []int64{0, 5000, 15000}, 5 * time.Second},
		{"a long outage", []int64{0, 5000, 600_000, 605_000}, 5 * time.Second},
		{"slower since a minute", []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15_014, 30_014, 45_014, 60_014, 75_014, 90_014, 105_014}, 15 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var samples []Sample
			for _, at := range test.times {
				samples = append(samples, Sample{T: at})
			}
			if got := Interval(samples); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestArithmeticDoesNotAllocate(t *testing.T) {
	samples := every(5000, slices.Repeat([]float64{1, 2, 3, 0}, 15)...)
	if n := testing.AllocsPerRun(100, func() {
		recent := Since(samples, 30_000)
		Increase(recent)
		LastIncrease(recent)
		Interval(recent)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
