package window

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// BucketSeries is one bucket of a classic histogram: the samples of the series with its le.
type BucketSeries struct {
	LE      float64
	Samples []Sample
}

// Bucket is what a histogram counted up to an upper bound. Count is cumulative: the observations
// that were at most LE.
type Bucket struct {
	LE, Count float64
}

// Increases returns how much each bucket of one histogram grew from the time from on, ascending by
// LE and never falling, and the span of time that the samples of the +Inf bucket cover. ok is
// false when that bucket is missing, has fewer than two samples or did not grow by a finite number.
//
// An engine restarts as a whole: a restart seen in one bucket counts for all of them at that
// time, because a bucket may be as high after it as before. A bucket that is not there in every run,
// or not from the first sample to the last (the new version has other bounds, and nothing fell), is
// left out: of the rest it is not known how many were at most its bound.
//
// Series with equal LE (le="1" beside le="1.0": a spelling that changed, or two spellings of the
// same samples) are one bucket.
func Increases(buckets []BucketSeries, from int64) (hist []Bucket, span time.Duration, ok bool) {
	in := make([]BucketSeries, 0, len(buckets))
	for _, b := range buckets {
		if samples := Since(b.Samples, from); len(samples) > 0 && !math.IsNaN(b.LE) {
			in = append(in, BucketSeries{LE: b.LE, Samples: samples})
		}
	}
	in = oneEach(in)

	if len(in) == 0 || !math.IsInf(in[len(in)-1].LE, 1) {
		return nil, 0, false
	}
	all := in[len(in)-1].Samples
	if len(all) < 2 {
		return nil, 0, false
	}

	resets := restarts(in)
	hist = make([]Bucket, 0, len(in))
	highest := 0.0
	for _, b := range in {
		if !spans(b.Samples, all) || !inEveryRun(b.Samples, all, resets) {
			continue
		}
		// A delta that is not a number compares as false, and leaves the count of the bucket below.
		if d := increase(b.Samples, resets); d > highest {
			highest = d
		}
		hist = append(hist, Bucket{LE: b.LE, Count: highest})
	}
	if !isFinite(highest) || !isFinite(increase(all, resets)) {
		return nil, 0, false
	}
	return hist, time.Duration(all[len(all)-1].T-all[0].T) * time.Millisecond, true
}

// oneEach returns a histogram with one series for each bound, ascending.
func oneEach(h []BucketSeries) []BucketSeries {
	h = slices.Clone(h)
	slices.SortStableFunc(h, func(a, b BucketSeries) int { return cmp.Compare(a.LE, b.LE) })
	return mergeEqual(h)
}

// mergeEqual makes one bucket of neighbours with the same LE. It reuses in.
func mergeEqual(in []BucketSeries) []BucketSeries {
	out := in[:0]
	for _, b := range in {
		if n := len(out); n > 0 && out[n-1].LE == b.LE {
			out[n-1].Samples = merge(out[n-1].Samples, b.Samples)
			continue
		}
		out = append(out, b)
	}
	return out
}

