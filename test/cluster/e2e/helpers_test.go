package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"

	"github.com/inference-metrics/adapter/test/cluster"
)

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
		time.Sleep(200 * time.Millisecond)
	}
}

// throughout polls for a time and fails the test with the first error.
func throughout(t *testing.T, during time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(during); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if err := check(); err != nil {
			t.Fatalf("within %s: %s: %v", during, what, err)
		}
	}
}

// namespace makes a namespace named after the test, which goes away with everything in it.
func namespace(t *testing.T) string {
	t.Helper()
	return namespaceNamed(t, strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
}

func namespaceNamed(t *testing.T, name string) string {
	t.Helper()
	_, err := shared.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := shared.Client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return name
}

// deleteNamespace deletes a namespace and waits until it is gone, which it never is while an
// APIService is not Available.
func deleteNamespace(t *testing.T, name string) {
	t.Helper()
	ctx := t.Context()
	if err := shared.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 90*time.Second, "namespace "+name+" is gone", func() error {
		ns, err := shared.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("it is still there: %+v", ns.Status)
	})
}

// startEmulator starts engines for the pods of a namespace. They are small, so that a few requests
// per second fill them: a step takes 20 ms, whatever is in it.
func startEmulator(t *testing.T, ns string, args ...string) *cluster.Emulator {
	t.Helper()
	e, err := shared.StartEmulator(t.Context(), filepath.Join(programs, "engine-emulator"), ns, append([]string{
		"--max-num-seqs=4", "--max-model-len=4096", "--num-gpu-blocks=1025",
		"--step-base-seconds=0.02", "--step-prefill-token-seconds=0", "--step-prefill-pair-seconds=0",
		"--step-sequence-seconds=0", "--step-context-token-seconds=0", "--step-jitter=0",
		"--dcgm-interval=1s",
	}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

// requests is a load of the small engines: every request takes one second of one of the four seats
// of a replica, which so serves four per second.
func requests(perSecond float64) string {
	if perSecond == 0 {
		return "none"
	}
	return fmt.Sprintf("constant:rate=%g,prompt=100,output=50", perSecond)
}

func setLoad(t *testing.T, e *cluster.Emulator, deployment, spec string) {
	t.Helper()
	if err := e.Load(t.Context(), deployment, spec); err != nil {
		t.Fatal(err)
	}
}

func act(t *testing.T, e *cluster.Emulator, pod, action string) {
	t.Helper()
	if err := e.Act(t.Context(), pod, action); err != nil {
		t.Fatal(err)
	}
}

// replica returns the state of one replica.
func replica(t *testing.T, e *cluster.Emulator, pod string) cluster.Replica {
	t.Helper()
	for _, r := range replicas(t, e, "") {
		if r.Name == pod {
			return r
		}
	}
	t.Fatalf("the emulator has no replica %s", pod)
	return cluster.Replica{}
}

// replicas returns the replicas of a Deployment, or all of them.
func replicas(t *testing.T, e *cluster.Emulator, deployment string) []cluster.Replica {
	t.Helper()
	all, err := e.Replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if deployment == "" {
		return all
	}
	return slices.DeleteFunc(all, func(r cluster.Replica) bool { return r.Deployment != deployment })
}

// waiting is how many requests wait at the replicas of a Deployment.
func waiting(t *testing.T, e *cluster.Emulator, deployment string) int {
	t.Helper()
	n := 0
	for _, r := range replicas(t, e, deployment) {
		n += r.Waiting
	}
	return n
}

// exported reads a series of an engine from its own /metrics, summed over its labels.
func exported(t *testing.T, pod *corev1.Pod, name string) float64 {
	t.Helper()
	resp, err := http.Get(engineURL(pod))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sum, found := 0.0, false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name+"{")
		if !ok {
			continue
		}
		fields := strings.Fields(rest[strings.LastIndex(rest, "}")+1:])
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		t.Fatalf("pod %s does not export %s", pod.Name, name)
	}
	return sum
}

func engineURL(pod *corev1.Pod) string {
	return fmt.Sprintf("http://%s:%d/metrics", pod.Status.PodIP, enginePort)
}

// adapterConfig is the adapter's configuration file.
const adapterConfig = "window: 20s\nslo:\n  ttft: 2.5s\n  tpot: 100ms\n"

// newAdapter starts an adapter that is not in the Service.
func newAdapter(t *testing.T, args ...string) *cluster.Adapter {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte(adapterConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := shared.StartAdapter(t.Context(), filepath.Join(programs, "adapter"),
		append([]string{"--config=" + config, "--collect-interval=1s"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	if err := a.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// startAdapters puts adapters on Prometheus behind the Service, and waits until the API server has
// found them.
func startAdapters(t *testing.T, n int, args ...string) []*cluster.Adapter {
	t.Helper()
	var all []*cluster.Adapter
	for range n {
		a := newAdapter(t, append([]string{"--prometheus-url=" + shared.Prometheus.URL}, args...)...)
		join(t, a)
		all = append(all, a)
	}
	if err := shared.AwaitAvailable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return all
}

// join puts an adapter into the Service.
func join(t *testing.T, a *cluster.Adapter) {
	service.Add(a.Address)
	t.Cleanup(func() { service.Remove(a.Address) })
}

// workload is a Deployment of emulated engines.
type workload struct {
	name        string
	replicas    int32
	labels      map[string]string
	startDelay  time.Duration // from running to Ready
	deleteDelay time.Duration // from deleted to gone
}

// enginePort is what vLLM serves on.
const enginePort = 8000

func deploy(t *testing.T, ns string, w workload) {
	t.Helper()
	labels := map[string]string{"app": w.name}
	for k, v := range w.labels {
		labels[k] = v
	}
	annotations := map[string]string{}
	for stage, delay := range map[string]time.Duration{"pod-ready": w.startDelay, "pod-delete": w.deleteDelay} {
		if delay > 0 {
			annotations[stage+".stage.kwok.x-k8s.io/delay"] = delay.String()
		}
	}
	_, err := shared.Client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: w.name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &w.replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.name}},
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
			return fmt.Errorf("%d of %d pods are Ready", ready, len(pods))
		}
		return nil
	})
	return pods
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// hpaSpec is an HPA of the name of its Deployment, with one metric of type Pods.
type hpaSpec struct {
	target   string
	min, max int32
	metric   string
	average  string
	// stabilization is that of scale-down.
	stabilization time.Duration
	// upByOne lets it add one pod per sync only.
	upByOne bool
}

func autoscale(t *testing.T, ns string, s hpaSpec) {
	t.Helper()
	average := resource.MustParse(s.average)
	seconds := int32(s.stabilization.Seconds())
	var up *autoscalingv2.HPAScalingRules
	if s.upByOne {
		up = &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{
			{Type: autoscalingv2.PodsScalingPolicy, Value: 1, PeriodSeconds: int32(hpaSync.Seconds()) - 1},
		}}
	}
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
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleUp: up,
				ScaleDown: &autoscalingv2.HPAScalingRules{
					StabilizationWindowSeconds: &seconds,
					Policies: []autoscalingv2.HPAScalingPolicy{
						{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 5},
					},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func hpa(t *testing.T, ns, name string) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	h, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// scalingActive returns the condition that says whether the HPA could compute its metric.
func scalingActive(h *autoscalingv2.HorizontalPodAutoscaler) autoscalingv2.HorizontalPodAutoscalerCondition {
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			return c
		}
	}
	return autoscalingv2.HorizontalPodAutoscalerCondition{}
}

// awaitActive waits until the HPA has had a value.
func awaitActive(t *testing.T, ns, name string) {
	t.Helper()
	eventually(t, time.Minute, "the HPA has a value", func() error {
		if c := scalingActive(hpa(t, ns, name)); c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
		return nil
	})
}

// failedSyncs counts how often the HPA could not be computed.
func failedSyncs(t *testing.T, ns, name string) int {
	t.Helper()
	events, err := shared.Client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + name + ",reason=FailedGetPodsMetric",
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range events.Items {
		n += int(max(e.Count, 1))
	}
	return n
}

// history is every number of replicas that a Deployment was given.
type history struct {
	mu      sync.Mutex
	changes []change
}

type change struct {
	at       time.Time
	replicas int
}

// follow records a Deployment's replicas until the test ends.
func follow(t *testing.T, ns, name string) *history {
	t.Helper()
	h := &history{}
	factory := informers.NewSharedInformerFactoryWithOptions(shared.Client, 0, informers.WithNamespace(ns),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + name }))
	informer := factory.Apps().V1().Deployments().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { h.add(int(*obj.(*appsv1.Deployment).Spec.Replicas)) },
		UpdateFunc: func(_, obj any) { h.add(int(*obj.(*appsv1.Deployment).Spec.Replicas)) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	return h
}

