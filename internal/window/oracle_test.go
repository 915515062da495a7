package window

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/teststorage"
	"pgregory.net/rapid"
)

// The samples of an oracle test are written once, into Prometheus's own storage. Its engine
// evaluates them there, and our store is filled from there.

// fill appends to a new store what the storage holds of the matching series, stale markers
// included. All of it is one group.
func fill(t rapid.TB, db storage.Queryable, matcher *labels.Matcher) *Store {
	t.Helper()
	store := New(24*time.Hour, func(labels.Labels) (string, bool) { return "", true })
	q, err := db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), false, nil, matcher)
	var it chunkenc.Iterator
	for set.Next() {
		it = set.At().Iterator(it)
		for it.Next() == chunkenc.ValFloat {
			ts, v := it.At()
			store.Append(set.At().Labels(), ts, v)
		}
		if err := it.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Err(); err != nil {
		t.Fatal(err)
	}
	return store
}

// ask evaluates an expression that gives one number.
func ask(t rapid.TB, engine *promql.Engine, db storage.Queryable, at int64, expr string) float64 {
	t.Helper()
	q, err := engine.NewInstantQuery(context.Background(), db, nil, expr, time.UnixMilli(at))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	defer q.Close()
	res := q.Exec(context.Background())
	vector, err := res.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	if len(vector) != 1 {
		t.Fatalf("%s: %d results, want one", expr, len(vector))
	}
	return vector[0].F
}

// near allows for the rounding of a rate that PromQL multiplies and divides a few times.
func near(got, want, tolerance float64) bool {
	if math.IsNaN(got) || math.IsNaN(want) {
		return math.IsNaN(got) && math.IsNaN(want)
	}
	return got == want || math.Abs(got-want) <= tolerance*math.Max(math.Abs(got), math.Abs(want))
}

func bucketsOf(t rapid.TB, series []*Series) []BucketSeries {
	t.Helper()
	var out []BucketSeries
	for _, s := range series {
		le, err := strconv.ParseFloat(s.Labels.Get("le"), 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, BucketSeries{LE: le, Samples: s.Samples()})
	}
	return out
}

// TestOracleScripts runs testdata: one sentence of the scripts is "at TIME over WINDOW FUNCTION
// [ARGUMENT] METRIC = ANSWER", and a promql line after it asks the oracle.
func TestOracleScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	var (
		load   strings.Builder
		db     *teststorage.TestStorage
		at     int64
		answer string
	)
	for i, line := range strings.Split(string(text), "\n") {
		where := fmt.Sprintf("%s:%d: %s", file, i+1, strings.TrimSpace(line))
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		switch {
		case line == "clear":
			load.Reset()
			db = nil
		case words[0] == "at":
			if db == nil {
				db = promqltest.LoadedStorage(t, load.String())
			}
			left, want, ok := strings.Cut(line, " = ")
			if words = strings.Fields(left); !ok || len(words) < 6 {
				t.Fatalf("%s: not understood", where)
			}
			at = millis(t, words[1])
			answer = want
			if got := evaluate(t, db, at, at-millis(t, words[3]), words[4:]); got != want {
				t.Errorf("%s: got %s", where, got)
			}
		case words[0] == "promql":
			expr, differs, ok := strings.Cut(strings.TrimSpace(line[len("  promql"):]), " is ")
			want := answer
			if ok {
				want = differs
			}
			wanted, err := strconv.ParseFloat(want, 64)
			if err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			// The ranges are a millisecond longer than the span of the samples. For a counter that
			// started at 0 PromQL does not extrapolate into it, so its rate is low by that much; an
			// increase is high by it for others. The shortest span with an oracle is ten seconds.
			if got := ask(t, engine, db, at, expr); !near(got, wanted, 1.001*0.001/10) {
				t.Errorf("%s: PromQL gives %v, want %v", where, got, wanted)
			}
		default:
			fmt.Fprintln(&load, line)
		}
	}
}

