package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	custommetrics "k8s.io/metrics/pkg/client/custom_metrics"
)

// A fault is a request that has no answer.
type fault struct {
	name, path string
	code       int
	// says is what the message has to hold: the metric, the object, the reason, and where to look.
	says []string
	// api is one of external and custom; the latter when empty, in both of its versions.
	api string
}

func escaped(selector string) string { return url.QueryEscape(selector) }

// TestErrors: each message names the metric, the object, the reason and where to look, in every version and
// encoding, and none asks the HPA controller to sleep.
func TestErrors(t *testing.T) {
	if err := shared.Apply(t.Context(), strays); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = kubectl(t, "delete", "deployment,service", "--namespace", teamA, "--selector=stray") })
	pod := pods[teamA][0]
	in := "/namespaces/" + teamA

	t.Run("source up", func(t *testing.T) {
		startAdapter(t, "--prometheus-url="+shared.Prometheus.URL)
		awaitServed(t)
		lists := "kubectl get --raw /apis/"
		for _, f := range []fault{
			{"unknown metric", in + "/pods/*/vllm_made_up", 404, []string{"vllm_made_up", "pods", teamA, lists}, ""},
			{"unknown metric of a pod", in + "/pods/" + pod + "/vllm_made_up", 404, []string{"vllm_made_up", pod, teamA, lists}, ""},
			{"unknown pod", in + "/pods/nobody/vllm_queue_depth", 404, []string{"vllm_queue_depth", "no pod nobody", teamA, "kubectl get pods"}, ""},
			{"another team's pod", in + "/pods/" + pods[teamB][0] + "/vllm_queue_depth", 404, []string{"vllm_queue_depth", pods[teamB][0], teamA}, ""},
			{"unknown object", in + "/deployments.apps/nobody/vllm_queue_depth", 404, []string{"vllm_queue_depth", "no deployments.apps nobody", teamA, "kubectl get deployments.apps"}, ""},
			{"unknown kind", in + "/toasters.example.com/x/vllm_queue_depth", 404, []string{"vllm_queue_depth", "toasters.example.com x", teamA, "signals are served on pods, "}, ""},
			{"a kind that is in no namespace", "/nodes/n/vllm_queue_depth", 404, []string{"vllm_queue_depth", "nodes n", "signals are served on pods, "}, ""},
			{"pods of no namespace", "/pods/" + pod + "/vllm_queue_depth", 404, []string{"vllm_queue_depth", pod, "ask under .../namespaces/NAMESPACE/pods"}, ""},
			{"pod without an engine", in + "/deployments.apps/idle/vllm_queue_depth", 404, []string{"vllm_queue_depth", "deployments.apps idle", teamA, "no sample", "/debug/signals"}, ""},
			{"no pod", in + "/deployments.apps/none/vllm_queue_depth", 404, []string{"vllm_queue_depth", "deployments.apps none", teamA, "no pod that has been Ready", "/debug/signals"}, ""},
			{"no selector", in + "/services/headless/vllm_queue_depth", 404, []string{"vllm_queue_depth", "services headless", teamA, "no selector", "docs/api.md"}, ""},
			{"not computable", in + "/pods/*/tgi_ttft_seconds", 404, []string{"tgi_ttft_seconds", "pods", teamA, "because", lists}, ""},
			{"signal of pools", in + "/pods/*/pool_queue_depth", 404, []string{"pool_queue_depth", "pods", teamA, "InferencePool"}, ""},
			{"unknown key", in + "/pods/*/vllm_queue_depth?metricLabelSelector=" + escaped("colour=red"), 400, []string{"vllm_queue_depth", "pods", teamA, "colour", "it has role, window", "docs/api.md"}, ""},
			{"bad parameter", in + "/deployments.apps/vllm/vllm_ttft_seconds?metricLabelSelector=" + escaped("quantile=95"), 400, []string{"vllm_ttft_seconds", "deployments.apps vllm", teamA, "95 is not between 0 and 1", "docs/api.md"}, ""},
			{"bad selector", in + "/pods/*/vllm_queue_depth?labelSelector=" + escaped("a in ("), 400, []string{"vllm_queue_depth", "pods", teamA, "labelSelector: ", "kubectl get --selector"}, ""},
			{"bad metric selector", in + "/pods/*/vllm_queue_depth?metricLabelSelector=" + escaped("a in ("), 400, []string{"vllm_queue_depth", "pods", teamA, "metricLabelSelector: ", "kubectl get --selector"}, ""},
			{"unknown external metric", in + "/vllm_made_up", 404, []string{"vllm_made_up", teamA, lists}, external},
			{"namespace without an engine", "/namespaces/default/vllm_queue_depth", 404, []string{"vllm_queue_depth", "namespace default", "no pod with an engine", "/debug/signals"}, external},
			{"unknown key of an external metric", in + "/vllm_queue_depth?labelSelector=" + escaped("colour=red"), 400, []string{"vllm_queue_depth", teamA, "colour", "docs/api.md"}, external},
			{"bad external selector", in + "/vllm_queue_depth?labelSelector=" + escaped("a in ("), 400, []string{"vllm_queue_depth", teamA, "labelSelector: ", "kubectl get --selector"}, external},
		} {
			f.check(t)
		}

		// Cold metrics are so for one request: each version and encoding has to ask for one of its own.
		for i, version := range []string{custom + "/v1beta1", custom + "/v1beta2"} {
			for j, accept := range []string{applicationJSON, protobuf} {
				metric := []string{"vllm_kv_cache_usage", "vllm_running_requests", "vllm_request_rate", "vllm_goodput"}[2*i+j]
				f := fault{"cold " + metric, "", 503, []string{metric, "pods", teamA, "is warming up", "ask again in"}, ""}
				f.checkOne(t, version+in+"/pods/*/"+metric, accept)
			}
		}

		// Parameters are free, and are not all collected.
		eventually(t, time.Minute, "too many parameters are refused", func() error {
			for i := range 150 {
				path := fmt.Sprintf("%s/v1beta2%s/pods/*/vllm_goodput?metricLabelSelector=ttft%%3D%dms", custom, in, 1000+i)
				if r := ask(t, shared.Config, http.MethodGet, path, applicationJSON); strings.Contains(string(r.body), "ask with fewer") {
					f := fault{"crowded", "", 503, []string{"vllm_goodput", "pods", teamA, "different parameters", "/debug/signals"}, ""}
					f.checkOne(t, path, applicationJSON)
					return nil
				}
			}
			return errors.New("none was")
		})
		t.Run("v1beta1", testOldVersion)
	})

	t.Run("source down", func(t *testing.T) {
		source := refusing(t)
		startAdapter(t, "--prometheus-url="+source)
		list := custom + "/v1beta2" + in + "/pods/*/vllm_queue_depth"
		eventually(t, time.Minute, "the adapter has noticed", func() error {
			if r := ask(t, shared.Config, http.MethodGet, list, applicationJSON); !strings.Contains(string(r.body), source) {
				return fmt.Errorf("%d %s", r.status, r.body)
			}
			return nil
		})
		down := func(what ...string) []string {
			return append(what, "vllm_queue_depth", teamA, source, "cannot be read", "/debug/signals")
		}
		for _, f := range []fault{
			{"pods", in + "/pods/*/vllm_queue_depth", 503, down("pods"), ""},
			{"pod", in + "/pods/" + pod + "/vllm_queue_depth", 503, down(pod), ""},
			{"object", in + "/deployments.apps/vllm/vllm_queue_depth", 503, down("deployments.apps vllm"), ""},
			{"objects", in + "/services/*/vllm_queue_depth?labelSelector=" + escaped("app=vllm"), 503, down("services vllm"), ""},
			{"namespace", in + "/metrics/vllm_queue_depth", 503, down("namespaces team-a"), ""},
			{"external", in + "/vllm_queue_depth", 503, down(), external},
		} {
			f.check(t)
		}
	})

	t.Run("nobody in particular", func(t *testing.T) {
		startAdapter(t, "--prometheus-url="+shared.Prometheus.URL)
		r := ask(t, reader, http.MethodGet, custom+"/v1beta2/namespaces/"+teamB+"/pods/*/vllm_queue_depth", applicationJSON)
		var status metav1.Status
		if err := json.Unmarshal(r.body, &status); err != nil || r.status != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden {
			t.Errorf("without a role: %d %s (%v)", r.status, r.body, err)
		}
	})
}

