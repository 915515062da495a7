package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// apiServer is as much of a Kubernetes API server as mirrors of groups ask for: discovery, list,
// watch and scale subresources. The client-go that talks to it is the real one, whose fakes have no
// discovery by path, and no subresource of a custom kind.
type apiServer struct {
	t *testing.T

	mu       sync.Mutex
	revision int
	served   map[schema.GroupVersionResource]*servedKind
	// failing holds what is answered in the place of the truth, by a part of the path.
	failing map[string]*apierrors.StatusError
	// requests counts by path.
	requests map[string]int
}

type servedKind struct {
	scaled  bool
	cluster bool
	objects map[string]map[string]any
	// scales holds the selectors that scale subresources say, by name.
	scales   map[string]string
	watchers map[chan string]bool
}

func newAPIServer(t *testing.T) (*apiServer, kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	s := &apiServer{
		t: t, served: map[schema.GroupVersionResource]*servedKind{},
		failing: map[string]*apierrors.StatusError{}, requests: map[string]int{},
	}
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"v1/pods", "v1/services", "apps/v1/deployments", "apps/v1/statefulsets", "apps/v1/replicasets"} {
		s.install(text, false)
	}
	return s, client, dynamicClient
}

// resource reads group/version/resource; the core group has no name.
func resource(text string) schema.GroupVersionResource {
	parts := strings.Split(text, "/")
	if len(parts) == 2 {
		parts = append([]string{""}, parts...)
	}
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}
}

func (s *apiServer) install(text string, scaled bool) *servedKind {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &servedKind{scaled: scaled, objects: map[string]map[string]any{}, scales: map[string]string{}, watchers: map[chan string]bool{}}
	s.served[resource(text)] = k
	return k
}

// uninstall takes a kind away as the deletion of its CRD does: with its objects and its watches.
func (s *apiServer) uninstall(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.served[resource(text)]
	delete(s.served, resource(text))
	for w := range k.watchers {
		close(w)
	}
	clear(k.watchers)
}

// put creates or updates an object of namespace serving from YAML.
func (s *apiServer) put(text, object string) {
	s.t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal([]byte(object), &o); err != nil {
		s.t.Fatal(err)
	}
	u := unstructured.Unstructured{Object: o}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	gvr := resource(text)
	u.SetAPIVersion(gvr.GroupVersion().String())
	u.SetKind(kindName(gvr.Resource))
	if u.GetNamespace() == "" {
		u.SetNamespace("serving")
	}
	u.SetResourceVersion(fmt.Sprint(s.revision))
	k := s.served[gvr]
	key := u.GetNamespace() + "/" + u.GetName()
	event := "ADDED"
	if k.objects[key] != nil {
		event = "MODIFIED"
	}
	k.objects[key] = o
	s.send(k, event, o)
}

// kindName is what a client that knows the kind checks; to others any name will do.
func kindName(resource string) string {
	names := map[string]string{"pods": "Pod", "services": "Service", "deployments": "Deployment", "statefulsets": "StatefulSet", "replicasets": "ReplicaSet"}
	return cmp.Or(names[resource], "Custom")
}

func (s *apiServer) remove(text, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.served[resource(text)]
	o := k.objects["serving/"+name]
	delete(k.objects, "serving/"+name)
	s.send(k, "DELETED", o)
}

func (s *apiServer) send(k *servedKind, event string, o map[string]any) {
	line, err := json.Marshal(map[string]any{"type": event, "object": o})
	if err != nil {
		s.t.Error(err)
	}
	for w := range k.watchers {
		w <- string(line)
	}
}

func (s *apiServer) fail(part string, err *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing[part] = err; err == nil {
		delete(s.failing, part)
	}
}

// asked counts the requests whose path has this in it.
func (s *apiServer) asked(part string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for path, of := range s.requests {
		if strings.Contains(path, part) {
			n += of
		}
	}
	return n
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests[r.URL.Path]++
	status, body, watcher := s.answer(r)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if watcher == nil {
		if err := json.NewEncoder(w).Encode(body); err != nil {
			s.t.Error(err)
		}
		return
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case line, ok := <-watcher:
			if !ok {
				return
			}
			fmt.Fprintln(w, line)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (s *apiServer) answer(r *http.Request) (int, any, chan string) {
	failure := func(err *apierrors.StatusError) (int, any, chan string) {
		status := err.Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		return int(status.Code), &status, nil
	}
	for part, err := range s.failing {
		if strings.Contains(r.URL.Path, part) {
			return failure(err)
		}
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		return failure(apierrors.NewInvalid(schema.GroupKind{}, "", nil)) // as a server that cannot stream a list
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var gvr schema.GroupVersionResource
	if parts[0] == "api" {
		parts = append([]string{"apis", ""}, parts[1:]...)
	}
	gvr.Group = parts[1]
	if len(parts) == 2 {
		group := metav1.APIGroup{Name: gvr.Group}
		for served := range s.served {
			if served.Group == gvr.Group {
				group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: served.GroupVersion().String(), Version: served.Version})
			}
		}
		if len(group.Versions) == 0 {
			return failure(apierrors.NewNotFound(schema.GroupResource{}, gvr.Group))
		}
		group.PreferredVersion = group.Versions[0]
		return http.StatusOK, group, nil
	}
	gvr.Version = parts[2]
	if len(parts) == 3 {
		list := metav1.APIResourceList{GroupVersion: gvr.GroupVersion().String()}
		for served, k := range s.served {
			if served.GroupVersion() != gvr.GroupVersion() {
				continue
			}
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: served.Resource, Namespaced: !k.cluster})
			if k.scaled {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: served.Resource + "/scale", Namespaced: !k.cluster})
			}
		}
		return http.StatusOK, list, nil
	}
	if len(parts) == 8 && parts[7] == "scale" {
		gvr.Resource = parts[5]
		k, key := s.served[gvr], parts[4]+"/"+parts[6]
		if k == nil || k.objects[key] == nil {
			return failure(apierrors.NewNotFound(gvr.GroupResource(), parts[6]))
		}
		uid := (&unstructured.Unstructured{Object: k.objects[key]}).GetUID()
		return http.StatusOK, map[string]any{
			"apiVersion": "autoscaling/v1", "kind": "Scale",
			"metadata": map[string]any{"namespace": parts[4], "name": parts[6], "uid": uid},
			"status":   map[string]any{"selector": k.scales[parts[6]]},
		}, nil
	}
	gvr.Resource = parts[3]
	k := s.served[gvr]
	if k == nil {
		return failure(apierrors.NewNotFound(gvr.GroupResource(), ""))
	}
	if r.URL.Query().Get("watch") == "true" {
		watcher := make(chan string, 1000)
		// What came between the list and the watch is sent again, which hurts nobody.
		for _, o := range k.objects {
			line, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": o})
			if err != nil {
				s.t.Error(err)
			}
			watcher <- string(line)
		}
		k.watchers[watcher] = true
		return http.StatusOK, nil, watcher
	}
	items := []any{}
	for _, o := range k.objects {
		items = append(items, o)
	}
	return http.StatusOK, map[string]any{
		"apiVersion": gvr.GroupVersion().String(), "kind": kindName(gvr.Resource) + "List",
		"metadata": map[string]any{"resourceVersion": fmt.Sprint(s.revision)}, "items": items,
	}, nil
}
