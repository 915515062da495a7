package provider

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/pods"
)

const externalRoot = "/apis/external.metrics.k8s.io"

func ofExternal(metric string) provider.ExternalMetricInfo {
	return provider.ExternalMetricInfo{Metric: metric}
}

// tenants is two namespaces with the same model, of which one has a replica more.
func tenants(t *testing.T, err error, collected ...string) (*Provider, *gauges) {
	t.Helper()
	src := &gauges{err: err, values: map[string]map[string]float64{"a": queue(3), "b": queue(4), "cold": queue(50), "worker": queue(60), "gone": queue(70)}}
	elsewhere := &gauges{values: map[string]map[string]float64{"a": queue(100)}, namespace: "other"}
	src.also = elsewhere
	list := []*pods.Pod{
		pod("a", func(p *pods.Pod) { p.Owner, p.Labels = "vllm", labels.Set{"llm-d.ai/role": "prefill"} }),
		pod("b", func(p *pods.Pod) { p.Owner, p.Labels = "vllm", labels.Set{"llm-d.ai/role": "decode"} }),
		pod("cold", func(p *pods.Pod) { p.WasReady = false }),
		pod("worker", func(p *pods.Pod) { p.Labels = labels.Set{"leaderworkerset.sigs.k8s.io/worker-index": "1"} }),
		pod("gone", func(p *pods.Pod) { p.Gone = true }),
		pod("router", nil),
		pod("a", func(p *pods.Pod) { p.Namespace, p.UID = "other", "a-other" }),
		pod("router", func(p *pods.Pod) { p.Namespace, p.UID = "web", "router-web" }),
	}
	lister := pods.NewStatic(list)
	f := snapshotOf(t, src, lister, collected...)
	return New(Config{Snapshots: f, Pods: lister, Groups: pods.NoGroups{}, External: true}), src
}

