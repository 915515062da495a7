package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestOutage: Prometheus dies at peak. Replicas hold, the answer is a 503 that names it, and the
// APIServices stay Available. When it is back, scaling goes on, both ways.
func TestOutage(t *testing.T) {
	const stabilization = 10 * time.Second
	ns := namespace(t)
	engines := startEmulator(t, ns)
	startAdapters(t, 1)
	deploy(t, ns, workload{name: "vllm", replicas: 1})
	awaitReady(t, ns, 1)
	replicas := follow(t, ns, "vllm")
	// In-flight requests follow the load in a straight line: each takes a second, and four of them
	// are for one replica.
	setLoad(t, engines, "vllm", requests(10))
	autoscale(t, ns, hpaSpec{target: "vllm", min: 1, max: 8, metric: "vllm_inflight_requests", average: "4", stabilization: stabilization})
	replicas.await(t, time.Minute, "it scales to the peak", func(n int) bool { return n >= 3 })
	eventually(t, time.Minute, "the backlog of the start is gone", func() error {
		if n := waiting(t, engines, "vllm"); n > 0 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	replicas.await(t, time.Minute, "it settles at what the load needs", func(n int) bool { return n == 3 })
	// Requests are lost with a pod that is scaled in, so that for a moment fewer are in flight than
	// the load has: an HPA may act on that when it forgets what was before, outage or not.
	throughout(t, stabilization+hpaSync, "settled", func() error {
		if n := replicas.now(); n != 3 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})

	start := stopPrometheus(t)
	died := time.Now()
	eventually(t, time.Minute, "the answer is a 503 that names Prometheus", func() error {
		_, err := answers(t, ns, "*", "vllm_inflight_requests")
		var answer *answerError
		if !errors.As(err, &answer) || answer.status != http.StatusServiceUnavailable || !strings.Contains(answer.body, shared.Prometheus.URL) {
			return fmt.Errorf("it is: %w", err)
		}
		return nil
	})
	eventually(t, time.Minute, "the HPA says so", func() error {
		if c := scalingActive(hpa(t, ns, "vllm")); c.Status != corev1.ConditionFalse || c.Reason != "FailedGetPodsMetric" || !strings.Contains(c.Message, shared.Prometheus.URL) {
			return fmt.Errorf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
	// Longer than the HPA remembers, and than the window.
	throughout(t, stabilization+testWindow, "with Prometheus down", func() error {
		if err := shared.Available(t.Context()); err != nil {
			return err
		}
		if items, err := answers(t, ns, "*", "vllm_inflight_requests"); err == nil {
			return fmt.Errorf("answered %v", items)
		}
		return nil
	})
	if seen := replicas.since(died); len(seen) != 1 {
		t.Fatalf("with Prometheus down, replicas went %v", seen)
	}

	start()
	restored := time.Now()
	awaitActive(t, ns, "vllm")
	setLoad(t, engines, "vllm", requests(22))
	replicas.await(t, 90*time.Second, "scaling out goes on", func(n int) bool { return n >= 6 })
	if seen := replicas.since(restored); !ascending(seen) {
		t.Errorf("after the outage, replicas went %v under a load that only rose", seen)
	}
	setLoad(t, engines, "vllm", "none")
	replicas.await(t, 2*time.Minute, "scaling in goes on", func(n int) bool { return n == 1 })
}
