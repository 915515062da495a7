package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	metricsscheme "k8s.io/metrics/pkg/client/custom_metrics/scheme"

	"github.com/inference-metrics/adapter/test/cluster"
)

const group = "custom.metrics.k8s.io"

// vllmMetrics are the metrics on pods that the first version promises.
var vllmMetrics = []string{
	"vllm_queue_depth", "vllm_running_requests", "vllm_inflight_requests", "vllm_kv_cache_usage",
	"vllm_ttft_p50_seconds", "vllm_ttft_p90_seconds", "vllm_ttft_p95_seconds", "vllm_ttft_p99_seconds",
	"vllm_goodput", "vllm_goodput_upper", "vllm_request_rate",
}

// awaitExported waits until a gauge is answered as the engine exports it.
func awaitExported(t *testing.T, ns string, pod *corev1.Pod, metric, series string) {
	t.Helper()
	eventually(t, time.Minute, metric+" of "+pod.Name+" is what the engine exports", func() error {
		v, err := answer(t, ns, pod.Name, metric)
		if err != nil {
			return err
		}
		if got, want := v.Value.AsApproximateFloat64(), exported(t, pod, series); got != want {
			return fmt.Errorf("%g answered, %g exported", got, want)
		}
		return nil
	})
}

// TestContract asks kube-apiserver over HTTP, as clients do.
func TestContract(t *testing.T) {
	ns := namespace(t)
	other := namespaceNamed(t, ns+"-other")
	engines := startEmulator(t, ns)
	startAdapters(t, 1)
	deploy(t, ns, workload{name: "vllm", replicas: 2, labels: map[string]string{"role": "decode"}})
	deploy(t, ns, workload{name: "prefill", replicas: 1, labels: map[string]string{"role": "prefill"}})
	pods := awaitReady(t, ns, 3)

	// Engines that hang with a queue keep their gauges: every answer below can be compared.
	setLoad(t, engines, "vllm", requests(20))
	setLoad(t, engines, "prefill", requests(10))
	for _, pod := range pods {
		eventually(t, time.Minute, "requests wait at "+pod.Name, func() error {
			if r := replica(t, engines, pod.Name); r.Waiting < 3 {
				return fmt.Errorf("%d requests wait", r.Waiting)
			}
			return nil
		})
	}
	// A quantile is collected once somebody wants it, and describes a whole window.
	for _, pod := range pods {
		eventually(t, time.Minute, "a quantile of "+pod.Name, func() error {
			v, err := answer(t, ns, pod.Name, "vllm_ttft_p99_seconds")
			if err == nil && (v.WindowSeconds == nil || *v.WindowSeconds != int64(testWindow.Seconds())) {
				t.Fatalf("a quantile over %s answers %+v", testWindow, v)
			}
			return err
		})
	}
	for _, pod := range pods {
		act(t, engines, pod.Name, "freeze")
	}
	for i := range pods {
		awaitExported(t, ns, &pods[i], "vllm_queue_depth", "vllm:num_requests_waiting")
	}

	t.Run("discovery", func(t *testing.T) { contractDiscovery(t) })
	t.Run("answers", func(t *testing.T) { contractAnswers(t, ns, pods) })
	t.Run("errors", func(t *testing.T) { contractErrors(t, ns, other, pods[0].Name) })
	t.Run("rbac", func(t *testing.T) { contractRBAC(t, ns) })
}

func contractDiscovery(t *testing.T) {
	var g metav1.APIGroup
	getJSON(t, "/apis/"+group, &g)
	var versions []string
	for _, v := range g.Versions {
		versions = append(versions, v.Version)
	}
	if slices.Sort(versions); !slices.Equal(versions, []string{"v1beta1", "v1beta2"}) || g.PreferredVersion.Version != "v1beta2" {
		t.Errorf("group document lists %v and prefers %s, want both versions and v1beta2", versions, g.PreferredVersion.Version)
	}

	for _, version := range cluster.APIVersions {
		var list metav1.APIResourceList
		getJSON(t, "/apis/"+group+"/"+version, &list)
		if want := group + "/" + version; list.GroupVersion != want {
			t.Errorf("groupVersion %q, want %q", list.GroupVersion, want)
		}
		resources := map[string]metav1.APIResource{}
		for _, r := range list.APIResources {
			resources[r.Name] = r
		}
		for _, name := range append([]string{"gpu_utilization"}, vllmMetrics...) {
			r, ok := resources["pods/"+name]
			if !ok {
				t.Errorf("%s: pods/%s is not listed", version, name)
			} else if r.Kind != "MetricValueList" || !r.Namespaced || !slices.Contains(r.Verbs, "get") {
				t.Errorf("%s: pods/%s is %+v", version, name, r)
			}
		}
	}

	// Aggregated discovery is what kubectl and client-go read.
	eventually(t, time.Minute, "aggregated discovery lists the metrics", func() error {
		resp := get(t, shared.Config, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		var list apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(resp.body, &list); err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == group })
		if i < 0 {
			return fmt.Errorf("the group is not there")
		}
		if n := len(list.Items[i].Versions); n != 2 {
			return fmt.Errorf("%d versions", n)
		}
		for _, v := range list.Items[i].Versions {
			names := map[string]bool{}
			for _, r := range v.Resources {
				names[r.Resource] = true
				for _, sub := range r.Subresources {
					names[r.Resource+"/"+sub.Subresource] = true
				}
			}
			for _, name := range vllmMetrics {
				if !names["pods/"+name] {
					return fmt.Errorf("%s (%s) lacks pods/%s", v.Version, v.Freshness, name)
				}
			}
			if v.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
				return fmt.Errorf("%s is %s", v.Version, v.Freshness)
			}
		}
		return nil
	})
}

