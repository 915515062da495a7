// Package sourcetest holds sources to one contract: the same expositions go in, the same samples
// have to come out, whatever is between.
//
// The cases are what engines and their surroundings do: restarts, two spellings of one metric,
// values that are no numbers, targets that lie about who they are, servers that die or whose clocks
// are off.
package sourcetest

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/window"
)

const (
	waiting    = "vllm:num_requests_waiting"
	waitingToo = "vllm_num_requests_waiting"
	tokens     = "vllm:generation_tokens_total"
	bucket     = "vllm:time_to_first_token_seconds_bucket"
	up         = "up"
)

// Names are the series that the cases ask for.
var Names = []string{waiting, waitingToo, tokens, bucket, up}

// Interval is the time between scrapes that the cases expect, or less.
const Interval = 250 * time.Millisecond

// deadline is how long a case waits for what has to come: sources and servers discover targets at
// their own pace, and a busy machine is slow.
const deadline = 90 * time.Second

// A Target is an engine for the source to read.
type Target struct {
	Namespace, Pod, URL string
}

// A Setup says what a case needs besides a source that reads Names at Interval.
type Setup struct {
	// Skew is how far the clock of the source is ahead of ours.
	Skew time.Duration
	// Pair says that two servers scrape every target and the source sees the series of both, told
	// apart by the label prometheus_replica.
	Pair bool
}

// A Harness is a source set up for one case.
type Harness struct {
	Source source.Source
	// Watch makes the source read these targets, and no others, from now on.
	Watch func(targets ...Target)
	// Reopen returns a new source over the same server, as after a restart of the adapter. It is
	// nil for a source that has no server which remembers.
	Reopen func() source.Source
	// Outage takes the server away, or brings it back. It is nil for a source that has none.
	Outage func(down bool)
	// Secret, if set, is a credential that no message may hold.
	Secret string
	// Lenient says that what scrapes passes over lines that it cannot read, instead of refusing the
	// whole exposition.
	Lenient bool
}

// Run runs the contract. newHarness returns a harness that the test cleans up by itself, or nil if
// the source cannot be set up like that.
func Run(t *testing.T, newHarness func(t *testing.T, s Setup) *Harness) {
	for _, c := range []struct {
		name  string
		setup Setup
		run   func(t *testing.T, f *fixture)
	}{
		{"gauge", Setup{}, testGauge},
		{"counter reset", Setup{}, testCounterReset},
		{"two spellings at once", Setup{}, testTwoSpellings},
		{"absent series", Setup{}, testAbsent},
		{"values that are no numbers", Setup{}, testNoNumbers},
		{"bucket bounds in two spellings", Setup{}, testBounds},
		{"a scrape is one moment", Setup{}, testOneMoment},
		{"frozen engine", Setup{}, testFrozen},
		{"labels that lie", Setup{}, testLabelInjection},
		{"hostile label values", Setup{}, testHostileValues},
		{"large body", Setup{}, testLargeBody},
		{"garbage body", Setup{}, testGarbage},
		{"target down and up again", Setup{}, testTargetDown},
		{"target removed", Setup{}, testTargetRemoved},
		{"overlapping fetches", Setup{}, testOverlap},
		{"restart", Setup{}, testRestart},
		{"source down and up again", Setup{}, testOutage},
		{"pair of servers", Setup{Pair: true}, testPair},
		{"clock five minutes ahead", Setup{Skew: 5 * time.Minute}, testSkew},
		{"clock five minutes behind", Setup{Skew: -5 * time.Minute}, testSkew},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, c.setup)
			if h == nil {
				t.Skip("not a case for this source")
			}
			c.run(t, &fixture{Harness: h, setup: c.setup, rec: newRecorder(t)})
		})
	}
}

// fixture is what a case works with.
type fixture struct {
	*Harness
	setup Setup
	rec   *recorder
}

// watch starts reading engines, as pods a, b, c ... of namespace default.
func (f *fixture) watch(engines ...*engine) {
	var targets []Target
	for i, e := range engines {
		targets = append(targets, Target{"default", string(rune('a' + i)), e.URL + "/metrics"})
	}
	f.Watch(targets...)
}

// fetch fetches into the recorder, and fails on an error.
func (f *fixture) fetch(t *testing.T) time.Time {
	t.Helper()
	now, err := f.Source.Fetch(t.Context(), Names, time.Minute, f.rec)
	if err != nil {
		t.Fatalf("Fetch: %v", err)
	}
	return now
}

