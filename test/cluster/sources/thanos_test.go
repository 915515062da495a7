package sources

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
	"github.com/inference-metrics/adapter/test/cluster"
)

// TestThanos: Thanos merges a pair of Prometheus servers, and has a third that scrapes another engine.
// Nothing counts twice, half of the pair may die, and an answer without a store is known to be one.
func TestThanos(t *testing.T) {
	t.Parallel()
	program, err := thanos()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 2)
	const one, other = "vllm-0", "vllm-1"
	ctx := t.Context()
	type member struct{ prometheus, sidecar *cluster.Store }
	members := map[string]member{}
	var sidecars []*cluster.Store
	for _, m := range []struct{ name, replica, pod string }{{"pair-0", "0", one}, {"pair-1", "1", one}, {"other", "0", other}} {
		p, err := w.stores.StartPrometheus(ctx, m.name, w.prometheus3,
			external(strings.TrimRight(m.name, "-01"), fmt.Sprintf("%q", m.replica), "")+w.front.config(m.name, m.pod))
		if err != nil {
			t.Fatal(err)
		}
		sidecar, err := w.stores.StartSidecar(ctx, program, m.name, p)
		if err != nil {
			t.Fatal(err)
		}
		members[m.name] = member{p, sidecar}
		sidecars = append(sidecars, sidecar)
		w.front.awaitPods(t, 3, m.name, m.pod)
	}
	query, err := w.stores.StartThanosQuery(ctx, program, "query", prometheus.DefaultReplicaLabel, sidecars...)
	if err != nil {
		t.Fatal(err)
	}
	config := prometheus.Config{URL: query.URL}
	a := &watcher{pod: one, recording: &recording{name: "the pair", series: map[uint64]*recorded{}}}
	a.run(t, connect(t, config))
	b := &watcher{pod: other, recording: &recording{name: "the other", series: map[uint64]*recorded{}}}
	b.run(t, connect(t, config))
	eventually(t, "all stores are seen", func() error { return errors.Join(a.known(), b.known(), a.lastError(), b.lastError()) })

	w.load(t, 8)
	eventually(t, "requests are counted", func() error { return errors.Join(a.counting(), b.counting()) })
	a.hold()
	time.Sleep(5 * time.Second)

	// Half of a pair dies: what the other half has goes on, and the answer is known to be partial, though
	// nothing is missing.
	first := members["pair-0"]
	first.prometheus.Kill()
	first.sidecar.Kill()
	partial := func(w *watcher) func() error {
		return func() error {
			var p *source.PartialError
			if err := w.lastError(); !errors.As(err, &p) {
				return fmt.Errorf("the last fetch ended with %v", err)
			}
			return nil
		}
	}
	eventually(t, "the answer is told to be partial", partial(a))
	time.Sleep(forgotten)
	a.holds(t)

	// The only store of the other engine goes: what it said is unknown soon, and never 0.
	b.hold()
	members["other"].sidecar.Kill()
	members["other"].prometheus.Kill()
	eventually(t, "what the store knew is unknown", func() error {
		if b.known() == nil {
			return errors.New("it is known")
		}
		return nil
	})
	if err := partial(b)(); err != nil {
		t.Errorf("a store is gone: %v", err)
	}
	b.mu.Lock()
	for _, lost := range b.lost {
		if !strings.Contains(lost, "unknown") {
			t.Errorf("a store is gone, and the answer was once: %s", lost)
		}
	}
	b.mu.Unlock()
	if a.known() != nil {
		t.Errorf("another store is gone, and so is the pair: %v", a.known())
	}

	w.load(t, 0)
	w.drained(t)
	w.front.awaitPods(t, 3, "pair-1", one)
	a.stop()
	b.stop()
	for _, s := range a.all() {
		if s.labels.Has(prometheus.DefaultReplicaLabel) {
			t.Fatalf("the query did not merge: %s", s.labels)
		}
	}
	// Merged: one series of each, which grew as much as the engine counted.
	served := w.front.scrapes("pair-1", one)
	var growth []exposition
	growth = append(growth, served[0], served[len(served)-1])
	of := &recording{name: a.name, series: map[uint64]*recorded{}}
	for _, s := range a.all() {
		if s.labels.Get("pod") == one {
			id := labels.NewBuilder(s.labels).Del("cluster").Labels()
			if slices.ContainsFunc(of.all(), func(x recorded) bool { return labels.Equal(x.labels, id) }) {
				t.Errorf("%s is there twice", id)
			}
			of.series[id.Hash()] = &recorded{id, s.samples}
		}
	}
	w.sameGrowth(t, of, parse(t, growth[0].text), parse(t, growth[1].text))
}