func contractAnswers(t *testing.T, ns string, pods []corev1.Pod) {
	pod := pods[0].Name
	single := fmt.Sprintf("/namespaces/%s/pods/%s/vllm_queue_depth", ns, pod)
	list := fmt.Sprintf("/namespaces/%s/pods/*/vllm_queue_depth", ns)
	decode := list + "?labelSelector=" + url.QueryEscape("role=decode")

	var b2 v1beta2.MetricValueList
	getJSON(t, "/apis/"+group+"/v1beta2"+single, &b2)
	if len(b2.Items) != 1 {
		t.Fatalf("a single object has %d items: %+v", len(b2.Items), b2)
	}
	item := b2.Items[0]
	if d := item.DescribedObject; d.Kind != "Pod" || d.Name != pod || d.Namespace != ns {
		t.Errorf("described object %+v", d)
	}
	if item.Metric.Name != "vllm_queue_depth" {
		t.Errorf("metric %q", item.Metric.Name)
	}
	if want := exported(t, &pods[0], "vllm:num_requests_waiting"); item.Value.AsApproximateFloat64() != want || want == 0 {
		t.Errorf("%s answered, the engine exports %v", item.Value.String(), want)
	}
	if age := time.Since(item.Timestamp.Time); age < -time.Second || age > 20*time.Second {
		t.Errorf("the answer's time is %s old", age)
	}

	var b1 v1beta1.MetricValueList
	getJSON(t, "/apis/"+group+"/v1beta1"+single, &b1)
	if len(b1.Items) != 1 || b1.Items[0].MetricName != "vllm_queue_depth" || b1.Items[0].Value.Cmp(item.Value) != 0 {
		t.Errorf("v1beta1 answers %+v, v1beta2 %+v", b1.Items, b2.Items)
	}

	if item.WindowSeconds != nil && *item.WindowSeconds != 0 {
		t.Errorf("a gauge has a window of %d s", *item.WindowSeconds)
	}

	names := func(items []v1beta2.MetricValue) []string {
		var out []string
		for _, i := range items {
			out = append(out, i.DescribedObject.Name)
		}
		slices.Sort(out)
		return out
	}
	var wantAll, wantDecode []string
	for _, p := range pods {
		wantAll = append(wantAll, p.Name)
		if p.Labels["role"] == "decode" {
			wantDecode = append(wantDecode, p.Name)
		}
	}
	slices.Sort(wantAll)
	slices.Sort(wantDecode)
	for path, want := range map[string][]string{
		list:                                   wantAll,
		decode:                                 wantDecode,
		strings.Replace(decode, "*", "%2A", 1): wantDecode,
		list + "?labelSelector=" + url.QueryEscape("role!=decode,role"): {pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels["role"] == "prefill" })].Name},
	} {
		var l v1beta2.MetricValueList
		getJSON(t, "/apis/"+group+"/v1beta2"+path, &l)
		if got := names(l.Items); !slices.Equal(got, want) {
			t.Errorf("%s answers for %v, want %v", path, got, want)
		}
	}

	// The HPA controller asks in protobuf.
	for version, into := range map[string]runtime.Object{"v1beta1": &v1beta1.MetricValueList{}, "v1beta2": &v1beta2.MetricValueList{}} {
		resp := get(t, shared.Config, "/apis/"+group+"/"+version+decode, runtime.ContentTypeProtobuf)
		if resp.status != http.StatusOK || resp.contentType != runtime.ContentTypeProtobuf {
			t.Errorf("%s in protobuf: %d, %s", version, resp.status, resp.contentType)
			continue
		}
		info, _ := runtime.SerializerInfoForMediaType(metricsscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
		if _, _, err := info.Serializer.Decode(resp.body, &schema.GroupVersionKind{}, into); err != nil {
			t.Errorf("%s: decoding protobuf: %v", version, err)
		}
		var values []string
		switch l := into.(type) {
		case *v1beta1.MetricValueList:
			for _, i := range l.Items {
				values = append(values, i.DescribedObject.Name)
			}
		case *v1beta2.MetricValueList:
			values = names(l.Items)
		}
		if slices.Sort(values); !slices.Equal(values, wantDecode) {
			t.Errorf("%s in protobuf answers for %v, want %v", version, values, wantDecode)
		}
	}
}

