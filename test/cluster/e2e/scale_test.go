package e2e

import (
	"fmt"
	"regexp"
	"testing"
	"time"
)

// TestScale: an HPA on queue depth scales a Deployment out under a burst, until the queue is gone,
// and in again after it.
func TestScale(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	engines := startEmulator(t, ns)
	startAdapters(t, 1)
	deploy(t, ns, workload{name: "vllm", replicas: 1})
	awaitReady(t, ns, 1)
	replicas := follow(t, ns, "vllm")
	setLoad(t, engines, "vllm", requests(2)) // half of what one replica serves
	autoscale(t, ns, hpaSpec{target: "vllm", min: 1, max: 5, metric: "vllm_queue_depth", average: "5", stabilization: 15 * time.Second})
	awaitActive(t, ns, "vllm")
	failed := failedSyncs(t, ns, "vllm") // before there were samples
	throughout(t, 3*hpaSync, "one replica does for a load that it serves", func() error {
		if n := replicas.now(); n != 1 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})

	began := time.Now()
	setLoad(t, engines, "vllm", requests(14)) // needs four
	replicas.await(t, time.Minute, "the burst scales it out", func(n int) bool { return n >= 4 })

	// What a person sees.
	value := regexp.MustCompile(`"vllm_queue_depth" on pods:\s+(\S+) / 5\b`)
	eventually(t, 30*time.Second, "kubectl describe hpa shows the value", func() error {
		out, err := shared.Kubectl(t.Context(), "describe", "hpa", "-n", ns, "vllm")
		if err != nil {
			return err
		}
		if m := value.FindStringSubmatch(out); m == nil || m[1] == "<unknown>" || m[1] == "0" {
			return fmt.Errorf("it shows:\n%s", out)
		}
		return nil
	})

	eventually(t, 2*time.Minute, "the queue drains, under the burst", func() error {
		if n := waiting(t, engines, "vllm"); n > 0 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	if seen := replicas.since(began); !ascending(seen) {
		t.Errorf("replicas went %v while requests waited", seen)
	}
	setLoad(t, engines, "vllm", requests(2))
	replicas.await(t, 2*time.Minute, "it scales in again", func(n int) bool { return n == 1 })
	if n := failedSyncs(t, ns, "vllm") - failed; n > 0 {
		t.Errorf("%d syncs of the HPA failed", n)
	}
}

// ascending reports whether numbers of replicas never went down.
func ascending(seen []int) bool {
	for i := 1; i < len(seen); i++ {
		if seen[i] < seen[i-1] {
			return false
		}
	}
	return true
}
