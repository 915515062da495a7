package sources

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
	"github.com/inference-metrics/adapter/test/cluster"
)

// forgotten is how long after its last sample a signal is unknown for certain: freshness ends at ten
// seconds here.
const forgotten = 14 * time.Second

// external says who a Prometheus is, and where it writes to.
func external(cluster, replica, writeTo string) string {
	text := fmt.Sprintf("global:\n  external_labels: {cluster: %s, prometheus_replica: %s}\n", cluster, replica)
	if writeTo != "" {
		text += fmt.Sprintf("remote_write:\n- url: %s/api/v1/write\n  queue_config: {batch_send_deadline: 100ms}\n", writeTo)
	}
	return text
}

// TestPair: two Prometheus servers, one of them upgraded already, write to a VictoriaMetrics that does
// not merge them. Nothing counts twice, and when either of them dies there is no gap. Another cluster,
// whose pod has the same name, writes to it too.
func TestPair(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	const here, there = "vllm-0", "vllm-1"
	w.front.goStyle[here] = true // so that one of the pair has le="1" and the other le="1.0"
	ctx := t.Context()
	store, err := w.stores.StartVictoriaMetrics(ctx, "store", w.victoriaMetrics, "")
	if err != nil {
		t.Fatal(err)
	}
	pair := map[string]*cluster.Store{}
	start := func(name, program, text string) {
		t.Helper()
		if pair[name], err = w.stores.StartPrometheus(ctx, name, program, text); err != nil {
			t.Fatal(err)
		}
	}
	startA := func(replica string) {
		program := map[string]string{"0": w.prometheus2, "1": w.prometheus3}[replica]
		start("a"+replica, program, external("a", `"`+replica+`"`, store.URL)+w.front.config("a"+replica, here))
	}
	startA("0")
	startA("1")
	start("b", w.prometheus3, external("b", `"0"`, store.URL)+w.front.config("b", here+"="+there))
	w.front.awaitPods(t, 3, "a0", here)
	w.front.awaitPods(t, 3, "a1", here)
	w.front.awaitPods(t, 3, "b", there)

	a := watch(t, store.URL, "a", here)
	b := watch(t, store.URL, "b", here)
	eventually(t, "both clusters are seen", func() error { return errors.Join(a.known(), b.known()) })
	w.load(t, 8)
	time.Sleep(2 * time.Second)
	// From here on the engine of the other cluster has other numbers.
	w.act(t, there, "restart")
	eventually(t, "requests are counted", func() error { return errors.Join(a.counting(), b.counting()) })
	a.hold()

	// Whichever of them is listened to.
	pair["a0"].Kill()
	time.Sleep(forgotten)
	startA("0")
	w.front.awaitPods(t, 3, "a0", here)
	pair["a1"].Kill()
	time.Sleep(forgotten)

	w.load(t, 0)
	w.drained(t)
	w.front.awaitPods(t, 3, "a0", here)
	a.stop()
	b.stop()
	a.holds(t)

	// What was counted all in all is what the engine counted: not twice, and no change from one of the
	// pair to the other looked like a restart.
	last := func(store, pod string) map[string]float64 {
		served := w.front.scrapes(store, pod)
		return parse(t, served[len(served)-1].text)
	}
	first := parse(t, w.front.scrapes("a0", here)[0].text)
	w.sameGrowth(t, a.recording, first, last("a0", here))

	// And nothing of the other cluster is in it, or the other way round.
	for _, c := range []struct {
		r      *recording
		engine string
		stores []string
	}{{a.recording, here, []string{"a0", "a1"}}, {b.recording, there, []string{"b"}}} {
		served := map[string]map[float64]bool{}
		for _, store := range c.stores {
			for _, s := range w.front.scrapes(store, c.engine) {
				for id, v := range parse(t, s.text) {
					if served[id] == nil {
						served[id] = map[float64]bool{}
					}
					served[id][v] = true
				}
			}
		}
		for _, s := range c.r.all() {
			id := identity(labels.NewBuilder(s.labels).Del("cluster").Labels())
			if strings.HasSuffix(nameOf(id), "_sum") || nameOf(id) == "up" {
				continue // a decimal may differ in the last bit
			}
			for _, x := range s.samples {
				if !served[id][x.V] {
					t.Errorf("%s has %v of %s, which %s never served", c.r.name, x.V, id, c.engine)
					break
				}
			}
		}
	}
}

