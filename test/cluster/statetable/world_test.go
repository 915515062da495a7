package statetable

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	scalefake "k8s.io/client-go/scale/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"

	"github.com/inference-metrics/adapter/pkg/signals"
)

const (
	namespace = "serving"
	app       = "vllm"
	hpaName   = "vllm"
)

// A scenario is a Deployment under an HPA, and what its engines do.
type scenario struct {
	replicas, max int32 // the least is 1
	metric        metric
	// script says what the engine of a pod does.
	script func(moment) load
	// sourceDown says when the source cannot be read; nil means never.
	sourceDown func(at time.Duration) bool
	// role is the role of a pod, by its ordinal; nil where each does all.
	role func(pod int) string
	// coldStart is how long a new pod takes to be Ready; half a minute if 0.
	coldStart time.Duration
	// lasts is how long all of it goes on.
	lasts time.Duration
}

// moment is what a script knows.
type moment struct {
	at    time.Duration // since the HPA controller started; below 0 before
	pod   int           // the pod's ordinal, from 0 on
	ready bool          // whether it is Ready
	// share is the pod's part of a load that is spread over the Ready pods, as a multiple of what
	// each pod got of it at the start; 0 for a pod that is not Ready.
	share float64
}

// outcome is what was seen.
type outcome struct {
	changes []change // of the number of replicas, the first at 0
	answers []answer
	// sawState is the state of the metric, as collected last.
	sawState signals.State
	active   *autoscalingv2.HorizontalPodAutoscalerCondition // ScalingActive
}

type change struct {
	at       time.Duration
	replicas int32
}

// replicasAt is the number of replicas that was asked for at a time.
func (o outcome) replicasAt(at time.Duration) int32 {
	var n int32
	for _, c := range o.changes {
		if c.at <= at {
			n = c.replicas
		}
	}
	return n
}

// answerAt is the answer that the controller had at a time.
func (o outcome) answerAt(at time.Duration) answer {
	var last answer
	for _, a := range o.answers {
		if a.at <= at {
			last = a
		}
	}
	return last
}

// least is the lowest number of replicas from a time on.
func (o outcome) least(from, to time.Duration) int32 {
	n := o.replicasAt(from)
	for _, c := range o.changes {
		if from <= c.at && c.at <= to {
			n = min(n, c.replicas)
		}
	}
	return n
}

// leastAfterMost is the lowest number of replicas since they were most.
func (o outcome) leastAfterMost() int32 {
	peak := slices.MaxFunc(o.changes, func(a, b change) int { return cmp.Compare(a.replicas, b.replicas) })
	return o.least(peak.at, o.changes[len(o.changes)-1].at)
}

func (o outcome) end() int32 { return o.changes[len(o.changes)-1].replicas }

// metric is one metric of an HPA.
type metric struct {
	signal string
	kind   kind
	target string
	// role is the one that the metric selector chooses; "" where there is no selector.
	role string
}

func (m metric) String() string {
	of := m.signal
	if m.role != "" {
		of += " with role=" + m.role
	}
	return fmt.Sprintf("%s %s of %s", m.kind, m.target, of)
}

type kind string

const (
	podsAverage   kind = "Pods AverageValue"
	objectValue   kind = "Object Value"
	objectAverage kind = "Object AverageValue"
)

func (m metric) spec() autoscalingv2.MetricSpec {
	quantity := resource.MustParse(m.target)
	target := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &quantity}
	if m.kind == objectValue {
		target = autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &quantity}
	}
	identifier := autoscalingv2.MetricIdentifier{Name: m.signal}
	if m.role != "" {
		identifier.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": m.role}}
	}
	if m.kind == podsAverage {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: identifier, Target: target}}
	}
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: app},
		Metric:          identifier, Target: target,
	}}
}

// world is one cluster in a bubble of virtual time.
type world struct {
	scenario
	client *fake.Clientset
	source *scrapes
	began  time.Time

	mu      sync.Mutex
	wanted  int32 // the Deployment's spec.replicas
	pods    []*corev1.Pod
	changes []change
	next    int // ordinal of the next pod
}

// warmUp is how long everything runs before the adapter and the controller start.
const warmUp = 2 * time.Minute

