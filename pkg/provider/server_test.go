package provider

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
)

const (
	applicationJSON = "application/json"
	protobuf        = "application/vnd.kubernetes.protobuf"
	root            = "/apis/custom.metrics.k8s.io"
	podsPath        = "/namespaces/serving/pods/"
)

func fleetHandler(t *testing.T) (http.Handler, *gauges) {
	t.Helper()
	src, lister := fleet(nil)
	return newHandler(t, ofPods(snapshotOf(t, src, lister, queueDepth, "vllm_ttft_p99_seconds"), lister)), src
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if w.Code != http.StatusOK {
		t.Fatalf("got a %d: %s", w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	return v
}

func TestBothVersionsAnswer(t *testing.T) {
	h, src := fleetHandler(t)
	timestamp := src.at.UTC().Format(time.RFC3339)

	got := get(h, root+"/v1beta2"+podsPath+"busy/vllm_queue_depth", applicationJSON).Body.String()
	want := `{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":[` +
		`{"describedObject":{"kind":"Pod","namespace":"serving","name":"busy","apiVersion":"v1"},` +
		`"metric":{"name":"vllm_queue_depth","selector":null},"timestamp":"` + timestamp + `","value":"7"}]}`
	if diff := cmp.Diff(want, strings.TrimSpace(got)); diff != "" {
		t.Errorf("v1beta2 (-want +got):\n%s", diff)
	}

	old := decode[v1beta1.MetricValueList](t, get(h, root+"/v1beta1"+podsPath+"%2A/vllm_queue_depth?labelSelector=app%3Dvllm", applicationJSON))
	if len(old.Items) != 3 || old.Items[2].DescribedObject.Name != "lost" || old.Items[2].Value.String() != "40" || old.Items[2].MetricName != queueDepth {
		t.Errorf("v1beta1 gave %v", old.Items)
	}

	for _, gv := range []string{"v1beta1", "v1beta2"} {
		w := get(h, root+"/"+gv+podsPath+"*/vllm_queue_depth?labelSelector=app%3Dvllm", protobuf)
		if ct := w.Header().Get("Content-Type"); w.Code != http.StatusOK || ct != protobuf {
			t.Fatalf("%s: got a %d in %s: %s", gv, w.Code, ct, w.Body)
		}
		object, _, err := apiserver.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", gv, err)
		}
		var names []string
		switch list := object.(type) {
		case *v1beta1.MetricValueList:
			for _, i := range list.Items {
				names = append(names, i.DescribedObject.Name+"="+i.Value.String())
			}
		case *v1beta2.MetricValueList:
			for _, i := range list.Items {
				names = append(names, i.DescribedObject.Name+"="+i.Value.String())
			}
		}
		if diff := cmp.Diff("busy=7 idle=0 lost=40", strings.Join(names, " ")); diff != "" {
			t.Errorf("%s in protobuf (-want +got):\n%s", gv, diff)
		}
	}
}

func TestNothingSelectedIsAnEmptyList(t *testing.T) {
	h, _ := fleetHandler(t)
	got := get(h, root+"/v1beta2"+podsPath+"*/vllm_queue_depth?labelSelector=app%3Dnone", applicationJSON).Body.String()
	want := `{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":[]}`
	if diff := cmp.Diff(want, strings.TrimSpace(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestErrorsOverHTTP(t *testing.T) {
	h, _ := fleetHandler(t)
	for _, tc := range []struct {
		name, path string
		code       int
		message    string
	}{
		{"unknown metric", podsPath + "*/nonsense", 404, "there is no metric nonsense"},
		{"unknown pod", podsPath + "nobody/vllm_queue_depth", 404, "there is no pod nobody"},
		{"no value", podsPath + "silent/vllm_queue_depth", 404, "no value of vllm_queue_depth for pod silent"},
		{"cold metric", podsPath + "*/vllm_kv_cache_usage", 503, "warming up"},
		{"another resource", "/namespaces/serving/deployments.apps/vllm/vllm_queue_depth", 404, "not served on deployments.apps"},
		{"the namespace", "/namespaces/serving/metrics/vllm_queue_depth", 404, "not served on namespaces"},
		{"a node", "/nodes/gpu-0/vllm_queue_depth", 404, "not served on nodes"},
		{"pods of no namespace", "/pods/busy/vllm_queue_depth", 404, "namespaces/NAMESPACE/pods"},
		{"label that is none", podsPath + "*/vllm_queue_depth?metricLabelSelector=tenant%3Da", 400, "it has role, window"},
		{"metric selector that does not", podsPath + "*/vllm_queue_depth?metricLabelSelector=%3D%3D%3D", 400, "metricLabelSelector: "},
		{"the same in the old version", "/../v1beta1" + podsPath + "*/vllm_queue_depth?metricLabelSelector=a+b+c", 400, "metricLabelSelector: "},
		{"a model's name, which no label value can be", podsPath + "*/vllm_queue_depth?metricLabelSelector=model%3Dmeta-llama%2FLlama-3", 400, "metricLabelSelector: "},
		{"label selector", podsPath + "*/vllm_queue_depth?labelSelector=%3D%3D%3D", 400, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := root + "/v1beta2" + tc.path
			if old, ok := strings.CutPrefix(tc.path, "/.."); ok {
				path = root + old
			}
			w := get(h, path, applicationJSON)
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
				t.Fatalf("%v in %s", err, w.Body)
			}
			if w.Code != tc.code || status.Code != int32(tc.code) || status.Kind != "Status" {
				t.Errorf("got a %d (%s), want a %d", w.Code, w.Body, tc.code)
			}
			if !strings.Contains(status.Message, tc.message) {
				t.Errorf("message %q does not say %q", status.Message, tc.message)
			}
			if w.Header().Get("Retry-After") != "" {
				t.Error("the answer has a Retry-After, on which client-go would sleep inside the HPA controller")
			}
		})
	}
}

func TestDiscoveryDocuments(t *testing.T) {
	h, _ := fleetHandler(t)
	want := metav1.APIGroup{
		Name: "custom.metrics.k8s.io",
		Versions: []metav1.GroupVersionForDiscovery{
			{GroupVersion: "custom.metrics.k8s.io/v1beta2", Version: "v1beta2"},
			{GroupVersion: "custom.metrics.k8s.io/v1beta1", Version: "v1beta1"},
		},
		PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: "custom.metrics.k8s.io/v1beta2", Version: "v1beta2"},
	}

	groups := decode[metav1.APIGroupList](t, get(h, "/apis", applicationJSON)).Groups
	for i := range groups {
		groups[i].ServerAddressByClientCIDRs = nil
	}
	if diff := cmp.Diff([]metav1.APIGroup{want}, groups); diff != "" {
		t.Errorf("/apis (-want +got):\n%s", diff)
	}

	group := decode[metav1.APIGroup](t, get(h, root, applicationJSON))
	group.TypeMeta = metav1.TypeMeta{}
	if diff := cmp.Diff(want, group); diff != "" {
		t.Errorf("%s (-want +got):\n%s", root, diff)
	}

	for _, gv := range []string{"v1beta1", "v1beta2"} {
		list := decode[metav1.APIResourceList](t, get(h, root+"/"+gv, applicationJSON))
		if list.GroupVersion != "custom.metrics.k8s.io/"+gv || len(list.APIResources) != len(onPods()) {
			t.Errorf("%s lists %d resources of %s", gv, len(list.APIResources), list.GroupVersion)
		}
		for i, name := range onPods() {
			want := metav1.APIResource{Name: "pods/" + name, Namespaced: true, Kind: "MetricValueList", Verbs: metav1.Verbs{"get"}}
			if diff := cmp.Diff(want, list.APIResources[i]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", gv, diff)
			}
		}
	}

	aggregated := decode[apidiscoveryv2.APIGroupDiscoveryList](t, get(h, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"))
	if len(aggregated.Items) != 1 || aggregated.Items[0].Name != "custom.metrics.k8s.io" {
		t.Fatalf("aggregated groups %v", aggregated.Items)
	}
	var versions []string
	for _, v := range aggregated.Items[0].Versions {
		versions = append(versions, v.Version)
		if v.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent || len(v.Resources) != 1 || v.Resources[0].Resource != "pods" || len(v.Resources[0].Subresources) != len(onPods()) {
			t.Errorf("aggregated version %v", v)
		}
	}
	if diff := cmp.Diff([]string{"v1beta2", "v1beta1"}, versions); diff != "" {
		t.Errorf("aggregated versions (-want +got):\n%s", diff)
	}
}

// What client-go makes of the documents, in both ways of reading them.
func TestClientsDiscoverTheGroup(t *testing.T) {
	h, _ := fleetHandler(t)
	server := httptest.NewServer(h)
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, legacy := range []bool{false, true} {
		client.UseLegacyDiscovery = legacy
		groups, resources, err := client.ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		if len(groups) != 1 || groups[0].PreferredVersion.Version != "v1beta2" {
			t.Errorf("legacy %t: groups %v", legacy, groups)
		}
		var names []string
		for _, list := range resources {
			names = append(names, list.GroupVersion)
			if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods/vllm_queue_depth" }) {
				t.Errorf("legacy %t: %s has %v", legacy, list.GroupVersion, list.APIResources)
			}
		}
		slices.Sort(names)
		if diff := cmp.Diff([]string{"custom.metrics.k8s.io/v1beta1", "custom.metrics.k8s.io/v1beta2"}, names); diff != "" {
			t.Errorf("legacy %t (-want +got):\n%s", legacy, diff)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	h, _ := fleetHandler(t)
	for _, gv := range []string{"v1beta1", "v1beta2"} {
		w := get(h, "/openapi/v3/apis/custom.metrics.k8s.io/"+gv, applicationJSON)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "MetricValueList") {
			t.Errorf("%s: got a %d of %d bytes", gv, w.Code, w.Body.Len())
		}
	}
	w := get(h, "/openapi/v2", applicationJSON)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "inference-metrics-adapter") {
		t.Errorf("v2: got a %d of %d bytes", w.Code, w.Body.Len())
	}
}

// Requests share the snapshot and the pods; the race detector watches.
func TestRequestsAtOnce(t *testing.T) {
	h, _ := fleetHandler(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				accept := []string{applicationJSON, protobuf}[i%2]
				path := fmt.Sprintf("%s/v1beta%d%s*/vllm_queue_depth", root, 1+i/2%2, podsPath)
				if w := get(h, path, accept); w.Code != http.StatusOK {
					t.Errorf("%s: got a %d", path, w.Code)
				}
			}
		})
	}
	wg.Wait()
}
