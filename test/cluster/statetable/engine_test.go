package statetable

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/source"
)

// A load is what the engine of one pod does while a script says so.
type load struct {
	waiting, running float64
	kv               float64 // of its KV cache, 0..1
	tokens           float64 // per second
	rate             float64 // first tokens, and finished requests, per second
	ttft             float64 // of those, in seconds
	down             bool    // the target is not scraped: no samples
	unready          bool    // the readiness probe fails, once it has not
}

// busy is load that is right at the targets of the table's HPAs; times makes it more or less.
var busy = load{waiting: 5, running: 8, kv: 0.8, tokens: 400, rate: 1, ttft: 2.2}

// hung is an engine that makes no progress with what it has.
var hung = load{waiting: 5, running: 8, kv: 0.8}

func (l load) times(f float64) load {
	l.waiting *= f
	l.running *= f
	l.kv = min(1, l.kv*f)
	l.tokens *= f
	l.rate *= f
	l.ttft *= f
	return l
}

// engine counts what its load does, and keeps what scrapes of it brought.
type engine struct {
	series map[string][]series // by name
	counts map[string]float64  // by labels
}

type series struct {
	labels  labels.Labels
	samples []sample
}

type sample struct {
	t time.Time
	v float64
}

// scrapes is a Source: what a Prometheus server holds that scrapes every engine.
type scrapes struct {
	mu      sync.Mutex
	down    bool
	engines map[string]*engine // by pod
}

const scrapeInterval = 5 * time.Second

var _ source.Source = (*scrapes)(nil)

func (*scrapes) String() string { return "Prometheus at http://prometheus:9090" }

func (s *scrapes) Fetch(_ context.Context, names []string, lookback time.Duration, sink source.Sink) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return time.Time{}, errors.New("connection refused")
	}
	now := time.Now()
	for _, pod := range slices.Sorted(maps.Keys(s.engines)) {
		for _, name := range names {
			for _, series := range s.engines[pod].series[name] {
				from, _ := slices.BinarySearchFunc(series.samples, now.Add(-lookback), func(s sample, t time.Time) int { return s.t.Compare(t) })
				for _, x := range series.samples[from:] {
					sink.Append(series.labels, x.t.UnixMilli(), x.v)
				}
			}
		}
	}
	return now, nil
}

// setDown stops the server, or starts it again. While it is down nothing is scraped either.
func (s *scrapes) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// scrape has the engine of a pod do its load for one interval, and reads it.
func (s *scrapes) scrape(pod string, l load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.engines[pod]
	if e == nil {
		e = &engine{series: map[string][]series{}, counts: map[string]float64{}}
		s.engines[pod] = e
	}
	seen := !s.down && !l.down
	level := func(name string, v float64) { e.read(seen, pod, name, v) }
	count := func(name string, perSecond float64, extra ...string) {
		key := name + "\xff" + labels.FromStrings(extra...).String()
		e.counts[key] += perSecond * scrapeInterval.Seconds()
		e.read(seen, pod, name, e.counts[key], extra...)
	}
	histogram := func(name string, perSecond, v float64, edges ...float64) {
		for _, edge := range edges {
			if v <= edge {
				count(name+"_bucket", perSecond, "le", strconv.FormatFloat(edge, 'f', 1, 64))
			} else {
				count(name+"_bucket", 0, "le", strconv.FormatFloat(edge, 'f', 1, 64))
			}
		}
		count(name+"_bucket", perSecond, "le", "+Inf")
	}
	level("vllm:num_requests_waiting", l.waiting)
	level("vllm:num_requests_running", l.running)
	level("vllm:kv_cache_usage_perc", l.kv)
	count("vllm:generation_tokens_total", l.tokens)
	count("vllm:request_success_total", l.rate, "finished_reason", "stop")
	histogram("vllm:time_to_first_token_seconds", l.rate, l.ttft, 0.5, 1, 2.5, 5, 7.5, 10)
	histogram("vllm:request_time_per_output_token_seconds", l.rate, 0.05, 0.1, 0.2)
	histogram("vllm:e2e_request_latency_seconds", l.rate, 8, 5, 10, 20)
}

func (e *engine) read(seen bool, pod, name string, v float64, extra ...string) {
	if !seen {
		return
	}
	ls := labels.FromStrings(append([]string{
		"__name__", name, "namespace", namespace, "pod", pod, "instance", pod + ":8000",
		"engine", "0", "model_name", "llama",
	}, extra...)...)
	of := e.series[name]
	i := slices.IndexFunc(of, func(s series) bool { return labels.Equal(s.labels, ls) })
	if i < 0 {
		i, of = len(of), append(of, series{labels: ls})
	}
	of[i].samples = append(of[i].samples, sample{time.Now(), v})
	e.series[name] = of
}
