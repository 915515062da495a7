package provider

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/pods"
)

const queueDepth = "vllm_queue_depth"

func info(resource, metric string) provider.CustomMetricInfo {
	return provider.CustomMetricInfo{GroupResource: schema.ParseGroupResource(resource), Namespaced: resource != "namespaces", Metric: metric}
}

func selector(t *testing.T, s string) labels.Selector {
	t.Helper()
	parsed, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// fleet has pods in every condition that matters. All of them have samples, but for silent and nan.
func fleet(err error) (*gauges, pods.Lister) {
	src := &gauges{err: err, values: map[string]map[string]float64{
		"busy": queue(7), "idle": queue(0), "lost": queue(40), "cold": queue(3), "dying": queue(9), "replaced": queue(5), "prefill": queue(1),
		"nan": {"vllm:num_requests_waiting": math.NaN()},
	}}
	app := func(name string) func(*pods.Pod) {
		return func(p *pods.Pod) { p.Labels = labels.Set{"app": name} }
	}
	return src, pods.NewStatic([]*pods.Pod{
		pod("busy", nil),
		pod("idle", nil),
		pod("lost", func(p *pods.Pod) { p.Ready = false }),
		pod("cold", func(p *pods.Pod) { p.Ready, p.WasReady = false, false }),
		pod("dying", func(p *pods.Pod) { p.Gone = true }),
		pod("silent", nil),
		pod("nan", nil),
		pod("prefill", app("prefill")),
		pod("silent-too", app("quiet")),
		pod("cold-too", func(p *pods.Pod) { app("quiet")(p); p.WasReady = false }),
		pod("cold-three", func(p *pods.Pod) { app("quiet")(p); p.WasReady = false }),
		pod("only-cold", func(p *pods.Pod) { app("starting")(p); p.WasReady = false }),
	})
}

func TestOnePod(t *testing.T) {
	src, lister := fleet(nil)
	f := snapshotOf(t, src, lister, queueDepth)
	p := ofPods(f, lister)
	got, err := p.GetMetricByName(t.Context(), types.NamespacedName{Namespace: "serving", Name: "busy"}, info("pods", queueDepth), labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	want := &custom_metrics.MetricValue{
		DescribedObject: custom_metrics.ObjectReference{Kind: "Pod", Namespace: "serving", Name: "busy", APIVersion: "v1"},
		Metric:          custom_metrics.MetricIdentifier{Name: queueDepth},
		Timestamp:       metav1.NewTime(src.at),
		Value:           resource.MustParse("7"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{queueDepth}, f.asked); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
}

func TestOnePodWithoutValue(t *testing.T) {
	for _, tc := range []struct {
		name     string
		source   error
		pod      string
		resource string
		metric   string
		selector string
		code     int
		message  []string
		unasked  bool
	}{
		{name: "unknown pod", pod: "nobody", code: 404, message: []string{"there is no pod nobody in namespace serving"}},
		{name: "unknown metric", pod: "busy", metric: "vllm_nonsense", code: 404, unasked: true,
			message: []string{"there is no metric vllm_nonsense", "kubectl get --raw /apis/custom.metrics.k8s.io/v1beta2"}},
		{name: "other object", pod: "busy", resource: "deployments.apps", code: 404, unasked: true,
			message: []string{"is not served on deployments.apps: signals are served on pods"}},
		{name: "namespace", pod: "busy", resource: "namespaces", code: 404, unasked: true,
			message: []string{"is not served on namespaces"}},
		{name: "no such label", pod: "busy", selector: "tenant=a", code: 400, unasked: true,
			message: []string{"tenant: vllm_queue_depth has neither a parameter nor a label of that name; it has role, window, engine, model, model_name, reason"}},
		{name: "another query", pod: "busy", selector: "model=llama", code: 503, message: []string{"vllm_queue_depth is warming up"}},
		{name: "never Ready", pod: "cold", code: 404, message: []string{"vllm_queue_depth", "pod cold", "warming up (never Ready)"}},
		{name: "never Ready, source down", source: errDown, pod: "cold", code: 404, message: []string{"warming up (never Ready)"}},
		{name: "being deleted", pod: "dying", code: 404, message: []string{"being deleted, or ended"}},
		{name: "no samples", pod: "silent", code: 404, message: []string{"no value of vllm_queue_depth for pod silent in namespace serving", "no sample"}},
		{name: "no samples, source down", source: errDown, pod: "silent", code: 503,
			message: []string{"the source cannot be read: the test's source: connection refused"}},
		{name: "not a number", pod: "nan", code: 404, message: []string{"no value of vllm_queue_depth"}},
		{name: "not collected", pod: "busy", metric: "vllm_kv_cache_usage", code: 503,
			message: []string{"vllm_kv_cache_usage is warming up", "ask again in 3600 s"}},
		{name: "not collected, source down", source: errDown, pod: "busy", metric: "vllm_kv_cache_usage", code: 503,
			message: []string{"not collected yet", "the source cannot be read: the test's source: connection refused"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.metric == "" {
				tc.metric = queueDepth
			}
			if tc.resource == "" {
				tc.resource = "pods"
			}
			src, lister := fleet(tc.source)
			f := snapshotOf(t, src, lister, queueDepth)
			got, err := ofPods(f, lister).GetMetricByName(t.Context(), types.NamespacedName{Namespace: "serving", Name: tc.pod}, info(tc.resource, tc.metric), selector(t, tc.selector))
			if got != nil {
				t.Errorf("got %v", got)
			}
			checkError(t, err, tc.code, tc.message...)
			if asked := len(f.asked) == 1 && f.asked[0] == tc.metric; asked == tc.unasked {
				t.Errorf("asked the collector for %v", f.asked)
			}
		})
	}
}

func TestSelectedPods(t *testing.T) {
	for _, tc := range []struct {
		name      string
		source    error
		namespace string
		selector  string
		want      string
		code      int
		message   []string
	}{
		{name: "those with a value", selector: "app=vllm", want: "busy=7 idle=0 lost=40"},
		{name: "what is fresh outlives the source for a while", source: errDown, selector: "app=vllm", want: "busy=7 idle=0 lost=40"},
		{name: "all", selector: "", want: "busy=7 idle=0 lost=40 prefill=1"},
		{name: "another namespace", namespace: "other", selector: "", want: ""},
		{name: "nothing selected", selector: "app=none", want: ""},
		{name: "none has a value", selector: "app=quiet", code: 404,
			message: []string{"no value of vllm_queue_depth for any of the pods selected (3) in namespace serving: 2 warming up (never Ready), 1 the source has no sample of"}},
		{name: "none has a value, source down", source: errDown, selector: "app=quiet", code: 503,
			message: []string{"for any of the pods selected (3)", "2 warming up (never Ready)", "the source cannot be read: the test's source: connection refused"}},
		{name: "all are starting, source down", source: errDown, selector: "app=starting", code: 404,
			message: []string{"for any of the pods selected (1)", "warming up (never Ready)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.namespace == "" {
				tc.namespace = "serving"
			}
			src, lister := fleet(tc.source)
			got, err := ofPods(snapshotOf(t, src, lister, queueDepth), lister).
				GetMetricBySelector(t.Context(), tc.namespace, selector(t, tc.selector), info("pods", queueDepth), labels.Everything())
			if tc.code != 0 {
				if got != nil {
					t.Errorf("got %v", got)
				}
				checkError(t, err, tc.code, tc.message...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var items []string
			for _, i := range got.Items {
				items = append(items, i.DescribedObject.Name+"="+i.Value.String())
			}
			if diff := cmp.Diff(tc.want, strings.Join(items, " ")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Items == nil {
				t.Error("no items must be an empty list, not null")
			}
		})
	}
}

func TestSelectedPodsBeforeTheFirstSnapshot(t *testing.T) {
	src, lister := fleet(nil)
	p := ofPods(snapshotOf(t, src, lister), lister)
	_, err := p.GetMetricBySelector(t.Context(), "serving", labels.Everything(), info("pods", queueDepth), labels.Everything())
	checkError(t, err, 503, "vllm_queue_depth is warming up")
	_, err = p.GetMetricBySelector(t.Context(), "", labels.Everything(), provider.CustomMetricInfo{GroupResource: podResource, Metric: queueDepth}, labels.Everything())
	checkError(t, err, 404, "namespaces/NAMESPACE/pods")
}

// A pod that took the name of another must not answer with the other's samples.
func TestReplacedPod(t *testing.T) {
	src, lister := fleet(nil)
	f := snapshotOf(t, src, lister, queueDepth)
	now := pods.NewStatic([]*pods.Pod{pod("busy", func(p *pods.Pod) { p.UID = "another" })})
	_, err := ofPods(f, now).GetMetricBySelector(t.Context(), "serving", labels.Everything(), info("pods", queueDepth), labels.Everything())
	checkError(t, err, 404, "not there yet")
}

func TestSeconds(t *testing.T) {
	for _, tc := range []struct {
		window time.Duration
		want   int64
	}{{0, 0}, {time.Millisecond, 1}, {time.Minute, 60}, {59600 * time.Millisecond, 60}} {
		var got int64
		if s := seconds(tc.window); s != nil {
			got = *s
		}
		if got != tc.want {
			t.Errorf("seconds(%s) = %d, want %d (0: none)", tc.window, got, tc.want)
		}
	}
}

func TestReasonsAreCounted(t *testing.T) {
	var r reasons
	for i := range 5 {
		r.add(absence{reason: fmt.Sprintf("the newest sample is %d s old", 30+i), data: true})
	}
	r.add(absence{reason: "warming up"})
	r.add(absence{reason: "warming up"})
	want := "2 warming up, 1 the newest sample is 30 s old, 1 the newest sample is 31 s old, 3 for other reasons"
	if diff := cmp.Diff(want, r.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEverySignalIsListed(t *testing.T) {
	src, lister := fleet(nil)
	var got []string
	for _, i := range ofPods(snapshotOf(t, src, lister), lister).ListAllMetrics() {
		if i != info("pods", i.Metric) {
			t.Errorf("listed %v", i)
		}
		got = append(got, i.Metric)
	}
	if diff := cmp.Diff(onPods(), got); len(got) == 0 || diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func checkError(t *testing.T, err error, code int, message ...string) {
	t.Helper()
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("got %v, which is no API status; want a %d", err, code)
	}
	if got := status.Status().Code; int(got) != code {
		t.Errorf("got a %d, want a %d: %v", got, code, err)
	}
	for _, m := range message {
		if !strings.Contains(err.Error(), m) {
			t.Errorf("message %q does not say %q", err, m)
		}
	}
	// client-go would sleep on it inside the HPA controller.
	if d := status.Status().Details; d != nil && d.RetryAfterSeconds != 0 {
		t.Errorf("retryAfterSeconds is %d", d.RetryAfterSeconds)
	}
}
