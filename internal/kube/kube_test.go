package kube

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/inference-metrics/adapter/internal/pods"
)

var start = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "serving", Name: name, UID: types.UID(name + "-uid"),
			Labels:      map[string]string{"app": "vllm"},
			Annotations: map[string]string{"long": "text"},
		},
		Spec: corev1.PodSpec{NodeName: "gpu-0"},
		Status: corev1.PodStatus{
			Phase:     corev1.PodRunning,
			StartTime: &metav1.Time{Time: start},
			PodIP:     "127.0.0.2",
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func ready(status corev1.ConditionStatus, after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(time.Hour))},
			{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(start.Add(after))},
		}
	}
}

func TestConvert(t *testing.T) {
	view := func(change func(*pods.Pod)) *pods.Pod {
		p := &pods.Pod{
			NamespacedName: types.NamespacedName{Namespace: "serving", Name: "p"},
			UID:            "p-uid",
			Labels:         labels.Set{"app": "vllm"},
			Variant:        convert(pod("p", nil)).Variant,
			Start:          start,
		}
		change(p)
		return p
	}
	for _, tc := range []struct {
		name string
		pod  func(*corev1.Pod)
		want func(*pods.Pod)
	}{
		{"without conditions", nil, func(*pods.Pod) {}},
		{"pending, not taken by a kubelet", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} },
			func(p *pods.Pod) { p.Start = time.Time{} }},
		{"Ready", ready(corev1.ConditionTrue, time.Minute),
			func(p *pods.Pod) { p.Ready, p.ReadySince, p.WasReady = true, start.Add(time.Minute), true }},
		{"Ready at once", ready(corev1.ConditionTrue, 0),
			func(p *pods.Pod) { p.Ready, p.ReadySince, p.WasReady = true, start, true }},
		{"never Ready: the condition keeps the time of its birth", ready(corev1.ConditionFalse, time.Second),
			func(p *pods.Pod) { p.ReadySince = start.Add(time.Second) }},
		{"lost Ready under load", ready(corev1.ConditionFalse, 11*time.Second),
			func(p *pods.Pod) { p.ReadySince, p.WasReady = start.Add(11*time.Second), true }},
		{"node gone silent", ready(corev1.ConditionUnknown, time.Hour),
			func(p *pods.Pod) { p.ReadySince, p.WasReady = start.Add(time.Hour), true }},
		{"being deleted", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} },
			func(p *pods.Pod) { p.Gone = true }},
		{"failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
			func(p *pods.Pod) { p.Gone = true }},
		{"succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
			func(p *pods.Pod) { p.Gone = true }},
		{"controlled", func(p *corev1.Pod) {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{UID: "a friend"}, {UID: "the-replicaset", Controller: &yes}}
		}, func(p *pods.Pod) { p.Owner = "the-replicaset" }},
		{"owned, but not controlled", func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{UID: "a friend"}} },
			func(*pods.Pod) {}},
		{"with annotations of ours", func(p *corev1.Pod) { p.Annotations["inference-metrics.github.io/ttft"] = "1s" },
			func(p *pods.Pod) { p.Annotations = map[string]string{"inference-metrics.github.io/ttft": "1s"} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			object := pod("p", tc.pod)
			if diff := cmp.Diff(view(tc.want), convert(object)); diff != "" {
				t.Errorf("converted (-want +got):\n%s", diff)
			}
			podObjects{}.trim(object)
			if diff := cmp.Diff(view(tc.want), convert(object)); diff != "" {
				t.Errorf("trimmed, then converted (-want +got):\n%s", diff)
			}
			if object.Annotations["long"] != "" || object.Spec.NodeName != "" || object.Status.PodIP != "" {
				t.Errorf("trimming left something behind: %v", object)
			}
		})
	}
}

func TestPodsAreFollowed(t *testing.T) {
	client := fake.NewClientset(pod("a", nil), pod("b", nil))
	mirror, lister := NewPods(client)
	if mirror.Synced() {
		t.Error("synced before it ran")
	}
	ctx := run(t, mirror)
	eventually(t, mirror.Synced)
	names := func() string {
		var out []string
		for _, p := range lister.Select("serving", labels.SelectorFromSet(labels.Set{"app": "vllm"})) {
			out = append(out, p.Name)
		}
		return strings.Join(out, " ")
	}
	if got := names(); got != "a b" {
		t.Fatalf("listed pods %q when synced", got)
	}
	// The fake client sends events only once it is watched.
	eventually(t, func() bool { return watched(client, "pods") })

	api := client.CoreV1().Pods("serving")
	if _, err := api.Create(ctx, pod("c", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return names() == "a b c" })
	if _, err := api.Update(ctx, pod("b", ready(corev1.ConditionTrue, time.Minute)), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return lister.Get("serving", "b").Ready })
	if err := api.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return names() == "b c" })
}

func hpa(name string, metrics ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: name},
		Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: metrics},
	}
}

