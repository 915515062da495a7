package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/inference-metrics/adapter/test/cluster"
)

const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// served are the groups with their versions, the preferred one first.
var served = map[string][]string{
	"custom.metrics.k8s.io":   {"v1beta2", "v1beta1"},
	"external.metrics.k8s.io": {"v1beta1"},
}

// TestDiscovery: clients find the same with the source up and down, and everything else in the cluster that
// depends on discovery goes on.
func TestDiscovery(t *testing.T) {
	documents := map[string]map[string]string{}
	for _, source := range []string{"down", "up"} {
		t.Run("source "+source, func(t *testing.T) {
			url := shared.Prometheus.URL
			if source == "down" {
				url = refusing(t)
			}
			a := startAdapter(t, "--prometheus-url="+url)
			documents[source] = discoverDocuments(t, a)
			t.Run("aggregated", testAggregated)
			t.Run("client-go", testClients)
			t.Run("kubectl", func(t *testing.T) { testKubectl(t, source == "up", url) })
			t.Run("OpenAPI", testOpenAPI)
			t.Run("garbage", testGarbage)
		})
	}
	for name, text := range documents["down"] {
		if documents["up"][name] != text {
			t.Errorf("%s is not the same with the source up and down", name)
		}
	}
}

// discoverDocuments returns the documents of an adapter, once they have been seen to be stable.
func discoverDocuments(t *testing.T, a *cluster.Adapter) map[string]string {
	out := map[string]string{}
	for name, accept := range map[string]string{
		"/apis": aggregated,
		custom:  applicationJSON, custom + "/v1beta1": applicationJSON, custom + "/v1beta2": applicationJSON,
		external: applicationJSON, external + "/v1beta1": applicationJSON,
	} {
		first := ask(t, directly(a), http.MethodGet, name, accept)
		if err := statusIs(first, http.StatusOK); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for range 20 {
			if again := ask(t, directly(a), http.MethodGet, name, accept); string(again.body) != string(first.body) {
				t.Errorf("%s changes from request to request", name)
				break
			}
		}
		out[name] = string(first.body)
		if accept != aggregated {
			continue
		}
		etag := first.header.Get("ETag")
		if etag == "" {
			t.Errorf("%s has no ETag", name)
			continue
		}
		out[name+" ETag"] = etag
		if r := ask(t, directly(a), http.MethodGet, name, accept, "If-None-Match", etag); r.status != http.StatusNotModified || len(r.body) > 0 {
			t.Errorf("%s with its own ETag: %d, %d bytes, want a 304 without any", name, r.status, len(r.body))
		}
		if r := ask(t, directly(a), http.MethodGet, name, accept, "If-None-Match", `"other"`); r.status != http.StatusOK {
			t.Errorf("%s with another ETag: %d", name, r.status)
		}
	}
	return out
}

// testAggregated looks at the document of the API server, in which an empty group is final for clients.
func testAggregated(t *testing.T) {
	eventually(t, 2*time.Minute, "aggregated discovery has all", func() error {
		r := ask(t, shared.Config, http.MethodGet, "/apis", aggregated)
		var list apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(r.body, &list); err != nil {
			return err
		}
		found := map[string][]string{}
		for _, g := range list.Items {
			if served[g.Name] == nil {
				continue
			}
			for _, v := range g.Versions {
				found[g.Name] = append(found[g.Name], v.Version)
				if v.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
					return fmt.Errorf("%s/%s is %s", g.Name, v.Version, v.Freshness)
				}
				if !slices.ContainsFunc(v.Resources, func(r apidiscoveryv2.APIResourceDiscovery) bool {
					return r.Resource == "vllm_queue_depth" || r.Resource == "pods" && slices.ContainsFunc(r.Subresources, func(s apidiscoveryv2.APISubresourceDiscovery) bool {
						return s.Subresource == "vllm_queue_depth"
					})
				}) {
					return fmt.Errorf("%s/%s has no vllm_queue_depth among %d resources", g.Name, v.Version, len(v.Resources))
				}
			}
		}
		for group, versions := range served {
			if !slices.Equal(found[group], versions) {
				return fmt.Errorf("%s has versions %v, want %v", group, found[group], versions)
			}
		}
		etag := r.header.Get("ETag")
		if etag == "" {
			return errors.New("no ETag")
		}
		// It changes when anything is registered in the cluster; two requests in a row settle that.
		return statusIs(ask(t, shared.Config, http.MethodGet, "/apis", aggregated, "If-None-Match", etag), http.StatusNotModified)
	})
}

