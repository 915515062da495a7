package drills

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inference-metrics/adapter/test/cluster"
)

// Each engine has four seats and serves four requests per second. It is offered far more, and turns away
// whom it has no room for, so that its queue is always full: what the truth is stands without asking.
const (
	served  = 4
	waiting = 10
	offered = 20
)

// A fleet is a Deployment of engines under such a load, in a namespace of its own, and its HPA.
type fleet struct {
	namespace string
	engines   *cluster.Emulator
	pods      []corev1.Pod
}

const fleetManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm, namespace: %[1]s, labels: {app: vllm}}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: vllm}}
  template:
    metadata: {labels: {app: vllm}}
    spec:
      containers:
      - name: vllm
        image: emulated
        ports: [{name: metrics, containerPort: 8000}]
        resources: {limits: {nvidia.com/gpu: 1}}
`

const hpaManifest = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: vllm, namespace: %[1]s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm}
  minReplicas: 1
  maxReplicas: %[2]d
  metrics:
  - type: Pods
    pods:
      metric: {name: vllm_queue_depth}
      target: {type: AverageValue, averageValue: %[3]s}
  behavior:
    scaleDown: {stabilizationWindowSeconds: 0}
`

// startFleet returns engines whose queues are full.
func startFleet(t *testing.T, namespace string, replicas int) *fleet {
	t.Helper()
	f, err := newFleet(t.Context(), anew(namespace), replicas)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.engines.Stop)
	return f
}

var (
	namespacesMu sync.Mutex
	namespaces   = map[string]int{}
)

// anew returns a name for a namespace that is not there yet, also where a test runs several times.
func anew(namespace string) string {
	namespacesMu.Lock()
	defer namespacesMu.Unlock()
	namespaces[namespace]++
	if n := namespaces[namespace]; n > 1 {
		return fmt.Sprintf("%s-%d", namespace, n)
	}
	return namespace
}

// tight is in the middle of what queues may be at any moment: an HPA with this target moves when the average
// is off by a tenth, at once, and either way.
const tight = "9500m"

// autoscale gives the fleet its HPA.
func (f *fleet) autoscale(t *testing.T, most int, average string) {
	t.Helper()
	if err := shared.Apply(t.Context(), fmt.Sprintf(hpaManifest, f.namespace, most, average)); err != nil {
		t.Fatal(err)
	}
}

func newFleet(ctx context.Context, namespace string, replicas int) (*fleet, error) {
	if err := shared.Apply(ctx, fmt.Sprintf(fleetManifest, namespace, replicas)); err != nil {
		return nil, err
	}
	f := &fleet{namespace: namespace}
	var err error
	if f.engines, err = shared.StartEmulator(ctx, filepath.Join(bin, "engine-emulator"), namespace,
		"--max-num-seqs=4", "--max-model-len=4096", "--num-gpu-blocks=1025", fmt.Sprintf("--max-waiting=%d", waiting),
		"--step-base-seconds=0.02", "--step-prefill-token-seconds=0", "--step-prefill-pair-seconds=0",
		"--step-sequence-seconds=0", "--step-context-token-seconds=0", "--step-jitter=0"); err != nil {
		return nil, err
	}
	if err := f.awaitReady(ctx, replicas); err != nil {
		return nil, err
	}
	load := fmt.Sprintf("constant:rate=%d,prompt=100,output=50", offered*replicas)
	if err := f.engines.Load(ctx, "vllm", load); err != nil {
		return nil, err
	}
	return f, f.awaitFull(ctx)
}

func (f *fleet) awaitReady(ctx context.Context, n int) error {
	return poll(ctx, fmt.Sprintf("%d pods Ready", n), func() error {
		list, err := shared.Client.CoreV1().Pods(f.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		f.pods = list.Items
		for _, p := range f.pods {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
					return fmt.Errorf("%s is not Ready", p.Name)
				}
			}
			if p.Status.PodIP == "" {
				return fmt.Errorf("%s does not run", p.Name)
			}
		}
		if len(f.pods) != n {
			return fmt.Errorf("there are %d", len(f.pods))
		}
		return nil
	})
}

func (f *fleet) names() []string {
	var names []string
	for i := range f.pods {
		names = append(names, f.pods[i].Name)
	}
	return names
}

// awaitFull waits until every queue is full.
func (f *fleet) awaitFull(ctx context.Context) error {
	return poll(ctx, "all queues are full", func() error {
		replicas, err := f.engines.Replicas(ctx)
		if err == nil && len(replicas) != len(f.pods) {
			err = fmt.Errorf("there are %d", len(replicas))
		}
		for _, r := range replicas {
			if r.Waiting < waiting-1 && err == nil {
				err = fmt.Errorf("at %s %d wait", r.Name, r.Waiting)
			}
		}
		return err
	})
}

// poll is eventually where there is no test.
func poll(ctx context.Context, what string, done func() error) error {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := done()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
	}
}
