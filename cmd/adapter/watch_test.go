package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// What is shown on /metrics is what the API answers, and what the API does not answer is not shown.
func TestSignalsAreExposed(t *testing.T) {
	one, two := newEngine(t, 3), newEngine(t, 0)
	args := []string{"--standalone", "--scrape-interval=100ms", "--collect-interval=100ms",
		"--target=default/vllm-0=" + one.URL + "/metrics", "--target=default/vllm-1=" + two.URL + "/metrics"}
	c := start(t, append(args, "--expose-signals=inference_queue_depth,vllm_queue_depth", "--expose-signals=vllm_queue_depth")...)
	shows := func(want ...string) {
		t.Helper()
		var metrics string
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var code int
			if code, metrics = c.get("/metrics"); code != http.StatusOK {
				t.Fatalf("/metrics is a %d: %s", code, metrics)
			}
			missing := ""
			for _, w := range want {
				absent, no := strings.CutPrefix(w, "no ")
				if strings.Contains(metrics, "\n"+absent) == no {
					missing = w
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("/metrics does not come to say %s", missing)
			}
		}
	}
	of := func(family, pod, signal, state string) string {
		return family + `{namespace="default",pod="` + pod + `",signal="` + signal + `"` + state + `}`
	}
	const value, state = "inference_signal", "inference_signal_state"
	shows(
		of(value, "vllm-0", "vllm_queue_depth", "")+" 3\n", of(state, "vllm-0", "vllm_queue_depth", `,state="value"`)+" 1\n",
		of(value, "vllm-1", "inference_queue_depth", "")+" 0\n", of(state, "vllm-1", "inference_queue_depth", `,state="idle"`)+" 1\n",
	)
	one.Close()
	shows(
		"no "+of(value, "vllm-0", "vllm_queue_depth", ""), of(state, "vllm-0", "vllm_queue_depth", `,state="unknown"`)+" 1\n",
		of(value, "vllm-1", "vllm_queue_depth", "")+" 0\n",
		`inference_metrics_adapter_scrape_targets{health="down"} 1`+"\n",
	)
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}

	c = start(t, args...)
	c.eventually("vllm-1=0", "vllm_queue_depth", "")
	shows(`inference_metrics_adapter_replicas{signal="vllm_queue_depth",state="idle"} 1`+"\n", "no "+value)
}