func (h *history) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changes) == 0 || h.changes[len(h.changes)-1].replicas != n {
		h.changes = append(h.changes, change{time.Now(), n})
	}
}

func (h *history) now() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changes) == 0 {
		return -1
	}
	return h.changes[len(h.changes)-1].replicas
}

// since returns the numbers of replicas from a time on, the one at that time first.
func (h *history) since(at time.Time) []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []int
	for _, c := range h.changes {
		if !c.at.After(at) {
			out = out[:0]
		}
		out = append(out, c.replicas)
	}
	return out
}

// awaitReplicas waits until the Deployment was given a number of replicas.
func (h *history) await(t *testing.T, within time.Duration, what string, ok func(int) bool) {
	t.Helper()
	eventually(t, within, what, func() error {
		if n := h.now(); !ok(n) {
			return fmt.Errorf("it has %d replicas; so far %v", n, h.since(time.Time{}))
		}
		return nil
	})
}

// answer asks for one metric of one pod. An answer that is no value is an error.
func answer(t *testing.T, ns, pod, metric string) (v1beta2.MetricValue, error) {
	t.Helper()
	items, err := answers(t, ns, pod, metric)
	if err != nil {
		return v1beta2.MetricValue{}, err
	}
	if len(items) != 1 {
		return v1beta2.MetricValue{}, fmt.Errorf("%d items", len(items))
	}
	return items[0], nil
}

// answers asks for one metric of the pods, "*" being all of them.
func answers(t *testing.T, ns, pods, metric string) ([]v1beta2.MetricValue, error) {
	t.Helper()
	resp := get(t, shared.Config, fmt.Sprintf("/apis/%s/v1beta2/namespaces/%s/pods/%s/%s", group, ns, pods, metric), "application/json")
	if resp.status != http.StatusOK {
		return nil, &answerError{resp.status, string(resp.body)}
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal(resp.body, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// answerError is an answer that is no value.
type answerError struct {
	status int
	body   string
}

func (e *answerError) Error() string { return fmt.Sprintf("%d: %s", e.status, e.body) }

func isStatus(err error, status int) bool {
	var answer *answerError
	return errors.As(err, &answer) && answer.status == status
}
