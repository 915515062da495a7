package zero

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"

	"github.com/inference-metrics/adapter/test/cluster"
)

// The example's names.
const (
	namespace = "serving"
	name      = "chat"
	example   = "../../../deploy/examples/scale-to-zero.yaml"
	slots     = 4
)

// world is the example in a cluster, with emulated engines, an emulated endpoint picker, and a gateway.
type world struct {
	t        *testing.T
	emulator *cluster.Emulator
	gateway  string // its URL
	pickers  int    // how many pods the picker has had
	replicas *history
}

// begin puts the example there, and the picker in front of it.
func begin(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := shared.Client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w.gateway = fmt.Sprintf("127.0.0.1:%d", port)
	w.startPicker()
	w.kubectl("apply", "-f", example)
	w.patch("deployment", fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {"pod-ready.stage.kwok.x-k8s.io/delay": %q}}}}}`, *coldStart))
	w.replicas = w.follow()
	return w
}

func (w *world) kubectl(args ...string) {
	w.t.Helper()
	if _, err := shared.Kubectl(w.t.Context(), append([]string{"-n", namespace}, args...)...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) patch(kind, patch string) {
	w.t.Helper()
	w.kubectl("patch", kind, name, "--type=merge", "-p", patch)
}

// stabilize sets how long the HPA waits before it scales in, which it looks at at once.
func (w *world) stabilize(d time.Duration) {
	w.t.Helper()
	w.patch("hpa", fmt.Sprintf(`{"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": %d}}}}`, int(d.Seconds())))
}

// startPicker starts a picker in a new pod, with the gateway, and with the engines of the pods that are there.
func (w *world) startPicker() {
	w.t.Helper()
	w.pickers++
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("chat-epp-%d", w.pickers)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "epp", Image: "emulated", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9090}},
		}}},
	}
	if _, err := shared.Client.CoreV1().Pods(namespace).Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("the picker's pod has an address", func() error {
		p, err := shared.Client.CoreV1().Pods(namespace).Get(w.t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && p.Status.PodIP == "" {
			err = fmt.Errorf("it is %s", p.Status.Phase)
		}
		pod = p
		return err
	})
	var err error
	w.emulator, err = shared.StartEmulator(w.t.Context(), filepath.Join(bin, "engine-emulator"), namespace,
		"--picker-address="+pod.Status.PodIP+":9090", "--picker-pool="+name, "--picker-flow-control",
		"--gateway-address="+w.gateway, fmt.Sprintf("--max-num-seqs=%d", slots),
		"--step-base-seconds=0.02", "--step-prefill-token-seconds=0", "--step-prefill-pair-seconds=0",
		"--step-sequence-seconds=0", "--step-context-token-seconds=0", "--step-jitter=0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.emulator.Stop)
}

// replacePicker ends the picker with all that it holds, and starts another one in another pod.
func (w *world) replacePicker() {
	w.t.Helper()
	w.emulator.Kill()
	w.kubectl("delete", "pod", fmt.Sprintf("chat-epp-%d", w.pickers))
	w.startPicker()
}

// picker makes the picker's metrics answer ("up") or not ("down"); the picker itself goes on.
func (w *world) picker(action string) {
	w.t.Helper()
	resp, err := http.Post(w.emulator.Control+"/picker/"+action, "", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		w.t.Fatalf("picker %s: %s", action, resp.Status)
	}
}

// request is a completion under way, of so many tokens at 20 ms each.
type request struct {
	sent time.Time
	done chan struct{}
	// Set when it is done.
	answered time.Time
	err      error
}

func (w *world) ask(tokens int) *request {
	r := &request{sent: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		resp, err := http.Post("http://"+w.gateway+"/v1/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"prompt": "a", "max_tokens": %d}`, tokens)))
		r.answered = time.Now()
		if err != nil {
			r.err = err
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			r.err = fmt.Errorf("%s: %s", resp.Status, body)
		}
	}()
	return r
}

// await waits until the request is answered.
func (w *world) await(r *request) {
	w.t.Helper()
	w.eventually("the request is answered", func() error {
		select {
		case <-r.done:
			return nil
		default:
			return fmt.Errorf("it is not; replicas so far: %s", w.replicas)
		}
	})
	if r.err != nil {
		w.t.Fatalf("the request was not answered: %v", r.err)
	}
}

// queue asks for the pool's queue.
func (w *world) queue(ctx context.Context) (float64, error) {
	return w.value(ctx, "inferencepools.inference.networking.k8s.io", "pool_queue_depth")
}

