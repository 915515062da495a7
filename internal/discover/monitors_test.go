package discover

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

// newMonitor is a monitor, of namespace chat unless its name says another, from the YAML of its spec.
func newMonitor(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	namespace, name, found := strings.Cut(name, "/")
	if !found {
		namespace, name = "chat", namespace
	}
	u := &unstructured.Unstructured{}
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {namespace: %s, name: %s}\nspec: %s", monitoring, kind, namespace, name, spec)
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// serving makes a cluster have kinds.
func serving(client *fake.Clientset, kinds ...string) {
	list := &metav1.APIResourceList{GroupVersion: monitoring.String()}
	for _, kind := range kinds {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: kind, Namespaced: true})
	}
	client.Lock()
	defer client.Unlock()
	client.Resources = []*metav1.APIResourceList{list}
}

// accelerate gives the container of a name a GPU.
func accelerate(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		i := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
		p.Spec.Containers[i].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	}
}

func newService(name string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "chat", Name: name, Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "x"}, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80},
		}},
	}
	change(s)
	return s
}

// TestMonitors holds what is followed of one monitor and one pod, and what is said of the rest.
func TestMonitors(t *testing.T) {
	const ip = "http://10.0.0.1:"
	const all = "selector: {}, podMetricsEndpoints: "
	engine := func() *corev1.Pod { return newPod("", nil, "vllm vllm/vllm-openai http:8000 other:9000") }
	private := func() *corev1.Pod {
		return newPod("", accelerate("main"), "main registry.example/mine http:8000 other:9000")
	}
	cases := []struct {
		name    string
		pod     *corev1.Pod
		spec    string
		service *corev1.Service // makes it a ServiceMonitor
		want    []string
		problem string
	}{
		{name: "another port and path of an engine", pod: engine(),
			spec: all + "[{port: other, path: /m}]", want: []string{ip + "9000/m"}},
		{name: "the same port", pod: engine(),
			spec: all + "[{port: http}]", want: []string{ip + "8000/metrics"}},
		{name: "two ports", pod: engine(),
			spec: all + "[{port: http}, {portNumber: 9000}]", want: []string{ip + "8000/metrics", ip + "9000/metrics"}},
		{name: "a port twice", pod: engine(),
			spec: all + "[{port: http, path: /a}, {targetPort: 8000, path: /b}]", want: []string{ip + "8000/a"}},
		{name: "parameters and HTTPS", pod: engine(),
			spec: all + "[{port: http, scheme: HTTPS, params: {format: [text], x: ['a b&c#d']}}]", want: []string{"https://10.0.0.1:8000/metrics?format=text&x=a+b%26c%23d"}},
		{name: "a target port by name", pod: engine(),
			spec: all + "[{targetPort: other}]", want: []string{ip + "9000/metrics"}},
		{name: "an engine of a private image with a GPU", pod: private(),
			spec: all + "[{port: http}]", want: []string{ip + "8000/metrics"}},
		{name: "its sidecar", pod: newPod("", accelerate("main"), "main registry.example/mine http:8000", "exporter registry.example/exporter metrics:9100"),
			spec: all + "[{port: metrics}]"},
		{name: "an engine's sidecar", pod: newPod("", nil, "vllm vllm/vllm-openai http:8000", "istio-proxy istio/proxyv2 http-envoy-prom:15090"),
			spec: all + "[{port: http-envoy-prom, path: /stats/prometheus}]", want: []string{ip + "8000/metrics"}},
		{name: "any application", pod: newPod("", nil, "web nginx http:8000"),
			spec: all + "[{port: http}]"},
		{name: "a claim of a device", pod: newPod("", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		}, "main registry.example/mine http:8000"),
			spec: all + "[{port: http}]", want: []string{ip + "8000/metrics"}},
		{name: "a stack's pod on a port of its own", pod: newPod("", label("llm-d.ai/inference-serving", "true"), "main registry.example/mine api:7000", "routing-proxy registry.example/proxy http:8000"),
			spec: all + "[{port: api}]", want: []string{ip + "7000/metrics"}},
		{name: "a selector that does not match", pod: engine(),
			spec: "selector: {matchLabels: {app: other}}, podMetricsEndpoints: [{port: other}]", want: []string{ip + "8000/metrics"}},
		{name: "a selector by expression", pod: newPod("", label("app.kubernetes.io/part-of", "mine"), "vllm vllm/vllm-openai http:8000 other:9000"),
			spec: "selector: {matchExpressions: [{key: app.kubernetes.io/part-of, operator: In, values: [mine]}]}, podMetricsEndpoints: [{port: other}]", want: []string{ip + "9000/metrics"}},
		{name: "a port that the pod has not", pod: engine(),
			spec: all + "[{port: nowhere}, {portNumber: 9999}]", want: []string{ip + "8000/metrics"}},
		{name: "on the host, a port that is not the pod's", pod: newPod("", onHost, "vllm vllm/vllm-openai http:8000"),
			spec: all + "[{portNumber: 10250}]", want: []string{"http://192.168.0.1:8000/metrics"}},
		{name: "the pod says its port itself", pod: newPod("", annotate("prometheus.io/port", "15020", "prometheus.io/path", "/stats/prometheus"), "vllm vllm/vllm-openai http:8000"),
			spec: all + "[{port: http}]", want: []string{ip + "15020/stats/prometheus"}},
		{name: "the pod is left alone", pod: newPod("", annotate("prometheus.io/scrape", "false"), "vllm vllm/vllm-openai http:8000"),
			spec: all + "[{port: http}]"},
		{name: "an endpoint picker is one still", pod: newPod("", nil, "epp registry.k8s.io/gateway-api-inference-extension/epp grpc:9002 metrics:9090"),
			spec: all + "[{port: metrics, path: /m}]", want: []string{ip + "9090/m pool"}},
		{name: "a tenant's GPU exporter is none still", pod: newPod("", accelerate("exporter"), "exporter nvidia/dcgm-exporter metrics:9400"),
			spec: all + "[{port: metrics}]"},
		{name: "other namespaces only", pod: engine(),
			spec: "namespaceSelector: {matchNames: [elsewhere]}, " + all + "[{port: other}]", want: []string{ip + "8000/metrics"}},

		{name: "relabelings that change labels", pod: engine(),
			spec: all + "[{port: other, relabelings: [{targetLabel: namespace, replacement: victim}, {action: labelmap, regex: '(.*)', replacement: '__address__'}, {targetLabel: __address__, replacement: 'evil:1'}]}]",
			want: []string{ip + "9000/metrics"}},
		{name: "a relabeling that keeps", pod: engine(),
			spec: all + "[{port: other, relabelings: [{action: Keep, sourceLabels: [__meta_kubernetes_pod_container_name], regex: vllm}]}]", want: []string{ip + "9000/metrics"}},
		{name: "a relabeling that drops", pod: engine(),
			spec: all + "[{port: other, relabelings: [{action: drop, sourceLabels: [__meta_kubernetes_namespace, __meta_kubernetes_pod_container_port_name], regex: 'case-.*;oth.*'}]}]", want: []string{ip + "8000/metrics"}},
		{name: "a relabeling by what is not known", pod: engine(),
			spec: all + "[{port: other, relabelings: [{targetLabel: x}, {action: keep, sourceLabels: [__tmp_x]}]}]", want: []string{ip + "8000/metrics"},
			problem: `spec.podMetricsEndpoints[0].relabelings[1]: it drops pods by "__tmp_x", which is not known here: name the pods in scrape.pods of the adapter's configuration`},
		{name: "a relabeling that is none", pod: engine(),
			spec: all + "[{port: other, relabelings: [{action: keep, regex: '('}]}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].relabelings[0].regex: error parsing regexp: missing closing ): `^(?s:()$`"},

		{name: "a token", pod: engine(),
			spec: all + "[{port: other, bearerTokenSecret: {name: token, key: t}}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].bearerTokenSecret: needs credentials, which are taken from no monitor: name the pods in scrape.pods of the adapter's configuration"},
		{name: "a token of the operator's library, which is none", pod: engine(),
			spec: all + "[{port: other, bearerTokenSecret: {key: ''}, tlsConfig: {insecureSkipVerify: false}}]", want: []string{ip + "9000/metrics"}},
		{name: "TLS", pod: engine(),
			spec: all + "[{port: other, scheme: https, tlsConfig: {insecureSkipVerify: true}}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].tlsConfig: needs credentials, which are taken from no monitor: name the pods in scrape.pods of the adapter's configuration"},
		{name: "a proxy", pod: engine(),
			spec: all + "[{port: other, proxyUrl: 'http://evil.example'}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].proxyUrl: pods are asked directly only: name the pods in scrape.pods of the adapter's configuration"},
		{name: "problems of what is no engine", pod: newPod("", nil, "web nginx http:8000"),
			spec: all + "[{port: http, bearerTokenSecret: {name: token, key: t}}]"},
		{name: "no port", pod: engine(),
			spec: all + "[{path: /m}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].port: it is missing, and of a pod not all ports are asked: name one"},
		{name: "an impossible port", pod: engine(),
			spec: all + "[{portNumber: 70000}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].portNumber: 70000 is outside 1 to 65535"},
		{name: "a port that is a list", pod: engine(),
			spec: all + "[{port: [8000]}, {port: other}]", want: []string{ip + "9000/metrics"},
			problem: "spec.podMetricsEndpoints[0].port: want string, got array"},
		{name: "a target port that is a list", pod: engine(),
			spec: all + "[{targetPort: [8000]}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].targetPort: want int32, got array"},
		{name: "a path that is none", pod: engine(),
			spec: all + "[{port: other, path: '@evil.example/'}]", want: []string{ip + "8000/metrics"},
			problem: `spec.podMetricsEndpoints[0].path: "@evil.example/" is no path of plain characters, such as /metrics`},
		{name: "a path that looks like a host", pod: engine(),
			spec: all + "[{port: other, path: '//evil.example/x'}]", want: []string{ip + "9000//evil.example/x"}},
		{name: "a scheme that is none", pod: engine(),
			spec: all + "[{port: other, scheme: file}]", want: []string{ip + "8000/metrics"},
			problem: `spec.podMetricsEndpoints[0].scheme: "file" is neither http nor https`},
		{name: "a parameter twice", pod: engine(),
			spec: all + "[{port: other, params: {x: [a, b]}}]", want: []string{ip + "8000/metrics"},
			problem: `spec.podMetricsEndpoints[0].params: "x" is there twice`},
		{name: "a parameter of another form", pod: engine(),
			spec: all + "[{port: other, params: {'x[]': [a]}}]", want: []string{ip + "8000/metrics"},
			problem: `spec.podMetricsEndpoints[0].params: "x[]" is no name of letters, digits and _`},
		{name: "endless parameters", pod: engine(),
			spec: all + "[{port: other, params: {x: [" + strings.Repeat("a", 2000) + "]}}]", want: []string{ip + "8000/metrics"},
			problem: "spec.podMetricsEndpoints[0].params: they are longer than 1024 bytes"},
		{name: "endless endpoints", pod: newPod("", nil, "vllm vllm/vllm-openai "+ports(20)),
			spec: all + endpoints(20), want: many(8),
			problem: "spec.podMetricsEndpoints[8]: of one pod the first 8 ports that monitors name are asked"},
		{name: "a selector of another form", pod: engine(),
			spec: "selector: {matchLabels: {app: [x]}}, podMetricsEndpoints: [{port: other}]", want: []string{ip + "8000/metrics"},
			problem: "spec.selector.matchLabels: want string, got array"},
		{name: "a selector that is none", pod: engine(),
			spec: "selector: {matchExpressions: [{key: app, operator: Near}]}, podMetricsEndpoints: [{port: other}]", want: []string{ip + "8000/metrics"},
			problem: `spec.selector: "Near" is not a valid label selector operator`},
		{name: "no selector", pod: engine(),
			spec: "podMetricsEndpoints: [{port: other}]", want: []string{ip + "8000/metrics"},
			problem: "spec.selector: it is missing: {} is for all"},

		{name: "a Service's port", pod: newPod("", label("app", "x"), "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 9000 }),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{port: http, path: /m}]", want: []string{ip + "9000/m"}},
		{name: "a Service's port by name", pod: newPod("", label("app", "x"), "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(s *corev1.Service) {
				s.Spec.Ports[0].TargetPort.Type, s.Spec.Ports[0].TargetPort.StrVal = 1, "other"
			}),
			spec: "selector: {matchLabels: {team: a}}, endpoints: [{port: http}]", want: []string{ip + "9000/metrics"}},
		{name: "a Service's port that the pod does not declare", pod: newPod("", func(p *corev1.Pod) { label("app", "x")(p); accelerate("main")(p) }, "main registry.example/mine"),
			service: newService("x", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 7000 }),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{port: http}]", want: []string{ip + "7000/metrics"}},
		{name: "the same on the host", pod: newPod("", func(p *corev1.Pod) { label("app", "x")(p); accelerate("main")(p); onHost(p) }, "main registry.example/mine"),
			service: newService("x", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 10250 }),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{port: http}]"},
		{name: "a target port behind a Service", pod: newPod("", label("app", "x"), "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(*corev1.Service) {}),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{targetPort: other}]", want: []string{ip + "9000/metrics"}},
		{name: "another Service", pod: newPod("", label("app", "x"), "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(s *corev1.Service) { s.Labels = nil }),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{targetPort: other}]", want: []string{ip + "8000/metrics"}},
		{name: "a Service of other pods", pod: newPod("", label("app", "y"), "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(*corev1.Service) {}),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{targetPort: other}]", want: []string{ip + "8000/metrics"}},
		{name: "a Service without a selector", pod: newPod("", nil, "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(s *corev1.Service) { s.Spec.Selector = nil }),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{targetPort: other}]", want: []string{ip + "8000/metrics"}},
		{name: "a file of the server's", pod: newPod("", label("app", "x"), "vllm vllm/vllm-openai http:8000 other:9000"),
			service: newService("x", func(*corev1.Service) {}),
			spec:    "selector: {matchLabels: {team: a}}, endpoints: [{targetPort: other, bearerTokenFile: /var/run/secrets/token}]", want: []string{ip + "8000/metrics"},
			problem: "spec.endpoints[0].bearerTokenFile: needs credentials, which are taken from no monitor: name the pods in scrape.pods of the adapter's configuration"},
	}
	var objects, monitors []runtime.Object
	namespace := func(i int) string { return fmt.Sprintf("case-%d", i) }
	for i, c := range cases {
		c.pod.Namespace, c.pod.Name = namespace(i), "p"
		objects = append(objects, c.pod)
		kind := podMonitor
		if c.service != nil {
			kind, c.service.Namespace = serviceMonitor, namespace(i)
			objects = append(objects, c.service)
		}
		monitors = append(monitors, newMonitor(t, kind, namespace(i)+"/m", "{"+c.spec+"}"))
	}
	client := fake.NewClientset(objects...)
	serving(client, "podmonitors", "servicemonitors")
	d := discovering(t, Config{}, client, monitors...)
	targets, problems := map[string][]string{}, map[string][]string{}
	for _, target := range d.next(t) {
		text := target.URL
		if target.Exporter != Engine {
			text += " " + string(target.Exporter)
		}
		targets[target.Namespace] = append(targets[target.Namespace], text)
	}
	for _, p := range d.Problems() {
		problems[p.Namespace] = append(problems[p.Namespace], p.Field+": "+p.Reason)
	}
	for i, c := range cases {
		if diff := cmp.Diff(c.want, targets[namespace(i)]); diff != "" {
			t.Errorf("%s: targets (-want +got):\n%s", c.name, diff)
		}
		var want []string
		if c.problem != "" {
			want = []string{c.problem}
		}
		if diff := cmp.Diff(want, problems[namespace(i)]); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", c.name, diff)
		}
	}
}

func ports(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("p%02d:%d", i, 8000+i))
	}
	return strings.Join(out, " ")
}

