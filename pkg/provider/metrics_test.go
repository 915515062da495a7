package provider

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/inference-metrics/adapter/internal/pods"
)

// Each pod and object that was asked for counts once, in the state it was in, however it was asked for.
func TestAnswersAreCounted(t *testing.T) {
	w := newWorld(t, nil)
	h := newHandler(t, w.Provider)
	for _, path := range []string{
		"custom.metrics.k8s.io/v1beta2/namespaces/serving/pods/*/vllm_queue_depth", // what does not count is left out
		"custom.metrics.k8s.io/v1beta2/namespaces/serving/pods/a/vllm_queue_depth",
		"custom.metrics.k8s.io/v1beta2/namespaces/serving/deployments.apps/third/vllm_queue_depth",
		"external.metrics.k8s.io/v1beta1/namespaces/serving/vllm_queue_depth",
		"custom.metrics.k8s.io/v1beta2/namespaces/serving/pods/a/nonsense",
	} {
		get(h, "/apis/"+path, "application/json")
	}
	const want = `
# HELP inference_metrics_adapter_answers_total Pods and objects of which a signal was asked for, by the signal and by the state it was in: value, idle, stalled or unknown.
# TYPE inference_metrics_adapter_answers_total counter
inference_metrics_adapter_answers_total{signal="vllm_queue_depth",state="idle"} 2
inference_metrics_adapter_answers_total{signal="vllm_queue_depth",state="unknown"} 4
inference_metrics_adapter_answers_total{signal="vllm_queue_depth",state="value"} 6
`
	reg := prometheus.NewRegistry()
	reg.MustRegister(w.Collectors()...)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// exposed returns the series that a provider shows of some signals.
func exposed(t *testing.T, p *Provider, names ...string) []string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewExposition(p, plans(t, names...)))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	lines := slices.Collect(strings.Lines(text.String()))
	return slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#") })
}

