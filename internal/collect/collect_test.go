package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/labels"
	klabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/signals"
)

func query(signal string) signals.Query { return signals.Query{Signal: signal} }

func plan(signal string) *signals.Plan {
	p, err := signals.Prepare(query(signal))
	if err != nil {
		panic(err)
	}
	return p
}

func plans(names ...string) []*signals.Plan {
	var out []*signals.Plan
	for _, n := range names {
		out = append(out, plan(n))
	}
	return out
}

// fakeSource has one sample of every series at every multiple of its interval on its own clock.
type fakeSource struct {
	mu     sync.Mutex // to change it while it is fetched from
	series []fakeSeries
	skew   time.Duration
	err    error
	part   bool // deliver what there is before failing with err
	hang   bool
	began  time.Time     // no samples before
	every  time.Duration // between samples; scrapeInterval when zero

	fetches []fetch
}

type fakeSeries struct {
	ls    labels.Labels
	value func(time.Time) float64
}

type fetch struct {
	names    []string
	lookback time.Duration
}

const scrapeInterval = 5 * time.Second

func (f *fakeSource) Fetch(ctx context.Context, names []string, lookback time.Duration, sink source.Sink) (time.Time, error) {
	f.mu.Lock()
	f.fetches = append(f.fetches, fetch{slices.Sorted(slices.Values(names)), lookback})
	hang, err, part, series := f.hang, f.err, f.part, f.series
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return time.Time{}, ctx.Err()
	}
	if err != nil && !part {
		return time.Time{}, err
	}
	now := time.Now()
	every := cmp.Or(f.every, scrapeInterval)
	first := now.Add(-lookback).Truncate(every).Add(every)
	for _, s := range series {
		if !slices.Contains(names, s.ls.Get("__name__")) {
			continue
		}
		for t := first; !t.After(now); t = t.Add(every) {
			if !t.Before(f.began) {
				sink.Append(s.ls, t.Add(f.skew).UnixMilli(), s.value(t))
			}
		}
	}
	return now.Add(f.skew), err
}

// change changes the source between two fetches.
func (f *fakeSource) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

// fetched returns the fetches so far.
func (f *fakeSource) fetched() []fetch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.fetches)
}

func (f *fakeSource) String() string { return "the fake source" }

func gauge(name, pod string, v float64) fakeSeries {
	return fakeSeries{
		ls:    labels.FromStrings("__name__", name, "namespace", "ns", "pod", pod, "instance", pod+":8000"),
		value: func(time.Time) float64 { return v },
	}
}

func readyPod(name string, age time.Duration) *pods.Pod {
	return &pods.Pod{
		NamespacedName: types.NamespacedName{Namespace: "ns", Name: name},
		UID:            types.UID(name + "-uid"),
		Labels:         klabels.Set{"app": "vllm"},
		Start:          time.Now().Add(-age),
		Ready:          true,
		ReadySince:     time.Now().Add(-age),
		WasReady:       true,
	}
}