func TestExternalMetric(t *testing.T) {
	p, src := tenants(t, nil, queueDepth, "vllm_queue_depth{model=llama}", "vllm_queue_depth{model=other}", "vllm_queue_depth{model in (llama,other)}")
	for _, tc := range []struct {
		name, namespace, metric, selector string
		want                              string
		labels                            map[string]string
		code                              int
		message                           []string
	}{
		{name: "all replicas of the namespace", namespace: "serving", want: "7"},
		{name: "those of another", namespace: "other", want: "100"},
		{name: "of a model", namespace: "serving", selector: "model=llama", want: "7", labels: map[string]string{"model": "llama"}},
		{name: "of two models", namespace: "serving", selector: "model in (llama,other)", want: "7"},
		{name: "of a role", namespace: "serving", selector: "role=prefill", want: "3", labels: map[string]string{"role": "prefill"}},
		{name: "of a model that nobody serves", namespace: "serving", selector: "model=other", code: 404},
		{name: "a selector for namespaces", namespace: "serving", selector: "namespace=other", code: 400, message: []string{"namespace: vllm_queue_depth has neither"}},
		{name: "no engine", namespace: "web", code: 404, message: []string{"no value of vllm_queue_depth for namespace web: it has no pod with an engine"}},
		{name: "no pod", namespace: "empty", code: 404, message: []string{"namespace empty"}},
		{name: "all namespaces", namespace: "", code: 404},
		{name: "all namespaces, as a path has it", namespace: "*", code: 404},
		{name: "cold", namespace: "serving", metric: "vllm_kv_cache_usage", code: 503, message: []string{"warming up"}},
		{name: "no such metric", namespace: "serving", metric: "nonsense", code: 404, message: []string{"there is no metric nonsense, asked for namespace serving; kubectl get --raw /apis/external.metrics.k8s.io/v1beta1"}},
		{name: "a window that is not configured", namespace: "serving", selector: "window=3m", code: 400, message: []string{"window: 3m0s is not among"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.metric == "" {
				tc.metric = queueDepth
			}
			got, err := p.GetExternalMetric(t.Context(), tc.namespace, selector(t, tc.selector), ofExternal(tc.metric))
			if tc.code != 0 {
				if got != nil {
					t.Errorf("got %v", got)
				}
				checkError(t, err, tc.code, tc.message...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := &external_metrics.ExternalMetricValueList{Items: []external_metrics.ExternalMetricValue{{
				MetricName: queueDepth, MetricLabels: tc.labels, Timestamp: metav1.NewTime(src.at), Value: resource.MustParse(tc.want),
			}}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestExternalMetricWithoutSource(t *testing.T) {
	p, src := tenants(t, errDown, queueDepth)
	src.values = nil
	_, err := p.GetExternalMetric(t.Context(), "web", labels.Everything(), ofExternal(queueDepth))
	checkError(t, err, 503, "the source cannot be read: the test's source: connection refused")
}

func TestExternalOverHTTP(t *testing.T) {
	p, _ := tenants(t, nil, queueDepth)
	h := newHandler(t, p)
	for path, want := range map[string]struct {
		code  int
		value string
	}{
		"/namespaces/serving/vllm_queue_depth":                             {200, "7"},
		"/namespaces/serving/vllm_queue_depth?labelSelector=role%3Ddecode": {200, "4"},
		"/namespaces/other/vllm_queue_depth":                               {200, "100"},
		"/namespaces/web/vllm_queue_depth":                                 {404, ""},
		"/namespaces/*/vllm_queue_depth":                                   {404, ""},
		"/namespaces/serving/nonsense":                                     {404, ""},
		"/namespaces/serving/vllm_queue_depth?labelSelector=%3D%3D%3D":     {400, ""},
		"/namespaces/serving/vllm_queue_depth?labelSelector=tenant%3Da":    {400, ""},
		"/namespaces/serving/vllm_kv_cache_usage":                          {503, ""},
		"/vllm_queue_depth":                                                {404, ""},
	} {
		for _, accept := range []string{applicationJSON, protobuf} {
			w := get(h, externalRoot+"/v1beta1"+path, accept)
			if w.Code != want.code || w.Header().Get("Retry-After") != "" {
				t.Errorf("%s: got a %d, want a %d: %q", path, w.Code, want.code, w.Body)
			}
			if want.code != http.StatusOK {
				continue
			}
			object, _, err := apiserver.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			list, ok := object.(*v1beta1.ExternalMetricValueList)
			if !ok || len(list.Items) != 1 || list.Items[0].Value.String() != want.value || list.Items[0].MetricName != queueDepth {
				t.Errorf("%s in %s: got %v, want %s", path, accept, object, want.value)
			}
		}
	}
	if w := get(h, "/openapi/v3/apis/external.metrics.k8s.io/v1beta1", applicationJSON); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "ExternalMetricValueList") {
		t.Errorf("openapi: got a %d of %d bytes", w.Code, w.Body.Len())
	}
}

const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

func TestExternalDiscovery(t *testing.T) {
	p, _ := tenants(t, nil)
	h := newHandler(t, p)
	var groups []string
	for _, g := range decode[metav1.APIGroupList](t, get(h, "/apis", applicationJSON)).Groups {
		groups = append(groups, g.Name+" "+g.PreferredVersion.GroupVersion)
	}
	slices.Sort(groups)
	if diff := cmp.Diff([]string{"custom.metrics.k8s.io custom.metrics.k8s.io/v1beta2", "external.metrics.k8s.io external.metrics.k8s.io/v1beta1"}, groups); diff != "" {
		t.Errorf("/apis (-want +got):\n%s", diff)
	}
	if g := decode[metav1.APIGroup](t, get(h, externalRoot, applicationJSON)); len(g.Versions) != 1 || g.PreferredVersion.Version != "v1beta1" {
		t.Errorf("%s: %v", externalRoot, g)
	}
	want := onPods()
	list := decode[metav1.APIResourceList](t, get(h, externalRoot+"/v1beta1", applicationJSON))
	var got []string
	for _, r := range list.APIResources {
		got = append(got, r.Name)
		if !r.Namespaced || r.Kind != "ExternalMetricValueList" {
			t.Errorf("resource %v", r)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	aggregated := decode[apidiscoveryv2.APIGroupDiscoveryList](t, get(h, "/apis", acceptAggregated))
	counted := map[string]int{}
	for _, g := range aggregated.Items {
		for _, v := range g.Versions {
			counted[g.Name+"/"+v.Version] = len(v.Resources)
			if v.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
				t.Errorf("%s/%s is %s", g.Name, v.Version, v.Freshness)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"custom.metrics.k8s.io/v1beta1": 1, "custom.metrics.k8s.io/v1beta2": 1, "external.metrics.k8s.io/v1beta1": len(want)}, counted); diff != "" {
		t.Errorf("aggregated (-want +got):\n%s", diff)
	}
}

// Where it is off there is no trace of it: another server owns the group.
func TestExternalIsOff(t *testing.T) {
	p, _ := tenants(t, nil, queueDepth)
	p.External = false
	h := newHandler(t, p)
	for _, path := range []string{externalRoot, externalRoot + "/v1beta1", externalRoot + "/v1beta1/namespaces/serving/vllm_queue_depth"} {
		if w := get(h, path, applicationJSON); w.Code != http.StatusNotFound {
			t.Errorf("%s: got a %d: %s", path, w.Code, w.Body)
		}
	}
	for _, accept := range []string{applicationJSON, acceptAggregated} {
		if w := get(h, "/apis", accept); strings.Contains(w.Body.String(), "external") {
			t.Errorf("/apis lists it: %s", w.Body)
		}
	}
}

// Values are no objects with metadata, and no rows of a table: who asks for those gets what he takes besides,
// or a 406, and never a 500.
func TestExternalMetricsAreValuesOnly(t *testing.T) {
	p, _ := tenants(t, nil, queueDepth)
	h := newHandler(t, p)
	const path = externalRoot + "/v1beta1/namespaces/serving/vllm_queue_depth"
	for _, accept := range []string{
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io",
	} {
		if w := get(h, path, accept); w.Code != http.StatusNotAcceptable {
			t.Errorf("%s: got a %d, want a 406: %s", accept, w.Code, w.Body)
		}
		if list := decode[v1beta1.ExternalMetricValueList](t, get(h, path, accept+","+applicationJSON)); len(list.Items) != 1 {
			t.Errorf("%s, or JSON: got %v", accept, list)
		}
	}
}