func endpoints(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("{port: p%02d}", i))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func many(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("http://10.0.0.1:%d/metrics", 8000+i))
	}
	return out
}

// TestMonitorsAcrossNamespaces: whoever may create a monitor in one namespace changes nothing in another, unless
// the configuration says so; and then those of the pod's own namespace come first.
func TestMonitorsAcrossNamespaces(t *testing.T) {
	const spec = "{namespaceSelector: {any: true}, selector: {}, podMetricsEndpoints: [{port: other, path: /%s}]}"
	pod := newPod("p", nil, "vllm vllm/vllm-openai http:8000 other:9000")
	ask := func(trusted []string, own ...runtime.Object) (string, []Problem) {
		client := fake.NewClientset(pod)
		serving(client, "podmonitors", "servicemonitors")
		d := discovering(t, Config{MonitorNamespaces: trusted}, client, append(own, newMonitor(t, podMonitor, "attacker/m", fmt.Sprintf(spec, "theirs")))...)
		return d.next(t)[0].URL, d.Problems()
	}
	url, problems := ask(nil)
	if url != "http://10.0.0.1:8000/metrics" {
		t.Errorf("another's monitor: got %s", url)
	}
	want := []Problem{{podMonitor, "attacker", "m", "spec.namespaceSelector", "it selects engines in other namespaces, where it is not followed unless scrape.discovery.monitorNamespaces has attacker"}}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("another's monitor, problems (-want +got):\n%s", diff)
	}
	if url, problems := ask([]string{"attacker"}); url != "http://10.0.0.1:9000/theirs" || len(problems) > 0 {
		t.Errorf("a trusted namespace's monitor: got %s, %v", url, problems)
	}
	if url, _ := ask([]string{"attacker"}, newMonitor(t, podMonitor, "m", fmt.Sprintf(spec, "own"))); url != "http://10.0.0.1:9000/own" {
		t.Errorf("with a monitor of its own: got %s", url)
	}
}

