package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestSources: an adapter on Prometheus and one that scrapes by itself answer alike for the same
// engines at the same instant.
func TestSources(t *testing.T) {
	t.Parallel()
	const perSecond = 6 // on two replicas that serve four each
	ns := namespace(t)
	engines := startEmulator(t, ns)
	deploy(t, ns, workload{name: "vllm", replicas: 2})
	pods := awaitReady(t, ns, 2)
	targets := []string{"--scrape-interval=1s"}
	for i := range pods {
		targets = append(targets, fmt.Sprintf("--target=%s/%s=%s", ns, pods[i].Name, engineURL(&pods[i])))
	}
	both := map[string]*cluster.Adapter{
		"prometheus": newAdapter(t, "--prometheus-url="+shared.Prometheus.URL),
		"scrape":     newAdapter(t, targets...),
	}
	setLoad(t, engines, "vllm", requests(perSecond))

	// ask asks both at once, for all pods.
	ask := func(metric string) (map[string]map[string]float64, error) {
		type reply struct {
			source string
			values map[string]float64
			err    error
		}
		replies := make(chan reply)
		for source, a := range both {
			go func() {
				values, err := askDirectly(t, a, ns, metric)
				replies <- reply{source, values, err}
			}()
		}
		all := map[string]map[string]float64{}
		var failed error
		for range both {
			r := <-replies
			if r.err != nil {
				failed = fmt.Errorf("%s of %s: %w", metric, r.source, r.err)
			} else if len(r.values) != len(pods) {
				failed = fmt.Errorf("%s of %s has %d values", metric, r.source, len(r.values))
			}
			all[r.source] = r.values
		}
		return all, failed
	}

	rates := []string{"vllm_request_rate", "vllm_goodput", "vllm_goodput_upper"}
	quantiles := []string{"vllm_ttft_p50_seconds", "vllm_ttft_p90_seconds", "vllm_ttft_p95_seconds", "vllm_ttft_p99_seconds"}
	gauges := []string{"vllm_queue_depth", "vllm_running_requests", "vllm_inflight_requests", "vllm_kv_cache_usage"}
	for _, metric := range append(append(rates, quantiles...), gauges...) {
		eventually(t, time.Minute, metric+" is known to both", func() error {
			_, err := ask(metric)
			return err
		})
	}
	// Until the windows hold nothing of the start.
	time.Sleep(testWindow + 5*time.Second)

	// Two scrapes of one second are up to a second apart, at both ends of a window of twenty: of
	// the 60 requests that a replica finishes in it, some 6 are in one window and not the other.
	rateTolerance := 2 * float64(perSecond) / 2 / testWindow.Seconds()
	for range 5 {
		for _, metric := range rates {
			compare(t, ask, metric, rateTolerance)
		}
		// A steady load: the same buckets are filled, in shares that differ by as much.
		for _, metric := range quantiles {
			compare(t, ask, metric, 0.02)
		}
		time.Sleep(time.Second)
	}

	// Hung engines keep their gauges: no sampling time explains a difference.
	setLoad(t, engines, "vllm", requests(20))
	eventually(t, time.Minute, "requests wait", func() error {
		if n := waiting(t, engines, "vllm"); n < 20 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	for i := range pods {
		act(t, engines, pods[i].Name, "freeze")
	}
	time.Sleep(5 * time.Second)
	for _, metric := range gauges {
		compare(t, ask, metric, 0)
	}
	values, err := ask("vllm_queue_depth")
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		want := exported(t, &pods[i], "vllm:num_requests_waiting")
		if got := values["scrape"][pods[i].Name]; got != want || want == 0 {
			t.Errorf("queue depth of %s is %g, the engine exports %g", pods[i].Name, got, want)
		}
	}
}

// compare holds both sources to each other for every pod.
func compare(t *testing.T, ask func(string) (map[string]map[string]float64, error), metric string, tolerance float64) {
	t.Helper()
	values, err := ask(metric)
	if err != nil {
		t.Error(err)
		return
	}
	for pod, a := range values["prometheus"] {
		b, ok := values["scrape"][pod]
		if !ok || math.Abs(a-b) > tolerance+1e-9 {
			t.Errorf("%s of %s: %g on prometheus and %g scraped, more than %g apart", metric, pod, a, b, tolerance)
		}
	}
}

// askDirectly asks an adapter past the API server, as an administrator.
func askDirectly(t *testing.T, a *cluster.Adapter, ns, metric string) (map[string]float64, error) {
	resp := get(t, directly(a), fmt.Sprintf("/apis/%s/v1beta2/namespaces/%s/pods/*/%s", group, ns, metric), "application/json")
	if resp.status != http.StatusOK {
		return nil, &answerError{resp.status, string(resp.body)}
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal(resp.body, &list); err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, item := range list.Items {
		values[item.DescribedObject.Name] = item.Value.AsApproximateFloat64()
	}
	return values, nil
}

// directly is the configuration of an administrator's client of an adapter.
func directly(a *cluster.Adapter) *rest.Config {
	config := rest.CopyConfig(shared.Config)
	config.Host = "https://" + a.Address
	config.TLSClientConfig.CAData = shared.AdapterCA()
	return config
}