// inBubble runs f with a collector on virtual time.
func inBubble(t *testing.T, src *fakeSource, list func() []*pods.Pod, f func(*Collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Source: src, Pods: pods.NewStatic(list()), Settings: Settings{Params: signals.DefaultParams()}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		f(c)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestCollectsWhatIsDemanded(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7)}}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		if len(src.fetched()) != 0 {
			t.Fatalf("fetched without demand: %v", src.fetched())
		}
		if c.Snapshot().Collected(query("vllm_queue_depth")) {
			t.Fatal("collected without demand")
		}

		// A request asks: the next tick comes at once, with the whole past of what it needs.
		time.Sleep(2 * time.Second)
		_ = c.Ask(plan("vllm_queue_depth"))
		synctest.Wait()
		if got := c.Snapshot().Measure(query("vllm_queue_depth"), pod()[0]); got.State != signals.Value || got.Value != 7 {
			t.Fatalf("Result = %+v, want 7", got)
		}
		if len(src.fetched()) != 1 || src.fetched()[0].lookback != c.retention {
			t.Fatalf("fetches %+v, want one over %s", src.fetched(), c.retention)
		}
		for _, name := range src.fetched()[0].names {
			if strings.Contains(name, "time_to_first_token") {
				t.Errorf("fetched %s, which nothing demanded needs", name)
			}
		}

		// From then on only what is new.
		time.Sleep(DefaultInterval)
		synctest.Wait()
		if last := src.fetched()[len(src.fetched())-1]; last.lookback != DefaultInterval+overlap {
			t.Errorf("second fetch over %s, want %s", last.lookback, DefaultInterval+overlap)
		}

		// Ten minutes after the last request the demand ends.
		time.Sleep(askedFor + DefaultInterval)
		synctest.Wait()
		if c.Snapshot().Collected(query("vllm_queue_depth")) {
			t.Error("still collected ten minutes after it was asked for")
		}

		// An HPA's demand stands until it is withdrawn.
		c.SetStanding(plans("vllm_ttft_p99_seconds", "vllm_ttft_p99_seconds"))
		time.Sleep(2 * askedFor)
		synctest.Wait()
		if !c.Snapshot().Collected(query("vllm_ttft_p99_seconds")) {
			t.Error("a standing demand is not collected")
		}
		c.SetStanding(nil)
		time.Sleep(DefaultInterval)
		synctest.Wait()
		if c.Snapshot().Collected(query("vllm_ttft_p99_seconds")) {
			t.Error("collected after the HPA is gone")
		}
	})
}

// However many HPAs and pods there are, a tick reads each raw series once.
func TestOneFetchForEverybody(t *testing.T) {
	src := &fakeSource{}
	var all []*pods.Pod
	list := func() []*pods.Pod {
		for i := range 300 {
			name := fmt.Sprintf("p%d", i)
			all = append(all, readyPod(name, time.Hour))
			src.series = append(src.series, gauge("vllm:num_requests_waiting", name, float64(i)))
		}
		return all
	}
	inBubble(t, src, list, func(c *Collector) {
		var names []string
		for range 200 { // as many HPAs
			names = append(names, "vllm_queue_depth", "vllm_inflight_requests")
		}
		c.SetStanding(plans(names...))
		time.Sleep(3 * DefaultInterval)
		synctest.Wait()
		src.change(func() { src.fetches = nil })
		time.Sleep(DefaultInterval)
		synctest.Wait()
		if len(src.fetched()) != 1 {
			t.Fatalf("%d fetches in one tick, want 1", len(src.fetched()))
		}
		want := slices.Sorted(slices.Values(slices.Concat(signals.Names(plans("vllm_inflight_requests"))...)))
		if diff := gocmp.Diff(want, src.fetched()[0].names); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		for i, p := range all {
			if got := c.Snapshot().Measure(query("vllm_queue_depth"), p); got.Value != float64(i) || !got.HasValue {
				t.Fatalf("pod %d: %+v", i, got)
			}
		}
	})
}

func TestSourceLost(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7)}}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		p := readyPod("a", time.Hour)
		result := func() signals.Measure {
			synctest.Wait()
			return c.Snapshot().Measure(query("vllm_queue_depth"), p)
		}
		if got := result(); got.Value != 7 {
			t.Fatalf("before: %+v", got)
		}

		// One failed fetch hides nothing that is fresh.
		src.change(func() { src.err = errors.New("connection refused") })
		time.Sleep(DefaultInterval)
		if got := result(); got.Value != 7 || c.Snapshot().Err == nil {
			t.Fatalf("right after the loss: %+v, err %v; want 7 and an error", got, c.Snapshot().Err)
		}
		// Then the samples age, and nothing is made up.
		time.Sleep(20 * time.Second)
		if got := result(); got.HasValue {
			t.Fatalf("25 s after the loss: %+v, want no value", got)
		}

		// Back after two minutes: what was missed is fetched, so there is no gap.
		time.Sleep(100 * time.Second)
		src.change(func() { src.err, src.fetches = nil, nil })
		time.Sleep(DefaultInterval)
		if got := result(); got.Value != 7 {
			t.Fatalf("after: %+v", got)
		}
		if got := src.fetched()[0].lookback; got < 120*time.Second {
			t.Errorf("the first fetch after the loss reached back %s, which leaves a hole", got)
		}
	})
}

