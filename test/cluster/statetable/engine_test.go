package statetable

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	tpot             float64 // of those, in seconds; and the time between two tokens
	cached           float64 // of the tokens of their prompts, 0..1, that the prefix cache held
	preempted        float64 // requests per second
	down             bool    // the target is not scraped: no samples
	unready          bool    // the readiness probe fails, once it has not
}

// busy is load that is right at the targets of the table's HPAs; times makes it more or less.
var busy = load{waiting: 5, running: 8, kv: 0.8, tokens: 400, rate: 1, ttft: 2.2, tpot: 0.02, cached: 0.5}

// hung is an engine that makes no progress with what it has.
var hung = load{waiting: 5, running: 8, kv: 0.8}

// times makes load more or less. What has no room in the KV cache is preempted, and leaves the
// prefix cache half of its hits.
func (l load) times(f float64) load {
	l.waiting *= f
	l.running *= f
	l.kv *= f
	l.tokens *= f
	l.rate *= f
	l.ttft *= f
	l.tpot *= f
	if l.kv > 1 {
		l.preempted += (l.kv - 1) * l.rate
		l.kv = 1
		l.cached /= 2
	}
	return l
}

const (
	promptTokens = 1000 // of each request
	outputTokens = 400
)

// engine counts what its load does, and keeps what scrapes of it brought.
type engine struct {
	series map[string]*series // by name and further labels
	named  map[string][]*series
}

type series struct {
	labels  labels.Labels
	count   float64 // of a counter
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
			for _, series := range s.engines[pod].named[name] {
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
		e = &engine{series: map[string]*series{}, named: map[string][]*series{}}
		s.engines[pod] = e
	}
	seen := !s.down && !l.down
	read := func(of *series, v float64) {
		if seen {
			of.samples = append(of.samples, sample{time.Now(), v})
		}
	}
	level := func(name string, v float64, extra ...string) { read(e.get(pod, name, extra...), v) }
	count := func(name string, perSecond float64, extra ...string) {
		of := e.get(pod, name, extra...)
		of.count += perSecond * scrapeInterval.Seconds()
		read(of, of.count)
	}
	histogram := func(name string, perSecond, v float64, edges ...string) {
		for _, text := range append(edges, "+Inf") {
			within := 0.0
			if edge, _ := strconv.ParseFloat(text, 64); v <= edge {
				within = perSecond
			}
			count(name+"_bucket", within, "le", text)
		}
	}
	level("vllm:num_requests_waiting", l.waiting)
	level("vllm:num_requests_running", l.running)
	level("vllm:kv_cache_usage_perc", l.kv)
	level("vllm:cache_config_info", 1, "num_gpu_blocks", "1000", "block_size", "16")
	count("vllm:prompt_tokens_total", l.rate*promptTokens)
	count("vllm:prompt_tokens_by_source_total", l.rate*promptTokens*(1-l.cached), "source", "local_compute")
	count("vllm:prefix_cache_queries_total", l.rate*promptTokens)
	count("vllm:prefix_cache_hits_total", l.rate*promptTokens*l.cached)
	count("vllm:generation_tokens_total", l.tokens)
	count("vllm:num_preemptions_total", l.preempted)
	count("vllm:request_success_total", l.rate, "finished_reason", "stop")
	count("vllm:iteration_tokens_total_count", l.tokens/max(1, l.running)) // each step gives each request a token
	count("vllm:request_generation_tokens_count", l.rate)
	count("vllm:request_generation_tokens_sum", l.rate*outputTokens)
	histogram("vllm:time_to_first_token_seconds", l.rate, l.ttft, "0.5", "1.0", "2.5", "5.0", "7.5", "10.0")
	histogram("vllm:request_queue_time_seconds", l.rate, l.ttft*0.8, "0.5", "1.0", "2.0", "2.5", "5.0", "10.0")
	histogram("vllm:request_time_per_output_token_seconds", l.rate, l.tpot, "0.01", "0.025", "0.05", "0.1", "0.2")
	histogram("vllm:inter_token_latency_seconds", l.tokens, l.tpot, "0.01", "0.025", "0.05", "0.1", "0.2")
	histogram("vllm:e2e_request_latency_seconds", l.rate, l.ttft+l.tpot*outputTokens, "5.0", "10.0", "15.0", "20.0", "30.0")
}

// get returns a series of the engine's own, and makes it where it is not there yet.
func (e *engine) get(pod, name string, extra ...string) *series {
	key := name + strings.Join(extra, ",")
	if e.series[key] == nil {
		of := &series{labels: labels.FromStrings(append([]string{
			"__name__", name, "namespace", namespace, "pod", pod, "instance", pod + ":8000",
			"engine", "0", "model_name", "llama",
		}, extra...)...)}
		e.series[key] = of
		e.named[name] = append(e.named[name], of)
	}
	return e.series[key]
}