// evaluate asks the package for what a line of a script says.
func evaluate(t *testing.T, db storage.Queryable, at, from int64, words []string) string {
	function, args, metric := words[0], words[1:len(words)-1], words[len(words)-1]
	store := fill(t, db, labels.MustNewMatcher(labels.MatchEqual, "__name__", metric))
	group := store.Group("")
	if len(group) == 0 {
		t.Fatalf("no series %s", metric)
	}
	upTo := func(samples []Sample) []Sample {
		return samples[:len(samples)-len(Since(samples, at+1))]
	}
	samples := Since(upTo(group[0].Samples()), from)
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	histogram := func() ([]Bucket, time.Duration, bool) {
		buckets := bucketsOf(t, group)
		for i := range buckets {
			buckets[i].Samples = upTo(buckets[i].Samples)
		}
		return Increases(buckets, from)
	}
	switch function {
	case "increase":
		if v, ok := Increase(samples); ok {
			return number(v)
		}
		return "none"
	case "last_increase":
		if ts, ok := LastIncrease(samples); ok {
			return number(float64(ts) / 1000)
		}
		return "none"
	case "interval":
		return number(Interval(samples).Seconds())
	case "ended":
		return strconv.FormatBool(group[0].Ended())
	}
	hist, span, ok := histogram()
	if !ok {
		return "none"
	}
	switch function {
	case "count":
		return number(hist[len(hist)-1].Count)
	case "span":
		return number(span.Seconds())
	case "quantile":
		return number(Quantile(float(t, args[0]), hist))
	case "at_most":
		lower, upper := AtMost(hist, float(t, args[0]))
		return number(lower) + " " + number(upper)
	}
	t.Fatalf("unknown function %s", function)
	return ""
}

func millis(t *testing.T, s string) int64 {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d.Milliseconds()
}

func float(t *testing.T, s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// oracle is one storage for all draws of a property: each draw has a metric name of its own, as
// opening a storage costs more than all the rest.
type oracle struct {
	engine *promql.Engine
	db     *teststorage.TestStorage
	draws  int
}

func newOracle(t *testing.T) *oracle {
	return &oracle{
		engine: promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery),
		db:     teststorage.New(t),
	}
}

