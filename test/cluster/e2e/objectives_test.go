package e2e

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestObjectives: an annotation of a Deployment holds for its pods as soon as it is there, and only for
// them; without it the configuration holds again; the query's selector comes before both; and an
// annotation that cannot be read is counted, and changes nothing.
func TestObjectives(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	engines := startEmulator(t, ns)
	adapter := startAdapters(t, 1)[0]
	deploy(t, ns, workload{name: "vllm", replicas: 2})
	deploy(t, ns, workload{name: "other", replicas: 1})
	before := awaitReady(t, ns, 3)
	// A first token takes a step of 20 ms: within the 2.5 s of the configuration, and not within 10 ms.
	setLoad(t, engines, "vllm", requests(4))
	setLoad(t, engines, "other", requests(2))

	// ask returns the goodput of the Deployment and of each pod of it, which have to agree, and of the
	// other one.
	ask := func(selector string) (of, other float64, err error) {
		if selector != "" {
			selector = "?metricLabelSelector=" + selector
		}
		goodput := func(object string) (float64, error) {
			v, err := answerAt(t, "namespaces/"+ns+"/"+object+"/vllm_goodput"+selector)
			return v.Value.AsApproximateFloat64(), err
		}
		if of, err = goodput("deployments.apps/vllm"); err != nil {
			return 0, 0, err
		}
		if other, err = goodput("deployments.apps/other"); err != nil {
			return 0, 0, err
		}
		for _, pod := range before {
			if pod.Labels["app"] != "vllm" {
				continue
			}
			v, err := goodput("pods/" + pod.Name)
			if err != nil {
				return 0, 0, err
			}
			if (v == 0) != (of == 0) {
				return 0, 0, fmt.Errorf("%g of pod %s, and %g of its Deployment", v, pod.Name, of)
			}
		}
		return of, other, nil
	}
	becomes := func(what, selector string, want float64) {
		t.Helper()
		eventually(t, time.Minute, what, func() error {
			of, other, err := ask(selector)
			if err == nil && (math.Abs(of-want) > want/4 || math.Abs(other-2) > 0.5) {
				err = fmt.Errorf("goodput is %g, want about %g; that of the other Deployment is %g, want about 2", of, want, other)
			}
			return err
		})
	}
	// stays watches for longer than it takes to see an annotation.
	stays := func(what, selector string, want float64) {
		t.Helper()
		becomes(what, selector, want)
		throughout(t, 5*time.Second, what, func() error {
			of, _, err := ask(selector)
			if err == nil && math.Abs(of-want) > want/4 {
				err = fmt.Errorf("goodput is %g, want about %g", of, want)
			}
			return err
		})
	}
	annotate := func(objective string) {
		t.Helper()
		kubectl(t, "annotate", "deployment", "-n", ns, "vllm", "--overwrite", "inference-metrics.github.io/slo-"+objective)
	}
	unreadable := func(want string) {
		t.Helper()
		series := fmt.Sprintf("inference_metrics_adapter_unreadable_objectives{namespace=%q} ", ns)
		eventually(t, time.Minute, series+want, func() error {
			got := sampleOf(t, adapter, series)
			if got != want {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
	}

	stays("all requests are good by the configuration", "", 4)
	annotate("ttft=10ms")
	stays("no request is good by the annotation", "", 0)
	becomes("the selector comes before the annotation", "ttft%3D2500ms", 4)
	eventually(t, time.Minute, "the selector holds for whoever has no annotation", func() error {
		of, other, err := ask("ttft%3D10ms")
		if err == nil && (of != 0 || other != 0) {
			err = fmt.Errorf("goodput is %g and %g", of, other)
		}
		return err
	})
	unreadable("")

	annotate("ttft=fast")
	unreadable("2")
	stays("an annotation that cannot be read is none", "", 4)
	annotate("tpot=10ms") // a token takes 20 ms
	stays("another one beside it holds", "", 0)
	unreadable("2")
	annotate("tpot-")
	annotate("ttft=10ms")
	becomes("it can be read again", "", 0)
	unreadable("")
	annotate("ttft-")
	stays("the configuration holds again", "", 4)

	// All that without a restart.
	after := awaitReady(t, ns, 3)
	for _, pod := range before {
		if !slices.ContainsFunc(after, func(p corev1.Pod) bool { return p.UID == pod.UID }) {
			t.Errorf("pod %s was replaced", pod.Name)
		}
	}
	if adapter.Exited() {
		t.Error("the adapter has ended")
	}
}

// sampleOf returns the value of a series of an adapter's own metrics, given up to the value; "" for none.
func sampleOf(t *testing.T, a *cluster.Adapter, series string) string {
	t.Helper()
	resp := get(t, directly(a), "/metrics", "text/plain")
	if resp.status != http.StatusOK {
		t.Fatalf("the adapter's metrics: %d %s", resp.status, resp.body)
	}
	for line := range strings.Lines(string(resp.body)) {
		if value, ok := strings.CutPrefix(line, series); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