// A storage node of the source is down for far longer than windows reach: what it holds is missing,
// and the rest of a pod is never taken for the whole.
func TestSourceAnswersInPart(t *testing.T) {
	of := func(engine string, v float64) fakeSeries {
		s := gauge("vllm:num_requests_waiting", "a", v)
		s.ls = labels.NewBuilder(s.ls).Set("engine", engine).Labels()
		return s
	}
	both := []fakeSeries{of("0", 3), of("1", 40)}
	src := &fakeSource{series: both}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		result := func() signals.Measure {
			synctest.Wait()
			return c.Snapshot().Measure(query("vllm_queue_depth"), readyPod("a", time.Hour))
		}
		if got := result(); got.Value != 43 {
			t.Fatalf("before: %+v", got)
		}
		src.change(func() { src.series, src.err, src.part = both[:1], errors.New("partial answer"), true })
		for range 240 { // 20 minutes
			time.Sleep(DefaultInterval)
			if got := result(); got.HasValue && got.Value < 43 {
				t.Fatalf("one of two engines passes for both: %+v", got)
			}
		}
		src.change(func() { src.series, src.err, src.part = both, nil, false })
		time.Sleep(2 * time.Minute)
		if got := result(); got.Value != 43 {
			t.Errorf("after: %+v", got)
		}
	})
}

// A name that fails for ever is asked for over its whole past at every tick, and no other is.
func TestOneNameFails(t *testing.T) {
	const bad = "vllm:num_requests_running"
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7), gauge(bad, "a", 1)}}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		src.change(func() {
			src.err, src.part = &source.PartialError{Names: []string{bad}, Err: errors.New("422")}, true
		})
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		src.change(func() { src.fetches = nil })
		time.Sleep(3 * DefaultInterval)
		synctest.Wait()
		for _, f := range src.fetched() {
			long, has := f.lookback > time.Minute, slices.Contains(f.names, bad)
			if long != has || long && len(f.names) != 1 {
				t.Errorf("asked for %s of %v", f.lookback, f.names)
			}
		}
		if len(src.fetched()) != 6 {
			t.Errorf("%d fetches in three ticks, want two for each", len(src.fetched()))
		}
		src.change(func() { src.err, src.part, src.fetches = nil, false, nil })
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		if all := src.fetched(); len(all) == 0 || len(all[len(all)-1].names) < 3 || all[len(all)-1].lookback > time.Minute {
			t.Errorf("after it is read again: %v", all)
		}
	})
}

// Which pods have an engine is known once the source has been read in full, and stays known.
func TestSurvey(t *testing.T) {
	part := &source.PartialError{Err: errors.New("a store does not answer")}
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 0)}, err: part, part: true}
	a, b := readyPod("a", time.Hour), readyPod("b", time.Hour)
	inBubble(t, src, func() []*pods.Pod { return []*pods.Pod{a, b} }, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		for _, step := range []struct {
			err      error
			surveyed bool
		}{{part, false}, {nil, true}, {part, true}} {
			src.change(func() { src.err = step.err })
			time.Sleep(2 * DefaultInterval)
			synctest.Wait()
			if got := c.Snapshot().Surveyed(query("vllm_queue_depth")); got != step.surveyed || c.Snapshot().Exports(b) {
				t.Errorf("with error %v: surveyed is %v", step.err, got)
			}
		}
		src.change(func() { src.err = part })
		c.SetStanding(plans("vllm_queue_depth", "sglang_queue_depth", "pool_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		if c.Snapshot().Surveyed(query("sglang_queue_depth")) || !c.Snapshot().Surveyed(query("vllm_queue_depth")) {
			t.Error("names that were never read in full count as read, or others no more")
		}
	})
}

// A source that hangs must not leave its last answer standing.
func TestStuckCollectionAges(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7)}}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		snap := c.Snapshot()
		src.change(func() { src.hang = true })
		time.Sleep(DefaultInterval + DefaultTimeout + time.Second)
		synctest.Wait()
		if c.Snapshot() == snap || !errors.Is(c.Snapshot().Err, context.DeadlineExceeded) {
			t.Errorf("a fetch that hangs was not given up: %v", c.Snapshot().Err)
		}
		time.Sleep(time.Minute)
		if got := snap.Measure(query("vllm_queue_depth"), readyPod("a", time.Hour)); got.HasValue {
			t.Errorf("a snapshot of a minute ago answers %+v", got)
		}
	})
}