// merge returns the samples of both in order of time. Of two at the same time the greater stays,
// whatever the order of the arguments.
func merge(a, b []Sample) []Sample {
	out := make([]Sample, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].T < b[0].T:
			out, a = append(out, a[0]), a[1:]
		case a[0].T > b[0].T:
			out, b = append(out, b[0]), b[1:]
		default:
			out, a, b = append(out, Sample{T: a[0].T, V: max(a[0].V, b[0].V)}), a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// Sum adds histograms of one target that count different events; of series with an equal bound in one of
// them it makes one. Each of them may begin with its first
// event: before, it counted 0, and so it does again after a restart of the target. Where one has no
// sample otherwise, its newest one stands. A bound that one of them does not have at some time has no
// sum then.
func Sum(hists [][]BucketSeries) []BucketSeries {
	if len(hists) == 1 {
		return oneEach(hists[0])
	}
	var bounds []float64
	var times, resets []int64
	for i, h := range hists {
		h = oneEach(h)
		hists[i] = h
		resets = append(resets, restarts(h)...)
		for _, b := range h {
			bounds = append(bounds, b.LE)
			for _, s := range b.Samples {
				times = append(times, s.T)
			}
		}
	}
	slices.Sort(bounds)
	slices.Sort(times)
	slices.Sort(resets)
	times = slices.Compact(times)
	out := make([]BucketSeries, 0, len(bounds)/len(hists)+1)
	for _, le := range slices.Compact(bounds) {
		sum := BucketSeries{LE: le, Samples: make([]Sample, len(times))}
		for i, t := range times {
			sum.Samples[i].T = t
		}
		for _, h := range hists {
			var bucket []Sample
			if i := slices.IndexFunc(h, func(b BucketSeries) bool { return b.LE == le }); i >= 0 {
				bucket = h[i].Samples
			}
			addTo(sum.Samples, bucket, h[len(h)-1].Samples, resets)
		}
		sum.Samples = slices.DeleteFunc(sum.Samples, func(s Sample) bool { return math.IsNaN(s.V) })
		if len(sum.Samples) > 0 {
			out = append(out, sum)
		}
	}
	return out
}

// addTo adds the counter that each sample of sum finds; NaN where the histogram that it is a bucket of
// has a sample and the bucket has none. all are the samples of the histogram.
func addTo(sum, counter, all []Sample, resets []int64) {
	next, reset, begun := 0, 0, 0
	for i, s := range sum {
		for next < len(counter) && counter[next].T <= s.T {
			next++
		}
		for begun < len(all) && all[begun].T <= s.T {
			begun++
		}
		switch {
		case begun == 0 && next == 0:
			continue
		case next == 0, begun > 0 && counter[next-1].T < all[begun-1].T:
			sum[i].V = math.NaN()
			continue
		}
		for reset < len(resets) && resets[reset] <= counter[next-1].T {
			reset++
		}
		if reset == len(resets) || resets[reset] > s.T {
			sum[i].V += counter[next-1].V
		}
	}
}

// restarts returns the times at which any bucket was below its predecessor, ascending.
func restarts(buckets []BucketSeries) []int64 {
	var times []int64
	for _, b := range buckets {
		for i := 1; i < len(b.Samples); i++ {
			if b.Samples[i].V < b.Samples[i-1].V {
				times = append(times, b.Samples[i].T)
			}
		}
	}
	slices.Sort(times)
	return slices.Compact(times)
}

// spans reports whether a bucket has samples from the first of all to the last.
func spans(bucket, all []Sample) bool {
	return bucket[0].T <= all[0].T && bucket[len(bucket)-1].T >= all[len(all)-1].T
}

// inEveryRun reports whether a bucket has samples in each of the runs between restarts that all has
// samples in.
func inEveryRun(bucket, all []Sample, resets []int64) bool {
	for len(all) > 0 && len(resets) > 0 {
		rest := Since(all, resets[0])
		restOfBucket := Since(bucket, resets[0])
		if len(rest) < len(all) && len(restOfBucket) == len(bucket) {
			return false
		}
		all, bucket, resets = rest, restOfBucket, resets[1:]
	}
	return len(all) == 0 || len(bucket) > 0
}

// increase is the growth of a counter that restarted at the given times.
func increase(samples []Sample, resets []int64) float64 {
	delta := samples[len(samples)-1].V - samples[0].V
	if len(resets) == 0 {
		return delta
	}
	if samples[0].T >= resets[0] {
		delta += samples[0].V
	}
	for i, r := 1, 0; i < len(samples); i++ {
		for r < len(resets) && resets[r] <= samples[i-1].T {
			r++
		}
		if r < len(resets) && resets[r] <= samples[i].T {
			delta += samples[i-1].V
		}
	}
	return delta
}

// Quantile estimates the q-quantile of a histogram as PromQL's histogram_quantile does:
// observations are spread evenly inside a bucket, the first of which starts at 0 when its bound is
// above 0; a quantile in the +Inf bucket is the highest finite bound, which the true one exceeds.
// It is NaN when there are no observations, when hist has no finite bucket or no +Inf bucket, and
// when q is not in 0..1. hist ascends by LE and never falls, as Increases returns it.
func Quantile(q float64, hist []Bucket) float64 {
	last := len(hist) - 1
	if !(q >= 0 && q <= 1) || last < 1 || !math.IsInf(hist[last].LE, 1) || !(hist[last].Count > 0) {
		return math.NaN()
	}
	rank := q * hist[last].Count
	b := sort.Search(last, func(i int) bool { return hist[i].Count >= rank })
	if b == last {
		return hist[last-1].LE
	}
	if b == 0 {
		if hist[0].LE <= 0 {
			return hist[0].LE
		}
		return hist[0].LE * (rank / hist[0].Count)
	}
	low, high := hist[b-1], hist[b]
	return low.LE + (high.LE-low.LE)*((rank-low.Count)/(high.Count-low.Count))
}

// AtMost returns bounds on the number of observations that were at most x: lower is the count at
// the greatest LE that is at most x, upper that at the least LE that is at least x. They are equal
// when x is the bound of a bucket. Both are NaN when hist has no +Inf bucket or x is NaN. hist
// ascends by LE and never falls, as Increases returns it.
func AtMost(hist []Bucket, x float64) (lower, upper float64) {
	last := len(hist) - 1
	if last < 0 || !math.IsInf(hist[last].LE, 1) || math.IsNaN(x) {
		return math.NaN(), math.NaN()
	}
	i := sort.Search(last, func(i int) bool { return hist[i].LE >= x })
	upper = hist[i].Count
	switch {
	case hist[i].LE == x:
		lower = upper
	case i > 0:
		lower = hist[i-1].Count
	}
	return lower, upper
}