// strays are objects that no value can be had of.
const strays = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: none, namespace: team-a, labels: {stray: ""}}
spec:
  replicas: 0
  selector: {matchLabels: {role: none}}
  template:
    metadata: {labels: {role: none}}
    spec: {containers: [{name: any, image: emulated}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: idle, namespace: team-a, labels: {stray: ""}}
spec:
  replicas: 1
  selector: {matchLabels: {role: idle}}
  template:
    metadata: {labels: {role: idle}}
    spec: {containers: [{name: any, image: emulated}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: team-a, labels: {stray: ""}}
spec: {ports: [{port: 80}]}
`

// check makes the request in every version and encoding.
func (f fault) check(t *testing.T) {
	t.Helper()
	api := cmp.Or(f.api, custom)
	for _, version := range served[strings.TrimPrefix(api, "/apis/")] {
		for _, accept := range []string{applicationJSON, protobuf} {
			f.checkOne(t, api+"/"+version+f.path, accept)
		}
	}
}

func (f fault) checkOne(t *testing.T, path, accept string) {
	t.Helper()
	var r response
	var problem error
	// Pods that have just come are Ready before long, and what was asked first is collected then.
	err := poll(time.Minute, func() error {
		r = ask(t, shared.Config, http.MethodGet, path, accept)
		problem = f.compare(r, accept)
		return problem
	})
	if err != nil {
		t.Errorf("%s, %s in %s: %v", f.name, path, accept, problem)
	}
}

func (f fault) compare(r response, accept string) error {
	if got := r.header.Get("Content-Type"); got != accept {
		return fmt.Errorf("it is in %s: %.300s", got, r.body)
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.body, nil, nil)
	status, ok := object.(*metav1.Status)
	if err != nil || !ok {
		return fmt.Errorf("no Status but %.300q (%v)", r.body, err)
	}
	if r.status != f.code || int(status.Code) != f.code {
		return fmt.Errorf("%d, and %d within, want %d: %s", r.status, status.Code, f.code, status.Message)
	}
	for _, part := range f.says {
		if !strings.Contains(status.Message, part) {
			return fmt.Errorf("it does not say %q: %s", part, status.Message)
		}
	}
	// client-go would sleep on it, inside one of the HPA controller's few workers.
	if after := r.header.Get("Retry-After"); after != "" || status.Details != nil && status.Details.RetryAfterSeconds != 0 {
		return fmt.Errorf("it asks to be asked again: %q, %+v", after, status.Details)
	}
	return nil
}

// testOldVersion: controllers from before v1beta2 was served, and those that are made to, ask in v1beta1. The
// client is theirs.
func testOldVersion(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	config := *shared.Config
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := custommetrics.NewForVersionForConfig(&config, mapper, v1beta1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	of := client.NamespacedMetrics(teamA)
	list, err := of.GetForObjects(schema.GroupKind{Kind: "Pod"}, labels.SelectorFromSet(labels.Set{"app": "vllm"}), "vllm_queue_depth", labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, i := range list.Items {
		sum += queues[teamA][i.DescribedObject.Name]
		if want := int64(queues[teamA][i.DescribedObject.Name]); i.Value.Value() != want || i.Metric.Name != "vllm_queue_depth" {
			t.Errorf("%+v, want %d", i, want)
		}
	}
	if len(list.Items) != len(pods[teamA]) {
		t.Errorf("%d items, want %d", len(list.Items), len(pods[teamA]))
	}
	eventually(t, time.Minute, "an object is answered", func() error {
		v, err := of.GetForObject(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "vllm", "vllm_queue_depth", labels.Everything())
		if err == nil && v.Value.Value() != int64(sum) {
			err = fmt.Errorf("%s, want %d", v.Value.String(), sum)
		}
		return err
	})
	_, err = of.GetForObject(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "vllm", "vllm_made_up", labels.Everything())
	if !apierrors.IsNotFound(err) {
		t.Errorf("a metric that is none: %v, want a NotFound", err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		t.Errorf("it suggests to wait for %d s", seconds)
	}
}
