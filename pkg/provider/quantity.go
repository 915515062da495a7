package provider

import (
	"fmt"
	"math"
)

// maxValue bounds what is believed to be a value. An HPA adds up the values of all pods in milli
// units, in 64 bits: a sum of thousands of this one still fits, where an overflow would turn a huge
// load into a negative one.
const maxValue = 1e12

// milliValue returns a value in thousandths, the precision of the API. What is not a number, or out
// of bounds, has none: it would be read as some number by whoever scales on it.
func milliValue(v float64) (int64, error) {
	switch {
	case math.IsNaN(v):
		return 0, fmt.Errorf("the engine's series gave no number (NaN)")
	case v < 0, v > maxValue: // below 0 it would take away from what other pods say
		return 0, fmt.Errorf("the engine's series gave %g, which is out of bounds", v)
	case v > 0 && v < 0.001:
		// A little is not nothing: zero is what lets an HPA scale in.
		return 1, nil
	}
	return int64(math.Round(v * 1000)), nil
}