// value asks for a metric of an object, as the HPA controller does.
func (w *world) value(ctx context.Context, kind, metric string) (float64, error) {
	data, err := shared.Client.Discovery().RESTClient().Get().AbsPath("/apis/custom.metrics.k8s.io/v1beta2/namespaces/" +
		namespace + "/" + kind + "/" + name + "/" + metric).DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, data)
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal(data, &list); err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("%d items", len(list.Items))
	}
	return list.Items[0].Value.AsApproximateFloat64(), nil
}

// awaitQueue waits until the queue is known to be what is wanted.
func (w *world) awaitQueue(want float64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the pool's queue is %g", want), func() error {
		got, err := w.queue(w.t.Context())
		if err == nil && got != want {
			err = fmt.Errorf("it is %g", got)
		}
		return err
	})
}

// awaitKnown waits until the HPA has a value of each of its metrics.
func (w *world) awaitKnown() {
	w.t.Helper()
	w.eventually("the HPA has a value of each metric", func() error {
		h, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, m := range h.Status.CurrentMetrics {
			if m.Object == nil {
				return fmt.Errorf("it says: %s", w.scaling())
			}
		}
		if len(h.Status.CurrentMetrics) != len(h.Spec.Metrics) {
			return fmt.Errorf("it has %d of %d", len(h.Status.CurrentMetrics), len(h.Spec.Metrics))
		}
		return nil
	})
}

// awaitInflight waits until so many requests are known to be in the Deployment.
func (w *world) awaitInflight(want float64) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%g requests are in flight", want), func() error {
		got, err := w.value(w.t.Context(), "deployments.apps", "vllm_inflight_requests")
		if err == nil && got != want {
			err = fmt.Errorf("%g are", got)
		}
		return err
	})
}

// awaitUnknown waits until the queue is not known.
func (w *world) awaitUnknown() {
	w.t.Helper()
	w.eventually("the pool's queue is unknown", func() error {
		if got, err := w.queue(w.t.Context()); err == nil {
			return fmt.Errorf("it is %g", got)
		}
		return nil
	})
}

func (w *world) awaitReplicas(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d replicas", n), func() error {
		if got := w.replicas.now(); got != n {
			return fmt.Errorf("it has had %s; the HPA says: %s", w.replicas, w.scaling())
		}
		return nil
	})
}

// awaitReady waits until there are so many pods of the Deployment, and all are Ready, and returns when the
// last of them came to be so.
func (w *world) awaitReady(n int) (at time.Time) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d pods are Ready", n), func() error {
		list, err := shared.Client.CoreV1().Pods(namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		ready := 0
		for _, p := range list.Items {
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		if ready != n || len(list.Items) != n {
			return fmt.Errorf("%d of %d", ready, len(list.Items))
		}
		return nil
	})
	return time.Now()
}

// scaling is the condition that says whether the HPA could compute its metrics.
func (w *world) scaling() string {
	w.t.Helper()
	h, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "nothing"
}

// stays fails the test when the Deployment gets another number of replicas in the time.
func (w *world) stays(n int, during time.Duration, while string) {
	w.t.Helper()
	for deadline := time.Now().Add(during); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if got := w.replicas.now(); got != n {
			w.t.Fatalf("%s: %d replicas, want %d to stay", while, got, n)
		}
	}
}

func (w *world) eventually(what string, done func() error) {
	w.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("not within two minutes: %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// history is every number of replicas that the Deployment was given.
type history struct {
	mu      sync.Mutex
	changes []change
}

type change struct {
	at       time.Time
	replicas int
}

func (w *world) follow() *history {
	h := &history{}
	factory := informers.NewSharedInformerFactoryWithOptions(shared.Client, 0, informers.WithNamespace(namespace))
	add := func(obj any) {
		if d := obj.(*appsv1.Deployment); d.Name == name {
			h.add(int(*d.Spec.Replicas))
		}
	}
	if _, err := factory.Apps().V1().Deployments().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) },
	}); err != nil {
		w.t.Fatal(err)
	}
	factory.Start(w.t.Context().Done())
	factory.WaitForCacheSync(w.t.Context().Done())
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

// changed is when the Deployment was given the number that it has now.
func (h *history) changed() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changes[len(h.changes)-1].at
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, c := range h.changes {
		all = append(all, fmt.Sprint(c.replicas))
	}
	return strings.Join(all, " → ")
}