// load writes series, keyed by le ("" for none), under a new metric name, and returns the name and
// a store of them.
func (o *oracle) load(t rapid.TB, series map[string][]Sample) (string, *Store) {
	o.draws++
	name := fmt.Sprintf("draw_%d", o.draws)
	app := o.db.Appender(context.Background())
	for le, samples := range series {
		ls := labels.FromStrings("__name__", name)
		if le != "" {
			ls = labels.FromStrings("__name__", name, "le", le)
		}
		for _, s := range samples {
			if _, err := app.Append(0, ls, s.T, s.V); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return name, fill(t, o.db, labels.MustNewMatcher(labels.MatchEqual, "__name__", name))
}

// times draws the times of 2 to 40 scrapes, jittered around an interval.
func times(t *rapid.T) []int64 {
	interval := rapid.SampledFrom([]int64{1000, 5000, 15000, 30000}).Draw(t, "interval")
	n := rapid.IntRange(2, 40).Draw(t, "scrapes")
	out := make([]int64, n)
	now := int64(1_700_000_000_000)
	for i := range out {
		now += interval + rapid.Int64Range(-interval/4, interval/4).Draw(t, "jitter")
		out[i] = now
	}
	return out
}

// TestOracleRate: PromQL's rate is ours times what it extrapolates to the edges of its range.
//
// It takes the growth from the first to the last sample in (at-range, at], multiplies it by
// (span + towards start + towards end) / span, and divides by the range. Where both edges are
// nearer than 1.1 mean intervals, and the counter was not 0 within reach of the older one, what is
// extrapolated is all of the range, and the rate is growth / span: ours. Else it extrapolates
// less, and the rate is between growth / range and growth / span.
func TestOracleRate(t *testing.T) {
	o := newOracle(t)
	rapid.Check(t, func(t *rapid.T) {
		var samples []Sample
		v := float64(rapid.IntRange(0, 1000).Draw(t, "first"))
		resets := 0
		for i, ts := range times(t) {
			if i > 0 && rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				if after := float64(rapid.IntRange(0, 20).Draw(t, "after")); after < v {
					v = after
					resets++
				}
			} else if i > 0 {
				v += float64(rapid.IntRange(0, 50).Draw(t, "growth"))
			}
			samples = append(samples, Sample{ts, v})
		}
		name, store := o.load(t, map[string][]Sample{"": samples})
		samples = store.Group("")[0].Samples()

		first, last := samples[0], samples[len(samples)-1]
		span := last.T - first.T
		mean := span / int64(len(samples)-1)
		// How far the range reaches beyond the samples; 1 ms is the least, as its older end is open.
		before := 1 + rapid.Int64Range(0, 2*mean).Draw(t, "before")
		after := rapid.Int64Range(0, 2*mean).Draw(t, "after the last")
		at, width := last.T+after, before+span+after

		got, ok := Increase(samples)
		if !ok {
			t.Fatal("not ok")
		}
		perSpan := got / (float64(span) / 1000)
		perRange := got / (float64(width) / 1000)
		rate := ask(t, o.engine, o.db, at, fmt.Sprintf("rate(%s[%dms])", name, width))
		const rounding = 1e-9
		covered := float64(before) < 1.09*float64(mean) && float64(after) < 1.09*float64(mean)
		fromZero := got > 0 && float64(span)*first.V/got < float64(before)
		if covered && !fromZero {
			if !near(rate, perSpan, rounding) {
				t.Fatalf("PromQL's rate is %v, ours %v (growth %v over %d ms)", rate, perSpan, got, span)
			}
		} else if rate < perRange*(1-rounding) || rate > perSpan*(1+rounding) {
			t.Fatalf("PromQL's rate is %v, want between %v and %v", rate, perRange, perSpan)
		}

		inRange := fmt.Sprintf("resets(%s[%dms])", name, width)
		if theirs, ours := ask(t, o.engine, o.db, at, inRange), len(restarts([]BucketSeries{{Samples: samples}})); theirs != float64(ours) || ours != resets {
			t.Fatalf("%s = %v, ours %d, made %d", inRange, theirs, ours, resets)
		}
	})
}

// TestOracleHistogram: the quantile of the growth of buckets is histogram_quantile of their rates,
// and the bounds at an edge are the rate of that bucket.
//
// All buckets are scraped together, so the rates differ from the growths by one factor, and the
// quantile by nothing but rounding: the range is a millisecond longer than the span, and the
// counters start at 0 all or far enough from it not to cut that millisecond short for some.
// Restarts show in each bucket, because PromQL looks at each alone: counts are at least 50 a bucket
// before one, and at most 40 after it. Ranks lie half-way between two observations: at a whole one
// the rounding of a rate may jump over an empty bucket.
func TestOracleHistogram(t *testing.T) {
	o := newOracle(t)
	rapid.Check(t, func(t *rapid.T) {
		bounds := bounds(t)
		counts := make([]int, len(bounds)) // not cumulative
		atLeast := func(n int) {
			for i := range counts {
				counts[i] = n + rapid.IntRange(0, 50).Draw(t, "base")
			}
		}
		if rapid.Bool().Draw(t, "started before") {
			atLeast(50)
		}
		series := make(map[string][]Sample, len(bounds))
		restarted := false
		for i, ts := range times(t) {
			switch {
			case i == 0:
			case !restarted && counts[0] >= 50 && rapid.IntRange(0, 9).Draw(t, "restart") == 0:
				restarted = true
				for b := range counts {
					counts[b] = rapid.IntRange(0, 40).Draw(t, "after")
				}
			default:
				for b := range counts {
					counts[b] += rapid.IntRange(0, 5).Draw(t, "observed")
				}
			}
			sum := 0
			for b, bound := range bounds {
				sum += counts[b]
				le := strconv.FormatFloat(bound, 'g', -1, 64)
				series[le] = append(series[le], Sample{ts, float64(sum)})
			}
		}
		name, store := o.load(t, series)
		all := series["+Inf"]
		from, at := all[0].T, all[len(all)-1].T

		hist, span, ok := Increases(bucketsOf(t, store.Group("")), from)
		if !ok || span.Milliseconds() != at-from {
			t.Fatalf("ok = %v, span = %v, want true, %d ms", ok, span, at-from)
		}
		rates := fmt.Sprintf("sum by (le) (rate(%s[%dms]))", name, at-from+1)

		observed := int(hist[len(hist)-1].Count)
		q := rapid.SampledFrom([]float64{0.5, 0.9, 0.99}).Draw(t, "q")
		if observed > 0 {
			q = (float64(rapid.IntRange(0, observed-1).Draw(t, "rank")) + 0.5) / float64(observed)
		}
		got := Quantile(q, hist)
		if want := ask(t, o.engine, o.db, at, fmt.Sprintf("histogram_quantile(%v, %s)", q, rates)); !near(got, want, 1e-9) {
			t.Fatalf("the %v quantile of %v is %v, PromQL says %v", q, hist, got, want)
		}

		// A counter that started at 0 is not extrapolated into the millisecond before its first sample.
		tolerance := 1.001 / float64(at-from)
		for _, b := range hist {
			lower, upper := AtMost(hist, b.LE)
			rate := ask(t, o.engine, o.db, at, fmt.Sprintf(`sum(rate(%s{le="%v"}[%dms]))`, name, strconv.FormatFloat(b.LE, 'g', -1, 64), at-from+1))
			if want := rate * span.Seconds(); lower != upper || !near(lower, want, tolerance) {
				t.Fatalf("at most %v: %v..%v, PromQL says %v", b.LE, lower, upper, want)
			}
		}
	})
}

// bounds draws 2 to 12 ascending bounds that end with +Inf; the first may be 0 or below.
func bounds(t *rapid.T) []float64 {
	n := rapid.IntRange(1, 11).Draw(t, "finite buckets")
	bound := rapid.SampledFrom([]float64{0.001, 0.05, 1, 0, -2}).Draw(t, "first bound")
	out := []float64{bound}
	for len(out) < n {
		bound += rapid.SampledFrom([]float64{0.001, 0.01, 0.25, 1, 10}).Draw(t, "step")
		out = append(out, bound)
	}
	return append(out, math.Inf(1))
}

// TestOracleBuckets holds Quantile and AtMost to PromQL's own functions on buckets, without rates
// between: equal to the last bit for every q, also at whole ranks and over empty buckets.
func TestOracleBuckets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var hist []Bucket
		count := 0.0
		for _, bound := range bounds(t) {
			count += float64(rapid.SampledFrom([]int{0, 0, 1, 2, 10, 1000}).Draw(t, "count"))
			hist = append(hist, Bucket{LE: bound, Count: count})
		}
		theirs := func() promql.Buckets { // a copy: their functions write into it
			var out promql.Buckets
			for _, b := range hist {
				out = append(out, promql.Bucket{UpperBound: b.LE, Count: b.Count})
			}
			return out
		}

		q := rapid.OneOf(
			rapid.SampledFrom([]float64{0, 0.25, 0.5, 0.9, 0.95, 0.99, 1}),
			rapid.Float64Range(0, 1),
		).Draw(t, "q")
		want, _, _, _, _, _ := promql.BucketQuantile(q, theirs())
		if got := Quantile(q, hist); !near(got, want, 0) {
			t.Fatalf("the %v quantile of %v is %v, PromQL says %v", q, hist, got, want)
		}

		// PromQL's fraction is an estimate inside a bucket; the bounds hold it.
		x := rapid.OneOf(
			rapid.SampledFrom(hist[:len(hist)-1]).AsAny(),
			rapid.Float64Range(-3, 40).AsAny(),
		).Draw(t, "x")
		limit, edge := 0.0, false
		switch x := x.(type) {
		case Bucket:
			limit, edge = x.LE, true
		case float64:
			limit = x
		}
		lower, upper := AtMost(hist, limit)
		if count == 0 {
			if lower != 0 || upper != 0 {
				t.Fatalf("at most %v of nothing: %v..%v", limit, lower, upper)
			}
			return
		}
		estimate := promql.BucketFraction(math.Inf(-1), limit, theirs()) * count
		if edge && (lower != upper || !near(lower, estimate, 1e-12)) {
			t.Fatalf("at most the edge %v: %v..%v, PromQL says %v", limit, lower, upper, estimate)
		}
		if estimate < lower*(1-1e-12) || estimate > upper*(1+1e-12) {
			t.Fatalf("at most %v: %v..%v, PromQL's estimate is %v", limit, lower, upper, estimate)
		}
	})
}
