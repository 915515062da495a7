package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var errorf = fmt.Errorf

// eventually polls until done returns nil, and fails the test with its last error otherwise.
func eventually(t *testing.T, within time.Duration, what string, done func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// namespace makes a namespace named after the test, which is deleted with everything in it.
func namespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	_, err := shared.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := shared.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return name
}

func awaitNamespaceGone(t *testing.T, name string) {
	t.Helper()
	eventually(t, 90*time.Second, "namespace "+name+" is gone", func() error {
		ns, err := shared.Client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return errorf("it is still there: %+v", ns.Status)
	})
}

// workload is a Deployment of emulated engines.
type workload struct {
	name       string
	replicas   int32
	startDelay time.Duration // running to Ready
}

// enginePort is what vLLM serves on.
const enginePort = 8000

func deploy(t *testing.T, ns string, w workload) {
	t.Helper()
	labels := map[string]string{"app": w.name}
	annotations := map[string]string{}
	if w.startDelay > 0 {
		annotations["pod-ready.stage.kwok.x-k8s.io/delay"] = w.startDelay.String()
	}
	_, err := shared.Client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &w.replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name:      "vllm",
					Image:     "emulated",
					Ports:     []corev1.ContainerPort{{Name: "metrics", ContainerPort: enginePort}},
					Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
				}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitReady waits until exactly n pods are there and Ready, and returns them.
func awaitReady(t *testing.T, ns string, n int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, time.Minute, fmt.Sprintf("%d pods Ready", n), func() error {
		list, err := shared.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods = list.Items
		ready := 0
		for i := range pods {
			if isReady(&pods[i]) {
				ready++
			}
		}
		if ready != n || len(pods) != n {
			return errorf("%d of %d pods are Ready", ready, len(pods))
		}
		return nil
	})
	return pods
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// hpaSpec is an HPA with one metric of type Pods.
type hpaSpec struct {
	target   string // the Deployment, and the HPA's own name
	min, max int32
	metric   string
	average  string
	behavior *autoscalingv2.HorizontalPodAutoscalerBehavior
}

func autoscale(t *testing.T, ns string, s hpaSpec) {
	t.Helper()
	average := resource.MustParse(s.average)
	_, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: s.target},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: s.target},
			MinReplicas:    &s.min,
			MaxReplicas:    s.max,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.PodsMetricSourceType,
				Pods: &autoscalingv2.PodsMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: s.metric},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
				},
			}},
			Behavior: s.behavior,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
