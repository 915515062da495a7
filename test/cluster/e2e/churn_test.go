package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
)

// TestChurn: targets, pods and engines come and go under a load that all of them have too much of.
// So every true queue depth is well above zero, and every true request rate about what an engine
// can do. What is not known is left out.
func TestChurn(t *testing.T) {
	const serves = 4.0 // requests per second and replica
	ns := namespace(t)
	engines := startEmulator(t, ns)
	startAdapters(t, 1)
	deploy(t, ns, workload{name: "vllm", replicas: 3, startDelay: 5 * time.Second, deleteDelay: 20 * time.Second})
	pods := awaitReady(t, ns, 3)
	down, deleted, restarted := pods[0].Name, pods[1].Name, pods[2].Name
	setLoad(t, engines, "vllm", requests(60))
	values := func(metric string) map[string]float64 {
		t.Helper()
		items, err := answers(t, ns, "*", metric)
		if err != nil {
			return nil
		}
		out := map[string]float64{}
		for _, item := range items {
			out[item.DescribedObject.Name] = item.Value.AsApproximateFloat64()
		}
		return out
	}
	eventually(t, 2*time.Minute, "all replicas have a queue, and a whole window of load", func() error {
		queues, rates := values("vllm_queue_depth"), values("vllm_request_rate")
		for i := range pods {
			if name := pods[i].Name; queues[name] < 10 || rates[name] < serves-0.2 {
				return fmt.Errorf("queues %v, rates %v", queues, rates)
			}
		}
		return nil
	})
	queues, rates := watchAnswers(t, ns, "vllm_queue_depth"), watchAnswers(t, ns, "vllm_request_rate")

	// A target goes down: the pod is left out, and the others stay.
	act(t, engines, down, "down")
	eventually(t, 30*time.Second, "the pod whose target is down is left out", func() error {
		for _, metric := range []string{"vllm_queue_depth", "vllm_request_rate"} {
			got := values(metric)
			if _, there := got[down]; there || len(got) != 2 {
				return fmt.Errorf("%s: %v", metric, got)
			}
		}
		if _, err := answer(t, ns, down, "vllm_queue_depth"); !isStatus(err, http.StatusNotFound) {
			return fmt.Errorf("asked for alone: %w", err)
		}
		return nil
	})
	act(t, engines, down, "up")
	eventually(t, 30*time.Second, "it is back", func() error {
		if got := values("vllm_queue_depth"); got[down] < 1 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})

	// A pod is deleted: it is out at once, while it still terminates and its samples are fresh. The
	// one in its place has no series at first, and is out until it has.
	if err := shared.Client.CoreV1().Pods(ns).Delete(t.Context(), deleted, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the deleted pod is left out", func() error {
		if got := values("vllm_queue_depth"); len(got) != 2 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	if _, err := answer(t, ns, deleted, "vllm_queue_depth"); !isStatus(err, http.StatusNotFound) {
		t.Errorf("the deleted pod, asked for alone: %v", err)
	}
	if pod, err := shared.Client.CoreV1().Pods(ns).Get(t.Context(), deleted, metav1.GetOptions{}); err != nil || pod.DeletionTimestamp == nil {
		t.Errorf("it should have been terminating still: %v", err)
	}
	var fresh string
	eventually(t, 30*time.Second, "a new pod runs", func() error {
		for _, r := range replicas(t, engines, "vllm") {
			if !slices.Contains([]string{down, deleted, restarted}, r.Name) {
				fresh = r.Name
				return engines.Act(t.Context(), fresh, "down")
			}
		}
		return fmt.Errorf("there is none yet")
	})
	eventually(t, 30*time.Second, "the new pod is Ready", func() error {
		pod, err := shared.Client.CoreV1().Pods(ns).Get(t.Context(), fresh, metav1.GetOptions{})
		if err == nil && !isReady(pod) {
			err = fmt.Errorf("it is not")
		}
		return err
	})
	throughout(t, 5*time.Second, "the new pod has no series", func() error {
		if got := values("vllm_queue_depth"); len(got) != 2 {
			return fmt.Errorf("%v", got)
		}
		if _, err := answer(t, ns, fresh, "vllm_queue_depth"); !isStatus(err, http.StatusNotFound) {
			return fmt.Errorf("asked for alone: %w", err)
		}
		return nil
	})
	act(t, engines, fresh, "up")
	eventually(t, 30*time.Second, "the new pod has a value", func() error {
		if got := values("vllm_queue_depth"); got[fresh] < 1 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})

	// An engine restarts: its counters begin at zero again. The rate is what it finished, over the
	// window: never negative, never a leap, and no less than the time that it was away explains.
	depths := queues.all() // the restarted one's queue is lost, so that a zero will be true
	const away = 3 * time.Second
	act(t, engines, restarted, "restart?downtime="+away.String())
	// Two seconds more until the first requests are finished, and half of one in sampling times.
	least := serves * (1 - (away+2500*time.Millisecond).Seconds()/testWindow.Seconds())
	before := rates.count(restarted)
	time.Sleep(testWindow + 10*time.Second)
	if n := rates.count(restarted) - before; n < 20 {
		t.Errorf("only %d answers had a rate after the restart", n)
	}
	for pod, seen := range rates.all() {
		low := least
		if pod == fresh || pod == down {
			low = 0 // it had nothing to do at first
		}
		if slices.Min(seen) <= 0 || slices.Min(seen) < low || slices.Max(seen) > serves*1.1 {
			t.Errorf("rates of %g to %g were answered for %s; want %g to %g", slices.Min(seen), slices.Max(seen), pod, low, serves*1.1)
		}
	}

	for pod, seen := range depths {
		if pod == fresh {
			continue // nobody waited there at first
		}
		if least := slices.Min(seen); least < 1 {
			t.Errorf("a queue depth of %g was answered for %s, which always had one", least, pod)
		}
	}
	if len(depths[down]) == 0 || len(depths[deleted]) == 0 {
		t.Errorf("the answers were not watched: %d pods", len(depths))
	}
}

// watched collects every value that is answered, by pod.
type watched struct {
	mu     sync.Mutex
	values map[string][]float64
}

func (w *watched) count(pod string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.values[pod])
}

func (w *watched) all() map[string][]float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string][]float64{}
	for pod, values := range w.values {
		if len(values) > 0 {
			out[pod] = slices.Clone(values)
		}
	}
	return out
}

// watchAnswers asks for a metric of all pods several times a second, until the test ends.
func watchAnswers(t *testing.T, ns, metric string) *watched {
	t.Helper()
	client, err := rest.HTTPClientFor(shared.Config)
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("%s/apis/%s/v1beta2/namespaces/%s/pods/*/%s", shared.Config.Host, group, ns, metric)
	w := &watched{values: map[string][]float64{}}
	ctx := t.Context()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				panic(err) // the URL is ours
			}
			resp, err := client.Do(req)
			if err != nil {
				continue
			}
			var list v1beta2.MetricValueList
			err = json.NewDecoder(resp.Body).Decode(&list)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				continue // an error is no false zero
			}
			w.mu.Lock()
			for _, item := range list.Items {
				pod := item.DescribedObject.Name
				w.values[pod] = append(w.values[pod], item.Value.AsApproximateFloat64())
			}
			w.mu.Unlock()
		}
	}()
	return w
}