func (s scenario) run(t *testing.T) outcome {
	t.Helper()
	var o outcome
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hpa := &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: hpaName, Namespace: namespace},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: app},
				MinReplicas:    new(int32(1)),
				MaxReplicas:    s.max,
				Metrics:        []autoscalingv2.MetricSpec{s.metric.spec()},
			},
		}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: namespace, UID: app},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		}
		w := &world{
			scenario: s,
			client:   newClient(t, hpa, deployment),
			source:   &scrapes{engines: map[string]*engine{}},
			began:    time.Now().Add(warmUp),
			wanted:   s.replicas,
			changes:  []change{{0, s.replicas}},
		}
		w.mustDo(t, ctx, w.start())
		go w.each(ctx, scrapeInterval, w.scrape)
		time.Sleep(500 * time.Millisecond)
		go w.each(ctx, time.Second, func() { w.mustDo(t, ctx, w.kubelet()) })

		// Everything has instants of its own, so that no two things race at one: scrapes at whole
		// intervals, collections within 1.2 s after them, and the controller after that.
		time.Sleep(warmUp - 300*time.Millisecond)
		a := startAdapter(t, ctx, w.client, w.source)
		time.Sleep(2 * time.Second)
		client := &metricsClient{adapter: a, began: w.began}
		w.startController(ctx, client)
		time.Sleep(time.Until(w.began.Add(s.lasts)))

		o.changes, o.answers = w.changes, client.answers
		o.sawState = a.state(t, s.metric)
		got, err := w.client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, hpaName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range got.Status.Conditions {
			if c.Type == autoscalingv2.ScalingActive {
				o.active = &got.Status.Conditions[i]
			}
		}
		if o.active == nil {
			t.Fatalf("the controller has not judged the HPA: %+v", got.Status.Conditions)
		}
		cancel()
		time.Sleep(time.Minute) // for everything to stop
	})
	return o
}

// newClient returns a client of a cluster that holds the objects. It keeps no managed fields: to do
// so costs more than all the rest.
func newClient(t *testing.T, objects ...runtime.Object) *fake.Clientset {
	t.Helper()
	tracker := core.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	for _, o := range objects {
		if err := tracker.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	client := &fake.Clientset{}
	client.AddReactor("*", "*", core.ObjectReaction(tracker))
	client.AddWatchReactor("*", func(a core.Action) (bool, watch.Interface, error) {
		w, err := tracker.Watch(a.GetResource(), a.GetNamespace())
		return true, w, err
	})
	return client
}

func (w *world) each(ctx context.Context, every time.Duration, do func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

func (w *world) at() time.Duration { return time.Since(w.began) }

// moments returns what the script may know of each pod, in their order.
func (w *world) moments() []moment {
	out := make([]moment, len(w.pods))
	ready := 0
	for i, p := range w.pods {
		c := condition(p)
		out[i] = moment{at: w.at(), pod: ordinal(p), ready: c != nil && c.Status == corev1.ConditionTrue}
		if out[i].ready {
			ready++
		}
	}
	for i := range out {
		if out[i].ready {
			out[i].share = float64(w.replicas) / float64(ready)
		}
	}
	return out
}

func (w *world) scrape() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source.setDown(w.sourceDown != nil && w.sourceDown(w.at()))
	for i, m := range w.moments() {
		if p := w.pods[i]; p.Status.Phase == corev1.PodRunning {
			w.source.scrape(p.Name, w.script(m))
		}
	}
}

// A step changes a pod in the API.
type step func(context.Context) error

func (w *world) mustDo(t *testing.T, ctx context.Context, steps []step) {
	for _, do := range steps {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
}

func (w *world) create(p *corev1.Pod) step {
	w.pods = append(w.pods, p)
	object := p.DeepCopy()
	return func(ctx context.Context) error {
		_, err := w.client.CoreV1().Pods(namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	}
}

func (w *world) update(p *corev1.Pod) step {
	object := p.DeepCopy()
	return func(ctx context.Context) error {
		_, err := w.client.CoreV1().Pods(namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		return err
	}
}

func (w *world) remove(i int) step {
	name := w.pods[i].Name
	w.pods = slices.Delete(w.pods, i, i+1)
	return func(ctx context.Context) error {
		return w.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
}

// start makes the first pods, which have been Ready for an hour.
func (w *world) start() []step {
	var steps []step
	anHourAgo := time.Now().Add(-time.Hour)
	for range w.replicas {
		p := w.newPod()
		p.Status = corev1.PodStatus{
			Phase:     corev1.PodRunning,
			StartTime: &metav1.Time{Time: anHourAgo},
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: anHourAgo.Add(time.Minute)}},
			},
		}
		steps = append(steps, w.create(p))
	}
	return steps
}

// kubelet stands in for the Deployment's controllers, the scheduler and the kubelets.
func (w *world) kubelet() []step {
	w.mu.Lock()
	defer w.mu.Unlock()
	var steps []step
	for len(w.pods) > int(w.wanted) {
		// Like a ReplicaSet: first one that is not Ready, then the youngest.
		last := len(w.pods) - 1
		for i, m := range w.moments() {
			if !m.ready {
				last = i
			}
		}
		steps = append(steps, w.remove(last))
	}
	for len(w.pods) < int(w.wanted) {
		steps = append(steps, w.create(w.newPod()))
	}
	coldStart := cmp.Or(w.coldStart, 30*time.Second)
	now := metav1.Now()
	for i, m := range w.moments() {
		p := w.pods[i]
		c := condition(p)
		switch {
		case p.Status.Phase == corev1.PodPending && now.Sub(p.CreationTimestamp.Time) >= 5*time.Second:
			p.Status.Phase = corev1.PodRunning
			p.Status.StartTime = &now
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: now}}
		case p.Status.Phase == corev1.PodPending:
			continue
		case (now.Sub(p.Status.StartTime.Time) >= coldStart && !w.script(m).unready) != m.ready:
			c.Status = map[bool]corev1.ConditionStatus{false: corev1.ConditionTrue, true: corev1.ConditionFalse}[m.ready]
			c.LastTransitionTime = now
		default:
			continue
		}
		steps = append(steps, w.update(p))
	}
	return steps
}

