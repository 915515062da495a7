package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/config"
	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/slo"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
)

// A configuration that changes holds soon, and no value is lost over it: a queue of seven has been one all
// the time.
func TestReload(t *testing.T) {
	e := newEngine(t, 7)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("window: 60s\nsaturation: {queue: 10}\n")
	c := start(t, "--standalone", "--config="+file, "--scrape-interval=100ms", "--collect-interval=100ms",
		"--target=default/vllm-0{stage=decode}="+e.URL+"/metrics")
	const byRole = "vllm_queue_depth?metricLabelSelector=role%3Ddecode"
	c.eventually("vllm-0=7", "vllm_queue_depth", "")
	c.eventually("vllm-0=700m", "vllm_saturation", "")
	if code, body := c.get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/" + byRole); code != 404 || !strings.Contains(body, "not of the role") {
		t.Fatalf("a pod without a role got a %d: %s", code, body)
	}

	awaitMetric := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if got := c.values("vllm_queue_depth", ""); got != "vllm-0=7" {
				t.Fatalf("the queue is %q while the configuration changes", got)
			}
			if _, metrics := c.get("/metrics"); strings.Contains(metrics, "\n"+want+"\n") {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("/metrics does not come to say %s", want)
			}
		}
	}
	awaitMetric("inference_metrics_adapter_config_last_reload_successful 1")
	write("window: 61s\nsaturation: {queue: 0}\n")
	awaitMetric("inference_metrics_adapter_config_last_reload_successful 0")
	if got := c.values("vllm_saturation", ""); got != "vllm-0=700m" {
		t.Errorf("the saturation is %q under a file that was refused", got)
	}
	write("window: 61s\nsaturation: {queue: 28}\nroleLabels: [stage]\nkinds: []\n")
	awaitMetric("inference_metrics_adapter_config_last_reload_successful 1")
	awaitMetric("inference_metrics_adapter_config_restart_needed 1")
	c.eventually("vllm-0=547m", "vllm_saturation", "") // the KV cache is what fills it now
	if got := valueOf(t, c.await("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/"+byRole)); got != "vllm-0=7" {
		t.Errorf("by its role the queue is %q", got)
	}
}

// What HPAs name is read again: a window that becomes the one that holds anyway is asked for as such, and one
// that is refused so far is taken.
func TestReloadReadsAgainWhatHPAsName(t *testing.T) {
	src, err := prometheus.New(prometheus.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default(nil)
	objectives := slo.New(pods.NoGroups{}.Annotations)
	collector, err := collect.New(collect.Config{Source: src, Pods: pods.NewStatic(nil), Settings: settingsOf(c, objectives)})
	if err != nil {
		t.Fatal(err)
	}
	r := newReloader(collector, objectives, c)
	r.named([]kube.MetricRef{{Name: "vllm_ttft_seconds", Selector: "window=2m"}, {Name: "not_ours"}})
	want := func(windows ...time.Duration) {
		t.Helper()
		got := collector.Demands()
		if len(got) != len(windows) {
			t.Fatalf("%d queries are standing, want %d", len(got), len(windows))
		}
		for i, w := range windows {
			if got[i].Plan.Query.Window != w || !got[i].Standing {
				t.Errorf("query %d is %+v, want a window of %s", i, got[i].Plan.Query, w)
			}
		}
	}
	want()
	c.Windows = []time.Duration{2 * time.Minute}
	if err := r.apply(c); err != nil {
		t.Fatal(err)
	}
	want(2 * time.Minute)
	c.Params.Window, c.Windows = 2*time.Minute, nil
	if err := r.apply(c); err != nil {
		t.Fatal(err)
	}
	want(0)
	refused := c
	refused.Params.Window = time.Hour
	if err := r.apply(refused); err == nil {
		t.Error("a window of an hour was taken")
	}
	r.named([]kube.MetricRef{{Name: "vllm_ttft_seconds", Selector: "window=2m"}})
	want(0)
}
