package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRestarts: of two adapters one is killed in the middle of a scale-out, and both are replaced
// under load, as by a rollout.
func TestRestarts(t *testing.T) {
	const most = 8
	ns := namespace(t)
	engines := startEmulator(t, ns)
	adapters := startAdapters(t, 2)
	deploy(t, ns, workload{name: "vllm", replicas: 1})
	awaitReady(t, ns, 1)
	replicas := follow(t, ns, "vllm")
	setLoad(t, engines, "vllm", requests(2))
	// Without stabilization, a single low answer would be seen as a scale-down.
	autoscale(t, ns, hpaSpec{target: "vllm", min: 1, max: most, metric: "vllm_queue_depth", average: "1",
		stabilization: 0, upByOne: true})
	awaitActive(t, ns, "vllm")
	failed := failedSyncs(t, ns, "vllm") // before there were samples

	// More than all replicas serve: the queue only grows. The API server keeps to one adapter for
	// as long as its connection lasts, so each is killed in turn, and one of them is the one.
	began := time.Now()
	setLoad(t, engines, "vllm", requests(60))
	for i, at := range []int{3, 6} {
		replicas.await(t, time.Minute, fmt.Sprintf("it is scaling out, to %d", at), func(n int) bool { return n >= at })
		adapters[i].Kill()
		replicas.await(t, time.Minute, "scaling out goes on", func(n int) bool { return n >= at+2 })
		n := failedSyncs(t, ns, "vllm")
		if n-failed > 1 {
			t.Errorf("%d syncs of the HPA failed when an adapter was killed, want at most one", n-failed)
		}
		failed = n
		service.Remove(adapters[i].Address)
		adapters = append(adapters, startAdapters(t, 1)...) // in its place
	}
	if seen := replicas.since(began); !ascending(seen) {
		t.Errorf("replicas went %v", seen)
	}

	// A rollout with a surge of one: the new one is Ready before an old one goes.
	old := adapters[2:]
	began = time.Now()
	available := watchAvailable(t)
	for _, old := range old {
		startAdapters(t, 1)
		time.Sleep(2 * time.Second) // the Service has found it
		service.Remove(old.Address)
		time.Sleep(5 * time.Second) // the preStop hook of deploy/manifests
		old.Stop()
		time.Sleep(2 * hpaSync)
	}
	if err := available(); err != nil {
		t.Errorf("during the rollout: %v", err)
	}
	if n := failedSyncs(t, ns, "vllm") - failed; n > 0 {
		t.Errorf("%d syncs of the HPA failed during the rollout", n)
	}
	if seen := replicas.since(began); len(seen) != 1 {
		t.Errorf("during the rollout, replicas went %v", seen)
	}
	if c := scalingActive(hpa(t, ns, "vllm")); c.Status != corev1.ConditionTrue {
		t.Errorf("after the rollout: %s: %s", c.Reason, c.Message)
	}
}

// TestColdStart: adapters start while Prometheus is down, with an HPA and without any. They are
// Available, namespaces can be deleted, and nothing scales.
func TestColdStart(t *testing.T) {
	ns := namespace(t)
	startEmulator(t, ns)
	deploy(t, ns, workload{name: "vllm", replicas: 3})
	awaitReady(t, ns, 3)
	replicas := follow(t, ns, "vllm")
	stopPrometheus(t)

	healthy := func(t *testing.T, name string) {
		t.Helper()
		startAdapters(t, 2)
		deleteNamespace(t, namespaceNamed(t, ns+"-"+name))
		throughout(t, 4*hpaSync, "with Prometheus down", func() error {
			if seen := replicas.since(time.Time{}); len(seen) != 1 {
				return fmt.Errorf("replicas went %v", seen)
			}
			return shared.Available(t.Context())
		})
	}

	t.Run("NoHPA", func(t *testing.T) {
		eventually(t, time.Minute, "there is no HPA in the cluster", func() error {
			list, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers("").List(t.Context(), metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%s/%s is there", list.Items[0].Namespace, list.Items[0].Name)
			}
			return err
		})
		healthy(t, "no-hpa")
	})
	t.Run("HPA", func(t *testing.T) {
		autoscale(t, ns, hpaSpec{target: "vllm", min: 1, max: 6, metric: "vllm_queue_depth", average: "5"})
		healthy(t, "hpa")
		_, err := answers(t, ns, "*", "vllm_queue_depth")
		var answer *answerError
		if !errors.As(err, &answer) || answer.status != http.StatusServiceUnavailable || !strings.Contains(answer.body, shared.Prometheus.URL) {
			t.Errorf("the answer is no 503 that names Prometheus: %v", err)
		}
		if n := failedSyncs(t, ns, "vllm"); n < 2 {
			t.Errorf("only %d syncs of the HPA failed: it was not asked", n)
		}
	})
}

