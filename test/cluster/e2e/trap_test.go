package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestTrap: why the duty cycle of the GPU is nothing to scale on. A GPU that serves one request is
// as busy as one that serves a hundred, so replicas either never follow the load (a target that
// 100 % is within tolerance of) or run to the maximum under any load (a lower one), and stay there
// while a single request runs. Three Deployments get the same load; only the one on queue depth
// follows it.
func TestTrap(t *testing.T) {
	t.Parallel()
	// Engines of 16 seats, and requests that hold one for eight seconds: two per second fill a
	// replica, and even the least load keeps some request running on each of six.
	const (
		light = "constant:rate=1,prompt=100,output=400"  // 8 requests at once: half a replica
		heavy = "constant:rate=10,prompt=100,output=400" // 80 requests at once: five replicas
		most  = 6
	)
	ns := namespace(t)
	engines := startEmulator(t, ns, "--max-num-seqs=16")
	if err := shared.Prometheus.ScrapeDCGM(true, engines.DCGM); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Prometheus.ScrapeDCGM(true) })
	startAdapters(t, 1)

	var (
		within, above, queue *history
		all                  = map[string]**history{"duty-95": &within, "duty-85": &above, "queue": &queue}
	)
	for name, h := range all {
		deploy(t, ns, workload{name: name, replicas: 1})
		*h = follow(t, ns, name)
	}
	awaitReady(t, ns, 3)
	loads := func(spec string) {
		for name := range all {
			setLoad(t, engines, name, spec)
		}
	}
	loads(light)
	// Once the GPUs are as busy as they will be: the HPAs must not see the start.
	time.Sleep(5 * time.Second)
	for name, spec := range map[string]hpaSpec{
		"duty-95": {metric: "gpu_utilization", average: "950m"}, // 1/0.95 = 1.05: within 10 % of the target
		"duty-85": {metric: "gpu_utilization", average: "850m"}, // 1/0.85 = 1.18
		"queue":   {metric: "vllm_queue_depth", average: "5"},
	} {
		spec.target, spec.min, spec.max, spec.stabilization = name, 1, most, 10*time.Second
		autoscale(t, ns, spec)
		awaitActive(t, ns, name)
	}

	// settled waits until replicas are as expected, and holds them to it for some syncs more.
	settled := func(what string, within95, above85 int, followed func(int) bool) {
		t.Helper()
		check := func() error {
			if w, a, q := within.now(), above.now(), queue.now(); w != within95 || a != above85 || !followed(q) {
				return fmt.Errorf("%d replicas at a target of 0.95, %d at 0.85, %d on queue depth", w, a, q)
			}
			return nil
		}
		eventually(t, 2*time.Minute, what, check)
		throughout(t, 5*hpaSync, what+", still", check)
	}

	settled("light load", 1, most, func(n int) bool { return n == 1 })
	awaitBusy(t, ns, engines, "duty-85")

	start := time.Now()
	loads(heavy)
	// A queue-only HPA comes back down once its queue is gone; how far it went up is what counts.
	queue.await(t, time.Minute, "heavy load on queue depth", func(n int) bool { return n >= 4 })
	eventually(t, 90*time.Second, "no queue under heavy load on queue depth", func() error {
		if n := waiting(t, engines, "queue"); n > 0 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	if w, a := within.since(start), above.since(start); len(w) != 1 || w[0] != 1 || len(a) != 1 || a[0] != most {
		t.Errorf("under ten times the load: replicas %v at a target of 0.95 and %v at 0.85, want 1 and %d as before", w, a, most)
	}
	if n := waiting(t, engines, "duty-95"); n < 50 {
		t.Errorf("only %d requests wait at the one replica with a target of 0.95: the load is not heavy", n)
	}

	loads(light)
	settled("light load again", 1, most, func(n int) bool { return n == 1 })
	awaitBusy(t, ns, engines, "duty-85")
}

// awaitBusy makes sure that a Deployment's GPUs are all busy, with next to nothing to do: else that
// nothing scales in would prove nothing.
func awaitBusy(t *testing.T, ns string, e *cluster.Emulator, deployment string) {
	t.Helper()
	eventually(t, time.Minute, "all GPUs of "+deployment+" are busy with a request or two", func() error {
		for _, r := range replicas(t, e, deployment) {
			if r.Running < 1 || r.Running > 2 || r.Waiting > 0 {
				return fmt.Errorf("%s runs %d requests", r.Name, r.Running)
			}
			v, err := answer(t, ns, r.Name, "gpu_utilization")
			if err != nil {
				return err
			}
			if v.Value.MilliValue() < 990 {
				return fmt.Errorf("%s has a duty cycle of %s", r.Name, v.Value.String())
			}
		}
		return nil
	})
}
