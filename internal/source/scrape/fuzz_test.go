package scrape

import (
	"context"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/storage"

	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// FuzzExposition lets an engine say anything. It is read as a scrape reads it, with Prometheus's parser and
// the target's labels in the place of its own, three times over: for a window's beginning, its middle and its
// end. Every signal is then evaluated: no text makes a value out of no engine's series, or a pod of another.
func FuzzExposition(f *testing.F) {
	for _, seed := range []string{
		"vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 3\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1\n",
		"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 1\nvllm_num_requests_waiting 1\nvllm:num_requests_waiting{engine=\"1\"} NaN\n",
		"vllm:time_to_first_token_seconds_bucket{le=\"1\"} 1\nvllm:time_to_first_token_seconds_bucket{le=\"1.0\"} 1\nvllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\nvllm:time_to_first_token_seconds_count 2\n",
		"vllm:time_to_first_token_seconds_bucket{le=\"-1\"} 1\nvllm:time_to_first_token_seconds_bucket{le=\"x\"} 1\nvllm:time_to_first_token_seconds_bucket 9e300\n",
		"vllm:cache_config_info{num_gpu_blocks=\"None\",block_size=\"16\"} 1\nvllm:cache_config_info{num_gpu_blocks=\"-1e308\",block_size=\"1e308\"} 1\nvllm:kv_cache_usage_perc 0.5\n",
		"vllm:num_requests_waiting{pod=\"other\",namespace=\"kube-system\",exported_pod=\"x\"} 0\nvllm:num_requests_running 0\n",
		"up 0\nup{pod=\"x\"} 1\nvllm:request_success_total{finished_reason=\"stop\"} 1e308\nvllm:request_success_total{finished_reason=\"length\"} 1e308\n",
		"sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:num_queue_reqs{tp_rank=\"1\"} 2\nsglang:num_running_reqs 0\n",
		"DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\",exported_pod=\"\",exported_namespace=\"\"} 9223372036854775794\n",
		"{\"vllm:num_requests_waiting\",\"a b\"=\"c\"} 1 1000\n# EOF\n",
		"",
	} {
		f.Add(seed)
	}
	names := signals.AllNames()
	known := map[string]bool{upName: true}
	for _, n := range names {
		known[n] = true
	}
	var plans []*signals.Plan
	for _, s := range signals.Catalogue() {
		p, err := signals.Prepare(signals.Query{Signal: s.Name})
		if err != nil {
			f.Fatal(err)
		}
		plans = append(plans, p)
	}
	params := signals.DefaultParams()

	f.Fuzz(func(t *testing.T, text string) {
		now := time.UnixMilli(1_700_000_000_000)
		still := func() time.Time { return now }
		b := newBuffer(names, time.Hour, clock{now: still, wall: still})
		const scrapes, apart = 13, 5 * time.Second
		for i := range scrapes {
			if !scrapeText(b, text, now.Add(-apart*time.Duration(scrapes-1-i)).UnixMilli()) {
				return // a scrape that fails leaves nothing but up 0
			}
		}
		store := window.New(time.Hour, params.GroupOf)
		engine := false
		for _, samples := range b.drain() {
			for _, s := range samples {
				name := s.ls.Get(model.MetricNameLabel)
				if !known[name] {
					t.Fatalf("%s is kept, which nobody reads", name)
				}
				if s.ls.Get("namespace") != "serving" || s.ls.Get("pod") != "vllm-0" {
					t.Fatalf("%s passes itself off as another", s.ls)
				}
				engine = engine || name != upName
				store.Append(s.ls, s.t, s.v)
			}
		}
		if series, _ := store.Stats(); series > sampleLimit {
			t.Fatalf("%d series are kept of one pod", series)
		}
		for _, key := range []string{signals.GroupKey("serving", "vllm-0"), signals.GroupKey("kube-system", "other")} {
			for i, m := range signals.Evaluate(plans, store.Group(key), signals.At{Now: now, Pod: "vllm-0"}, params) {
				switch {
				case m.State == signals.Unknown && m.HasValue:
					t.Errorf("%s is unknown, with the value %g", plans[i].Query.Signal, m.Value)
				case !m.HasValue && m.Reason == "":
					t.Errorf("%s has no value, and no reason why", plans[i].Query.Signal)
				case m.HasValue && !engine:
					t.Errorf("%s is made up: %+v", plans[i].Query.Signal, m.Result)
				case m.HasValue && (m.Time.IsZero() || m.Time.After(now)):
					t.Errorf("%s is of %s", plans[i].Query.Signal, m.Time)
				}
				missing := signals.Member{Name: "vllm-1", Measure: signals.Measure{Result: signals.Result{Reason: "it is down"}}}
				whole := plans[i].Merge([]signals.Member{{Name: "vllm-0", Measure: m}, missing}, params)
				if whole.HasValue && (whole.Value == 0 || !m.HasValue) && !math.IsNaN(whole.Value) {
					t.Errorf("%s of two, of which one is not known, is %+v; of the other it is %+v", plans[i].Query.Signal, whole, m.Result)
				}
			}
		}
	})
}

// scrapeText appends what an engine says at a time as a scrape would, and reports whether it could be read.
func scrapeText(b *buffer, text string, at int64) bool {
	p, err := textparse.New([]byte(text), "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return false
	}
	app := b.AppenderV2(context.Background())
	appendTo := func(ls labels.Labels, v float64) {
		_, _ = app.Append(0, ls, 0, at, v, nil, nil, storage.AOptions{})
	}
	target := labels.FromStrings("namespace", "serving", "pod", "vllm-0", "instance", "127.0.0.1:8000", "job", jobPrefix)
	for n := 0; ; {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var own labels.Labels
		p.Labels(&own)
		_, _, v := p.Series()
		if n++; n > sampleLimit || own.Len() > labelLimit || !own.Has(model.MetricNameLabel) {
			return false
		}
		appendTo(relabelled(own, target), v)
	}
	appendTo(relabelled(labels.FromStrings(model.MetricNameLabel, upName), target), 1)
	return app.Commit() == nil
}

// relabelled puts the target's labels over a series' own, as a scrape does that honours none.
func relabelled(own, target labels.Labels) labels.Labels {
	lb := labels.NewBuilder(own)
	target.Range(func(l labels.Label) {
		if v := own.Get(l.Name); v != "" {
			lb.Set(model.ExportedLabelPrefix+l.Name, v)
		}
		lb.Set(l.Name, l.Value)
	})
	return lb.Labels()
}
