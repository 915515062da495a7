package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// sinkFunc takes samples.
type sinkFunc func(ls labels.Labels, t int64, v float64)

func (f sinkFunc) Append(ls labels.Labels, t int64, v float64) { f(ls, t, v) }

// TestWhoIsBelieved: what a pod exports is its own, whoever it claims to be. A GPU exporter may speak for
// the pods of its node, and an endpoint picker for the pools of its namespace.
func TestWhoIsBelieved(t *testing.T) {
	const everything = `vllm:num_requests_waiting{namespace="victim",pod="v",exported_namespace="victim",exported_pod="v",pod_namespace="victim",pod_name="v",kubernetes_namespace="victim",kubernetes_pod_name="v",k8s_namespace_name="victim",k8s_pod_name="v",instance="i"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="1",namespace="victim",pod="v"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="2",pod_namespace="victim",pod_name="v",exported_namespace="victim",exported_pod="v"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="3",namespace="victim",pod="far"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="4",namespace="victim",pod="nobody"} 0
llm_d_epp_ready_endpoints{namespace="victim",name="p",inference_pool="p"} 0
up{namespace="victim",pod="v"} 0
`
	var objects []runtime.Object
	add := func(namespace, name, node, image string) {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, everything) }))
		srv.Listener.Close()
		var err error
		if srv.Listener, err = net.Listen("tcp", "127.0.0.2:0"); err != nil { // 127.0.0.1 is no pod's
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(srv.Close)
		addr := srv.Listener.Addr().(*net.TCPAddr)
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Name: "main", Image: image, Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: int32(addr.Port), Protocol: corev1.ProtocolTCP}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr.IP.String(), HostIP: "192.168.0.1"},
		})
	}
	add("victim", "v", "n1", "registry.example/idle")
	add("victim", "far", "n2", "registry.example/idle")
	add("tenant", "engine", "n1", "vllm/vllm-openai:1")
	add("tenant", "exporter", "n1", "nvidia/dcgm-exporter:1")
	add("tenant", "epp", "n1", "example/epp:1")
	add("gpu-operator", "exporter", "n1", "nvidia/dcgm-exporter:1")

	c := parse(t, "--kubeconfig="+kubeconfig(t, "http://127.0.0.1:1"), "--scrape-interval=200ms")
	s, found, err := newScrape(c, fake.NewClientset(objects...))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	go func() { found.Run(ctx); done <- nil }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})

	// What is said of whom, and by how many scrapes of each target.
	said := map[string][]string{}
	scrapes := map[string]int{}
	enough := func() bool {
		for _, target := range []string{"tenant/engine", "tenant/epp", "gpu-operator/exporter"} {
			if scrapes[target] < 3 {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(time.Minute); !enough(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("scraped in a minute: %v", scrapes)
		}
		if _, err := s.Fetch(ctx, nil, 0, sinkFunc(func(ls labels.Labels, _ int64, v float64) {
			name := ls.Get("__name__")
			if name == "up" {
				scrapes[ls.Get("namespace")+"/"+ls.Get("pod")]++
				if v != 1 {
					t.Errorf("%s is %g", ls, v)
				}
			}
			group, ok := signals.GroupOf(ls)
			if ok && !slices.Contains(said[group], name) {
				said[group] = append(said[group], name)
				slices.Sort(said[group])
			}
		})); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string][]string{
		"tenant/engine":                 {"up", "vllm:num_requests_waiting"},
		"tenant/epp":                    {"up"},
		signals.PoolKey("tenant", "p"):  {"llm_d_epp_ready_endpoints"},
		"gpu-operator/exporter":         {"up"},
		signals.GroupKey("victim", "v"): {"DCGM_FI_DEV_GPU_UTIL"},
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("who is spoken of (-want +got):\n%s", diff)
	}
	if scrapes["tenant/exporter"] > 0 || scrapes["victim/v"] > 0 {
		t.Errorf("scraped what is no engine: %v", scrapes)
	}
}
