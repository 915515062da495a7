package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/pods"
)

// fleets are what a user may have allowed besides the default kinds.
var fleets = schema.GroupResource{Group: "example.com", Resource: "fleets"}

// startGroups mirrors the default kinds and fleets of an API server.
func startGroups(t *testing.T) (*apiServer, *Groups) {
	t.Helper()
	server, client, dynamicClient := newAPIServer(t)
	mirror, lister := NewPods(client)
	g := NewGroups(client, dynamicClient, mirror, lister, append(DefaultKinds(), fleets))
	g.again = 20 * time.Millisecond
	run(t, mirror)
	runGroups(t, g)
	eventually(t, mirror.Synced)
	return server, g
}

func runGroups(t *testing.T, g *Groups) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

// of names an object of namespace serving: "deployments.apps/vllm".
func of(text string) pods.Object {
	kind, name, _ := strings.Cut(text, "/")
	o := pods.Object{GroupResource: schema.ParseGroupResource(kind), Namespace: "serving", Name: name}
	if o.GroupResource == pods.Namespaces {
		o.Namespace = ""
	}
	return o
}

// members names the pods of an object, or says why it has none.
func members(g *Groups, object string) string {
	all, err := g.Members(of(object))
	if err != nil {
		return said(err)
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func said(err error) string {
	var why *pods.GroupError
	if !errors.As(err, &why) {
		return fmt.Sprintf("an error of no kind: %v", err)
	}
	kinds := map[pods.Why]string{pods.NotServed: "not served", pods.NotThere: "not there", pods.NoSelector: "no selector", pods.NotRead: "not read"}
	return kinds[why.Why] + ": " + why.Message
}

// becomes waits until what is asked for is answered.
func becomes(t *testing.T, what string, ask func() string, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got = ask()
		if got == want || strings.HasSuffix(want, "…") && strings.HasPrefix(got, strings.TrimSuffix(want, "…")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %q within a minute, want %q", what, got, want)
		}
	}
}

func TestMembers(t *testing.T) {
	server, g := startGroups(t)
	for _, kind := range []string{
		"leaderworkerset.x-k8s.io/v1/leaderworkersets", "inference.networking.k8s.io/v1/inferencepools",
		"inference.networking.x-k8s.io/v1alpha2/inferencepools",
	} {
		server.install(kind, false)
	}
	server.install("example.com/v1/fleets", true).scales["blue"] = "app in (vllm),tier=gold"
	for name, rest := range map[string]string{
		"a-0":         "labels: {app: vllm, tier: gold}",
		"a-1":         "labels: {app: vllm}",
		"a-deleted":   "labels: {app: vllm}, deletionTimestamp: 2026-05-04T03:02:01Z",
		"lws-0":       "labels: {app: lws, leaderworkerset.sigs.k8s.io/worker-index: '0'}",
		"lws-0-1":     "labels: {app: lws, leaderworkerset.sigs.k8s.io/worker-index: '1'}",
		"ray-head":    "labels: {app: ray, ray.io/node-type: head}",
		"ray-worker":  "labels: {app: ray, ray.io/node-type: worker}",
		"elsewhere-0": "labels: {app: vllm}, namespace: other",
	} {
		server.put("v1/pods", "metadata: {name: "+name+", "+rest+"}")
	}
	server.put("v1/pods", "{metadata: {name: a-failed, labels: {app: vllm}}, status: {phase: Failed}}")

	server.put("apps/v1/deployments", "{metadata: {name: vllm, uid: d}, spec: {selector: {matchLabels: {app: vllm}}}}")
	server.put("apps/v1/deployments", "{metadata: {name: idle, uid: d0}, spec: {selector: {matchLabels: {app: idle}}}}")
	server.put("apps/v1/deployments", "{metadata: {name: odd, uid: d1}, spec: {selector: {matchExpressions: [{key: app, operator: Near}]}}}")
	server.put("apps/v1/statefulsets", "{metadata: {name: ray, uid: s}, spec: {selector: {matchLabels: {app: ray}}}}")
	server.put("apps/v1/replicasets", "{metadata: {name: vllm-1, uid: r}, spec: {selector: {matchExpressions: [{key: app, operator: In, values: [vllm]}, {key: tier, operator: DoesNotExist}]}}}")
	server.put("v1/services", "{metadata: {name: lws, uid: v}, spec: {selector: {app: lws}}}")
	server.put("v1/services", "{metadata: {name: external, uid: v1}, spec: {type: ExternalName}}")
	server.put("leaderworkerset.x-k8s.io/v1/leaderworkersets", "{metadata: {name: lws, uid: l}, status: {hpaPodSelector: 'app=lws,leaderworkerset.sigs.k8s.io/worker-index=0'}}")
	server.put("leaderworkerset.x-k8s.io/v1/leaderworkersets", "{metadata: {name: new, uid: l1}}")
	server.put("inference.networking.k8s.io/v1/inferencepools", "{metadata: {name: pool, uid: p}, spec: {selector: {matchLabels: {app: vllm}}}}")
	server.put("inference.networking.x-k8s.io/v1alpha2/inferencepools", "{metadata: {name: pool, uid: p1}, spec: {selector: {tier: gold}}}")
	server.put("example.com/v1/fleets", "{metadata: {name: blue, uid: f}}")
	server.put("example.com/v1/fleets", "{metadata: {name: new, uid: f1}}")

	const allowed = "deployments.apps, statefulsets.apps, replicasets.apps, leaderworkersets.leaderworkerset.x-k8s.io, services, " +
		"inferencepools.inference.networking.k8s.io, inferencepools.inference.networking.x-k8s.io, namespaces, fleets.example.com"
	for object, want := range map[string]string{
		"deployments.apps/vllm": "a-0 a-1",
		"deployments.apps/idle": "",
		"deployments.apps/odd":  "no selector: deployments.apps odd in namespace serving: its selector cannot be read: \"Near\" is not a valid label selector operator",
		"deployments.apps/gone": "not there: there is no deployments.apps gone in namespace serving",
		"statefulsets.apps/ray": "ray-head",

		"replicasets.apps/vllm-1": "a-1",
		"services/lws":            "lws-0",
		"services/external":       "no selector: services external in namespace serving: it has no selector",

		"leaderworkersets.leaderworkerset.x-k8s.io/lws": "lws-0",
		"leaderworkersets.leaderworkerset.x-k8s.io/new": "no selector: leaderworkersets.leaderworkerset.x-k8s.io new in namespace serving: it has no selector",

		"inferencepools.inference.networking.k8s.io/pool":   "a-0 a-1",
		"inferencepools.inference.networking.x-k8s.io/pool": "a-0",

		"namespaces/serving": "a-0 a-1 lws-0 ray-head",
		"namespaces/other":   "elsewhere-0",
		"namespaces/typo":    "not there: there are no pods in a namespace typo",

		"fleets.example.com/blue": "a-0",
		"fleets.example.com/new":  "no selector: fleets.example.com new in namespace serving: it has no selector",

		"configmaps/vllm": "not served: configmaps are not served: the configuration allows " + allowed,
	} {
		becomes(t, "pods of "+object, func() string { return members(g, object) }, want)
	}
	eventually(t, g.Synced)

	server.remove("apps/v1/deployments", "vllm")
	becomes(t, "after its deletion", func() string { return members(g, "deployments.apps/vllm") },
		"not there: there is no deployments.apps vllm in namespace serving")
	server.put("v1/services", "{metadata: {name: lws, uid: v}, spec: {selector: {app: vllm}}}")
	becomes(t, "after its selector changed", func() string { return members(g, "services/lws") }, "a-0 a-1")

	// Once all is read, questions are answered from memory.
	before := server.asked("/")
	for range 100 {
		_ = members(g, "deployments.apps/idle") + members(g, "fleets.example.com/blue") + members(g, "services/lws") + members(g, "namespaces/serving")
	}
	if n := server.asked("/") - before; n != 0 {
		t.Errorf("%d requests to the API server for 400 questions", n)
	}
}

func TestPodsThatAreNotReadAreNotNone(t *testing.T) {
	server, client, dynamicClient := newAPIServer(t)
	server.put("apps/v1/deployments", "{metadata: {name: vllm, uid: d}, spec: {selector: {matchLabels: {app: vllm}}}}")
	mirror, lister := NewPods(client) // which does not run
	g := NewGroups(client, dynamicClient, mirror, lister, []schema.GroupResource{deployments, pods.Namespaces})
	for _, object := range []string{"deployments.apps/vllm"} {
		if got, want := members(g, object), "not read: the deployments.apps of the cluster have not been read yet"; got != want {
			t.Errorf("%s before anything was read: got %q, want %q", object, got, want)
		}
	}
	if g.Synced() {
		t.Error("synced before it ran")
	}
	runGroups(t, g)
	eventually(t, g.Synced)
	for _, object := range []string{"deployments.apps/vllm", "namespaces/serving"} {
		if got, want := members(g, object), "not read: the pods of the cluster have not been read yet"; got != want {
			t.Errorf("%s before pods were read: got %q, want %q", object, got, want)
		}
	}
}

func TestKindsComeAndGo(t *testing.T) {
	server, g := startGroups(t)
	ask := func() string { return members(g, "inferencepools.inference.networking.k8s.io/pool") }
	const pools = "inference.networking.k8s.io/v1/inferencepools"
	becomes(t, "without the CRD", ask, "not served: the cluster's inferencepools.inference.networking.k8s.io: it does not have that kind")
	eventually(t, g.Synced) // not held up by it
	server.put("v1/pods", "{metadata: {name: a, labels: {app: vllm}}}")

	server.install(pools, false)
	becomes(t, "with the CRD", ask, "not there: there is no inferencepools.inference.networking.k8s.io pool in namespace serving")
	server.put(pools, "{metadata: {name: pool, uid: p}, spec: {selector: {matchLabels: {app: vllm}}}}")
	becomes(t, "with a pool", ask, "a")

	server.uninstall(pools)
	becomes(t, "after the CRD was deleted", ask, "not served: …")
	eventually(t, func() bool {
		g.mu.RLock()
		defer g.mu.RUnlock()
		return len(g.byUID) == 0 // nothing of it stays in memory
	})
	server.install("inference.networking.k8s.io/v2/inferencepools", false)
	server.put("inference.networking.k8s.io/v2/inferencepools", "{metadata: {name: pool, uid: p2}, spec: {selector: {matchLabels: {app: vllm}}}}")
	becomes(t, "with another version of it", ask, "a")
}

func TestUselessKinds(t *testing.T) {
	server, g := startGroups(t)
	ask := func() string { return members(g, "fleets.example.com/blue") }
	server.install("example.com/v1/fleets", false)
	becomes(t, "without a scale subresource", ask, "not served: the cluster's fleets.example.com: they have no scale subresource, which would say their selector")
	server.uninstall("example.com/v1/fleets")
	fleet := server.install("example.com/v1/fleets", true)
	server.mu.Lock()
	fleet.cluster = true
	server.mu.Unlock()
	becomes(t, "not in a namespace", ask, "not served: the cluster's fleets.example.com: they are in no namespace, where pods are")
}

// What one kind lacks is that kind's own trouble.
func TestRefusalsAndFailures(t *testing.T) {
	server, client, dynamicClient := newAPIServer(t)
	forbidden := apierrors.NewForbidden(statefulSets, "", errors.New("no role"))
	server.fail("/statefulsets", forbidden)
	server.fail("/deployments", apierrors.NewInternalError(errors.New("etcd has no leader")))
	server.fail("/fleets", apierrors.NewInternalError(errors.New("conversion webhook is down")))
	server.fail("/inference.networking.k8s.io", apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no discovery")))
	server.install("example.com/v1/fleets", true)
	server.put("v1/services", "{metadata: {name: vllm, uid: v}, spec: {selector: {app: vllm}}}")
	server.put("v1/pods", "{metadata: {name: a, labels: {app: vllm}}}")
	mirror, lister := NewPods(client)
	g := NewGroups(client, dynamicClient, mirror, lister, append(DefaultKinds(), fleets))
	g.again = 20 * time.Millisecond
	run(t, mirror)
	runGroups(t, g)

	for object, want := range map[string]string{
		"statefulsets.apps/s":     "not read: the adapter may not read statefulsets.apps: " + forbidden.Error() + "; grant list and watch to its ServiceAccount",
		"deployments.apps/d":      "not read: the deployments.apps of the cluster cannot be read: …",
		"fleets.example.com/blue": "not read: the fleets.example.com of the cluster cannot be read: …",

		"inferencepools.inference.networking.k8s.io/p": "not read: the adapter may not look whether the cluster has inferencepools.inference.networking.k8s.io: …",

		"services/vllm": "a",
	} {
		becomes(t, object, func() string { return members(g, object) }, want)
	}
	if g.Synced() {
		t.Error("synced although Deployments, which every cluster has, could not be read")
	}
	server.fail("/deployments", nil)
	eventually(t, g.Synced) // the rest is not waited for
}

func TestSelectorsOfScaleSubresources(t *testing.T) {
	server, g := startGroups(t)
	const kind, scale = "example.com/v1/fleets", "/blue/scale"
	fleet := server.install(kind, true)
	says := func(selector string) {
		server.mu.Lock()
		defer server.mu.Unlock()
		fleet.scales["blue"] = selector
	}
	server.put("v1/pods", "{metadata: {name: a, labels: {app: one}}}")
	server.put("v1/pods", "{metadata: {name: b, labels: {app: two}}}")
	ask := func() string { return members(g, "fleets.example.com/blue") }
	marks := 0
	settled := func() string { // changes are handled in turn: all before the mark have been
		marks++
		mark := fmt.Sprintf("mark-%d", marks)
		server.put(kind, fmt.Sprintf("{metadata: {name: %s, uid: %[1]s}}", mark))
		eventually(t, func() bool { return server.asked("/"+mark+"/scale") > 0 })
		return ask()
	}

	server.fail(scale, apierrors.NewInternalError(errors.New("no controller")))
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 1}}")
	becomes(t, "while its scale fails", ask, "not read: fleets.example.com blue in namespace serving: its scale subresource cannot be read: …")
	server.fail(scale, nil)
	becomes(t, "before its controller has seen it", ask, "no selector: fleets.example.com blue in namespace serving: it has no selector")

	says("app=one")
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 1}, status: {observedGeneration: 1}}")
	becomes(t, "with a selector", ask, "a")
	settled()
	n := server.asked(scale)
	for replicas := range 5 {
		server.put(kind, fmt.Sprintf("{metadata: {name: blue, uid: f, generation: 1}, status: {observedGeneration: 1, replicas: %d}}", replicas))
	}
	settled()
	if more := server.asked(scale) - n; more != 0 {
		t.Errorf("the scale was read %d times although no generation changed", more)
	}

	// The controller puts a new selector beside the generation that it has seen.
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 2}, status: {observedGeneration: 1}}")
	if got := settled(); got != "a" {
		t.Errorf("before its controller has seen the new generation: got %q, want the old selector's", got)
	}
	says("app=two")
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 2}, status: {observedGeneration: 2}}")
	becomes(t, "after it has", ask, "b")

	// While the scale cannot be read, what was read stays in use.
	server.fail(scale, apierrors.NewInternalError(errors.New("no controller")))
	n = server.asked(scale)
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 3}, status: {observedGeneration: 3}}")
	eventually(t, func() bool { return server.asked(scale) > n })
	if got := settled(); got != "b" {
		t.Errorf("while its scale fails: got %q, want b", got)
	}
	server.fail(scale, nil)
	n = server.asked(scale)
	eventually(t, func() bool { return server.asked(scale) > n }) // without a change to the object

	// Of a controller that does not say what it has seen, any change may be a new selector.
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 3}}")
	settled()
	says("app=one")
	server.put(kind, "{metadata: {name: blue, uid: f, generation: 3}, status: {replicas: 7}}")
	becomes(t, "without observedGeneration", ask, "a")

	// Another of the same name has nothing of the one before.
	server.fail(scale, apierrors.NewInternalError(errors.New("no controller")))
	server.put(kind, "{metadata: {name: blue, uid: f2, generation: 1}, status: {observedGeneration: 1}}")
	becomes(t, "another of the name", ask, "not read: …")
}

