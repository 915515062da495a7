package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/inference-metrics/adapter/test/cluster"
)

// monitorKinds are the Prometheus operator's kinds as far as a server has to know them. Its own definitions
// would refuse much of what is malformed; they are optional in a cluster, and so are their checks here.
const monitorKinds = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {plural: podmonitors, kind: PodMonitor}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {plural: servicemonitors, kind: ServiceMonitor}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// monitorsOf are the monitors of a namespace: two that say where engines of private images serve, and three
// that are followed in nothing.
const monitorsOf = `
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: private, namespace: %[1]s}
spec: {selector: {matchLabels: {app: private}}, podMetricsEndpoints: [{port: metrics, interval: 30s}]}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: served, namespace: %[1]s}
spec: {selector: {matchLabels: {team: a}}, endpoints: [{port: http}]}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: malformed, namespace: %[1]s}
spec: {selector: {}, podMetricsEndpoints: many}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: guarded, namespace: %[1]s}
spec: {selector: {}, podMetricsEndpoints: [{port: metrics, path: /guarded, basicAuth: {username: {name: s, key: u}, password: {name: s, key: p}}}]}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: foreign, namespace: default}
spec: {namespaceSelector: {any: true}, selector: {}, podMetricsEndpoints: [{port: metrics, path: /foreign}]}
`

// privateEngine is a Deployment whose pods look like nothing that is known, but that they hold a GPU.
const privateEngine = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers:
      - {name: main, image: registry.example/llm, ports: [{name: metrics, containerPort: %[3]d}], resources: {limits: {nvidia.com/gpu: 1}}}
`

// TestMonitors: engines of private images are found where PodMonitors and ServiceMonitors say that they serve.
// The kinds come after the adapter has started, and go again; what is wrong with a monitor is told, and
// hurts nothing else.
func TestMonitors(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startEmulator(t, ns)
	deploy(t, ns, workload{name: "vllm", replicas: 1})
	for _, app := range []string{"private", "served"} {
		if err := shared.Apply(t.Context(), fmt.Sprintf(privateEngine, app, ns, enginePort)); err != nil {
			t.Fatal(err)
		}
	}
	pods := awaitReady(t, ns, 3)
	name := func(app string) string {
		return pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels["app"] == app })].Name
	}
	_, err := shared.Client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "served", Labels: map[string]string{"team": "a"}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "served"}, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromString("metrics")},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role, err := os.ReadFile("../../../deploy/manifests/overlays/embedded/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Apply(t.Context(), string(role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = undefineMonitors(context.WithoutCancel(t.Context())) })

	a := newAdapter(t, "--scrape-interval=1s")
	answers := func(apps ...string) func() error {
		return func() error {
			values, err := askDirectly(t, a, ns, "vllm_queue_depth")
			if err != nil {
				return err
			}
			for _, app := range apps {
				if _, ok := values[name(app)]; !ok {
					return fmt.Errorf("it answers %v, and not for %s", values, app)
				}
			}
			if len(values) != len(apps) {
				return fmt.Errorf("it answers %v, and not for %v alone", values, apps)
			}
			return nil
		}
	}
	eventually(t, time.Minute, "what looks like an engine is answered for", answers("vllm"))
	if err := shared.Apply(t.Context(), monitorKinds); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=1m",
		"crd/podmonitors.monitoring.coreos.com", "crd/servicemonitors.monitoring.coreos.com"); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "monitors can be made", func() error { return shared.Apply(t.Context(), fmt.Sprintf(monitorsOf, ns)) })
	eventually(t, 2*time.Minute, "so is what monitors name", answers("vllm", "private", "served"))

	page := statusOf(t, a)
	var urls []string
	for _, r := range page.Targets.Rows {
		if r.Namespace == ns {
			urls = append(urls, r.URL)
		}
	}
	for _, p := range pods {
		if !slices.Contains(urls, engineURL(&p)) {
			t.Errorf("the targets are %v, without %s", urls, engineURL(&p))
		}
	}
	if len(urls) != len(pods) {
		t.Errorf("there are %d targets, want one for each of %d pods: %v", len(urls), len(pods), urls)
	}
	told := map[string]string{}
	for _, r := range page.Monitors.Rows {
		told[r.Namespace+"/"+r.Name] = r.Field
	}
	want := map[string]string{ns + "/malformed": "spec.podMetricsEndpoints", ns + "/guarded": "spec.podMetricsEndpoints[0].basicAuth", "default/foreign": "spec.namespaceSelector"}
	for monitor, field := range want {
		if told[monitor] != field {
			t.Errorf("of %s is told %q, want %q: %+v", monitor, told[monitor], field, page.Monitors.Rows)
		}
	}
	if len(told) != len(want) {
		t.Errorf("not followed is %v", told)
	}

	if err := undefineMonitors(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the kinds are gone", answers("vllm"))
	text, err := os.ReadFile(a.Log)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "Monitors are not followed") + strings.Count(string(text), "where pods serve"); n > 8 {
		t.Errorf("the log has %d lines about monitors:\n%s", n, text)
	}
}

func undefineMonitors(ctx context.Context) error {
	_, err := shared.Kubectl(ctx, "delete", "crd", "--ignore-not-found", "podmonitors.monitoring.coreos.com", "servicemonitors.monitoring.coreos.com")
	return err
}

// page is what a test reads of the status page.
type page struct {
	Targets struct {
		Rows []struct{ Namespace, Pod, URL, State string }
	}
	Monitors struct {
		Rows []struct{ Kind, Namespace, Name, Field, Reason string }
	}
}

func statusOf(t *testing.T, a *cluster.Adapter) page {
	t.Helper()
	resp := get(t, directly(a), "/debug/signals", "application/json")
	var p page
	if err := json.Unmarshal(resp.body, &p); err != nil || resp.status != http.StatusOK {
		t.Fatalf("the status page: a %d, %v: %s", resp.status, err, resp.body)
	}
	return p
}
