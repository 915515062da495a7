package rules

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
)

// fakeServer evaluates queries with Prometheus's own engine over series of a test's choice.
type fakeServer struct {
	t      *testing.T
	engine *promql.Engine
	db     storage.Queryable

	mu    sync.Mutex
	at    time.Time // its now
	err   error     // what it answers everything with; nil for answers
	asked []string
	// hang, if set, is what answers to questions with a text in them wait for.
	hang     chan struct{}
	hangText string
}

var _ Server = (*fakeServer)(nil)

// newFakeServer has series in the notation of promtool's tests, with a load line before them; NaN... and Inf... go
// on, where that has no word for it.
func newFakeServer(t *testing.T, load string) *fakeServer {
	for _, number := range []string{"NaN", "-Inf", "Inf"} {
		load = strings.ReplaceAll(load, " "+number+"...", strings.Repeat(" "+number, 61))
	}
	return &fakeServer{
		t: t, engine: promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery),
		db: promqltest.LoadedStorage(t, load), at: time.Unix(300, 0),
	}
}

func (s *fakeServer) String() string { return "Prometheus at http://fake" }

func (s *fakeServer) note(ctx context.Context, what string) (time.Time, error) {
	s.mu.Lock()
	s.asked = append(s.asked, what)
	at, err, hang := s.at, s.err, s.hang
	s.mu.Unlock()
	if hang != nil && strings.Contains(what, s.hangText) {
		select {
		case <-hang:
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
	return at, err
}

// queries returns what was asked since the last call, sorted.
func (s *fakeServer) queries() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	slices.Sort(asked)
	return asked
}

func (s *fakeServer) Query(ctx context.Context, query string) (model.Vector, error) {
	at, err := s.note(ctx, query)
	if err != nil {
		return nil, err
	}
	q, err := s.engine.NewInstantQuery(ctx, s.db, nil, query, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	now := model.TimeFromUnixNano(at.UnixNano())
	switch v := result.Value.(type) {
	case promql.Scalar:
		return model.Vector{{Metric: model.Metric{}, Value: model.SampleValue(v.V), Timestamp: now}}, nil
	case promql.Vector:
		var out model.Vector
		for _, sample := range v {
			metric := model.Metric{}
			sample.Metric.Range(func(l promlabels.Label) { metric[model.LabelName(l.Name)] = model.LabelValue(l.Value) })
			out = append(out, &model.Sample{Metric: metric, Value: model.SampleValue(sample.F), Timestamp: now})
		}
		return out, nil
	}
	return nil, fmt.Errorf("a %T", result.Value)
}

func (s *fakeServer) LabelNames(ctx context.Context, selector string) ([]string, error) {
	if _, err := s.note(ctx, "labels of "+selector); err != nil {
		return nil, err
	}
	q, matchers := s.choose(selector)
	defer q.Close()
	names, _, err := q.LabelNames(ctx, nil, matchers...)
	return names, err
}

func (s *fakeServer) LabelValues(ctx context.Context, label, selector string) ([]string, error) {
	if _, err := s.note(ctx, label+" of "+selector); err != nil {
		return nil, err
	}
	q, matchers := s.choose(selector)
	defer q.Close()
	names, _, err := q.LabelValues(ctx, label, nil, matchers...)
	return names, err
}

func (s *fakeServer) choose(selector string) (storage.Querier, []*promlabels.Matcher) {
	matchers, err := queries.ParseMetricSelector(selector)
	if err != nil {
		s.t.Fatalf("asked for %s: %v", selector, err)
	}
	q, err := s.db.Querier(math.MinInt64, math.MaxInt64)
	if err != nil {
		s.t.Fatal(err)
	}
	return q, matchers
}
