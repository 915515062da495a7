package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestEmbedded: two adapters that were told of no source find the engines, each by itself, and those that
// come; they answer alike, and an HPA goes on when one is killed. What is no engine is left alone.
func TestEmbedded(t *testing.T) {
	const most = 8
	ns := namespace(t)
	stopPrometheus(t) // so that nobody but the adapters asks pods for metrics
	asked := bystander(t, ns)
	engines := startEmulator(t, ns)
	deploy(t, ns, workload{name: "vllm", replicas: 2})
	pods := awaitReady(t, ns, 3)
	var adapters []*cluster.Adapter
	for range 2 {
		a := newAdapter(t, "--scrape-interval=1s")
		join(t, a)
		adapters = append(adapters, a)
	}
	if err := shared.AwaitAvailable(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Hung engines keep what they export, so that no time of a scrape explains a difference.
	setLoad(t, engines, "vllm", requests(20))
	eventually(t, time.Minute, "requests wait", func() error {
		if n := waiting(t, engines, "vllm"); n < 20 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	var vllm []corev1.Pod
	for _, p := range pods {
		if p.Labels["app"] == "vllm" {
			vllm = append(vllm, p)
			act(t, engines, p.Name, "freeze")
		}
	}
	for i, a := range adapters {
		eventually(t, time.Minute, fmt.Sprintf("adapter %d answers as the engines do", i), func() error {
			values, err := askDirectly(t, a, ns, "vllm_queue_depth")
			if err != nil {
				return err
			}
			for j := range vllm {
				want := exported(t, &vllm[j], "vllm:num_requests_waiting")
				if got, ok := values[vllm[j].Name]; !ok || got != want || want == 0 {
					return fmt.Errorf("%s: %v, and it exports %g", vllm[j].Name, values, want)
				}
			}
			if len(values) != len(vllm) {
				return fmt.Errorf("it answers for %v", values)
			}
			return nil
		})
	}
	setLoad(t, engines, "vllm", requests(0))
	for i := range vllm {
		act(t, engines, vllm[i].Name, "unfreeze")
	}
	eventually(t, time.Minute, "the queue is served", func() error {
		if n := waiting(t, engines, "vllm"); n > 0 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})

	// More than all replicas serve, so that it scales out as long as it is told so.
	replicas := follow(t, ns, "vllm")
	autoscale(t, ns, hpaSpec{target: "vllm", min: 2, max: most, metric: "vllm_queue_depth", average: "1", stabilization: time.Minute, upByOne: true})
	awaitActive(t, ns, "vllm")
	failed := failedSyncs(t, ns, "vllm")
	began := time.Now()
	setLoad(t, engines, "vllm", requests(60))
	// The API server keeps to one adapter for as long as its connection lasts, so each is killed in turn.
	for i, at := range []int{3, 5} {
		replicas.await(t, time.Minute, fmt.Sprintf("it is scaling out, to %d", at), func(n int) bool { return n >= at })
		adapters[i].Kill()
		replicas.await(t, time.Minute, "scaling out goes on", func(n int) bool { return n >= at+1 })
		n := failedSyncs(t, ns, "vllm")
		if n-failed > 1 {
			t.Errorf("%d syncs of the HPA failed when an adapter was killed, want at most one", n-failed)
		}
		failed = n
		service.Remove(adapters[i].Address)
		if i == 0 {
			join(t, newAdapter(t, "--scrape-interval=1s")) // in its place
		}
	}
	if seen := replicas.since(began); !ascending(seen) {
		t.Errorf("replicas went %v", seen)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("what is no engine was asked %d times", n)
	}
}

// bystander makes a pod that is no engine, though it has an engine's port, the name of a port for metrics,
// and the annotations of Prometheus. It returns how often it is asked anything.
func bystander(t *testing.T, ns string) *atomic.Int64 {
	t.Helper()
	pods := shared.Client.CoreV1().Pods(ns)
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"prometheus.io/scrape": "true"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "web", Image: "nginx", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: enginePort}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ip string
	eventually(t, time.Minute, "the bystander has an address", func() error {
		pod, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && pod.Status.PodIP == "" {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		if err == nil {
			ip = pod.Status.PodIP
		}
		return err
	})
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(enginePort)))
	if err != nil {
		t.Fatal(err)
	}
	asked := new(atomic.Int64)
	srv := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) })}
	go func() { _ = srv.Serve(listener) }()
	t.Cleanup(func() { _ = srv.Close() })
	return asked
}
