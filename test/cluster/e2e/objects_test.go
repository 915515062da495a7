package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestScaleOnObjects: an HPA on the latency of a Deployment, and one on the queue of a StatefulSet whose
// engines are another's, both scale out under load and back in after it.
func TestScaleOnObjects(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	others := namespaceNamed(t, ns+"-sglang")
	engines := startEmulator(t, ns)
	sglang := startEmulator(t, others, "--engine=sglang")
	startAdapters(t, 1)

	deploy(t, ns, workload{name: "vllm", replicas: 1})
	deploySet(t, others, "sglang")
	awaitReady(t, ns, 1)
	awaitReady(t, others, 1)
	load := func(perSecond float64) {
		setLoad(t, engines, "vllm", requests(perSecond))
		setLoad(t, sglang, "", requests(perSecond)) // the emulator knows no StatefulSets
	}
	load(2) // half of what one replica serves

	autoscaleOn(t, ns, objectMetric{
		kind: "Deployment", name: "vllm", metric: "vllm_ttft_seconds", selector: map[string]string{"quantile": "0.95"},
		target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse("1"))},
	})
	autoscaleOn(t, others, objectMetric{
		kind: "StatefulSet", name: "sglang", metric: "inference_queue_depth",
		target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("5"))},
	})
	awaitActive(t, ns, "vllm")
	awaitActive(t, others, "sglang")
	wanted := func(ns, name string, what string, ok func(int32) bool) {
		t.Helper()
		eventually(t, 2*time.Minute, what, func() error {
			h := hpa(t, ns, name)
			if !ok(h.Status.DesiredReplicas) {
				return fmt.Errorf("the HPA wants %d replicas: %+v", h.Status.DesiredReplicas, h.Status.CurrentMetrics)
			}
			return nil
		})
	}
	throughout(t, 3*hpaSync, "one replica does for a load that it serves", func() error {
		for _, h := range []*autoscalingv2.HorizontalPodAutoscaler{hpa(t, ns, "vllm"), hpa(t, others, "sglang")} {
			if h.Status.DesiredReplicas != 1 {
				return fmt.Errorf("%s: %d replicas", h.Name, h.Status.DesiredReplicas)
			}
		}
		return nil
	})

	load(14) // needs four
	wanted(ns, "vllm", "the latency scales the Deployment out", func(n int32) bool { return n >= 4 })
	wanted(others, "sglang", "the queue scales the StatefulSet out", func(n int32) bool { return n >= 3 })
	if m := hpa(t, ns, "vllm").Status.CurrentMetrics; len(m) != 1 || m[0].Object == nil || m[0].Object.DescribedObject.Name != "vllm" || m[0].Object.Current.Value.Sign() <= 0 {
		t.Errorf("the status of the HPA shows %+v", m)
	}

	load(0)
	wanted(ns, "vllm", "the Deployment scales in when it is idle", func(n int32) bool { return n == 1 })
	wanted(others, "sglang", "the StatefulSet scales in when it is idle", func(n int32) bool { return n == 1 })
}