// Ready means that the scale subresource of each object that there was has been asked for.
func TestScalesAreReadBeforeReady(t *testing.T) {
	k := &kind{objects: map[string]map[string]*object{"serving": {"blue": {without: scaleUnread}}}}
	if k.completed() {
		t.Error("complete with a scale that was not asked for")
	}
	k.objects["serving"]["blue"] = &object{without: groupError(pods.NotRead, "it failed")}
	if !k.completed() {
		t.Error("not complete although all was asked for")
	}
	k.objects["serving"]["new"] = &object{without: scaleUnread}
	if !k.completed() {
		t.Error("no longer complete with one more object: the adapter would stop serving")
	}
}

func TestWhatIsNews(t *testing.T) {
	k := &kind{groups: &Groups{}, absent: groupError(pods.NotRead, "not known yet")}
	for i, step := range []struct {
		why  *pods.GroupError
		want bool
	}{
		{groupError(pods.NotRead, "refused from port 1"), true},
		{groupError(pods.NotRead, "refused from port 2"), false},
		{groupError(pods.NotServed, "no such kind"), true},
		{groupError(pods.NotServed, "no such kind"), false},
		{groupError(pods.NotServed, "no scale subresource"), true},
		{groupError(pods.NotRead, "refused from port 3"), true},
	} {
		if got := k.lacks(step.why); got != step.want {
			t.Errorf("step %d, %v: news %t, want %t", i, step.why, got, step.want)
		}
	}
}