// TestMonitorsAreBounded: however many there are, and however many pods they select, it is the pods that
// are engines which are scraped, and each on few ports.
func TestMonitorsAreBounded(t *testing.T) {
	var all []runtime.Object
	for i := range maxMonitors + 50 {
		all = append(all, newMonitor(t, podMonitor, fmt.Sprintf("m-%03d", i), fmt.Sprintf("{selector: {}, podMetricsEndpoints: [{port: http, path: /%03d}]}", i)))
	}
	var objects []runtime.Object
	for i := range 1000 {
		objects = append(objects, newPod(fmt.Sprintf("web-%d", i), nil, "web nginx http:8000"))
	}
	objects = append(objects, newPod("engine", nil, "vllm vllm/vllm-openai http:8000"))
	client := fake.NewClientset(objects...)
	serving(client, "podmonitors", "servicemonitors")
	d := discovering(t, Config{}, client, all...)
	got := d.next(t)
	if len(got) != 1 || got[0].URL != "http://10.0.0.1:8000/000" {
		t.Errorf("got %v", got)
	}
	if n := len(d.Problems()); n != 50 {
		t.Errorf("%d problems, want one for each of the 50 that are not followed", n)
	}
}

// TestMonitorsComeAndGo: the kinds may be absent, come later, be refused or vanish; engines are found all
// along.
func TestMonitorsComeAndGo(t *testing.T) {
	client := fake.NewClientset(newPod("p", nil, "vllm vllm/vllm-openai http:8000 other:9000"))
	gvr := monitoring.WithResource("podmonitors")
	dynamicClient := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		gvr: "PodMonitorList", monitoring.WithResource("servicemonitors"): "ServiceMonitorList",
	})
	answers := make(chan error, 1) // what lists are refused with
	answer := func(err error) {
		select {
		case <-answers:
		default:
		}
		answers <- err
	}
	answer(apierrors.NewForbidden(gvr.GroupResource(), "", fmt.Errorf("not granted")))
	dynamicClient.PrependReactor("list", "podmonitors", func(ktesting.Action) (bool, runtime.Object, error) {
		err := <-answers
		answers <- err
		return err != nil, nil, err
	})
	d := discoveringWith(t, Config{}, client, dynamicClient)
	expect := func(step, want string) {
		t.Helper()
		if got := d.next(t); len(got) != 1 || got[0].URL != want {
			t.Fatalf("%s: got %v, want %s", step, got, want)
		}
	}
	expect("no such kind", "http://10.0.0.1:8000/metrics")

	serving(client, "podmonitors")
	monitor := newMonitor(t, podMonitor, "m", "{selector: {}, podMetricsEndpoints: [{port: other}]}")
	create(t, dynamicClient, monitor)
	await(t, "that it is refused", func() bool {
		d.monitors.mu.Lock()
		defer d.monitors.mu.Unlock()
		return d.monitors.kinds["podmonitors"].failing
	})
	answer(nil)
	expect("it may be read", "http://10.0.0.1:9000/metrics")

	changed := newMonitor(t, podMonitor, "m", "{selector: {}, podMetricsEndpoints: [{port: other, path: /m}]}")
	if _, err := dynamicClient.Resource(gvr).Namespace("chat").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("it changed", "http://10.0.0.1:9000/m")
	if err := dynamicClient.Resource(gvr).Namespace("chat").Delete(t.Context(), "m", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("it went", "http://10.0.0.1:8000/metrics")
}

