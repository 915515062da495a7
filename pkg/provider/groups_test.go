package provider

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/signals"
)

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	rollouts    = schema.GroupResource{Group: "argoproj.io", Resource: "rollouts"}
)

// objects is a pods.Groups of literal objects.
type objects struct {
	kinds  []schema.GroupResource
	byName map[pods.Object]group
	// unread makes all of it unknown.
	unread error
}

type group struct {
	labels  labels.Set
	members []*pods.Pod
	err     error
}

func (o *objects) Kinds() []schema.GroupResource { return o.kinds }

func (o *objects) Members(of pods.Object) ([]*pods.Pod, error) {
	if of.GroupResource == pods.Namespaces {
		of.Namespace = ""
	}
	g, ok := o.byName[of]
	switch {
	case o.unread != nil:
		return nil, o.unread
	case !ok:
		return nil, &pods.GroupError{Why: pods.NotThere, Message: "there is no " + of.String()}
	}
	return g.members, g.err
}

func (o *objects) Objects(kind schema.GroupResource, namespace string, selector labels.Selector) ([]pods.Object, error) {
	if o.unread != nil {
		return nil, o.unread
	}
	var out []pods.Object
	for of, g := range o.byName {
		if of.GroupResource == kind && of.Namespace == namespace && selector.Matches(g.labels) {
			out = append(out, of)
		}
	}
	slices.SortFunc(out, func(a, b pods.Object) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (o *objects) Annotations(*pods.Pod) map[string]string { return nil }

// world is a provider over objects in every condition that matters.
type world struct {
	*Provider
	f       *fixed
	src     *gauges
	objects *objects
}

func newWorld(t testing.TB, sourceErr error, collected ...string) *world {
	t.Helper()
	src := &gauges{err: sourceErr, values: map[string]map[string]float64{
		"a": queue(3), "b": queue(4), "idle": queue(0), "idle-too": queue(0), "cold": queue(50),
		"prefill": queue(2), "decode": queue(5),
	}}
	of := func(owner string) func(*pods.Pod) { return func(p *pods.Pod) { p.Owner = types.UID(owner) } }
	role := func(r string) func(*pods.Pod) {
		return func(p *pods.Pod) { p.Labels = labels.Set{"example.com/does": r} }
	}
	all := map[string]*pods.Pod{}
	for name, change := range map[string]func(*pods.Pod){
		"a": of("vllm"), "b": of("vllm"), "idle": of("idle"), "idle-too": of("idle"), "silent": of("vllm"), "silent-too": of("vllm"),
		"cold": func(p *pods.Pod) { p.WasReady = false }, "router": of("router"), "gpu": func(p *pods.Pod) { p.Owner, p.GPU = "other", true },
		"prefill": role("prefill"), "decode": role("decode"),
		"gone": func(p *pods.Pod) { p.Gone = true },
	} {
		all[name] = pod(name, change)
	}
	these := func(names ...string) (out []*pods.Pod) {
		for _, n := range names {
			out = append(out, all[n])
		}
		return out
	}
	deployment := func(name string) pods.Object {
		return pods.Object{GroupResource: deployments, Namespace: "serving", Name: name}
	}
	gold, silver := labels.Set{"tier": "gold"}, labels.Set{"tier": "silver"}
	o := &objects{
		kinds: []schema.GroupResource{deployments, services, pools[0], pods.Namespaces, rollouts},
		byName: map[pods.Object]group{
			deployment("whole"):     {gold, these("a", "b"), nil},
			deployment("half"):      {gold, these("a", "silent"), nil},
			deployment("third"):     {gold, these("a", "silent", "silent-too"), nil},
			deployment("idle"):      {silver, these("idle", "idle-too"), nil},
			deployment("idle-half"): {silver, these("idle", "silent"), nil},
			deployment("starting"):  {silver, these("a", "cold"), nil},
			deployment("empty"):     {labels.Set{"tier": "none"}, nil, nil},
			deployment("unborn"):    {labels.Set{"tier": "none"}, these("cold"), nil},
			deployment("apart"):     {nil, these("prefill", "decode"), nil},
			deployment("no-words"):  {nil, nil, &pods.GroupError{Why: pods.NoSelector, Message: "it has no selector"}},
			deployment("routed"):    {nil, these("a", "router"), nil},
			{GroupResource: services, Namespace: "serving", Name: "routed"}:   {nil, these("a", "router"), nil},
			{GroupResource: services, Namespace: "serving", Name: "siblings"}: {nil, these("a", "silent", "router"), nil},
			{GroupResource: services, Namespace: "serving", Name: "web"}:      {nil, these("router"), nil},
			{GroupResource: services, Namespace: "serving", Name: "unseen"}:   {nil, these("idle", "router", "gpu"), nil},
			{GroupResource: rollouts, Namespace: "serving", Name: "whole"}:    {nil, these("a", "b"), nil},
			{GroupResource: pods.Namespaces, Name: "serving"}:                 {nil, these("a", "b", "idle", "router", "gpu"), nil},
		},
	}
	lister := pods.NewStatic(these("a", "b", "idle", "idle-too", "cold", "router", "prefill", "decode", "silent", "gone", "gpu"))
	if collected == nil {
		collected = []string{queueDepth, "vllm_ttft_p99_seconds"}
	}
	f := snapshotOf(t, src, lister, collected...)
	return &world{
		Provider: New(Config{Snapshots: f, Pods: lister, Groups: o, External: true}),
		f:        f, src: src, objects: o,
	}
}

func TestObjects(t *testing.T) {
	w := newWorld(t, nil)
	for _, tc := range []struct {
		name     string
		resource string
		object   string
		metric   string
		selector string
		want     string
		code     int
		message  []string
	}{
		{name: "all known", object: "whole", want: "7"},
		{name: "half is scaled", object: "half", want: "6"},
		{name: "less than half", object: "third", code: 404, message: []string{
			"no value of vllm_queue_depth for deployments.apps third in namespace serving", "1 of 3 replicas have a value", "silent: the source has no sample", "silent-too: "}},
		{name: "0 of all", object: "idle", want: "0"},
		{name: "0 of some", object: "idle-half", code: 404, message: []string{"make 0, and 1 have none", "silent: "}},
		{name: "one that starts is not expected", object: "starting", want: "3"},
		{name: "scaled to zero", object: "empty", code: 404, message: []string{"it has no pod that has been Ready"}},
		{name: "only starting", object: "unborn", code: 404, message: []string{"it has no pod that has been Ready"}},
		{name: "both roles", object: "apart", want: "7"},
		{name: "prefill", object: "apart", selector: "role=prefill", want: "2"},
		{name: "decode", object: "apart", selector: "role in (decode)", want: "5"},
		{name: "not prefill", object: "apart", selector: "role!=prefill", want: "5"},
		{name: "a role that is not there", object: "whole", selector: "role=prefill", code: 404, message: []string{"of the role that the metric selector asks for"}},
		{name: "what either role sees a part of", object: "apart", metric: "vllm_ttft_p99_seconds", code: 404, message: []string{"choose role=prefill or role=decode"}},
		{name: "a Deployment's router is one of its replicas", object: "routed", want: "6"},
		{name: "a Service's is not", resource: "services", object: "routed", want: "3"},
		{name: "a sibling of an exporter is", resource: "services", object: "siblings", want: "6"},
		{name: "a GPU tells an engine that was never seen", resource: "services", object: "unseen", code: 404, message: []string{"make 0, and 1 have none: gpu: "}},
		{name: "a Service without an engine", resource: "services", object: "web", code: 404, message: []string{"it has no pod that has been Ready"}},
		{name: "a kind that is not built in", resource: "rollouts.argoproj.io", object: "whole", want: "7"},
		{name: "a namespace", resource: "namespaces", object: "serving", want: "7"},
		{name: "not there", object: "nobody", code: 404, message: []string{"vllm_queue_depth: there is no deployments.apps nobody in namespace serving"}},
		{name: "no selector", object: "no-words", code: 404, message: []string{"it has no selector"}},
		{name: "not allowed", resource: "statefulsets.apps", object: "whole", code: 404, message: []string{
			"not served on statefulsets.apps: signals are served on pods, deployments.apps, services, inferencepools.inference.networking.k8s.io, namespaces, rollouts.argoproj.io"}},
		{name: "cold", object: "whole", metric: "vllm_kv_cache_usage", code: 503, message: []string{"warming up"}},
		{name: "no such metric", object: "whole", metric: "nonsense", code: 404, message: []string{"there is no metric nonsense"}},
		{name: "no such label", object: "whole", selector: "tenant=a", code: 400, message: []string{"tenant"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.resource == "" {
				tc.resource = "deployments.apps"
			}
			if tc.metric == "" {
				tc.metric = queueDepth
			}
			i, name := info(tc.resource, tc.metric), types.NamespacedName{Namespace: "serving", Name: tc.object}
			if tc.resource == "namespaces" {
				i.Namespaced, name.Namespace = false, ""
			}
			got, err := w.GetMetricByName(t.Context(), name, i, selector(t, tc.selector))
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
			if got.Value.String() != tc.want {
				t.Errorf("got %s, want %s", &got.Value, tc.want)
			}
		})
	}
}

func TestDescribedObjects(t *testing.T) {
	w := newWorld(t, nil)
	for resourceName, want := range map[string]custom_metrics.ObjectReference{
		"deployments.apps":     {Kind: "Deployment", Namespace: "serving", Name: "whole", APIVersion: "apps/v1"},
		"rollouts.argoproj.io": {Kind: "rollouts", Namespace: "serving", Name: "whole", APIVersion: "argoproj.io"},
		"namespaces":           {Kind: "Namespace", Name: "serving", APIVersion: "v1"},
	} {
		i, name := info(resourceName, queueDepth), types.NamespacedName{Namespace: want.Namespace, Name: want.Name}
		i.Namespaced = want.Namespace != ""
		got, err := w.GetMetricByName(t.Context(), name, i, labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		full := &custom_metrics.MetricValue{
			DescribedObject: want,
			Metric:          custom_metrics.MetricIdentifier{Name: queueDepth},
			Timestamp:       metav1.NewTime(w.src.at),
			Value:           resource.MustParse("7"),
		}
		if diff := cmp.Diff(full, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", resourceName, diff)
		}
	}
}

// What cannot be told is the source's or the cluster's fault: it passes, and is a 503.
func TestObjectsThatCannotBeTold(t *testing.T) {
	name := types.NamespacedName{Namespace: "serving", Name: "third"}
	w := newWorld(t, errDown)
	_, err := w.GetMetricByName(t.Context(), name, info("deployments.apps", queueDepth), labels.Everything())
	checkError(t, err, 503, "1 of 3 replicas", "the source cannot be read: the test's source: connection refused")

	w = newWorld(t, nil)
	w.objects.unread = &pods.GroupError{Why: pods.NotRead, Message: "the deployments.apps of the cluster have not been read yet"}
	_, err = w.GetMetricByName(t.Context(), name, info("deployments.apps", queueDepth), labels.Everything())
	checkError(t, err, 503, "vllm_queue_depth for deployments.apps third in namespace serving: the deployments.apps of the cluster have not been read yet")
	_, err = w.GetMetricBySelector(t.Context(), "serving", labels.Everything(), info("deployments.apps", queueDepth), labels.Everything())
	checkError(t, err, 503, "have not been read yet")

	// In part: the router may as well be an engine in what was not read, with all that waits.
	w = newWorld(t, &source.PartialError{Err: errDown})
	for _, kind := range []string{"services", "namespaces"} {
		name := types.NamespacedName{Namespace: "serving", Name: "routed"}
		if kind == "namespaces" {
			name = types.NamespacedName{Name: "serving"}
		}
		_, err = w.GetMetricByName(t.Context(), name, info(kind, queueDepth), labels.Everything())
		checkError(t, err, 503, "whether pod router has an engine is not known yet; the source cannot be read: the test's source: connection refused")
	}
	_, err = w.GetExternalMetric(t.Context(), "serving", labels.Everything(), provider.ExternalMetricInfo{Metric: queueDepth})
	checkError(t, err, 503, "has an engine is not known")
}

func TestSelectedObjects(t *testing.T) {
	for _, tc := range []struct {
		name     string
		source   error
		selector string
		want     string
		code     int
		message  string
	}{
		{name: "those with a value", selector: "tier=gold", want: "half=6 whole=7"},
		{name: "of several labels", selector: "tier in (gold,silver)", want: "half=6 idle=0 starting=3 whole=7"},
		{name: "none has a value", selector: "tier=none", code: 404, message: "deployments.apps empty in namespace serving"},
		{name: "nothing selected", selector: "tier=lead", want: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.source)
			got, err := w.GetMetricBySelector(t.Context(), "serving", selector(t, tc.selector), info("deployments.apps", queueDepth), labels.Everything())
			if tc.code != 0 {
				checkError(t, err, tc.code, tc.message)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var items []string
			for _, i := range got.Items {
				items = append(items, i.DescribedObject.Name+"="+i.Value.String())
			}
			if diff := cmp.Diff(tc.want, strings.Join(items, " ")); diff != "" || got.Items == nil {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whoever asks hundreds of different questions does not make the collector evaluate them all.
func TestCrowded(t *testing.T) {
	w := newWorld(t, nil)
	w.f.refuse = collect.ErrCrowded
	const message = ": more than 100 queries with different parameters have been asked in the last 10m0s"
	_, err := w.GetMetricByName(t.Context(), types.NamespacedName{Namespace: "serving", Name: "a"}, info("pods", queueDepth), labels.Everything())
	checkError(t, err, 503, message)
	_, err = w.GetMetricBySelector(t.Context(), "serving", labels.Everything(), info("deployments.apps", queueDepth), labels.Everything())
	checkError(t, err, 503, message)
	_, err = w.GetExternalMetric(t.Context(), "serving", labels.Everything(), provider.ExternalMetricInfo{Metric: queueDepth})
	checkError(t, err, 503, message)
}

// The requests that an HPA and a person make, in both versions and both encodings.
func TestObjectsOverHTTP(t *testing.T) {
	h := newHandler(t, newWorld(t, nil).Provider)
	for path, want := range map[string]string{
		"/namespaces/serving/deployments.apps/whole/vllm_queue_depth":                                   "apps/v1 Deployment whole=7",
		"/namespaces/serving/deployments.apps/whole/vllm_queue_depth?metricLabelSelector=":              "apps/v1 Deployment whole=7",
		"/namespaces/serving/deployments.apps/apart/vllm_queue_depth?metricLabelSelector=role%3Ddecode": "apps/v1 Deployment apart=5",
		"/namespaces/serving/deployments.apps/*/vllm_queue_depth?labelSelector=tier%3Dgold":             "apps/v1 Deployment half=6, apps/v1 Deployment whole=7",
		"/namespaces/serving/services/routed/vllm_queue_depth":                                          "v1 Service routed=3",
		"/namespaces/serving/metrics/vllm_queue_depth":                                                  "v1 Namespace serving=7",
		"/namespaces/serving/rollouts.argoproj.io/whole/vllm_queue_depth":                               "argoproj.io rollouts whole=7",
		"/namespaces/serving/inferencepools.inference.networking.k8s.io/p/vllm_queue_depth":             "404",
		"/namespaces/serving/statefulsets.apps/whole/vllm_queue_depth":                                  "404",
		"/namespaces/serving/deployments/whole/vllm_queue_depth":                                        "404",
		"/namespaces/serving/deployments.apps/third/vllm_queue_depth":                                   "404",
		"/namespaces/other/deployments.apps/whole/vllm_queue_depth":                                     "404",
		"/namespaces/other/metrics/vllm_queue_depth":                                                    "404",
		"/namespaces/serving/metrics/vllm_queue_depth?labelSelector=":                                   "v1 Namespace serving=7",
		"/namespaces/other/namespaces/serving/vllm_queue_depth":                                         "404", // who may ask in other only
		"/namespaces/other/namespaces/*/vllm_queue_depth":                                               "404",
		"/namespaces/serving/namespaces/serving/vllm_queue_depth":                                       "404",
		"/deployments.apps/whole/vllm_queue_depth":                                                      "404",
		"/namespaces/serving/deployments.apps/whole/vllm_queue_depth?metricLabelSelector=window%3D3m":   "400",
		"/namespaces/serving/deployments.apps/whole/vllm_queue_depth?metricLabelSelector=window%3D2m":   "503",
	} {
		for _, gv := range []string{"v1beta1", "v1beta2"} {
			for _, accept := range []string{applicationJSON, protobuf} {
				w := get(h, root+"/"+gv+path, accept)
				var got string
				object, _, err := apiserver.Codecs.UniversalDeserializer().Decode(w.Body.Bytes(), nil, nil)
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				var items []string
				switch list := object.(type) {
				case *v1beta1.MetricValueList:
					for _, i := range list.Items {
						items = append(items, i.DescribedObject.APIVersion+" "+i.DescribedObject.Kind+" "+i.DescribedObject.Name+"="+i.Value.String())
					}
				case *v1beta2.MetricValueList:
					for _, i := range list.Items {
						items = append(items, i.DescribedObject.APIVersion+" "+i.DescribedObject.Kind+" "+i.DescribedObject.Name+"="+i.Value.String())
					}
				case *metav1.Status:
					items = append(items, resource.NewQuantity(int64(w.Code), resource.DecimalSI).String())
				}
				if got = strings.Join(items, ", "); got != want {
					t.Errorf("%s%s in %s: got %q, want %q: %q", gv, path, accept, got, want, w.Body)
				}
				if w.Header().Get("Content-Type") != accept {
					t.Errorf("%s: asked in %s, answered in %s", path, accept, w.Header().Get("Content-Type"))
				}
				if w.Header().Get("Retry-After") != "" {
					t.Errorf("%s: the answer has a Retry-After", path)
				}
			}
		}
	}
}

// The documents list every signal on every kind that is allowed, and are the same whatever the state
// of the source.
func TestDiscoveryOfKinds(t *testing.T) {
	var want []string
	for _, s := range signals.Catalogue() {
		if !s.OfPool() {
			want = append(want, "pods/"+s.Name+" true", "deployments.apps/"+s.Name+" true", "services/"+s.Name+" true",
				"namespaces/"+s.Name+" false", "rollouts.argoproj.io/"+s.Name+" true")
		}
		want = append(want, "inferencepools.inference.networking.k8s.io/"+s.Name+" true")
	}
	slices.Sort(want)
	var before string
	for _, sourceErr := range []error{nil, errors.New("down")} {
		w := newWorld(t, sourceErr)
		if sourceErr != nil {
			w.objects.unread = &pods.GroupError{Why: pods.NotRead}
		}
		h := newHandler(t, w.Provider)
		for _, gv := range []string{"v1beta1", "v1beta2"} {
			answer := get(h, root+"/"+gv, applicationJSON)
			document := strings.ReplaceAll(answer.Body.String(), gv, "")
			if before == "" {
				before = document
			}
			if document != before {
				t.Errorf("the document of %s is another one", gv)
			}
			var got []string
			for _, r := range decode[metav1.APIResourceList](t, answer).APIResources {
				got = append(got, r.Name+map[bool]string{true: " true", false: " false"}[r.Namespaced])
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", gv, diff)
			}
		}
		aggregated := decode[apidiscoveryv2.APIGroupDiscoveryList](t, get(h, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"))
		var resources []string
		for _, g := range aggregated.Items {
			if g.Name != "custom.metrics.k8s.io" {
				continue
			}
			for _, r := range g.Versions[0].Resources {
				resources = append(resources, r.Resource)
			}
		}
		slices.Sort(resources)
		if diff := cmp.Diff([]string{"deployments.apps", "inferencepools.inference.networking.k8s.io", "namespaces", "pods", "rollouts.argoproj.io", "services"}, resources); diff != "" {
			t.Errorf("aggregated (-want +got):\n%s", diff)
		}
	}
}

// A request for an object costs as little as one for its pods.
func BenchmarkObjectRequest(b *testing.B) {
	h := newHandler(b, newWorld(b, nil).Provider)
	for _, a := range accepts {
		b.Run(a.name, func(b *testing.B) {
			for b.Loop() {
				if w := get(h, root+"/v1beta2/namespaces/serving/deployments.apps/whole/vllm_queue_depth", a.accept); w.Code != http.StatusOK {
					b.Fatalf("got a %d", w.Code)
				}
			}
		})
	}
}