// sameGrowth holds the growth of every counter of a recording to that between two expositions.
func (w *world) sameGrowth(t *testing.T, r *recording, first, last map[string]float64) {
	t.Helper()
	// A bound may be spelled in two ways, by one of a pair each: the two are one counter.
	counters := map[string][]window.Sample{}
	for _, s := range r.all() {
		name := s.labels.Get("__name__")
		if strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_bucket") {
			id := identity(labels.NewBuilder(s.labels).Del("cluster").Labels())
			counters[id] = append(counters[id], s.samples...)
		}
	}
	compared := 0
	for id, samples := range counters {
		slices.SortStableFunc(samples, func(a, b window.Sample) int { return int(a.T - b.T) })
		// Two servers whose clocks differ would make a counter step back: only one may be listened to. At a
		// change from one to the other a gap is shorter than the interval.
		close := 0
		for i := 1; i < len(samples); i++ {
			if samples[i].T-samples[i-1].T < interval.Milliseconds()*3/4 {
				close++
			}
		}
		if close > 5 {
			t.Errorf("%d of %d samples of %s come soon after another: those of a pair are mixed", close, len(samples), id)
		}
		grown, ok := window.Increase(samples)
		if want := last[id] - first[id]; !ok || grown != want {
			t.Errorf("%s grew by %v, and the engine counted %v", id, grown, want)
		} else if want > 0 {
			compared++
		}
	}
	if compared < 20 {
		t.Errorf("%d counters grew; this is no test", compared)
	}
}

// A watcher collects as the adapter does, and remembers what it would have answered at every tick.
type watcher struct {
	*recording
	pod  string
	stop func()

	mu      sync.Mutex
	answers map[string]signals.Result
	err     error
	holding bool
	lost    []string
	ticks   int
}

var watched = []string{"vllm_running_requests", "vllm_queue_depth", "vllm_request_rate", "vllm_ttft_p90_seconds"}

func watch(t *testing.T, url, cluster, pod string) *watcher {
	t.Helper()
	src := connect(t, prometheus.Config{URL: url, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "cluster", cluster)}})
	w := &watcher{pod: pod, recording: &recording{name: "cluster " + cluster, series: map[uint64]*recorded{}}}
	w.run(t, src)
	return w
}

func (w *watcher) run(t *testing.T, src source.Source) {
	store := window.New(5*time.Minute, signals.GroupOf)
	quit, done := make(chan struct{}), make(chan struct{})
	w.stop = sync.OnceFunc(func() { close(quit); <-done })
	t.Cleanup(w.stop)
	go func() {
		defer close(done)
		for lookback := time.Minute; ; lookback = 15 * time.Second {
			now, err := src.Fetch(t.Context(), wanted(), lookback, both{w.recording, store})
			var partial *source.PartialError
			if err == nil || errors.As(err, &partial) {
				store.Hold(now.UnixMilli())
				w.tick(evaluate(t, store, w.pod, now, short), err)
			} else {
				w.tick(nil, err)
			}
			select {
			case <-quit:
				return
			case <-time.After(interval):
			}
		}
	}()
}

func (w *watcher) tick(results map[signals.Query]signals.Result, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers, w.err = map[string]signals.Result{}, err
	w.ticks++
	for _, name := range watched {
		r := results[signals.Query{Signal: name}]
		w.answers[name] = r
		// An engine under a steady load finishes requests all the time; between two of them it may be idle.
		if gauge := name == "vllm_running_requests" || name == "vllm_queue_depth"; w.holding && (!r.HasValue || !gauge && r.Value == 0) {
			w.lost = append(w.lost, fmt.Sprintf("%s: %s is %v %g (%s) %v", time.Now().Format(time.TimeOnly), name, r.State, r.Value, r.Reason, err))
		}
	}
}

// hold says that from now on there has to be an answer at every tick.
func (w *watcher) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holding, w.ticks = true, 0
}

func (w *watcher) holds(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) > 0 {
		t.Errorf("%d answers were lost in %d ticks, first:\n%s", len(w.lost), w.ticks, strings.Join(w.lost[:min(8, len(w.lost))], "\n"))
	}
	if w.ticks < 10 {
		t.Errorf("%d ticks; this is no test", w.ticks)
	}
	w.holding = false
}

// known and counting say why not yet.
func (w *watcher) known() error    { return w.has("vllm_queue_depth", false) }
func (w *watcher) counting() error { return w.has("vllm_request_rate", true) }

func (w *watcher) has(name string, above bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.answers[name]; !r.HasValue || above && r.Value == 0 {
		return fmt.Errorf("%s: %s is %v %g (%s) %v", w.name, name, r.State, r.Value, r.Reason, w.err)
	}
	return nil
}

// lastError is that of the newest tick.
func (w *watcher) lastError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// both is a sink that is two.
type both [2]source.Sink

func (b both) Append(ls labels.Labels, t int64, v float64) {
	for _, sink := range b {
		sink.Append(ls, t, v)
	}
}
