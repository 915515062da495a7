package discover

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

// found runs a discoverer over pods and returns what it tells first, by the names of the pods.
func found(t *testing.T, config Config, pods ...*corev1.Pod) map[string][]string {
	t.Helper()
	var objects []runtime.Object
	for _, p := range pods {
		objects = append(objects, p)
	}
	told := discovering(t, config, fake.NewClientset(objects...))
	out := map[string][]string{}
	for _, target := range told.next(t) {
		text := target.URL
		if target.Exporter != Engine {
			text += " " + string(target.Exporter)
		}
		if target.Entry >= 0 {
			text += fmt.Sprintf(" by %d", target.Entry)
		}
		out[target.Pod] = append(out[target.Pod], text)
	}
	return out
}

type told struct {
	targets chan []Target
	*Discoverer
}

func (d told) next(t *testing.T) []Target {
	t.Helper()
	select {
	case targets := <-d.targets:
		return targets
	case <-time.After(time.Minute):
		t.Fatal("told nothing in a minute")
		return nil
	}
}

func discovering(t *testing.T, config Config, client *fake.Clientset, monitors ...runtime.Object) told {
	t.Helper()
	dynamicClient := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		monitoring.WithResource("podmonitors"): "PodMonitorList", monitoring.WithResource("servicemonitors"): "ServiceMonitorList",
	}, monitors...)
	return discoveringWith(t, config, client, dynamicClient)
}