// What is unknown has no value, least of all 0, and says that it is unknown. What nobody would expect to
// have the signal is not there at all: a pod that was never Ready or has gone, a router, another engine. Of a
// pod that is silent nobody knows which engine it runs.
func TestExposition(t *testing.T) {
	w := newWorld(t, nil, queueDepth, "sglang_queue_depth")
	const want = `
inference_object_replicas{name="apart",namespace="serving",resource="deployments.apps"} 2
inference_object_replicas{name="half",namespace="serving",resource="deployments.apps"} 2
inference_object_replicas{name="idle",namespace="serving",resource="deployments.apps"} 2
inference_object_replicas{name="idle-half",namespace="serving",resource="deployments.apps"} 2
inference_object_replicas{name="routed",namespace="serving",resource="deployments.apps"} 2
inference_object_replicas{name="routed",namespace="serving",resource="services"} 1
inference_object_replicas{name="siblings",namespace="serving",resource="services"} 2
inference_object_replicas{name="starting",namespace="serving",resource="deployments.apps"} 1
inference_object_replicas{name="third",namespace="serving",resource="deployments.apps"} 3
inference_object_replicas{name="unseen",namespace="serving",resource="services"} 2
inference_object_replicas{name="whole",namespace="serving",resource="deployments.apps"} 2
inference_object_replicas{name="whole",namespace="serving",resource="rollouts.argoproj.io"} 2
inference_object_signal{name="apart",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth"} 7
inference_object_signal{name="half",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth"} 6
inference_object_signal{name="idle",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth"} 0
inference_object_signal{name="routed",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth"} 6
inference_object_signal{name="routed",namespace="serving",resource="services",signal="vllm_queue_depth"} 3
inference_object_signal{name="siblings",namespace="serving",resource="services",signal="vllm_queue_depth"} 6
inference_object_signal{name="starting",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth"} 3
inference_object_signal{name="whole",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth"} 7
inference_object_signal{name="whole",namespace="serving",resource="rollouts.argoproj.io",signal="vllm_queue_depth"} 7
inference_object_signal_state{name="apart",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="half",namespace="serving",resource="deployments.apps",signal="sglang_queue_depth",state="unknown"} 1
inference_object_signal_state{name="half",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="idle",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="idle"} 1
inference_object_signal_state{name="idle-half",namespace="serving",resource="deployments.apps",signal="sglang_queue_depth",state="unknown"} 1
inference_object_signal_state{name="idle-half",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="unknown"} 1
inference_object_signal_state{name="routed",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="routed",namespace="serving",resource="services",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="siblings",namespace="serving",resource="services",signal="sglang_queue_depth",state="unknown"} 1
inference_object_signal_state{name="siblings",namespace="serving",resource="services",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="starting",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="third",namespace="serving",resource="deployments.apps",signal="sglang_queue_depth",state="unknown"} 1
inference_object_signal_state{name="third",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="unknown"} 1
inference_object_signal_state{name="unseen",namespace="serving",resource="services",signal="vllm_queue_depth",state="unknown"} 1
inference_object_signal_state{name="whole",namespace="serving",resource="deployments.apps",signal="vllm_queue_depth",state="value"} 1
inference_object_signal_state{name="whole",namespace="serving",resource="rollouts.argoproj.io",signal="vllm_queue_depth",state="value"} 1
inference_signal{namespace="serving",pod="a",signal="vllm_queue_depth"} 3
inference_signal{namespace="serving",pod="b",signal="vllm_queue_depth"} 4
inference_signal{namespace="serving",pod="decode",signal="vllm_queue_depth"} 5
inference_signal{namespace="serving",pod="idle",signal="vllm_queue_depth"} 0
inference_signal{namespace="serving",pod="idle-too",signal="vllm_queue_depth"} 0
inference_signal{namespace="serving",pod="prefill",signal="vllm_queue_depth"} 2
inference_signal_state{namespace="serving",pod="a",signal="vllm_queue_depth",state="value"} 1
inference_signal_state{namespace="serving",pod="b",signal="vllm_queue_depth",state="value"} 1
inference_signal_state{namespace="serving",pod="decode",signal="vllm_queue_depth",state="value"} 1
inference_signal_state{namespace="serving",pod="idle",signal="vllm_queue_depth",state="idle"} 1
inference_signal_state{namespace="serving",pod="idle-too",signal="vllm_queue_depth",state="idle"} 1
inference_signal_state{namespace="serving",pod="prefill",signal="vllm_queue_depth",state="value"} 1
inference_signal_state{namespace="serving",pod="silent",signal="sglang_queue_depth",state="unknown"} 1
inference_signal_state{namespace="serving",pod="silent",signal="vllm_queue_depth",state="unknown"} 1
`
	got := "\n" + strings.Join(exposed(t, w.Provider, queueDepth, "sglang_queue_depth"), "")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// A gather asks for the signals, as a request would, so that they are there at the next.
func TestExpositionAsks(t *testing.T) {
	w := newWorld(t, nil)
	if got := exposed(t, w.Provider, "vllm_running_requests", queueDepth); len(got) == 0 || strings.Contains(strings.Join(got, ""), "vllm_running_requests") {
		t.Errorf("a signal that is not collected yet has series, or the other has none: %q", got)
	}
	if diff := cmp.Diff([]string{"vllm_running_requests", queueDepth}, w.f.asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
}

// An InferencePool has its signals also where none of its pods is there: that is when they are wanted.
func TestExpositionOfPools(t *testing.T) {
	const metric = "pool_queue_depth"
	src := &gauges{}
	lister := pods.NewStatic([]*pods.Pod{pod("picker", nil)})
	pool := pods.Object{GroupResource: pools[0], Namespace: "serving", Name: "llama"}
	p := New(Config{Snapshots: snapshotOf(t, src, lister, metric), Pods: lister,
		Groups: &objects{kinds: pools, byName: map[pods.Object]group{pool: {labels: labels.Set{}}}}})
	want := []string{`inference_object_signal_state{name="llama",namespace="serving",resource="inferencepools.inference.networking.k8s.io",signal="` + metric + `",state="unknown"} 1` + "\n"}
	if diff := cmp.Diff(want, exposed(t, p, metric)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}