func create(t *testing.T, client dynamic.Interface, monitor *unstructured.Unstructured) {
	t.Helper()
	if _, err := client.Resource(monitoring.WithResource("podmonitors")).Namespace("chat").Create(t.Context(), monitor, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestAddresses: an address in the status of a pod that cannot be a pod's is not asked, whatever names it.
func TestAddresses(t *testing.T) {
	var pods []*corev1.Pod
	for i, ip := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "ff02::1",
		"::ffff:127.0.0.1", "::ffff:169.254.169.254", "fe80::1%eth0", "localhost", "evil.example", "10.0.0.1:80", "10.0.0.1@evil"} {
		pods = append(pods, newPod(fmt.Sprintf("special-%d", i), func(p *corev1.Pod) { p.Status.PodIP = ip }, "vllm vllm/vllm-openai http:8000"))
	}
	pods = append(pods, newPod("plain", nil, "vllm vllm/vllm-openai http:8000"))
	config := Config{Entries: []Entry{{Namespace: "chat", Port: "8000", Path: "/metrics", Scheme: "http", Exporter: Engine}}}
	for _, config := range []Config{{}, config} {
		got := found(t, config, pods...)
		delete(got, "plain")
		if len(got) > 0 {
			t.Errorf("asks %v", got)
		}
	}
}
