package sources

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
	"github.com/inference-metrics/adapter/internal/source/scrape"
	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
	"github.com/inference-metrics/adapter/test/cluster"
)

// The stores that scrape the engines by themselves. The embedded scrape comes first: the others are
// compared with it.
const (
	embedded    = "embedded"
	prometheus3 = "prometheus-3"
	prometheus2 = "prometheus-2"
	victoria    = "victoria-metrics"
)

var stores = []string{embedded, prometheus3, prometheus2, victoria}

// What the pods are: the spellings that a store may meet.
const (
	plain     = "vllm-0" // as vLLM is today
	goStyle   = "vllm-1" // whose bounds are written le="1"
	restarted = "vllm-2"
	old       = "vllm-3" // vLLM 0.9.1, under the names that OpenMetrics without UTF-8 gets: vllm_x
	busyDeath = "vllm-4" // restarts while it has requests
)

// span is the window of signals under load; short is the shortest that a signal may have.
const (
	span  = 15 * time.Second
	short = signals.MinWindow
)

// A play is what the stores brought of one run of the engines, and when what was the case.
type play struct {
	*world
	recordings []*recording // in the order of stores

	// Between loadFrom and loadTo the load is steady.
	loadFrom, loadTo time.Time
	// In the quietSpan before quiet, all that happened began and ended well inside of it.
	quiet     time.Time
	quietSpan time.Duration
	// At frozen, the engines have stood still for some scrapes, with requests waiting.
	frozen time.Time
}

func TestSources(t *testing.T) {
	t.Parallel()
	p := run(t)
	for _, r := range p.recordings {
		r.noErrors(t)
	}
	t.Run("samples are what was served", p.testSamples)
	t.Run("labels are alike", p.testLabels)
	t.Run("increases are equal over a span that ends quietly", p.testIncreases)
	t.Run("signals", p.testSignals)
}

// run has all stores watch the engines through a steady load, restarts, a burst and a hang.
func run(t *testing.T) *play {
	t.Helper()
	p := &play{world: newWorld(t, 5)}
	p.front.goStyle[goStyle] = true
	p.act(t, old, "spelling?to=old&underscores=true")

	for _, store := range stores {
		r, stop := record(t, store, p.open(t, store), wanted())
		p.recordings = append(p.recordings, r)
		defer stop()
	}
	p.front.await(t, 3, stores...)

	// A steady load, at half of what the engines can do, soon after an engine died with requests.
	p.load(t, 30)
	time.Sleep(time.Second)
	p.act(t, busyDeath, "restart")
	time.Sleep(4 * time.Second)
	p.loadFrom = time.Now()
	time.Sleep(span + 3*time.Second)
	p.loadTo = time.Now()
	p.load(t, 0)
	p.drained(t)

	// All that happens in the window before quiet begins and ends well inside of it.
	time.Sleep(short - 2*time.Second)
	p.front.await(t, 1, stores...)
	began := time.Now()
	p.act(t, restarted, "restart")
	p.front.await(t, 3, stores...)
	p.load(t, 60)
	time.Sleep(1500 * time.Millisecond)
	p.load(t, 0)
	p.drained(t)
	p.quiet = time.Now().Add(3 * interval)                  // the DCGM exporter polls as rarely as stores scrape
	p.quietSpan = max(short, p.quiet.Sub(began)+4*interval) // longer on a busy machine
	p.front.await(t, 4, stores...)

	// More than fits the seats, and then no progress: gauges keep their values.
	p.load(t, 150)
	eventually(t, "requests wait everywhere", func() error {
		replicas, err := p.engines.Replicas(t.Context())
		for _, r := range replicas {
			if r.Waiting == 0 {
				return fmt.Errorf("none at %s", r.Name)
			}
		}
		return err
	})
	for _, pod := range p.front.pods() {
		p.act(t, pod, "freeze")
	}
	p.load(t, 0)
	time.Sleep(short + 4*time.Second) // until every signal takes it for a stall, whatever the phase of a scrape
	p.front.await(t, 2, stores...)
	p.frozen = time.Now()
	p.front.await(t, 3, stores...) // until all that was scraped by then has arrived
	return p
}