// await fetches until what says yes.
func (f *fixture) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(deadline)
	for {
		f.fetch(t)
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s; got:\n%s", deadline, what, f.rec)
		}
		time.Sleep(Interval / 2)
	}
}

// An engine serves an exposition on loopback.
type engine struct {
	*httptest.Server
	mu      sync.Mutex
	text    string
	kind    string
	down    bool
	scrapes int
}

func newEngine(t *testing.T, text string) *engine {
	e := &engine{text: text, kind: "text/plain; version=0.0.4; charset=utf-8"}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.down {
			panic(http.ErrAbortHandler)
		}
		e.scrapes++
		w.Header().Set("Content-Type", e.kind)
		_, _ = io.WriteString(w, e.text)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) serve(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = text
}

func (e *engine) setDown(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
}

func (e *engine) address() string { return strings.TrimPrefix(e.URL, "http://") }

// A recorder is a sink that forgets nothing.
type recorder struct {
	t      *testing.T
	series map[string]*recorded
}

type recorded struct {
	labels  labels.Labels
	samples []window.Sample // distinct, in order of time
	stale   []int64
}

func newRecorder(t *testing.T) *recorder { return &recorder{t: t, series: map[string]*recorded{}} }

func (r *recorder) Append(ls labels.Labels, t int64, v float64) {
	key := ls.String()
	s := r.series[key]
	if s == nil {
		s = &recorded{labels: ls.Copy()}
		r.series[key] = s
	}
	if value.IsStaleNaN(v) {
		s.stale = append(s.stale, t)
		return
	}
	i, found := slices.BinarySearchFunc(s.samples, t, func(x window.Sample, t int64) int { return int(x.T - t) })
	if !found {
		s.samples = slices.Insert(s.samples, i, window.Sample{T: t, V: v})
		return
	}
	if have := s.samples[i].V; have != v && !(math.IsNaN(have) && math.IsNaN(v)) {
		r.t.Errorf("%s at %d: %v, and later %v", key, t, have, v)
	}
}

// find returns the series of a name and a pod, in the order of their labels.
func (r *recorder) find(name, pod string) []*recorded {
	var found []*recorded
	for _, key := range slices.Sorted(maps.Keys(r.series)) {
		s := r.series[key]
		if s.labels.Get(model.MetricNameLabel) == name && s.labels.Get("pod") == pod && s.labels.Get("namespace") == "default" {
			found = append(found, s)
		}
	}
	return found
}

// samples returns the samples of the only series of a name and a pod, but for those that are NaN:
// they say that there is no number, which some servers say where a series ends.
func (r *recorder) samples(name, pod string) []window.Sample {
	r.t.Helper()
	found := r.find(name, pod)
	if len(found) == 0 {
		return nil
	}
	if len(found) > 1 {
		r.t.Fatalf("%d series %s of pod %s, want one:\n%s", len(found), name, pod, r)
	}
	return slices.DeleteFunc(slices.Clone(found[0].samples), func(s window.Sample) bool { return math.IsNaN(s.V) })
}

// values returns the values of samples.
func (r *recorder) values(name, pod string) []float64 {
	r.t.Helper()
	var values []float64
	for _, s := range r.samples(name, pod) {
		values = append(values, s.V)
	}
	return values
}

// newest returns the newest of samples.
func (r *recorder) newest(name, pod string) window.Sample {
	r.t.Helper()
	samples := r.samples(name, pod)
	if len(samples) == 0 {
		return window.Sample{}
	}
	return samples[len(samples)-1]
}

func (r *recorder) String() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(r.series)) {
		s := r.series[key]
		fmt.Fprintf(&b, "%s %d samples", key, len(s.samples))
		if n := len(s.samples); n > 0 {
			fmt.Fprintf(&b, ", %v at %d .. %v at %d", s.samples[0].V, s.samples[0].T, s.samples[n-1].V, s.samples[n-1].T)
		}
		fmt.Fprintf(&b, ", stale %v\n", s.stale)
	}
	return b.String()
}

func gauge(v string) string {
	return "# TYPE " + waiting + " gauge\n" + waiting + `{engine="0",model_name="m"} ` + v + "\n"
}

