package capacity

import "math"

// terms is how many costs a step has: per step, prompt token, output token, and output token and
// unit of KV share.
const terms = 4

type vector [terms]float64

func (v vector) dot(w vector) float64 {
	sum := 0.0
	for i := range v {
		sum += v[i] * w[i]
	}
	return sum
}

// row is a window per second: coef·x is the busy part of it.
type row struct {
	x    vector
	busy float64
}

// off is by how much the costs miss the busy part.
func (r row) off(coef vector) float64 { return math.Abs(r.busy - r.x.dot(coef)) }

// fitted is a solution of coef·x ≈ busy with no negative coefficient.
type fitted struct {
	coef vector
	// cov is (XᵀX)⁻¹, over all terms that occur: a cost that came out as 0 is as uncertain as another.
	cov [terms]vector
	// occurs says which terms some row had any of.
	occurs [terms]bool
}

// variance is that of a prediction for x, in units of the variance of a row's error.
func (f *fitted) variance(x vector) float64 {
	sum := 0.0
	for i := range x {
		if x[i] > 0 && !f.occurs[i] {
			return math.Inf(1)
		}
		sum += x[i] * f.cov[i].dot(x)
	}
	return max(sum, 0)
}

// fit finds the costs that explain the busy time of the rows best: least squares over the costs
// that are not negative. With four of them, trying each subset finds the optimum itself, with
// nothing to converge. ok is false when no subset can be told apart.
func fit(rows []row) (best fitted, ok bool) {
	var scale vector
	for _, r := range rows {
		for i, v := range r.x {
			scale[i] = max(scale[i], v)
		}
	}
	// The columns differ by five orders of magnitude; scaled ones keep the elimination sound.
	var gram [terms]vector
	var sum vector
	for _, r := range rows {
		x := r.x
		for i := range x {
			if scale[i] == 0 {
				continue
			}
			for j := range x {
				if scale[j] > 0 {
					gram[i][j] += x[i] / scale[i] * x[j] / scale[j]
				}
			}
			sum[i] += r.busy * x[i] / scale[i]
		}
	}
	bestGain := 0.0
	for set := 1; set < 1<<terms; set++ {
		var columns []int
		for i := range terms {
			if set&(1<<i) != 0 {
				columns = append(columns, i)
			}
		}
		inverse, invertible := invert(gram, columns)
		if !invertible {
			continue
		}
		var coef vector
		gain, feasible := 0.0, true // gain is by how much the set lowers the sum of squares
		for _, i := range columns {
			coef[i] = inverse[i].dot(sum)
			gain += coef[i] * sum[i]
			feasible = feasible && coef[i] > 0
		}
		if !feasible || gain <= bestGain {
			continue
		}
		best, bestGain, ok = fitted{coef: coef}, gain, true
	}
	var occurring []int
	for i := range terms {
		if best.occurs[i] = scale[i] > 0; best.occurs[i] {
			occurring = append(occurring, i)
			gram[i][i] *= 1 + 1e-5 // two terms that always go together are uncertain, not infinitely
		}
	}
	best.cov, _ = invert(gram, occurring)
	for i := range terms {
		if scale[i] == 0 {
			continue
		}
		best.coef[i] /= scale[i]
		for j := range terms {
			if scale[j] > 0 {
				best.cov[i][j] /= scale[i] * scale[j]
			}
		}
	}
	return best, ok
}

// invert inverts the part of a symmetric matrix that is in the columns; the rest of the result is 0.
func invert(a [terms]vector, columns []int) (inverse [terms]vector, ok bool) {
	for _, i := range columns {
		inverse[i][i] = 1
	}
	whole := a
	for _, p := range columns {
		// Gram matrices need no pivoting. When the columns before it explain a column but for a
		// millionth, what is left is noise.
		if !(a[p][p] > 1e-6*whole[p][p]) {
			return inverse, false
		}
		pivot := a[p][p]
		for _, j := range columns {
			a[p][j] /= pivot
			inverse[p][j] /= pivot
		}
		for _, r := range columns {
			if r == p {
				continue
			}
			factor := a[r][p]
			for _, j := range columns {
				a[r][j] -= factor * a[p][j]
				inverse[r][j] -= factor * inverse[p][j]
			}
		}
	}
	return inverse, true
}