// open starts a store, and returns a source that reads it.
func (p *play) open(t *testing.T, store string) source.Source {
	t.Helper()
	pods := append(p.front.pods(), exporter)
	config := p.front.config(store, pods...)
	var server *cluster.Store
	var err error
	switch store {
	case embedded:
		var targets []scrape.Target
		for _, pod := range pods {
			targets = append(targets, scrape.Target{Namespace: "default", Pod: pod, URL: p.front.URL + "/" + store + "/" + pod})
		}
		src, err := scrape.New(scrape.Config{Targets: targets, Names: wanted(), Interval: interval})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- src.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return src
	case prometheus3:
		server, err = p.stores.StartPrometheus(t.Context(), store, p.programs.prometheus3, config)
	case prometheus2:
		server, err = p.stores.StartPrometheus(t.Context(), store, p.programs.prometheus2, config)
	case victoria:
		server, err = p.stores.StartVictoriaMetrics(t.Context(), store, p.victoriaMetrics, config)
	}
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, prometheus.Config{URL: server.URL})
}

func connect(t *testing.T, config prometheus.Config) source.Source {
	t.Helper()
	src, err := prometheus.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// testSamples holds every store to what it was served: every sample has a time shortly before the
// engine was read, and the very value that it was read as.
func (p *play) testSamples(t *testing.T) {
	for _, r := range p.recordings {
		type reading struct {
			at     time.Time
			values map[string]float64
		}
		served := map[string][]reading{}
		for _, pod := range append(p.front.pods(), exporter) {
			for _, s := range p.front.scrapes(r.name, pod) {
				served[pod] = append(served[pod], reading{s.at, parse(t, s.text)})
			}
		}
		counted := map[string]int{}
		for _, s := range r.all() {
			pod, name, id := s.labels.Get("pod"), s.labels.Get("__name__"), identity(s.labels)
			if name == "up" {
				continue
			}
			counted[pod]++
			for i, x := range s.samples {
				at := time.UnixMilli(x.T)
				if isStale(x.V) { // a scrape that failed, as while an engine restarts
					if i == len(s.samples)-1 {
						t.Errorf("%s says that %s of %s ended", r.name, id, pod)
					}
					continue
				}
				// A scrape may take longer than the interval on a busy machine; then the next is later.
				if !slices.ContainsFunc(served[pod], func(s reading) bool {
					after := s.at.Sub(at)
					v, ok := s.values[id]
					return after > -50*time.Millisecond && after < interval+interval/2 && ok && same(r.name, v, x.V)
				}) {
					t.Errorf("%s has %s of %s as %v at %s, which it was not served then", r.name, id, pod, x.V, at.Format(time.StampMilli))
					break
				}
			}
			// None is missing, but for those that a busy machine was too slow for.
			in := 0
			first, last := s.samples[0].T, s.samples[len(s.samples)-1].T
			for _, x := range served[pod] {
				if ms := x.at.UnixMilli(); ms > first+50 && ms < last {
					if _, ok := x.values[id]; ok {
						in++
					}
				}
			}
			if len(s.samples) < in-in/10-1 {
				t.Errorf("%s has %d samples of %s of %s, and was served %d", r.name, len(s.samples), id, pod, in)
			}
		}
		// Of what the source was asked for, all that was served is there.
		names := map[string]bool{}
		for _, name := range wanted() {
			names[name] = true
		}
		for pod, readings := range served {
			want := map[string]bool{}
			for _, s := range readings {
				for id := range s.values {
					want[id] = true
				}
			}
			n := 0
			for id := range want {
				if names[nameOf(id)] {
					n++
				}
			}
			if counted[pod] != n || n == 0 {
				t.Errorf("%s has %d series of %s, and was served %d", r.name, counted[pod], pod, n)
			}
		}
	}
}

// nameOf is the name in an identity.
func nameOf(id string) string {
	_, rest, _ := strings.Cut(id, `__name__="`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// same compares two values as a store keeps them. VictoriaMetrics keeps decimals, of as many digits as
// fit 63 bits or fewer: the last bit of a sum of seconds may be another.
func same(store string, a, b float64) bool {
	if store != victoria {
		return a == b
	}
	return math.Abs(a-b) <= 1e-12*math.Abs(a)
}

// testLabels shows what differs between the stores' labels: the spelling of bounds, and nothing else.
func (p *play) testLabels(t *testing.T) {
	all := map[string]map[string]bool{}
	for _, r := range p.recordings {
		all[r.name] = map[string]bool{}
		spellings := map[string]map[string]bool{}
		for _, s := range r.all() {
			pod := s.labels.Get("pod")
			if s.labels.Get("__name__") == "up" {
				continue
			}
			if s.labels.Get("namespace") != "default" {
				t.Errorf("%s has %s", r.name, s.labels)
			}
			all[r.name][pod+" "+identity(s.labels)] = true
			if le := s.labels.Get("le"); strings.TrimSuffix(le, ".0") == "1" {
				if spellings[pod] == nil {
					spellings[pod] = map[string]bool{}
				}
				spellings[pod][le] = true
			}
		}
		for _, pod := range p.front.pods() {
			want := "1.0"
			if pod == goStyle && (r.name == prometheus2 || r.name == victoria) {
				want = "1" // Prometheus 3 rewrites it, and the embedded scrape is Prometheus 3's
			}
			if got := spellings[pod]; len(got) != 1 || !got[want] {
				t.Errorf("%s spells the bound 1 of %s as %v, want %q", r.name, pod, got, want)
			}
		}
	}
	for _, store := range stores[1:] {
		for id := range all[embedded] {
			if !all[store][id] {
				t.Errorf("%s lacks %s", store, id)
			}
		}
		for id := range all[store] {
			if !all[embedded][id] {
				t.Errorf("only %s has %s", store, id)
			}
		}
	}
}

// testIncreases: what happened in a span whose edges are quiet is the same number for all stores,
// whenever they scraped; also over a restart whose edges are quiet.
func (p *play) testIncreases(t *testing.T) {
	type key struct{ pod, id string }
	all := map[string]map[key]float64{}
	for _, r := range p.recordings {
		all[r.name] = map[key]float64{}
		for _, s := range r.all() {
			name := s.labels.Get("__name__")
			if !strings.HasPrefix(name, "vllm") || !counts(name) {
				continue
			}
			grown, ok := window.Increase(between(s.samples, p.quiet.Add(-p.quietSpan), p.quiet))
			if !ok {
				t.Errorf("%s cannot tell how much %s grew", r.name, s.labels)
			}
			all[r.name][key{s.labels.Get("pod"), identity(s.labels)}] = grown
		}
	}
	moved := 0
	for k, want := range all[embedded] {
		if want > 0 {
			moved++
		}
		for _, store := range stores[1:] {
			// Sums of seconds are added up in another order after a restart.
			if got := all[store][k]; math.Abs(got-want) > 1e-9*math.Abs(want) {
				t.Errorf("%s of %s grew by %v on %s, and by %v on %s", k.id, k.pod, want, embedded, got, store)
			}
		}
	}
	if moved < 100 {
		t.Errorf("%d counters grew; this is no test", moved)
	}
}

// counts says whether a series counts.
func counts(name string) bool {
	for _, suffix := range []string{"_total", "_bucket", "_count", "_sum"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

func between(samples []window.Sample, from, to time.Time) []window.Sample {
	samples = window.Since(samples, from.UnixMilli())
	for len(samples) > 0 && samples[len(samples)-1].T > to.UnixMilli() {
		samples = samples[:len(samples)-1]
	}
	// Stale markers are not kept in a window.
	return slices.DeleteFunc(slices.Clone(samples), func(x window.Sample) bool { return isStale(x.V) })
}