func testGauge(t *testing.T, f *fixture) {
	e := newEngine(t, gauge("3.0"))
	f.watch(e)
	f.await(t, "three samples", func() bool { return len(f.rec.values(waiting, "a")) >= 3 })
	got := f.rec.find(waiting, "a")[0].labels
	want := labels.FromStrings(model.MetricNameLabel, waiting,
		"engine", "0", "model_name", "m", "namespace", "default", "pod", "a", "instance", e.address(), "job", got.Get("job"))
	if diff := cmp.Diff(want.String(), got.String()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	for _, v := range f.rec.values(waiting, "a") {
		if v != 3 {
			t.Errorf("got %v, want 3", v)
		}
	}
	now := f.fetch(t).UnixMilli()
	if age := now - f.rec.newest(waiting, "a").T; age < -2000 || age > 60_000 {
		t.Errorf("the newest sample is %d ms old on the source's clock", age)
	}
	if newest := f.rec.newest(up, "a"); newest.V != 1 {
		t.Errorf("up is %v, want 1", newest.V)
	}
}

func testCounterReset(t *testing.T, f *fixture) {
	e := newEngine(t, "# TYPE "+tokens+" counter\n"+tokens+" 1000\n")
	f.watch(e)
	f.await(t, "the counter", func() bool { return len(f.rec.values(tokens, "a")) >= 2 })
	e.serve("# TYPE " + tokens + " counter\n" + tokens + " 3\n")
	f.await(t, "the counter after the restart", func() bool { return f.rec.newest(tokens, "a").V == 3 })
	if got := slices.Compact(f.rec.values(tokens, "a")); !slices.Equal(got, []float64{1000, 3}) {
		t.Errorf("got %v, want 1000, then 3", got)
	}
}

func testTwoSpellings(t *testing.T, f *fixture) {
	e := newEngine(t, gauge("3")+"# TYPE "+waitingToo+" gauge\n"+waitingToo+`{engine="0",model_name="m"} 4`+"\n")
	f.watch(e)
	f.await(t, "both spellings", func() bool {
		return len(f.rec.values(waiting, "a")) >= 2 && len(f.rec.values(waitingToo, "a")) >= 2
	})
	if a, b := f.rec.newest(waiting, "a").V, f.rec.newest(waitingToo, "a").V; a != 3 || b != 4 {
		t.Errorf("got %v and %v, want 3 and 4", a, b)
	}
}

func testAbsent(t *testing.T, f *fixture) {
	f.watch(newEngine(t, gauge("0")))
	f.await(t, "the gauge", func() bool { return len(f.rec.values(waiting, "a")) >= 2 })
	for _, name := range []string{tokens, waitingToo, bucket} {
		if found := f.rec.find(name, "a"); len(found) > 0 {
			t.Errorf("%s came from nowhere: %s", name, f.rec)
		}
	}
}

func testNoNumbers(t *testing.T, f *fixture) {
	f.watch(newEngine(t, gauge("NaN")), newEngine(t, gauge("+Inf")), newEngine(t, gauge("-Inf")), newEngine(t, gauge("1e-300")))
	want := map[string]float64{"b": math.Inf(1), "c": math.Inf(-1), "d": 1e-300}
	f.await(t, "samples of every pod", func() bool {
		for pod := range want {
			if len(f.rec.values(waiting, pod)) < 2 {
				return false
			}
		}
		return len(f.rec.values(up, "a")) >= 2
	})
	// A server may keep NaN or not. It is not a number, and not the end of the series.
	if got := f.rec.values(waiting, "a"); len(got) > 0 {
		t.Errorf("NaN became %v", got)
	}
	for pod, want := range want {
		if v := f.rec.newest(waiting, pod).V; v != want {
			t.Errorf("%v became %v", want, v)
		}
	}
	for _, s := range f.rec.series {
		if len(s.stale) > 0 {
			t.Errorf("%s goes on, but was said to end at %v", s.labels, s.stale)
		}
	}
}

func histogram(bounds ...string) string {
	var b strings.Builder
	family := strings.TrimSuffix(bucket, "_bucket")
	fmt.Fprintf(&b, "# TYPE %s histogram\n", family)
	for i, le := range bounds {
		fmt.Fprintf(&b, "%s{le=%q} %d\n", bucket, le, i+1)
	}
	fmt.Fprintf(&b, "%s_sum 1\n%s_count %d\n", family, family, len(bounds))
	return b.String()
}

func testBounds(t *testing.T, f *fixture) {
	f.watch(newEngine(t, histogram("0.5", "1", "10", "+Inf")), newEngine(t, histogram("0.5", "1.0", "10.0", "+Inf")))
	complete := func(pod string) bool {
		found := f.rec.find(bucket, pod)
		return len(found) == 4 && !slices.ContainsFunc(found, func(s *recorded) bool { return len(s.samples) < 2 })
	}
	f.await(t, "all buckets", func() bool { return complete("a") && complete("b") })
	// Servers may or may not write bounds alike; as numbers they have to be.
	want := map[float64]float64{0.5: 1, 1: 2, 10: 3, math.Inf(1): 4}
	for _, pod := range []string{"a", "b"} {
		got := map[float64]float64{}
		for _, s := range f.rec.find(bucket, pod) {
			le, err := strconv.ParseFloat(s.labels.Get("le"), 64)
			if err != nil {
				t.Fatal(err)
			}
			got[le] = s.samples[len(s.samples)-1].V
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pod %s: buckets (-want +got):\n%s", pod, diff)
		}
	}
}

func testOneMoment(t *testing.T, f *fixture) {
	f.watch(newEngine(t, gauge("1")+histogram("0.5", "1.0", "2.5", "10.0", "+Inf")))
	f.await(t, "four scrapes", func() bool { return len(f.rec.values(waiting, "a")) >= 4 })
	times := func(s *recorded) []int64 {
		var times []int64
		for _, x := range s.samples {
			times = append(times, x.T)
		}
		return times
	}
	// Two queries of a fetch may be answered on either side of a scrape; one query may not.
	found := f.rec.find(bucket, "a")
	if len(found) != 5 {
		t.Fatalf("%d buckets, want 5:\n%s", len(found), f.rec)
	}
	for _, s := range found {
		if diff := cmp.Diff(times(found[0]), times(s)); diff != "" {
			t.Errorf("%s has other times than %s (-want +got):\n%s", s.labels, found[0].labels, diff)
		}
	}
}

func testFrozen(t *testing.T, f *fixture) {
	e := newEngine(t, gauge("7")+"# TYPE "+tokens+" counter\n"+tokens+" 1000\n")
	f.watch(e)
	f.await(t, "a sample", func() bool { return len(f.rec.values(waiting, "a")) > 0 })
	first := f.rec.newest(waiting, "a").T
	f.await(t, "later samples of the same value", func() bool {
		return f.rec.newest(waiting, "a").T > first+2*Interval.Milliseconds() && len(f.rec.values(tokens, "a")) >= 3
	})
	if got := slices.Compact(f.rec.values(waiting, "a")); !slices.Equal(got, []float64{7}) {
		t.Errorf("got %v, want 7 all along", got)
	}
}

func testLabelInjection(t *testing.T, f *fixture) {
	f.watch(newEngine(t, waiting+`{pod="victim",namespace="kube-system",instance="10.0.0.1:80",job="other",model_name="m"} 9`+"\n"))
	f.await(t, "the gauge", func() bool { return len(f.rec.values(waiting, "a")) >= 2 })
	ls := f.rec.find(waiting, "a")[0].labels
	for name, want := range map[string]string{"exported_pod": "victim", "exported_namespace": "kube-system", "model_name": "m"} {
		if got := ls.Get(name); got != want {
			t.Errorf("label %s is %q, want %q", name, got, want)
		}
	}
	for _, s := range f.rec.series {
		if s.labels.Get("pod") != "a" || s.labels.Get("namespace") != "default" {
			t.Errorf("a target passed for another: %s", s.labels)
		}
	}
}

func testHostileValues(t *testing.T, f *fixture) {
	values := []string{
		"",
		`quote " backslash \ `,
		"new\nline",
		`","values":[[0,"1"]]},{"metric":{"pod":"victim"`,
		`}\`,
		"模型/ünïcode\u2028🙂",
		"<script>&amp;\x01\x7f",
		strings.Repeat("x", 4000),
	}
	var text strings.Builder
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	for i, v := range values {
		fmt.Fprintf(&text, "%s{n=\"%d\",model_name=\"%s\"} %d\n", waiting, i, escape.Replace(v), i)
	}
	f.watch(newEngine(t, text.String()))
	f.await(t, "all series", func() bool { return len(f.rec.find(waiting, "a")) >= len(values) })
	got := make([]string, len(values))
	for _, s := range f.rec.find(waiting, "a") {
		i, err := strconv.Atoi(s.labels.Get("n"))
		if err != nil || i >= len(values) {
			t.Fatalf("a series that nobody served: %s", s.labels)
		}
		got[i] = s.labels.Get("model_name")
		if v := s.samples[0].V; v != float64(i) {
			t.Errorf("%s is %v, want %d", s.labels, v, i)
		}
	}
	if diff := cmp.Diff(values, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	for _, s := range f.rec.series {
		if s.labels.Get("pod") != "a" {
			t.Errorf("a value became a series: %s", s.labels)
		}
	}
}

func testLargeBody(t *testing.T, f *fixture) {
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&text, "some_other_metric{number=\"%d\"} 1\n", i)
	}
	text.WriteString(gauge("3"))
	f.watch(newEngine(t, text.String()))
	f.await(t, "the gauge", func() bool { return len(f.rec.values(waiting, "a")) >= 2 })
	for key := range f.rec.series {
		if strings.Contains(key, "some_other_metric") {
			t.Fatalf("%s was not asked for", key)
		}
	}
}

func testGarbage(t *testing.T, f *fixture) {
	if f.Lenient {
		t.Skip("the server's scraper reads what it can of any body")
	}
	page := newEngine(t, "<!doctype html><title>Sign in</title>\n"+gauge("5"))
	page.kind = "text/html"
	noise := newEngine(t, "\xff\xfe{{{{\n"+gauge("5"))
	half := newEngine(t, gauge("5")+waiting+"{engine=\"1\n")
	f.watch(page, noise, half, newEngine(t, gauge("3")))
	f.await(t, "the sound engine, and three that are down", func() bool {
		down := len(f.rec.values(waiting, "d")) >= 2
		for _, pod := range []string{"a", "b", "c"} {
			down = down && len(f.rec.values(up, pod)) > 0
		}
		return down
	})
	for _, pod := range []string{"a", "b", "c"} {
		if v := f.rec.newest(up, pod).V; v != 0 {
			t.Errorf("pod %s: up is %v, want 0", pod, v)
		}
		for _, s := range f.rec.find(waiting, pod) {
			if len(s.samples) > 0 {
				t.Errorf("pod %s: %s was read from garbage", pod, s.labels)
			}
		}
	}
}

func testTargetDown(t *testing.T, f *fixture) {
	e, other := newEngine(t, gauge("3")), newEngine(t, gauge("4"))
	f.watch(e, other)
	f.await(t, "both engines", func() bool { return len(f.rec.values(waiting, "a")) >= 2 && len(f.rec.values(waiting, "b")) >= 2 })

	e.setDown(true)
	f.await(t, "up to be 0", func() bool { return f.rec.newest(up, "a").V == 0 })
	last := f.rec.newest(waiting, "a")
	f.await(t, "the other engine to go on", func() bool { return f.rec.newest(waiting, "b").T > last.T+3*Interval.Milliseconds() })
	if now := f.rec.newest(waiting, "a"); now != last {
		t.Errorf("the engine is down, and still there came %+v after %+v", now, last)
	}

	e.serve(gauge("5"))
	e.setDown(false)
	f.await(t, "the engine to be back", func() bool {
		return f.rec.newest(waiting, "a").V == 5 && f.rec.newest(up, "a").V == 1
	})
	if got := slices.Compact(f.rec.values(waiting, "a")); !slices.Equal(got, []float64{3, 5}) {
		t.Errorf("got %v, want 3, then 5", got)
	}
}

func testTargetRemoved(t *testing.T, f *fixture) {
	e, other := newEngine(t, gauge("4")), newEngine(t, gauge("3"))
	f.watch(e, other)
	f.await(t, "both engines", func() bool { return len(f.rec.values(waiting, "a")) >= 2 && len(f.rec.values(waiting, "b")) >= 2 })

	f.watch(e)
	// A source may take its time to let go of a target, but then nothing of it may come.
	gone := func() bool {
		last := f.rec.newest(waiting, "b").T
		return f.rec.newest(waiting, "a").T > last+20*Interval.Milliseconds()
	}
	f.await(t, "the removed engine to fall silent", gone)
	if v := f.rec.newest(up, "b").V; v != 1 {
		t.Errorf("up of a target that was removed, not down, is %v", v)
	}
}

func testOverlap(t *testing.T, f *fixture) {
	f.watch(newEngine(t, gauge("3")+histogram("1.0", "+Inf")))
	store := window.New(time.Hour, func(ls labels.Labels) (string, bool) { return ls.Get("pod"), true })
	both := tee{store, f.rec}
	end := time.Now().Add(deadline)
	for len(f.rec.values(waiting, "a")) < 6 {
		if _, err := f.Source.Fetch(t.Context(), Names, time.Minute, both); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s for six samples; got:\n%s", deadline, f.rec)
		}
		time.Sleep(Interval / 3)
	}
	for _, s := range store.Group("a") {
		want := f.rec.series[s.Labels.String()].samples
		if diff := cmp.Diff(want, slices.Clone(s.Samples())); diff != "" {
			t.Errorf("%s: the window holds not what was sent once (-want +got):\n%s", s.Labels, diff)
		}
	}
}

type tee [2]source.Sink

func (t tee) Append(ls labels.Labels, at int64, v float64) {
	t[0].Append(ls, at, v)
	t[1].Append(ls, at, v)
}

func testRestart(t *testing.T, f *fixture) {
	if f.Reopen == nil {
		t.Skip("the source has no server that remembers")
	}
	e := newEngine(t, gauge("3"))
	f.watch(e)
	f.await(t, "some seconds of samples", func() bool {
		samples := f.rec.find(waiting, "a")
		if len(samples) == 0 || len(samples[0].samples) < 2 {
			return false
		}
		s := samples[0].samples
		return s[len(s)-1].T-s[0].T > 5000
	})
	for _, c := range []struct {
		lookback time.Duration
		all      bool
	}{{time.Minute, true}, {2 * time.Second, false}} {
		rec := newRecorder(t)
		if _, err := f.Reopen().Fetch(t.Context(), Names, c.lookback, rec); err != nil {
			t.Fatal(err)
		}
		if len(rec.values(waiting, "a")) == 0 {
			t.Fatalf("nothing in the last %s:\n%s", c.lookback, rec)
		}
		first, want := rec.find(waiting, "a")[0].samples[0], f.rec.find(waiting, "a")[0].samples[0]
		if c.all && first != want {
			t.Errorf("looking back %s: the first sample is %+v, want %+v", c.lookback, first, want)
		}
		if !c.all && first.T < want.T+1000 {
			t.Errorf("looking back %s brought everything", c.lookback)
		}
	}
}

func testOutage(t *testing.T, f *fixture) {
	if f.Outage == nil {
		t.Skip("the source has no server that can be down")
	}
	f.watch(newEngine(t, gauge("3")))
	f.await(t, "the gauge", func() bool { return len(f.rec.values(waiting, "a")) > 0 })
	last := f.rec.newest(waiting, "a").T

	f.Outage(true)
	rec := newRecorder(t)
	now, err := f.Source.Fetch(t.Context(), Names, time.Minute, rec)
	if err == nil {
		t.Fatal("the server is down, and Fetch is content")
	}
	if !strings.Contains(err.Error(), f.Source.String()) {
		t.Errorf("the error does not name the source %q: %v", f.Source, err)
	}
	if f.Secret != "" && (strings.Contains(err.Error(), f.Secret) || strings.Contains(f.Source.String(), f.Secret)) {
		t.Errorf("the error or the name holds a credential: %v", err)
	}
	if len(rec.series) > 0 {
		t.Errorf("the server is down, and still there came:\n%s", rec)
	}
	if off := time.Until(now).Abs(); off > time.Minute {
		t.Errorf("the time is off by %s", off)
	}

	f.Outage(false)
	end := time.Now().Add(deadline)
	for {
		_, err := f.Source.Fetch(t.Context(), Names, time.Minute, f.rec)
		if err == nil && f.rec.newest(waiting, "a").T > last {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the server is back, but: %v\n%s", err, f.rec)
		}
		time.Sleep(Interval)
	}
}

func testPair(t *testing.T, f *fixture) {
	e := newEngine(t, gauge("3"))
	f.watch(e)
	f.await(t, "samples", func() bool { return len(f.rec.values(waiting, "a")) >= 4 })
	// values has failed if there were two series. Samples closer than half an interval come from
	// both servers.
	samples := f.rec.find(waiting, "a")[0].samples
	for i := 1; i < len(samples); i++ {
		if gap := samples[i].T - samples[i-1].T; gap < Interval.Milliseconds()/2 {
			t.Errorf("two samples within %d ms: the series of both servers are mixed", gap)
		}
	}
}

func testSkew(t *testing.T, f *fixture) {
	f.watch(newEngine(t, gauge("3")))
	f.await(t, "samples", func() bool { return len(f.rec.values(waiting, "a")) >= 2 })
	before := time.Now()
	now := f.fetch(t)
	if off := now.Sub(before) - f.setup.Skew; off < -2*time.Second || off > 10*time.Second {
		t.Errorf("the source's clock is read as %s ahead of ours, want %s", now.Sub(before), f.setup.Skew)
	}
	if age := now.UnixMilli() - f.rec.newest(waiting, "a").T; age < -2000 || age > 10_000 {
		t.Errorf("the newest sample is %d ms old on the source's clock", age)
	}
}