// TestAfterOutage: an outage ends that was longer than the HPA remembers and than the window. Its
// first answers after that are acted upon without stabilization: none may be too low, neither of an
// adapter that was there all the time nor of one that has just been started.
func TestAfterOutage(t *testing.T) {
	const (
		stabilization = 10 * time.Second
		needed        = 4
	)
	ns := namespace(t)
	engines := startEmulator(t, ns, "--max-num-seqs=8")
	adapter := startAdapters(t, 1)[0]
	hpas := map[string]hpaSpec{
		"rate":     {metric: "vllm_request_rate", average: "3"},
		"goodput":  {metric: "vllm_goodput", average: "3"},
		"inflight": {metric: "vllm_inflight_requests", average: "3"},
	}
	followed := map[string]*history{}
	for name := range hpas {
		deploy(t, ns, workload{name: name, replicas: needed})
		followed[name] = follow(t, ns, name)
	}
	awaitReady(t, ns, len(hpas)*needed)
	for name := range hpas {
		setLoad(t, engines, name, requests(3*needed))
	}
	for name, spec := range hpas {
		eventually(t, time.Minute, name+" has a whole window of load", func() error {
			items, err := answers(t, ns, "*", spec.metric+"?labelSelector=app%3D"+name)
			if err != nil {
				return err
			}
			sum := 0.0
			for _, item := range items {
				sum += item.Value.AsApproximateFloat64()
			}
			if len(items) != needed || sum < 2.8*needed {
				return fmt.Errorf("%d values, together %g", len(items), sum)
			}
			return nil
		})
	}
	for name, spec := range hpas {
		spec.target, spec.min, spec.max, spec.stabilization = name, 1, needed, stabilization
		autoscale(t, ns, spec)
		awaitActive(t, ns, name)
	}
	steady := func() error {
		for name, h := range followed {
			if seen := h.since(time.Time{}); len(seen) != 1 || seen[0] != needed {
				return fmt.Errorf("replicas of %s went %v under a load that did not change", name, seen)
			}
		}
		return nil
	}

	// A load that is steady over any whole window, but not within one: of the first window after the
	// outage, a part of it would show "rate" and "goodput" a third of their load, and the last
	// instant would show "inflight" the same.
	const steadyRate, lowRate, highRate = 12, 4, 17.3
	rates := func(perSecond float64) {
		setLoad(t, engines, "rate", requests(perSecond))
		setLoad(t, engines, "goodput", requests(perSecond))
	}
	for _, restarted := range []bool{false, true} {
		start := stopPrometheus(t)
		throughout(t, testWindow+hpaSync, "during the outage", steady)
		if restarted {
			service.Remove(adapter.Address)
			adapter.Stop()
			startAdapters(t, 1)
		}
		rates(lowRate)
		start()
		awaitScraped(t, ns, len(hpas)*needed)
		scraped := time.Now()
		for _, step := range []struct {
			until time.Duration // from then on
			then  func()
		}{
			{8 * time.Second, func() { rates(highRate) }},
			{12 * time.Second, func() { setLoad(t, engines, "inflight", requests(lowRate)) }},
			{testWindow, func() { rates(steadyRate) }},
			{testWindow + 6*time.Second, func() { setLoad(t, engines, "inflight", requests(steadyRate)) }},
			{2*testWindow + 2*time.Second, func() {}},
		} {
			throughout(t, time.Until(scraped.Add(step.until)), "after the outage", steady)
			step.then()
		}
		for name := range hpas {
			awaitActive(t, ns, name)
		}
	}

	// What was held up there does follow the load.
	for name := range followed {
		setLoad(t, engines, name, "none")
	}
	for name, h := range followed {
		h.await(t, 2*time.Minute, name+" scales in without load", func(n int) bool { return n == 1 })
	}
}

// stopPrometheus stops Prometheus, and returns what starts it again, at the end of the test at the
// latest.
func stopPrometheus(t *testing.T) (start func()) {
	t.Helper()
	shared.Prometheus.Kill()
	once := sync.OnceFunc(func() {
		if err := shared.Prometheus.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(once)
	return once
}

// awaitScraped waits until Prometheus has fresh samples of that many engines of a namespace.
func awaitScraped(t *testing.T, ns string, n int) {
	t.Helper()
	query := url.Values{"query": {fmt.Sprintf(`count(timestamp({__name__="vllm:num_requests_waiting", namespace=%q}) > time() - 3)`, ns)}}
	eventually(t, time.Minute, "Prometheus scrapes again", func() error {
		resp, err := http.Get(shared.Prometheus.URL + "/api/v1/query?" + query.Encode())
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(body), fmt.Sprintf(`"%d"`, n)) {
			err = fmt.Errorf("it answers %s", body)
		}
		return err
	})
}

// watchAvailable watches the APIServices until the returned function is called, which returns the
// first time that they were not Available.
func watchAvailable(t *testing.T) func() error {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := shared.Available(ctx); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		done <- nil
	}()
	return func() error {
		cancel()
		return <-done
	}
}