func TestWhichPodsAnswer(t *testing.T) {
	src := &fakeSource{}
	list := func() []*pods.Pod {
		for _, name := range []string{"a", "loading", "going", "lost"} {
			src.series = append(src.series, gauge("vllm:num_requests_waiting", name, 7))
		}
		loading, going, lost := readyPod("loading", time.Minute), readyPod("going", time.Hour), readyPod("lost", time.Hour)
		loading.Ready, loading.WasReady = false, false
		going.Gone = true
		lost.Ready = false
		return []*pods.Pod{readyPod("a", time.Hour), loading, going, lost}
	}
	inBubble(t, src, list, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		for name, want := range map[string]bool{"a": true, "loading": false, "going": false, "lost": true} {
			if got := c.Snapshot().Measure(query("vllm_queue_depth"), readyPod(name, time.Hour)); got.HasValue != want {
				t.Errorf("%s: %+v, want a value: %v", name, got, want)
			}
		}
		again := readyPod("a", time.Hour)
		again.UID = "another"
		if got := c.Snapshot().Measure(query("vllm_queue_depth"), again); got.HasValue {
			t.Errorf("a pod that took over the name answers %+v", got)
		}
	})
}

// A source whose clock is wrong by minutes: ages are told on its clock, and the pod's start is
// told on ours.
func TestSkewedClock(t *testing.T) {
	for _, skew := range []time.Duration{-7 * time.Minute, 7 * time.Minute} {
		src := &fakeSource{skew: skew, series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7)}}
		young := func() []*pods.Pod { return []*pods.Pod{readyPod("a", 30*time.Second)} }
		inBubble(t, src, young, func(c *Collector) {
			c.SetStanding(plans("vllm_queue_depth"))
			time.Sleep(2 * DefaultInterval)
			synctest.Wait()
			if got := c.Snapshot().Measure(query("vllm_queue_depth"), readyPod("a", 0)); got.Value != 7 {
				t.Errorf("skew %s: %+v, want 7", skew, got)
			}
			src.change(func() { src.series = nil })
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got := c.Snapshot().Measure(query("vllm_queue_depth"), readyPod("a", 0)); got.HasValue {
				t.Errorf("skew %s: 30 s without samples answers %+v", skew, got)
			}
		})
	}
}

// Where engines are scraped once in a minute or two, a window of four intervals is nearly what is
// kept of other series. It must not look like the first one after an outage for ever.
func TestSlowScrapes(t *testing.T) {
	for _, every := range []time.Duration{time.Minute, 2 * time.Minute} {
		t.Run(every.String(), func(t *testing.T) {
			src := &fakeSource{every: every, series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7)}}
			list := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
			inBubble(t, src, list, func(c *Collector) {
				c.SetStanding(plans("vllm_queue_depth"))
				time.Sleep(16 * time.Minute)
				for range 30 {
					time.Sleep(10 * time.Second)
					synctest.Wait()
					got := c.Snapshot().Measure(query("vllm_queue_depth"), list()[0])
					if got.State != signals.Value || got.Value != 7 || got.Window != 0 {
						t.Fatalf("%+v, want 7 as it is now", got)
					}
				}
			})
		})
	}
}

// A pod with more series than are kept may lack a part of a sum: it has no value, and others have.
func TestPodWithTooManySeries(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "modest", 7)}}
	for i := range 20_001 {
		s := gauge("vllm:num_requests_waiting", "hostile", 1)
		s.ls = labels.NewBuilder(s.ls).Set("engine", fmt.Sprint(i)).Labels()
		src.series = append(src.series, s)
	}
	list := func() []*pods.Pod { return []*pods.Pod{readyPod("hostile", time.Hour), readyPod("modest", time.Hour)} }
	inBubble(t, src, list, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth"))
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		if got := c.Snapshot().Measure(query("vllm_queue_depth"), list()[0]); got.HasValue || !strings.Contains(got.Reason, "more series") {
			t.Errorf("hostile: %+v, want that it has more series than are kept", got)
		}
		if got := c.Snapshot().Measure(query("vllm_queue_depth"), list()[1]); got.Value != 7 {
			t.Errorf("modest: %+v, want 7", got)
		}
	})
}