// testClients discovers as Helm, Flux, Argo CD and the garbage collector do: all at once, where one group in
// error, or without resources, is an error or a warning. Old clients read one document per version.
func testClients(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		t.Run(fmt.Sprintf("legacy %t", legacy), func(t *testing.T) {
			config := rest.CopyConfig(shared.Config)
			var warned warnings
			config.WarningHandler = &warned
			client, err := discovery.NewDiscoveryClientForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			client.UseLegacyDiscovery = legacy
			_, all, err := client.ServerGroupsAndResources()
			if err != nil {
				t.Errorf("ServerGroupsAndResources: %v", err)
			}
			preferred, err := client.ServerPreferredResources()
			if err != nil {
				t.Errorf("ServerPreferredResources: %v", err)
			}
			if _, err := client.ServerPreferredNamespacedResources(); err != nil {
				t.Errorf("ServerPreferredNamespacedResources: %v", err)
			}
			for group, versions := range served {
				for _, v := range versions {
					checkListed(t, all, group+"/"+v)
				}
				// client-go leaves out what it takes for subresources: the version has to be there.
				if !slices.ContainsFunc(preferred, func(l *metav1.APIResourceList) bool { return l.GroupVersion == group+"/"+versions[0] }) {
					t.Errorf("%s/%s is not preferred", group, versions[0])
				}
			}
			// What the garbage collector takes for deletable.
			for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete", "list", "watch"}}, preferred) {
				if gv, err := schema.ParseGroupVersion(list.GroupVersion); err != nil || served[gv.Group] != nil {
					t.Errorf("%s is taken for something that can be deleted (%v)", list.GroupVersion, err)
				}
			}
			groups, err := restmapper.GetAPIGroupResources(client)
			if err != nil {
				t.Fatal(err)
			}
			mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"})
			if err != nil || mapping.Resource.Resource != "deployments" {
				t.Errorf("a Deployment is mapped to %v (%v)", mapping, err)
			}
			// Flux, Helm and controllers keep a mapper, and discover anew where it does not know a kind.
			deferred := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
			for range 2 {
				if _, err := deferred.RESTMapping(schema.GroupKind{Group: "example.com", Kind: "Toaster"}); !meta.IsNoMatchError(err) {
					t.Errorf("an unknown kind is %v, want that it matches nothing", err)
				}
				if mapping, err := deferred.RESTMapping(schema.GroupKind{Kind: "ConfigMap"}); err != nil || mapping.Resource.Resource != "configmaps" {
					t.Errorf("a ConfigMap is mapped to %v (%v)", mapping, err)
				}
				deferred.Reset()
			}
			// A bare name must not become ours: kubectl get pods.
			gvr, err := restmapper.NewDiscoveryRESTMapper(groups).ResourceFor(schema.GroupVersionResource{Resource: "pods"})
			if err != nil || gvr.Group != "" {
				t.Errorf("pods are mapped to %v (%v)", gvr, err)
			}
			if len(warned) > 0 {
				t.Errorf("warnings: %v", warned)
			}
		})
	}
}

type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

func checkListed(t *testing.T, lists []*metav1.APIResourceList, gv string) {
	t.Helper()
	i := slices.IndexFunc(lists, func(l *metav1.APIResourceList) bool { return l.GroupVersion == gv })
	if i < 0 {
		t.Errorf("%s is not there", gv)
		return
	}
	if !slices.ContainsFunc(lists[i].APIResources, func(r metav1.APIResource) bool {
		return strings.TrimPrefix(r.Name, "pods/") == "vllm_queue_depth"
	}) {
		t.Errorf("%s has no vllm_queue_depth among %d resources", gv, len(lists[i].APIResources))
	}
}

const autoscaler = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: vllm, namespace: team-a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm}
  minReplicas: 2
  maxReplicas: 2
  metrics:
    - type: Pods
      pods: {metric: {name: vllm_queue_depth}, target: {type: AverageValue, averageValue: "5"}}