func (w *world) newPod() *corev1.Pod {
	name, labels := podName(w.next), map[string]string{"app": app}
	if w.role != nil {
		labels["llm-d.ai/role"] = w.role(w.next)
	}
	w.next++
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, UID: types.UID(name),
			Labels: labels, CreationTimestamp: metav1.Now(),
		},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "vllm/vllm-openai", Args: []string{"--model=llama"}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func podName(ordinal int) string { return fmt.Sprintf("vllm-%d", ordinal) }

func ordinal(p *corev1.Pod) (n int) {
	if _, err := fmt.Sscanf(p.Name, "vllm-%d", &n); err != nil {
		return math.MinInt
	}
	return n
}

func condition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c
		}
	}
	return nil
}

var restMapper = sync.OnceValue(func() meta.RESTMapper { return testrestmapper.TestOnlyStaticRESTMapper(legacyscheme.Scheme) })

// startController starts Kubernetes' HPA controller with its defaults.
func (w *world) startController(ctx context.Context, client *metricsClient) {
	scale := &scalefake.FakeScaleClient{}
	scale.AddReactor("get", "deployments", func(core.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return true, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: namespace},
			Spec:       autoscalingv1.ScaleSpec{Replicas: w.wanted},
			Status:     autoscalingv1.ScaleStatus{Replicas: int32(len(w.pods)), Selector: "app=" + app},
		}, nil
	})
	scale.AddReactor("update", "deployments", func(a core.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		s := a.(core.UpdateAction).GetObject().(*autoscalingv1.Scale)
		w.wanted = s.Spec.Replicas
		w.changes = append(w.changes, change{w.at(), w.wanted})
		return true, s, nil
	})
	shared := informers.NewSharedInformerFactory(w.client, 0)
	c := podautoscaler.NewHorizontalController(ctx,
		w.client.CoreV1(), scale, w.client.AutoscalingV2(),
		restMapper(),
		client.rest(),
		shared.Autoscaling().V2().HorizontalPodAutoscalers(), shared.Core().V1().Pods(),
		15*time.Second, 5*time.Minute, 0.1, 5*time.Minute, 30*time.Second)
	shared.Start(ctx.Done())
	go c.Run(ctx, 5)
}