// A pod that never had a series of an engine is no replica, one of another engine is none of the signal's,
// and none is a pool.
func TestMetrics(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{
		gauge("vllm:num_requests_waiting", "a", 7), gauge("vllm:num_requests_waiting", "b", 0), gauge("sglang:num_queue_reqs", "d", 5),
	}}
	list := func() []*pods.Pod {
		return []*pods.Pod{readyPod("a", time.Hour), readyPod("b", time.Hour), readyPod("c", time.Hour), readyPod("d", time.Hour)}
	}
	inBubble(t, src, list, func(c *Collector) {
		c.SetStanding(plans("vllm_queue_depth", "sglang_queue_depth", "pool_queue_depth"))
		for range 2 {
			if err := c.Ask(plan("inference_queue_depth")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		reg := prometheus.NewRegistry()
		for _, m := range c.Collectors() {
			reg.MustRegister(m)
		}
		want := `
# HELP inference_metrics_adapter_collection_interval_seconds Time from one collection to the next, as configured.
# TYPE inference_metrics_adapter_collection_interval_seconds gauge
inference_metrics_adapter_collection_interval_seconds 5
# HELP inference_metrics_adapter_queries Different queries that are collected: standing ones, which HPAs name, and those that somebody asked in the last ten minutes.
# TYPE inference_metrics_adapter_queries gauge
inference_metrics_adapter_queries{demand="asked"} 1
inference_metrics_adapter_queries{demand="standing"} 3
# HELP inference_metrics_adapter_replicas Replicas that export, or have exported, series of an engine, by signal and by the state the signal is in: value, idle, stalled or unknown.
# TYPE inference_metrics_adapter_replicas gauge
inference_metrics_adapter_replicas{signal="inference_queue_depth",state="idle"} 1
inference_metrics_adapter_replicas{signal="inference_queue_depth",state="stalled"} 0
inference_metrics_adapter_replicas{signal="inference_queue_depth",state="unknown"} 0
inference_metrics_adapter_replicas{signal="inference_queue_depth",state="value"} 2
inference_metrics_adapter_replicas{signal="pool_queue_depth",state="idle"} 0
inference_metrics_adapter_replicas{signal="pool_queue_depth",state="stalled"} 0
inference_metrics_adapter_replicas{signal="pool_queue_depth",state="unknown"} 0
inference_metrics_adapter_replicas{signal="pool_queue_depth",state="value"} 0
inference_metrics_adapter_replicas{signal="sglang_queue_depth",state="idle"} 0
inference_metrics_adapter_replicas{signal="sglang_queue_depth",state="stalled"} 0
inference_metrics_adapter_replicas{signal="sglang_queue_depth",state="unknown"} 0
inference_metrics_adapter_replicas{signal="sglang_queue_depth",state="value"} 1
inference_metrics_adapter_replicas{signal="vllm_queue_depth",state="idle"} 1
inference_metrics_adapter_replicas{signal="vllm_queue_depth",state="stalled"} 0
inference_metrics_adapter_replicas{signal="vllm_queue_depth",state="unknown"} 0
inference_metrics_adapter_replicas{signal="vllm_queue_depth",state="value"} 1
# HELP inference_metrics_adapter_source_up 1 when the newest collection could read the source, 0 when not.
# TYPE inference_metrics_adapter_source_up gauge
inference_metrics_adapter_source_up 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "inference_metrics_adapter_collection_interval_seconds",
			"inference_metrics_adapter_queries", "inference_metrics_adapter_replicas", "inference_metrics_adapter_source_up"); err != nil {
			t.Error(err)
		}
	})
}

func TestNewRefusesBadConfig(t *testing.T) {
	for _, tc := range []struct {
		config Config
		want   string
	}{
		{Config{Settings: Settings{Params: signals.Params{}}}, "window: 0s is outside"},
		{Config{Settings: Settings{Params: signals.DefaultParams()}, Interval: -1}, "must not be negative"},
	} {
		tc.config.Source = &fakeSource{}
		if _, err := New(tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("New: %v, want %q", err, tc.want)
		}
	}
}
