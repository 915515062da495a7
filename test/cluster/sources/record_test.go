package sources

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"

	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/window"
)

// A recording keeps all that a source brings, so that what a window held at any time can be told
// afterwards: at an instant a second ago nothing is on its way any more.
type recording struct {
	name string

	mu     sync.Mutex
	series map[uint64]*recorded
	errs   []error
}

type recorded struct {
	labels  labels.Labels
	samples []window.Sample
}

// Append implements source.Sink.
func (r *recording) Append(ls labels.Labels, t int64, v float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := ls.Hash()
	s := r.series[key]
	if s == nil {
		s = &recorded{labels: ls}
		r.series[key] = s
	}
	if n := len(s.samples); n == 0 || s.samples[n-1].T < t {
		s.samples = append(s.samples, window.Sample{T: t, V: v})
	}
}

// record fetches from a source all the time, as the collector does, until the test ends or stop is
// called.
func record(t *testing.T, name string, src source.Source, names []string) (_ *recording, stop func()) {
	t.Helper()
	r := &recording{name: name, series: map[uint64]*recorded{}}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		lookback := time.Minute
		for ctx.Err() == nil {
			if _, err := src.Fetch(ctx, names, lookback, r); err == nil {
				lookback = 15 * time.Second
			} else if ctx.Err() == nil {
				r.mu.Lock()
				r.errs = append(r.errs, err)
				r.mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	stop = func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return r, stop
}

// all returns every series.
func (r *recording) all() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []recorded
	for _, s := range r.series {
		all = append(all, recorded{s.labels, slices.Clone(s.samples)})
	}
	slices.SortFunc(all, func(a, b recorded) int { return labels.Compare(a.labels, b.labels) })
	return all
}

// until returns what a window store held at an instant.
func (r *recording) until(at time.Time, groupOf func(labels.Labels) (string, bool)) *window.Store {
	store := window.New(5*time.Minute, groupOf)
	for _, s := range r.all() {
		for _, x := range s.samples {
			if x.T <= at.UnixMilli() {
				store.Append(s.labels, x.T, x.V)
			}
		}
	}
	store.Advance(at.UnixMilli())
	return store
}

func (r *recording) noErrors(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) > 0 {
		t.Errorf("%s failed %d times, first: %v", r.name, len(r.errs), r.errs[0])
	}
}

// identity is what names a series in any store: bounds of buckets are numbers there, and what a store
// or its scrape adds is left out.
func identity(ls labels.Labels) string {
	b := labels.NewBuilder(ls).Del("job", "instance", "namespace", "pod")
	if le := ls.Get("le"); le != "" {
		if v, err := strconv.ParseFloat(le, 64); err == nil {
			b.Set("le", strconv.FormatFloat(v, 'g', -1, 64))
		}
	}
	return b.Labels().String()
}

// parse reads an exposition.
func parse(t *testing.T, text string) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		name, rest, labelled := strings.Cut(line[:i], "{")
		b := labels.NewBuilder(labels.FromStrings("__name__", name))
		for labelled && rest != "}" {
			key, after, ok := strings.Cut(rest, `="`)
			end := strings.IndexByte(after, '"') // the engines here escape nothing
			if !ok || end < 0 {
				t.Fatalf("cannot read %q", line)
			}
			if key == "namespace" || key == "pod" {
				key = "exported_" + key // those of the scrape win, everywhere
			}
			b.Set(key, after[:end])
			rest = strings.TrimPrefix(after[end+1:], ",")
		}
		values[identity(b.Labels())] = v
	}
	return values
}

func isStale(v float64) bool { return value.IsStaleNaN(v) }