func TestObjects(t *testing.T) {
	server, g := startGroups(t)
	for _, name := range []string{"b", "a"} {
		server.put("apps/v1/deployments", "{metadata: {name: "+name+", uid: "+name+", labels: {tier: gold}}, spec: {selector: {matchLabels: {app: x}}}}")
	}
	server.put("apps/v1/deployments", "{metadata: {name: c, uid: c}, spec: {selector: {matchLabels: {app: x}}}}")
	server.put("apps/v1/deployments", "{metadata: {name: d, uid: d, namespace: other, labels: {tier: gold}}, spec: {selector: {matchLabels: {app: x}}}}")
	server.put("v1/pods", "{metadata: {name: p}}")
	ask := func(kind, selector string) string {
		s, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		all, err := g.Objects(schema.ParseGroupResource(kind), "serving", s)
		if err != nil {
			return said(err)
		}
		var names []string
		for _, o := range all {
			if o.GroupResource != pods.Namespaces && o.Namespace != "serving" {
				t.Errorf("%v is of another namespace", o)
			}
			names = append(names, o.Name)
		}
		return strings.Join(names, " ")
	}
	for _, tc := range []struct{ kind, selector, want string }{
		{"deployments.apps", "", "a b c"},
		{"deployments.apps", "tier=gold", "a b"},
		{"deployments.apps", "tier=none", ""},
		{"namespaces", "", "serving"},
		{"namespaces", "team=a", "no selector: namespaces cannot be selected by labels: name one"},
		{"configmaps", "", "not served: …"},
		{"fleets.example.com", "", "not served: …"},
	} {
		becomes(t, tc.kind+" "+tc.selector, func() string { return ask(tc.kind, tc.selector) }, tc.want)
	}
}

