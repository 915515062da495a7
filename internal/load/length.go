package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Length is a distribution of token counts: always Median if Sigma is 0, else log-normal, which is
// what prompts and outputs look like in the traces that have been published.
type Length struct {
	Median float64
	// Sigma is the standard deviation of the logarithm.
	Sigma float64
	// Max cuts the tail; 0 leaves it.
	Max float64
}

func parseLength(value string) (Length, error) {
	bad := func() (Length, error) {
		return Length{}, fmt.Errorf("%q is not a number of tokens, lognormal(median,sigma) or lognormal(median,sigma,max)", value)
	}
	args, ok := strings.CutPrefix(value, "lognormal(")
	if !ok {
		n, err := strconv.Atoi(value)
		if err != nil {
			return bad()
		}
		return Length{Median: float64(n)}, nil
	}
	args, ok = strings.CutSuffix(args, ")")
	parts := strings.Split(args, ",")
	if !ok || len(parts) < 2 || len(parts) > 3 {
		return bad()
	}
	var v [3]float64
	for i, p := range parts {
		var err error
		if v[i], err = parseNumber(strings.TrimSpace(p)); err != nil {
			return bad()
		}
	}
	if v[1] == 0 || (len(parts) == 3 && v[2] == 0) {
		return Length{}, fmt.Errorf("%q: sigma and max must be above 0", value)
	}
	return Length{v[0], v[1], v[2]}, nil
}

func (l Length) validate() error {
	switch {
	case l.Median < 1:
		return fmt.Errorf("must be at least 1 token, is %g", l.Median)
	case l.Sigma < 0:
		return fmt.Errorf("sigma must be above 0, is %g", l.Sigma)
	case l.Max != 0 && l.Max < l.Median:
		return fmt.Errorf("max %g is below the median %g", l.Max, l.Median)
	}
	return nil
}

// String returns the textual form.
func (l Length) String() string {
	switch {
	case l.Sigma == 0:
		return fmt.Sprintf("%.0f", l.Median)
	case l.Max == 0:
		return fmt.Sprintf("lognormal(%g,%g)", l.Median, l.Sigma)
	}
	return fmt.Sprintf("lognormal(%g,%g,%g)", l.Median, l.Sigma, l.Max)
}

func (l Length) draw(rng *rand.Rand) int {
	v := l.Median
	if l.Sigma > 0 {
		v *= math.Exp(l.Sigma * rng.NormFloat64())
	}
	if l.Max > 0 {
		v = min(v, l.Max)
	}
	// Far tails of an unbounded distribution must not overflow; no model takes a billion tokens.
	return int(math.Round(min(max(v, 1), 1e9)))
}