func contractErrors(t *testing.T, ns, other, pod string) {
	base := "/apis/" + group + "/v1beta2/namespaces/"
	for _, tc := range []struct {
		name, path string
		code       int
		reason     metav1.StatusReason
		message    string // a part of it
	}{
		{"unknown metric", ns + "/pods/*/vllm_made_up", http.StatusNotFound, metav1.StatusReasonNotFound, "vllm_made_up"},
		{"unknown metric of a pod", ns + "/pods/" + pod + "/vllm_made_up", http.StatusNotFound, metav1.StatusReasonNotFound, "vllm_made_up"},
		{"unknown pod", ns + "/pods/nobody/vllm_queue_depth", http.StatusNotFound, metav1.StatusReasonNotFound, "nobody"},
		{"another namespace's pod", other + "/pods/" + pod + "/vllm_queue_depth", http.StatusNotFound, metav1.StatusReasonNotFound, pod},
		{"unknown kind", ns + "/toasters/*/vllm_queue_depth", http.StatusNotFound, metav1.StatusReasonNotFound, ""},
		{"bad label selector", ns + "/pods/*/vllm_queue_depth?labelSelector=" + url.QueryEscape("a in ("), http.StatusBadRequest, metav1.StatusReasonBadRequest, ""},
		{"bad metric selector", ns + "/pods/*/vllm_queue_depth?metricLabelSelector=" + url.QueryEscape("a in ("), http.StatusBadRequest, metav1.StatusReasonBadRequest, ""},
	} {
		resp := get(t, shared.Config, base+tc.path, "application/json")
		var status metav1.Status
		if err := json.Unmarshal(resp.body, &status); err != nil || status.Kind != "Status" {
			t.Errorf("%s: no Status but %q (%v)", tc.name, resp.body, err)
			continue
		}
		if resp.status != tc.code || status.Reason != tc.reason || !strings.Contains(status.Message, tc.message) {
			t.Errorf("%s: %d %s %q, want %d %s and %q in the message", tc.name, resp.status, status.Reason, status.Message, tc.code, tc.reason, tc.message)
		}
		// client-go would sleep on it, inside one of the HPA controller's five workers.
		if status.Details != nil && status.Details.RetryAfterSeconds != 0 {
			t.Errorf("%s: retryAfterSeconds is %d", tc.name, status.Details.RetryAfterSeconds)
		}
	}

	// What another namespace's list holds is its own: nothing.
	resp := get(t, shared.Config, base+other+"/pods/*/vllm_queue_depth", "application/json")
	var l v1beta2.MetricValueList
	if resp.status == http.StatusOK {
		if err := json.Unmarshal(resp.body, &l); err != nil || len(l.Items) != 0 {
			t.Errorf("an empty namespace answers %s (%v)", resp.body, err)
		}
	} else if resp.status != http.StatusNotFound {
		t.Errorf("an empty namespace answers %d %s", resp.status, resp.body)
	}
}

func contractRBAC(t *testing.T, ns string) {
	path := fmt.Sprintf("/apis/%s/v1beta2/namespaces/%s/pods/*/vllm_queue_depth", group, ns)
	config := newReader(t, ns)
	if resp := get(t, config, path, "application/json"); resp.status != http.StatusForbidden {
		t.Errorf("without a role: %d %s, want 403", resp.status, resp.body)
	}
	letView(t, ns)
	eventually(t, time.Minute, "the role view allows reading", func() error {
		if resp := get(t, config, path, "application/json"); resp.status != http.StatusOK {
			return fmt.Errorf("%d %s", resp.status, resp.body)
		}
		return nil
	})
	elsewhere := strings.Replace(path, ns, "default", 1)
	if resp := get(t, config, elsewhere, "application/json"); resp.status != http.StatusForbidden {
		t.Errorf("in a namespace without the role: %d %s, want 403", resp.status, resp.body)
	}

	// The adapter itself, asked past the API server by nobody in particular, answers to nobody.
	direct := rest.AnonymousClientConfig(shared.Config)
	if resp := get(t, direct, path, "application/json"); resp.status != http.StatusForbidden && resp.status != http.StatusUnauthorized {
		t.Errorf("anonymously: %d, want 401 or 403", resp.status)
	}
}

// newReader makes a service account in a namespace, and returns its client's configuration.
func newReader(t *testing.T, ns string) *rest.Config {
	t.Helper()
	if _, err := shared.Client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := shared.ServiceAccountConfig(t.Context(), ns, "reader")
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// letView lets the service account of newReader view its namespace.
func letView(t *testing.T, ns string) {
	t.Helper()
	if _, err := shared.Client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "reader"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

type response struct {
	status      int
	contentType string
	body        []byte
}

// get asks the API server at config for a path.
func get(t *testing.T, config *rest.Config, path, accept string) response {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{resp.StatusCode, resp.Header.Get("Content-Type"), body}
}

func getJSON(t *testing.T, path string, into any) {
	t.Helper()
	resp := get(t, shared.Config, path, "application/json")
	if resp.status != http.StatusOK {
		t.Fatalf("%s: %d %s", path, resp.status, resp.body)
	}
	if err := json.Unmarshal(resp.body, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
