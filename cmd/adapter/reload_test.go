package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
