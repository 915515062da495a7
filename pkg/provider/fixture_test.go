package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/cmd/options"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// gauges is a source of one sample per pod and series, read this very second.
type gauges struct {
	values map[string]map[string]float64 // by pod and name
	err    error
	at     time.Time // of the newest fetch; to be read once the collector has stopped
	// namespace is that of the pods; serving when empty. also is a source of another one.
	namespace string
	also      *gauges
}

func (g *gauges) Fetch(ctx context.Context, names []string, lookback time.Duration, sink source.Sink) (time.Time, error) {
	now := time.Now()
	if g.also != nil {
		_, _ = g.also.Fetch(ctx, names, lookback, sink)
	}
	g.at = now.Truncate(time.Millisecond)
	for _, name := range names {
		for pod, values := range g.values {
			v, ok := values[name]
			if !ok {
				continue
			}
			ls := promlabels.FromStrings("__name__", name, "namespace", cmp.Or(g.namespace, "serving"), "pod", pod, "engine", "0", "model_name", "llama")
			sink.Append(ls, now.UnixMilli(), v)
		}
	}
	return now, g.err
}

func (g *gauges) String() string { return "the test's source" }

var errDown = errors.New("the test's source: connection refused")

func queue(v float64) map[string]float64 {
	return map[string]float64{"vllm:num_requests_waiting": v, "vllm:num_requests_running": 1}
}

// fixed is one snapshot that a real collector has made, and what was asked for since.
type fixed struct {
	snapshot *collect.Snapshot
	mu       sync.Mutex
	asked    []string
	refuse   error // what Ask answers
}

func (f *fixed) Snapshot() *collect.Snapshot { return f.snapshot }

func (f *fixed) Ask(plan *signals.Plan) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, plan.Query.Signal)
	return f.refuse
}

// plans prepares queries without parameters, and those of texts such as vllm_queue_depth{engine=0}.
func plans(t testing.TB, texts ...string) []*signals.Plan {
	t.Helper()
	var out []*signals.Plan
	for _, text := range texts {
		name, where, _ := strings.Cut(strings.TrimSuffix(text, "}"), "{")
		selector, err := labels.Parse(where)
		if err != nil {
			t.Fatal(err)
		}
		r, err := parser.Parse(name, selector)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Plan)
	}
	return out
}

var parser = query.Parser{Window: signals.DefaultParams().Window, Windows: []time.Duration{2 * time.Minute}}

// ofPods returns a provider of pods only.
func ofPods(f *fixed, lister pods.Lister) *Provider {
	return New(Config{Snapshots: f, Pods: lister, Groups: pods.NoGroups{}})
}

// snapshotOf collects the named signals once.
func snapshotOf(t testing.TB, src *gauges, lister pods.Lister, names ...string) *fixed {
	t.Helper()
	c, err := collect.New(collect.Config{Source: src, Pods: lister, Interval: time.Hour, Settings: collect.Settings{
		Params: signals.DefaultParams(), Windows: parser.Windows,
		Role: func(p *pods.Pod) string { return pods.Role(p, []string{"example.com/does"}) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.SetStanding(plans(t, names...))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	for deadline := time.Now().Add(time.Minute); c.Snapshot().Taken.IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no snapshot within a minute")
		}
	}
	stop()
	<-done
	return &fixed{snapshot: c.Snapshot()}
}

func pod(name string, change func(*pods.Pod)) *pods.Pod {
	p := &pods.Pod{
		NamespacedName: types.NamespacedName{Namespace: "serving", Name: name},
		UID:            types.UID(name),
		Labels:         labels.Set{"app": "vllm"},
		Ready:          true,
		WasReady:       true,
	}
	if change != nil {
		change(p)
	}
	return p
}

// newHandler returns the whole handler chain of the server, in process.
func newHandler(t testing.TB, p *Provider) http.Handler {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	o := options.NewCustomMetricsAdapterServerOptions()
	o.Authentication, o.Authorization = nil, nil
	o.SecureServing.Listener = listener
	o.SecureServing.ServerCert.CertDirectory = ""
	s, err := NewServer(p, o, &rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.PrepareRun()
	return s.Handler
}

func get(h http.Handler, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// onPods lists the signals that pods have.
func onPods() []string {
	var out []string
	for _, s := range signals.Catalogue() {
		if !s.OfPool() {
			out = append(out, s.Name)
		}
	}
	return out
}

func podName(i int) string { return fmt.Sprintf("vllm-%04d", i) }