func TestAnnotationsOfOwners(t *testing.T) {
	server, g := startGroups(t)
	server.install("leaderworkerset.x-k8s.io/v1/leaderworkersets", false)
	const deployment = "{metadata: {name: vllm, uid: d, annotations: {%s}}, spec: {selector: {matchLabels: {app: vllm}}}}"
	server.put("apps/v1/deployments", fmt.Sprintf(deployment, "inference-metrics.github.io/ttft: 2s, inference-metrics.github.io/e2e: 30s, other: text"))
	// The controller's copy of what the Deployment said some time ago.
	server.put("apps/v1/replicasets", `{metadata: {name: vllm-1, uid: r, annotations: {inference-metrics.github.io/ttft: 9s, inference-metrics.github.io/tpot: 9s},
		ownerReferences: [{uid: other}, {uid: d, controller: true}]}, spec: {selector: {matchLabels: {app: vllm}}}}`)
	server.put("apps/v1/replicasets", `{metadata: {name: alone, uid: r1, annotations: {inference-metrics.github.io/ttft: 4s}}, spec: {selector: {matchLabels: {app: alone}}}}`)
	server.put("apps/v1/statefulsets", `{metadata: {name: lws, uid: s, ownerReferences: [{uid: l, controller: true}]}, spec: {selector: {matchLabels: {app: lws}}}}`)
	server.put("leaderworkerset.x-k8s.io/v1/leaderworkersets", "{metadata: {name: lws, uid: l, annotations: {inference-metrics.github.io/ttft: 5s}}, status: {hpaPodSelector: app=lws}}")

	pod := func(owner types.UID, own map[string]string) *pods.Pod {
		return &pods.Pod{Owner: owner, Annotations: own}
	}
	for _, tc := range []struct {
		name string
		pod  *pods.Pod
		want map[string]string
	}{
		{"Deployment's", pod("r", nil), map[string]string{"inference-metrics.github.io/ttft": "2s", "inference-metrics.github.io/e2e": "30s"}},
		{"the pod's own before it", pod("r", map[string]string{"inference-metrics.github.io/ttft": "1s"}),
			map[string]string{"inference-metrics.github.io/ttft": "1s", "inference-metrics.github.io/e2e": "30s"}},
		{"of a ReplicaSet alone", pod("r1", nil), map[string]string{"inference-metrics.github.io/ttft": "4s"}},
		{"through a StatefulSet", pod("s", nil), map[string]string{"inference-metrics.github.io/ttft": "5s"}},
		{"of nobody", pod("", map[string]string{"inference-metrics.github.io/tpot": "1s"}), map[string]string{"inference-metrics.github.io/tpot": "1s"}},
		{"of an owner that is not known", pod("job", nil), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			diff := ""
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if diff = cmp.Diff(tc.want, g.Annotations(tc.pod)); diff == "" {
					return
				}
			}
			t.Errorf("annotations (-want +got):\n%s", diff)
		})
	}

	server.put("apps/v1/deployments", fmt.Sprintf(deployment, ""))
	eventually(t, func() bool { return len(g.Annotations(pod("r", nil))) == 0 })
	server.put("apps/v1/replicasets", "{metadata: {name: alone, uid: r2}, spec: {selector: {matchLabels: {app: alone}}}}")
	eventually(t, func() bool { return len(g.Annotations(pod("r1", nil))) == 0 }) // another of the name
	server.remove("apps/v1/statefulsets", "lws")
	eventually(t, func() bool { return len(g.Annotations(pod("s", nil))) == 0 })
}

