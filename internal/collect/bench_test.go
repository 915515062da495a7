package collect

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// scrapes delivers one new sample of every series at every fetch, as if each tick found one scrape.
type scrapes struct {
	series []labels.Labels
	now    time.Time
	n      float64
}

func (s *scrapes) Fetch(_ context.Context, _ []string, _ time.Duration, sink source.Sink) (time.Time, error) {
	s.now, s.n = s.now.Add(scrapeInterval), s.n+1
	for _, ls := range s.series {
		sink.Append(ls, s.now.UnixMilli(), s.n)
	}
	return s.now, nil
}

func (s *scrapes) String() string { return "scrapes" }

// BenchmarkCollect is one tick with every signal of vLLM demanded and full windows; what the source
// itself costs is measured beside it.
func BenchmarkCollect(b *testing.B) {
	for _, replicas := range []int{100, 1000} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			src := &scrapes{now: time.Now()}
			var list []*pods.Pod
			for i := range replicas {
				name := "vllm-" + strconv.Itoa(i)
				list = append(list, readyPod(name, time.Hour))
				src.add(name)
			}
			c, err := New(Config{Source: src, Pods: pods.NewStatic(list), Settings: Settings{Params: signals.DefaultParams()}})
			if err != nil {
				b.Fatal(err)
			}
			for _, s := range signals.Catalogue() {
				_ = c.Ask(plan(s.Name))
			}
			ctx := context.Background()
			for range 60 {
				c.tick(ctx)
			}
			if got := c.Snapshot().Measure(query("vllm_queue_depth"), list[0]); !got.HasValue {
				b.Fatalf("the benchmark measures a collection without values: %+v", got)
			}
			b.ReportMetric(float64(len(src.series))/float64(replicas), "series/replica")
			b.ReportAllocs()
			for b.Loop() {
				c.tick(ctx)
			}
		})
	}
}

// add adds a vLLM replica: the catalogue's series, with twenty finite bounds for each histogram.
func (s *scrapes) add(pod string) {
	add := func(name string, extra ...string) {
		s.series = append(s.series, labels.FromStrings(append([]string{
			"__name__", name, "namespace", "ns", "pod", pod, "instance", pod + ":8000", "job", "vllm", "engine", "0", "model_name", "m",
		}, extra...)...))
	}
	for _, name := range []string{"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"} {
		add(name)
	}
	for _, reason := range []string{"stop", "length", "abort", "error", "repetition"} {
		add("vllm:request_success_total", "finished_reason", reason)
	}
	for _, name := range []string{"vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"} {
		for i := range 20 {
			add(name+"_bucket", "le", strconv.Itoa(i+1))
		}
		add(name+"_bucket", "le", "+Inf")
	}
}