`

// testKubectl runs what people and their tools run. A warning about our groups, among the output of every
// command, is a fault too.
func testKubectl(t *testing.T, up bool, source string) {
	quiet := func(what string, args ...string) string {
		t.Helper()
		out, errs, err := kubectl(t, args...)
		if err != nil || errs != "" {
			t.Errorf("%s: %v, and it says %q", what, err, errs)
		}
		return out
	}
	if out := quiet("api-resources", "api-resources"); !strings.Contains(out, "horizontalpodautoscalers") {
		t.Errorf("api-resources: %s", out)
	}
	if out := quiet("api-versions", "api-versions"); !strings.Contains(out, "custom.metrics.k8s.io/v1beta2") {
		t.Errorf("api-versions: %s", out)
	}
	if out := quiet("explain", "explain", "deployment.spec.replicas"); !strings.Contains(out, "FIELD: replicas <integer>") {
		t.Errorf("explain: %s", out)
	}
	quiet("get all", "get", "all", "--namespace", teamA)
	list := custom + "/v1beta2/namespaces/" + teamA + "/pods/*/vllm_queue_depth"
	if up {
		awaitServed(t)
		if out := quiet("get --raw", "get", "--raw", list); !strings.Contains(out, pods[teamA][0]) {
			t.Errorf("get --raw: %s", out)
		}
	} else {
		eventually(t, time.Minute, "kubectl get --raw says what is down", func() error {
			out, errs, err := kubectl(t, "get", "--raw", list)
			if err == nil {
				t.Fatalf("with the source down, %s", out)
			}
			for _, part := range []string{"vllm_queue_depth", teamA, source, "/debug/signals"} {
				if !strings.Contains(errs, part) {
					return fmt.Errorf("it does not say %s but %s", part, errs)
				}
			}
			return nil
		})
	}

	if err := shared.Apply(t.Context(), autoscaler); err != nil {
		t.Fatal(err)
	}
	want := []string{"FailedGetPodsMetric", "vllm_queue_depth", source, "/debug/signals"}
	if up {
		want = []string{`"vllm_queue_depth" on pods`, "ValidMetricFound"}
	}
	eventually(t, time.Minute, "kubectl describe hpa says what is", func() error {
		out := quiet("describe hpa", "describe", "hpa", "--namespace", teamA, "vllm")
		for _, part := range want {
			if !strings.Contains(out, part) {
				return fmt.Errorf("it does not say %s:\n%s", part, out)
			}
		}
		return nil
	})
	quiet("delete hpa", "delete", "hpa", "--namespace", teamA, "vllm")
	for _, args := range [][]string{{"--dry-run=server", "--validate=strict"}, {"--dry-run=client", "--validate=true"}} {
		quiet("apply "+args[0], append([]string{"create", "deployment", "checked", "--image=any", "--namespace", teamA}, args...)...)
	}
}

// testOpenAPI looks at what validation, kubectl explain and server-side apply read: no document of ours may be
// missing, broken or refer to what is not there.
func testOpenAPI(t *testing.T) {
	type object = map[string]any
	read := func(path string) object {
		t.Helper()
		r := ask(t, shared.Config, http.MethodGet, path, applicationJSON)
		var o object
		if err := statusIs(r, http.StatusOK); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := json.Unmarshal(r.body, &o); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return o
	}
	part := func(o object, name string) object { m, _ := o[name].(object); return m }
	// dangling are the references within a document that lead nowhere.
	dangling := func(doc object) map[string]bool {
		out := map[string]bool{}
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case object:
				if ref, ok := v["$ref"].(string); ok {
					place := strings.Split(strings.TrimPrefix(ref, "#/"), "/")
					at := doc
					for _, name := range place[:len(place)-1] {
						at = part(at, name)
					}
					if at[place[len(place)-1]] == nil {
						out[ref] = true
					}
				}
				for _, v := range v {
					walk(v)
				}
			case []any:
				for _, v := range v {
					walk(v)
				}
			}
		}
		walk(doc)
		return out
	}

	for group, versions := range served {
		for _, version := range versions {
			name := "apis/" + group + "/" + version
			eventually(t, 2*time.Minute, "OpenAPI v3 lists "+name, func() error {
				if part(read("/openapi/v3"), "paths")[name] == nil {
					return errors.New("it does not")
				}
				return nil
			})
			doc := read("/openapi/v3/" + name)
			if doc["openapi"] != "3.0.0" || len(part(doc, "paths")) == 0 {
				t.Errorf("v3 of %s is OpenAPI %v with %d paths", name, doc["openapi"], len(part(doc, "paths")))
			}
			for path := range part(doc, "paths") {
				if !strings.HasPrefix(path, "/"+name+"/") {
					t.Errorf("v3 of %s tells of %s", name, path)
				}
			}
			if refs := dangling(doc); len(refs) > 0 {
				t.Errorf("v3 of %s refers to what is not there: %v", name, refs)
			}
		}
	}

	eventually(t, 2*time.Minute, "OpenAPI v2 has our paths", func() error {
		doc := read("/openapi/v2")
		found := map[string]bool{}
		for path := range part(doc, "paths") {
			for group, versions := range served {
				for _, version := range versions {
					if strings.HasPrefix(path, "/apis/"+group+"/"+version+"/") {
						found[group+"/"+version] = true
					}
				}
			}
		}
		if refs := dangling(doc); len(refs) > 0 {
			t.Errorf("v2 refers to what is not there: %v", refs)
		}
		if len(found) != 3 {
			return fmt.Errorf("of our groups only %v", found)
		}
		return nil
	})
}

// testGarbage: namespaces are deleted, and so is what belongs to what is gone. The controllers of both read all
// of discovery first.
func testGarbage(t *testing.T) {
	name := "garbage-" + strings.ReplaceAll(strings.ToLower(strings.Split(t.Name(), "/")[1]), "_", "-")
	namespace(t, name)
	maps := shared.Client.CoreV1().ConfigMaps(name)
	owner, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "owned",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "owner", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	gone := func(what string, get func() error) {
		t.Helper()
		eventually(t, 2*time.Minute, what+" is gone", func() error {
			if err := get(); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there (%v)", err)
			}
			return nil
		})
	}
	gone("what was owned", func() error { _, err := maps.Get(t.Context(), "owned", metav1.GetOptions{}); return err })
	namespaces := shared.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone("the namespace", func() error { _, err := namespaces.Get(t.Context(), name, metav1.GetOptions{}); return err })
}