func TestOwnersInACircleEnd(t *testing.T) {
	g := &Groups{byUID: map[types.UID]*object{"a": {owner: "b"}, "b": {owner: "a", annotations: map[string]string{"k": "v"}}}}
	if got := g.Annotations(&pods.Pod{Owner: "a"}); got["k"] != "v" {
		t.Errorf("got %v", got)
	}
}

func TestPoolSelector(t *testing.T) {
	for _, tc := range []struct {
		name     string
		selector any
		want     string
		err      string
	}{
		{"v1", map[string]any{"matchLabels": map[string]any{"app": "vllm", "role": "decode"}}, "app=vllm,role=decode", ""},
		{"before v1", map[string]any{"app": "vllm"}, "app=vllm", ""},
		{"before v1, with a label of that name", map[string]any{"matchLabels": "yes"}, "matchLabels=yes", ""},
		{"empty", map[string]any{}, "", ""},
		{"not there", nil, "", ""},
		{"more than matchLabels", map[string]any{"matchLabels": map[string]any{"app": "vllm"}, "matchExpressions": []any{}}, "", "more than matchLabels"},
		{"a number", map[string]any{"app": int64(1)}, "", "no text"},
		{"a text", "app=vllm", "", "selector"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := map[string]any{"targetPorts": []any{}}
			if tc.selector != nil {
				spec["selector"] = tc.selector
			}
			u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
			trimmed := u.DeepCopy()
			selectingObjects[*unstructured.Unstructured]{selector: poolSelector}.trim(trimmed)
			for _, u := range []*unstructured.Unstructured{u, trimmed} {
				got, err := poolSelector(u)
				if tc.err != "" {
					if err == nil || !strings.Contains(err.Error(), tc.err) {
						t.Errorf("got %v, %v; want an error with %q", got, err, tc.err)
					}
					continue
				}
				if err != nil || got.String() != tc.want {
					t.Errorf("got %v, %v; want %s", got, err, tc.want)
				}
			}
			if _, ok, _ := unstructured.NestedFieldNoCopy(trimmed.Object, "spec", "targetPorts"); ok {
				t.Error("trimming left something behind")
			}
		})
	}
}