func TestMetricsOfHPAsAreFollowed(t *testing.T) {
	named := func(name string) autoscalingv2.MetricIdentifier {
		return autoscalingv2.MetricIdentifier{Name: name}
	}
	queue := autoscalingv2.MetricSpec{Pods: &autoscalingv2.PodsMetricSource{Metric: named("vllm_queue_depth")}}
	ttft := autoscalingv2.MetricSpec{Object: &autoscalingv2.ObjectMetricSource{Metric: autoscalingv2.MetricIdentifier{
		Name:     "vllm_ttft_seconds",
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"quantile": "0.95", "model": "llama"}},
	}}}
	gateway := autoscalingv2.MetricSpec{External: &autoscalingv2.ExternalMetricSource{Metric: named("gateway_queue")}}
	cpu := autoscalingv2.MetricSpec{Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}}

	client := fake.NewClientset(hpa("one", queue, cpu), hpa("two", queue, ttft))
	changes := make(chan []MetricRef, 10)
	ctx := run(t, NewHPAs(client, func(metrics []MetricRef) { changes <- metrics }))
	expect := func(want ...MetricRef) {
		t.Helper()
		select {
		case got := <-changes:
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("metrics in use (-want +got):\n%s", diff)
			}
		case <-time.After(time.Minute):
			t.Fatalf("was not told of %v", want)
		}
	}
	expect(MetricRef{Name: "vllm_queue_depth"}, MetricRef{"vllm_ttft_seconds", "model=llama,quantile=0.95"})
	eventually(t, func() bool { return watched(client, "horizontalpodautoscalers") })

	api := client.AutoscalingV2().HorizontalPodAutoscalers("serving")
	// What changes nothing is not told: the next change that is, is the one after.
	if err := api.Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Create(ctx, hpa("three", gateway), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(MetricRef{Name: "gateway_queue"}, MetricRef{Name: "vllm_queue_depth"}, MetricRef{"vllm_ttft_seconds", "model=llama,quantile=0.95"})
	if _, err := api.Update(ctx, hpa("two", cpu), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(MetricRef{Name: "gateway_queue"})
}

// A watch that broke off is followed by a new list: what is not in it has gone meanwhile.
func TestListsReplace(t *testing.T) {
	index := new(pods.Index)
	p := podObjects{index}
	p.replace([]*corev1.Pod{pod("a", nil), pod("b", nil)})
	p.replace([]*corev1.Pod{pod("b", nil)})
	if index.Get("serving", "a") != nil || index.Get("serving", "b") == nil {
		t.Error("the pods are not those of the newer list")
	}

	var told []MetricRef
	h := &hpaObjects{onChange: func(metrics []MetricRef) { told = metrics }, metrics: map[types.NamespacedName][]MetricRef{}}
	object := func(name, metric string) *autoscalingv2.HorizontalPodAutoscaler {
		return hpa(name, autoscalingv2.MetricSpec{Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: metric}}})
	}
	h.replace([]*autoscalingv2.HorizontalPodAutoscaler{object("one", "vllm_goodput"), object("two", "vllm_queue_depth")})
	h.replace([]*autoscalingv2.HorizontalPodAutoscaler{object("two", "vllm_queue_depth")})
	if diff := cmp.Diff([]MetricRef{{Name: "vllm_queue_depth"}}, told); diff != "" {
		t.Errorf("metrics in use (-want +got):\n%s", diff)
	}
}

func TestNoHPAIsToldToo(t *testing.T) {
	changes := make(chan []MetricRef, 1)
	mirror := NewHPAs(fake.NewClientset(), func(metrics []MetricRef) { changes <- metrics })
	run(t, mirror)
	select {
	case got := <-changes:
		if len(got) != 0 {
			t.Errorf("metrics %v of no HPA", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("not told")
	}
	eventually(t, mirror.Synced)
}

func TestRefusalIsNotSynced(t *testing.T) {
	client := fake.NewClientset()
	refused := make(chan struct{}, 100)
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		refused <- struct{}{}
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no role"))
	})
	mirror, _ := NewPods(client)
	run(t, mirror)
	<-refused
	<-refused // asked again
	if mirror.Synced() {
		t.Error("synced although listing is refused")
	}
}

func TestHealthLogsChanges(t *testing.T) {
	var out bytes.Buffer
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))))
	h := &health{kind: "pods", verb: "list"}
	var (
		down    = errors.New("connection refused")
		refused = apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no role"))
		expired = apierrors.NewResourceExpired("too old")
		busy    = apierrors.NewGenericServerResponse(http.StatusTooManyRequests, "list", corev1.Resource("pods"), "", "busy", 1, true)
	)
	for _, step := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{down, "fails"}, {down, ""}, {errors.New("connection reset"), ""},
		{refused, "refuses"}, {refused, ""},
		{busy, "fails"},
		{nil, "again"}, {nil, ""},
		{expired, ""}, {nil, ""},
	} {
		out.Reset()
		h.report(ctx, step.err)
		if got := out.String(); (step.want == "") != (got == "") || !strings.Contains(got, step.want) {
			t.Errorf("after %v: logged %q, want %q", step.err, got, step.want)
		}
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	out.Reset()
	h.report(stopped, context.Canceled)
	if out.Len() > 0 {
		t.Errorf("stopping logged %q", out.String())
	}
}

// run runs a mirror for as long as the test, and waits for its end.
func run(t *testing.T, m *Mirror) context.Context {
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return ctx
}

func watched(client *fake.Clientset, resource string) bool {
	for _, a := range client.Actions() {
		if a.Matches("watch", resource) {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to that within a minute")
		}
	}
}
