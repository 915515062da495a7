package provider

import (
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

func TestMilliValue(t *testing.T) {
	for _, tc := range []struct {
		v     float64
		want  string
		fails bool
	}{
		{v: 0, want: "0"},
		{v: math.Copysign(0, -1), want: "0"},
		{v: 7, want: "7"},
		{v: 0.25, want: "250m"},
		{v: 2.5, want: "2500m"},
		{v: 0.8125, want: "813m"},
		{v: 0.0015, want: "2m"},
		{v: 0.001, want: "1m"},
		{v: 0.0004, want: "1m"},
		{v: math.SmallestNonzeroFloat64, want: "1m"},
		{v: 0.99999, want: "1"},
		{v: maxValue, want: "1T"},
		{v: -3, fails: true},
		{v: -math.SmallestNonzeroFloat64, fails: true},
		{v: maxValue * 1.1, fails: true},
		{v: -maxValue * 1.1, fails: true},
		{v: math.MaxFloat64, fails: true},
		{v: math.Inf(1), fails: true},
		{v: math.Inf(-1), fails: true},
		{v: math.NaN(), fails: true},
	} {
		got, err := milliValue(tc.v)
		if (err != nil) != tc.fails {
			t.Errorf("milliValue(%g) = %d, %v", tc.v, got, err)
			continue
		}
		if q := resource.NewMilliQuantity(got, resource.DecimalSI).String(); err == nil && q != tc.want {
			t.Errorf("milliValue(%g) is served as %s, want %s", tc.v, q, tc.want)
		}
	}
}

// Whatever the value: what is positive is served as positive, and within a thousandth.
func TestMilliValueKeepsItsWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64().Draw(t, "value")
		got, err := milliValue(v)
		if err != nil {
			if v >= 0 && v <= maxValue {
				t.Fatalf("%g was refused: %v", v, err)
			}
			return
		}
		if v > 0 && got <= 0 {
			t.Fatalf("%g became %d thousandths", v, got)
		}
		if d := math.Abs(float64(got)/1000 - v); d > 0.001+1e-15*math.Abs(v) {
			t.Fatalf("%g became %d thousandths", v, got)
		}
	})
}