func discoveringWith(t *testing.T, config Config, client *fake.Clientset, dynamicClient dynamic.Interface) told {
	t.Helper()
	out := told{targets: make(chan []Target, 100)}
	var err error
	out.Discoverer, err = New(client, dynamicClient, config, func(targets []Target) error {
		out.targets <- targets
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out.monitors.again = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { out.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

// newPod is a pod on node n1 with the address 10.0.0.1; what is written NAME:PORT is a port of the container
// before it.
func newPod(name string, change func(*corev1.Pod), containers ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "chat", Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", HostIP: "192.168.0.1"},
	}
	for _, text := range containers {
		fields := strings.Fields(text) // name, image, ports
		c := corev1.Container{Name: fields[0], Image: fields[1]}
		for _, text := range fields[2:] {
			name, number, _ := strings.Cut(text, ":")
			var n int32
			if _, err := fmt.Sscan(number, &n); err != nil {
				panic(err)
			}
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, ContainerPort: n, Protocol: corev1.ProtocolTCP})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	if change != nil {
		change(p)
	}
	return p
}

func label(key, value string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Labels[key] = value } }

func annotate(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func onHost(p *corev1.Pod) { p.Spec.HostNetwork, p.Status.PodIP = true, p.Status.HostIP }

// TestRules holds the table to pods as the projects deploy them, and to those that it has to leave alone.
func TestRules(t *testing.T) {
	const ip = "http://10.0.0.1:"
	cases := []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"vllm", newPod("", nil, "vllm vllm/vllm-openai:v0.11.0 http:8000"), []string{ip + "8000/metrics"}},
		{"vllm by digest", newPod("", nil, "main registry.example:5000/mirror/vllm-openai@sha256:abc http:8000"), []string{ip + "8000/metrics"}},
		{"vllm on another port", newPod("", nil, "server vllm/vllm-openai http:9000"), []string{ip + "9000/metrics"}},
		{"vllm that declares none", newPod("", nil, "vllm vllm/vllm-openai"), []string{ip + "8000/metrics"}},
		{"a private image in a container vllm", newPod("", nil, "vllm registry.example/llm:1 metrics:8000"), []string{ip + "8000/metrics"}},
		{"the vLLM production stack", newPod("", label("environment", "test"), "vllm lmcache/vllm-openai:latest container-port:8000 zmq-port:55555"), []string{ip + "8000/metrics"}},
		{"its router", newPod("", label("environment", "router"), "router-container lmcache/lmstack-router:latest router-cport:8000"), nil},
		{"sglang", newPod("", nil, "sglang lmsysorg/sglang:v0.5 http:30000"), []string{ip + "30000/metrics"}},
		{"its router", newPod("", nil, "router lmsysorg/sglang-router http:30000"), nil},
		{"tgi", newPod("", nil, "tgi ghcr.io/huggingface/text-generation-inference:3.3 http:80"), []string{ip + "80/metrics"}},
		{"llama.cpp", newPod("", nil, "main ghcr.io/ggml-org/llama.cpp:server http:8080"), []string{ip + "8080/metrics"}},
		{"lmdeploy", newPod("", nil, "main openmmlab/lmdeploy:v0.9 http:23333"), []string{ip + "23333/metrics"}},
		{"triton", newPod("", nil, "main nvcr.io/nvidia/tritonserver:25.08-trtllm-python-py3 http:8000 grpc:8001 metrics-port:8002"), []string{ip + "8002/metrics"}},
		{"tensorrt-llm", newPod("", nil, "main nvcr.io/nvidia/tensorrt-llm/release:1.1.0 http:8000"), []string{ip + "8000/prometheus/metrics"}},
		{"nim", newPod("", nil, "main nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8 http-openai:8000"), []string{ip + "8000/v1/metrics"}},
		{"dynamo's frontend", newPod("", label("nvidia.com/dynamo-component-type", "frontend"), "main nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0 http:8000"), []string{ip + "8000/metrics"}},
		{"dynamo's worker", newPod("", label("nvidia.com/dynamo-component-type", "worker"), "main nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.4.0 system:9090 nixl:19090"), []string{ip + "9090/metrics"}},
		{"dynamo's worker of a private image", newPod("", label("nvidia.com/dynamo-component-type", "worker"), "main registry.example/mine system:9090"), []string{ip + "9090/metrics"}},
		{"dynamo's planner", newPod("", label("nvidia.com/dynamo-component-type", "planner"), "main nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0 metrics:9085"), nil},
		{"llm-d's decode with its proxy", newPod("", label("llm-d.ai/inference-serving", "true"), "routing-proxy ghcr.io/llm-d/llm-d-routing-sidecar:v0.4 :8000", "vllm ghcr.io/llm-d/llm-d-cuda:v0.4 metrics:8200"), []string{ip + "8200/metrics"}},
		{"llm-d of a private image", newPod("", label("llm-d.ai/inference-serving", "true"), "routing-proxy registry.example/sidecar :8000", "modelserver registry.example/mine :8200"), []string{ip + "8200/metrics"}},
		{"KServe's LLMInferenceService", newPod("", label("kserve.io/component", "workload"), "main registry.example/mine https:8000"), []string{"https://10.0.0.1:8000/metrics"}},
		{"KServe's InferenceService", newPod("", annotate("prometheus.kserve.io/port", "8080", "prometheus.kserve.io/path", "/metrics"),
			"kserve-container quay.io/modh/vllm:1 h2c:8080", "queue-proxy gcr.io/knative/queue http-usermetric:9091"), []string{ip + "8080/metrics"}},
		{"KServe's sklearn", newPod("", label("serving.kserve.io/inferenceservice", "iris"), "kserve-container kserve/sklearnserver:1 user-port:8080"), nil},
		{"a leader", newPod("", label("leaderworkerset.sigs.k8s.io/worker-index", "0"), "vllm-leader vllm/vllm-openai http:8080"), []string{ip + "8080/metrics"}},
		{"a worker", newPod("", label("leaderworkerset.sigs.k8s.io/worker-index", "1"), "vllm-worker vllm/vllm-openai http:8080"), nil},
		{"AIBrix", newPod("", func(p *corev1.Pod) {
			label("model.aibrix.ai/name", "m")(p)
			label("model.aibrix.ai/metric-port", "8081")(p)
		},
			"vllm-openai vllm/vllm-openai:v0.9 :8000", "aibrix-runtime aibrix/runtime:v0.4 :8080"), []string{ip + "8081/metrics"}},
		{"an endpoint picker", newPod("", nil, "epp registry.k8s.io/gateway-api-inference-extension/epp:v1.5 grpc:9002 metrics:9090"), []string{ip + "9090/metrics pool"}},
		{"llm-d's endpoint picker", newPod("", nil, "epp ghcr.io/llm-d/llm-d-inference-scheduler:v0.7 grpc:9002 metrics:9090"), []string{ip + "9090/metrics pool"}},
		{"a DCGM exporter of a tenant", newPod("", nil, "exporter nvcr.io/nvidia/k8s/dcgm-exporter:4 metrics:9400"), nil},
		{"a DCGM exporter", newPod("", func(p *corev1.Pod) { p.Namespace = "gpu-operator" }, "exporter nvcr.io/nvidia/k8s/dcgm-exporter:4 metrics:9400"), []string{ip + "9400/metrics gpu"}},

		{"some web application", newPod("", annotate("prometheus.io/scrape", "true"), "web nginx:1 http:8000 metrics:8080"), nil},
		{"a benchmark", newPod("", nil, "vllm-bench vllm/vllm-openai http:8000"), nil},
		{"another project's image", newPod("", nil, "main ghcr.io/vllm-project/semantic-thing:1 metrics:8000"), nil},
		{"an engine that is left alone", newPod("", annotate("prometheus.io/scrape", "false"), "vllm vllm/vllm-openai http:8000"), nil},
		{"an annotated engine", newPod("", annotate("prometheus.io/scrape", "true", "prometheus.io/port", "9999", "prometheus.io/path", "/m", "prometheus.io/scheme", "https"), "vllm vllm/vllm-openai http:8000"), []string{"https://10.0.0.1:9999/m"}},
		{"Istio's merged metrics", newPod("", annotate("prometheus.io/scrape", "true", "prometheus.io/port", "15020", "prometheus.io/path", "/stats/prometheus"), "vllm vllm/vllm-openai http:8000", "istio-proxy istio/proxyv2 http-envoy-prom:15090"), []string{ip + "15020/stats/prometheus"}},

		{"a path that is another host", newPod("", annotate("prometheus.io/path", "@evil.example/"), "vllm vllm/vllm-openai http:8000"), []string{ip + "8000/metrics"}},
		{"a path with a query", newPod("", annotate("prometheus.io/path", "/x?y=http://evil.example"), "vllm vllm/vllm-openai http:8000"), []string{ip + "8000/metrics"}},
		{"a port that is another host", newPod("", annotate("prometheus.io/port", "80@evil.example"), "vllm vllm/vllm-openai http:8000"), []string{ip + "8000/metrics"}},
		{"no port", newPod("", annotate("prometheus.io/port", "70000"), "vllm vllm/vllm-openai http:8000"), nil},
		{"no scheme", newPod("", annotate("prometheus.io/scheme", "gopher"), "vllm vllm/vllm-openai http:8000"), []string{ip + "8000/metrics"}},
		{"on the host", newPod("", onHost, "vllm vllm/vllm-openai http:8000"), []string{"http://192.168.0.1:8000/metrics"}},
		{"on the host, undeclared", newPod("", onHost, "vllm vllm/vllm-openai"), nil},
		{"on the host, the kubelet's port", newPod("", func(p *corev1.Pod) { onHost(p); annotate("prometheus.io/port", "10250")(p) }, "vllm vllm/vllm-openai http:8000"), nil},
		{"IPv6", newPod("", func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" }, "vllm vllm/vllm-openai http:8000"), []string{"http://[fd00::1]:8000/metrics"}},
		{"ended", newPod("", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "vllm vllm/vllm-openai http:8000"), nil},
		{"not started", newPod("", func(p *corev1.Pod) { p.Status.Phase, p.Status.PodIP = corev1.PodPending, "" }, "vllm vllm/vllm-openai http:8000"), nil},
	}
	var pods []*corev1.Pod
	for i, c := range cases {
		c.pod.Name = fmt.Sprintf("pod-%d", i)
		pods = append(pods, c.pod)
	}
	got := found(t, Config{GPUNamespaces: DefaultGPUNamespaces}, pods...)
	for _, c := range cases {
		if diff := cmp.Diff(c.want, got[c.pod.Name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEntries: entries add pods that do not look like engines, and have the only say in those they name.
func TestEntries(t *testing.T) {
	config := Config{Entries: []Entry{
		{Namespace: "chat", Selector: selector(t, "app.kubernetes.io/part-of=mine"), Port: "api", Path: "/m?model=x", Scheme: "https", Exporter: Engine},
		{Selector: selector(t, "app.kubernetes.io/part-of in (mine)"), Port: "9400", Path: "/metrics", Scheme: "http", Exporter: GPU},
	}}
	mine := func(p *corev1.Pod) { label("app.kubernetes.io/part-of", "mine")(p) }
	got := found(t, config,
		newPod("mine", mine, "x registry.example/x api:8443"),
		newPod("vllm", mine, "vllm vllm/vllm-openai http:8000"),
		newPod("elsewhere", func(p *corev1.Pod) { mine(p); p.Namespace = "batch" }, "x registry.example/x api:8443"),
		newPod("host", func(p *corev1.Pod) { mine(p); onHost(p) }, "x registry.example/x api:8443"),
		newPod("automatic", nil, "vllm vllm/vllm-openai http:8000"),
	)
	want := map[string][]string{
		"mine":      {"http://10.0.0.1:9400/metrics gpu by 1", "https://10.0.0.1:8443/m?model=x by 0"},
		"vllm":      {"http://10.0.0.1:9400/metrics gpu by 1"},
		"elsewhere": {"http://10.0.0.1:9400/metrics gpu by 1"},
		"host":      {"https://192.168.0.1:8443/m?model=x by 0"},
		"automatic": {"http://10.0.0.1:8000/metrics"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNarrowed: namespaces and a selector narrow what the table finds, but not where GPUs are read.
func TestNarrowed(t *testing.T) {
	config := Config{Namespaces: []string{"chat"}, Selector: selector(t, "tier=gold"), GPUNamespaces: []string{"gpus"}}
	gold := label("tier", "gold")
	got := found(t, config,
		newPod("in", gold, "vllm vllm/vllm-openai http:8000"),
		newPod("other-tier", nil, "vllm vllm/vllm-openai http:8000"),
		newPod("other-namespace", func(p *corev1.Pod) { gold(p); p.Namespace = "batch" }, "vllm vllm/vllm-openai http:8000"),
		newPod("gpus", func(p *corev1.Pod) { p.Namespace = "gpus" }, "exporter nvidia/dcgm-exporter metrics:9400"),
	)
	want := map[string][]string{"in": {"http://10.0.0.1:8000/metrics"}, "gpus": {"http://10.0.0.1:9400/metrics gpu"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	config.Off = true
	config.Entries = []Entry{{Selector: selector(t, "tier=gold"), Port: "8000", Path: "/metrics", Scheme: "http", Exporter: Engine}}
	got = found(t, config, newPod("in", gold, "vllm vllm/vllm-openai http:8000"), newPod("other", nil, "vllm vllm/vllm-openai http:8000"))
	if diff := cmp.Diff(map[string][]string{"in": {"http://10.0.0.1:8000/metrics by 0"}}, got); diff != "" {
		t.Errorf("off (-want +got):\n%s", diff)
	}
}

// TestFollows pods as they come, change and go, and the nodes that they are on.
func TestFollows(t *testing.T) {
	client := fake.NewClientset(newPod("a", nil, "vllm vllm/vllm-openai http:8000"))
	d := discovering(t, Config{}, client)
	expect := func(step string, want ...string) {
		t.Helper()
		var got []string
		for _, target := range d.next(t) {
			got = append(got, target.Pod+" "+target.URL)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", step, diff)
		}
	}
	expect("at first", "a http://10.0.0.1:8000/metrics")
	if !d.Synced() {
		t.Error("not synced, though it told of targets")
	}
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "chat", Name: name} }
	pods := client.CoreV1().Pods("chat")

	b := newPod("b", func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.2" }, "vllm vllm/vllm-openai http:8000")
	if _, err := pods.Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("b came", "a http://10.0.0.1:8000/metrics", "b http://10.0.0.2:8000/metrics")
	if !d.OnNode(key("a"), key("b")) || d.OnNode(key("a"), key("c")) || d.OnNode(key("c"), key("c")) {
		t.Error("the pods are on one node, and c on none")
	}

	moved := b.DeepCopy()
	moved.Status.PodIP, moved.Spec.NodeName = "10.0.0.3", "n2"
	if _, err := pods.Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("b moved", "a http://10.0.0.1:8000/metrics", "b http://10.0.0.3:8000/metrics")
	if d.OnNode(key("a"), key("b")) {
		t.Error("b is on another node now")
	}

	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("b went", "a http://10.0.0.1:8000/metrics")
	if d.OnNode(key("b"), key("b")) {
		t.Error("b is gone, and on a node")
	}
}