// TestObjects asks for every kind of object, through the API server.
func TestObjects(t *testing.T) {
	ctx := t.Context()
	ns := namespace(t)
	t.Cleanup(func() {
		if _, err := shared.Kubectl(context.WithoutCancel(ctx), "delete", "crd", "--ignore-not-found", "inferencepools.inference.networking.k8s.io"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Apply(ctx, crd("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools", "{status: {}}")); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "wait", "--for=condition=Established", "crd", "--timeout=60s", "inferencepools.inference.networking.k8s.io")
	engines := startEmulator(t, ns)
	startAdapters(t, 1)

	chat := map[string]string{"serves": "chat"}
	deploy(t, ns, workload{name: "vllm", replicas: 2, labels: chat})
	// A router: it is in the Service, the pool and the namespace, and no engine is in it.
	router := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "router", Labels: chat},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "router", Image: "emulated"}}},
	}
	if _, err := shared.Client.CoreV1().Pods(ns).Create(ctx, router, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "chat", Labels: chat},
		Spec:       corev1.ServiceSpec{Selector: chat, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := shared.Client.CoreV1().Services(ns).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pool := "{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: chat, namespace: " + ns +
		"}, spec: {selector: {matchLabels: {serves: chat}}, targetPorts: [{number: 8000}]}}"
	if err := shared.Apply(ctx, pool); err != nil {
		t.Fatal(err)
	}
	pods := slices.DeleteFunc(awaitReady(t, ns, 3), func(p corev1.Pod) bool { return p.Name == "router" })

	// A queue that stands still, so that the answers can be compared.
	setLoad(t, engines, "vllm", requests(16))
	eventually(t, time.Minute, "both replicas have a queue", func() error {
		for _, pod := range pods {
			if n := replica(t, engines, pod.Name).Waiting; n < 5 {
				return fmt.Errorf("%d wait at %s", n, pod.Name)
			}
		}
		return nil
	})
	setLoad(t, engines, "vllm", requests(0))
	for _, pod := range pods {
		act(t, engines, pod.Name, "freeze")
	}
	var queue float64
	for i := range pods {
		queue += exported(t, &pods[i], "vllm:num_requests_waiting")
	}

	objects := []struct{ path, kind, name string }{
		{"namespaces/" + ns + "/deployments.apps/vllm/", "Deployment", "vllm"},
		{"namespaces/" + ns + "/services/chat/", "Service", "chat"},
		{"namespaces/" + ns + "/services/*/", "Service", "chat"},
		{"namespaces/" + ns + "/inferencepools.inference.networking.k8s.io/chat/", "InferencePool", "chat"},
		{"namespaces/" + ns + "/metrics/", "Namespace", ns},
	}
	for _, o := range objects {
		for _, metric := range []string{"vllm_queue_depth", "inference_queue_depth"} {
			eventually(t, time.Minute, o.path+metric+" is what the engines export", func() error {
				v, err := answerAt(t, o.path+metric)
				if err != nil {
					return err
				}
				if got := v.Value.AsApproximateFloat64(); got != queue {
					return fmt.Errorf("%g answered, %g exported", got, queue)
				}
				if d := v.DescribedObject; d.Kind != o.kind || d.Name != o.name {
					t.Errorf("%s%s describes %+v", o.path, metric, d)
				}
				return nil
			})
		}
	}

	for _, refused := range []struct {
		path   string
		status int
		text   string
	}{
		{"namespaces/" + ns + "/deployments.apps/none/vllm_queue_depth", http.StatusNotFound, "there is no deployments.apps none"},
		{"namespaces/" + ns + "/jobs.batch/vllm/vllm_queue_depth", http.StatusNotFound, "is not served on jobs.batch"},
		{"namespaces/" + ns + "/leaderworkersets.leaderworkerset.x-k8s.io/vllm/vllm_queue_depth", http.StatusNotFound, "does not have that kind"},
		{"namespaces/" + ns + "/deployments.apps/vllm/vllm_queue_depth?metricLabelSelector=quantile%3D0.5", http.StatusBadRequest, "is no quantile"},
		{"namespaces/" + ns + "/deployments.apps/vllm/vllm_ttft_seconds?metricLabelSelector=colour%3Dred", http.StatusBadRequest, "colour"},
	} {
		_, err := answerAt(t, refused.path)
		if !isStatus(err, refused.status) || !strings.Contains(err.Error(), refused.text) {
			t.Errorf("%s: %v, want %d with %q", refused.path, err, refused.status, refused.text)
		}
	}

	// All of that is in memory: no request makes one of the adapter's. It is the HPA controller that
	// asks here, whose rights have to be looked up, but not each time.
	hpaController := rest.CopyConfig(shared.Config)
	hpaController.Impersonate.UserName = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
	const many = 100
	before := adapterCalls(t)
	for i := range many {
		path := objects[i%len(objects)].path + "vllm_queue_depth"
		if _, err := answerTo(t, hpaController, path); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	reviews := 0
	for _, call := range adapterCalls(t)[len(before):] {
		switch {
		case call.Verb == "watch" || call.ObjectRef == nil:
			// What is mirrored is watched all the time, and kinds that are not there are looked for
			// from time to time.
		case call.ObjectRef.Resource == "subjectaccessreviews":
			reviews++
		default:
			t.Errorf("in %d requests the adapter asked the API server to %s %s", many, call.Verb, call.RequestURI)
		}
	}
	if reviews > many/2 {
		t.Errorf("in %d requests the adapter asked %d times whether they are allowed", many, reviews)
	}
	if !slices.ContainsFunc(before, func(c cluster.Call) bool { return c.ObjectRef != nil && c.ObjectRef.Resource == "pods" }) {
		t.Errorf("none of %d calls is for the pods that the adapter mirrors: the audit log does not show its calls", len(before))
	}
}

func adapterCalls(t *testing.T) []cluster.Call {
	t.Helper()
	calls, err := shared.AdapterCalls()
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// answerAt asks for what is one value, below the version of the API.
func answerAt(t *testing.T, path string) (v1beta2.MetricValue, error) {
	t.Helper()
	return answerTo(t, shared.Config, path)
}

// answerTo is answerAt for somebody else.
func answerTo(t *testing.T, asker *rest.Config, path string) (v1beta2.MetricValue, error) {
	t.Helper()
	resp := get(t, asker, "/apis/"+group+"/v1beta2/"+path, "application/json")
	if resp.status != http.StatusOK {
		return v1beta2.MetricValue{}, &answerError{resp.status, string(resp.body)}
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal(resp.body, &list); err != nil {
		return v1beta2.MetricValue{}, err
	}
	if len(list.Items) != 1 {
		return v1beta2.MetricValue{}, errors.New("not one item: " + string(resp.body))
	}
	return list.Items[0], nil
}

// deploySet makes a StatefulSet of one emulated engine.
func deploySet(t *testing.T, ns, name string) {
	t.Helper()
	labels := map[string]string{"app": name}
	_, err := shared.Client.AppsV1().StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: name, Image: "emulated", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: enginePort}},
				}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// objectMetric is an HPA of 1 to 5 replicas with one metric, of the object that it scales.
type objectMetric struct {
	kind, name, metric string
	selector           map[string]string
	target             autoscalingv2.MetricTarget
}

func autoscaleOn(t *testing.T, ns string, m objectMetric) {
	t.Helper()
	object := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: m.kind, Name: m.name}
	identifier := autoscalingv2.MetricIdentifier{Name: m.metric}
	if m.selector != nil {
		identifier.Selector = &metav1.LabelSelector{MatchLabels: m.selector}
	}
	_, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: m.name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: object, MinReplicas: new(int32(1)), MaxReplicas: 5,
			Metrics: []autoscalingv2.MetricSpec{{
				Type:   autoscalingv2.ObjectMetricSourceType,
				Object: &autoscalingv2.ObjectMetricSource{DescribedObject: object, Metric: identifier, Target: m.target},
			}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{
				StabilizationWindowSeconds: new(int32(15)),
				Policies:                   []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 5}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
