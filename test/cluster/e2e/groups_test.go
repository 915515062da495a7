package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/test/cluster"
)

// crd is as much of a CustomResourceDefinition as the adapter looks at: a kind, a version, what is
// there besides the object. Whatever is in an object is kept.
func crd(group, version, kind, plural, subresources string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[4]s.%[1]s
  annotations:
    api-approved.kubernetes.io: "unapproved, for a test"
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[4]s, singular: %[6]s}
  versions:
    - name: %[2]s
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
      subresources: %[5]s
`, group, version, kind, plural, subresources, strings.ToLower(kind))
}

// TestGroups finds the pods of objects in the real API server, as the adapter's service account with
// the role that is shipped. CRDs come and go while it looks.
func TestGroups(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ns := namespace(t)
	fleets := schema.GroupResource{Group: "groups.example.com", Resource: "fleets"}
	g := startGroups(t, append(kube.DefaultKinds(), fleets))
	t.Cleanup(func() {
		// Also when the test ends before it has them: the control plane is everybody's.
		_, err := shared.Kubectl(context.WithoutCancel(ctx), "delete", "crd", "--ignore-not-found",
			"fleets.groups.example.com", "inferencepools.inference.networking.k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io")
		if err != nil {
			t.Error(err)
		}
	})
	of := func(kind, name string) pods.Object {
		return pods.Object{GroupResource: schema.ParseGroupResource(kind), Namespace: ns, Name: name}
	}
	// becomes waits for the number of pods of an object, all of which have the prefix, or for an
	// error of that reason and with that text.
	becomes := func(within time.Duration, object pods.Object, n int, prefix string) {
		t.Helper()
		eventually(t, within, fmt.Sprintf("%s has %d pods %s…", object, n, prefix), func() error {
			all, err := g.Members(object)
			if err != nil {
				return err
			}
			if len(all) != n || slices.ContainsFunc(all, func(p *pods.Pod) bool { return p.Namespace != ns || !strings.HasPrefix(p.Name, prefix) }) {
				return fmt.Errorf("it has %v", names(all))
			}
			return nil
		})
	}
	errs := func(within time.Duration, object pods.Object, why pods.Why, text string) {
		t.Helper()
		eventually(t, within, fmt.Sprintf("the pods of %s cannot be told: %s", object, text), func() error {
			all, err := g.Members(object)
			var group *pods.GroupError
			if !errors.As(err, &group) || group.Why != why || !strings.Contains(group.Message, text) {
				return fmt.Errorf("got %v, %v", names(all), err)
			}
			return nil
		})
	}

	pool := of("inferencepools.inference.networking.k8s.io", "pool")
	errs(time.Minute, pool, pods.NotServed, "does not have that kind")

	// What every cluster has.
	deploy(t, ns, workload{name: "vllm", replicas: 2})
	one := int32(1)
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "decode"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &one, ServiceName: "decode",
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "decode"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "decode", "llm-d.ai/role": "decode"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Image: "emulated"}}},
			},
		},
	}
	if _, err := shared.Client.AppsV1().StatefulSets(ns).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, selector := range map[string]map[string]string{"vllm": {"app": "vllm"}, "none": nil} {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80}}}}
		if _, err := shared.Client.CoreV1().Services(ns).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitReady(t, ns, 3)
	becomes(time.Minute, of("deployments.apps", "vllm"), 2, "vllm-")
	becomes(time.Minute, of("services", "vllm"), 2, "vllm-")
	becomes(time.Minute, of("statefulsets.apps", "decode"), 1, "decode-0")
	becomes(time.Minute, pods.Object{GroupResource: pods.Namespaces, Name: ns}, 3, "")
	errs(time.Minute, of("services", "none"), pods.NoSelector, "has no selector")
	errs(time.Minute, of("deployments.apps", "decode"), pods.NotThere, "there is no deployments.apps decode")
	sets, err := shared.Client.AppsV1().ReplicaSets(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	becomes(time.Minute, of("replicasets.apps", sets.Items[0].Name), 2, "vllm-")

	// A Deployment's annotations reach its pods, and are gone when it has them no more, although the
	// controller has left its copy at the ReplicaSet.
	const annotation = "inference-metrics.github.io/ttft"
	annotated := func(want string) {
		t.Helper()
		eventually(t, time.Minute, fmt.Sprintf("%s is %q", annotation, want), func() error {
			all, err := g.Members(of("deployments.apps", "vllm"))
			if err != nil {
				return err
			}
			for _, p := range all {
				if got := g.Annotations(p)[annotation]; got != want {
					return fmt.Errorf("at pod %s it is %q", p.Name, got)
				}
			}
			return nil
		})
	}
	kubectl(t, "annotate", "deployment", "-n", ns, "vllm", annotation+"=2s")
	eventually(t, time.Minute, "the controller copies the annotation", func() error {
		r, err := shared.Client.AppsV1().ReplicaSets(ns).Get(ctx, sets.Items[0].Name, metav1.GetOptions{})
		if err == nil && r.Annotations[annotation] != "2s" {
			err = fmt.Errorf("the ReplicaSet has %v", r.Annotations)
		}
		return err
	})
	annotated("2s")
	kubectl(t, "annotate", "deployment", "-n", ns, "vllm", annotation+"-")
	annotated("")

	// Kinds that come after the adapter has started; it looks for them each minute.
	const soon = 3 * time.Minute
	for _, text := range []string{
		crd("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools", "{status: {}}"),
		crd("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets", "{status: {}}"),
		crd("groups.example.com", "v1alpha3", "Fleet", "fleets",
			"{status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}"),
	} {
		if err := shared.Apply(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	kubectl(t, "wait", "--for=condition=Established", "crd", "--timeout=60s",
		"fleets.groups.example.com", "inferencepools.inference.networking.k8s.io", "leaderworkersets.leaderworkerset.x-k8s.io")
	for _, object := range []string{
		"{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: pool}, spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: 8000}]}}",
		"{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: wide}, spec: {replicas: 1}}",
		"{apiVersion: groups.example.com/v1alpha3, kind: Fleet, metadata: {name: blue}, spec: {replicas: 1}}",
	} {
		if err := shared.Apply(ctx, strings.Replace(object, "metadata: {", "metadata: {namespace: "+ns+", ", 1)); err != nil {
			t.Fatal(err)
		}
	}
	becomes(soon, pool, 2, "vllm-")

	wide := of("leaderworkersets.leaderworkerset.x-k8s.io", "wide")
	errs(soon, wide, pods.NoSelector, "has no selector")
	patchStatus(t, ns, "leaderworkersets", "wide", `{"hpaPodSelector": "app=decode"}`)
	becomes(time.Minute, wide, 1, "decode-")

	// A kind that the shipped role does not allow.
	blue := of(fleets.String(), "blue")
	errs(soon, blue, pods.NotRead, "may not read fleets.groups.example.com")
	allow(t, rbacv1.PolicyRule{APIGroups: []string{"groups.example.com"}, Resources: []string{"fleets"}, Verbs: []string{"get", "list", "watch"}})
	errs(soon, blue, pods.NotRead, "its scale subresource cannot be read")
	allow(t, rbacv1.PolicyRule{APIGroups: []string{"groups.example.com"}, Resources: []string{"fleets/scale"}, Verbs: []string{"get"}})
	errs(soon, blue, pods.NoSelector, "has no selector")
	patchStatus(t, ns, "fleets", "blue", `{"selector": "app=vllm", "observedGeneration": 1}`)
	becomes(time.Minute, blue, 2, "vllm-")
	kubectl(t, "patch", "fleets", "-n", ns, "blue", "--type=merge", "-p", `{"spec": {"replicas": 2}}`)
	patchStatus(t, ns, "fleets", "blue", `{"selector": "app in (decode)", "observedGeneration": 2}`)
	becomes(time.Minute, blue, 1, "decode-")

	// Pods that go away leave at once.
	kubectl(t, "scale", "deployment", "-n", ns, "vllm", "--replicas=1")
	becomes(time.Minute, of("deployments.apps", "vllm"), 1, "vllm-")
	becomes(time.Minute, pool, 1, "vllm-")

	// And so do kinds.
	kubectl(t, "delete", "crd", "inferencepools.inference.networking.k8s.io")
	errs(soon, pool, pods.NotServed, "does not have")
}

// startGroups mirrors with the adapter's own service account.
func startGroups(t *testing.T, kinds []schema.GroupResource) *kube.Groups {
	t.Helper()
	config, err := shared.ServiceAccountConfig(t.Context(), cluster.AdapterNamespace, cluster.AdapterName)
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	mirror, lister := kube.NewPods(client)
	g := kube.NewGroups(client, dynamicClient, mirror, lister, kinds)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { mirror.Run(ctx) })
	running.Go(func() { g.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	eventually(t, time.Minute, "pods and groups are read", func() error {
		if !mirror.Synced() || !g.Synced() {
			return fmt.Errorf("pods: %t, groups: %t", mirror.Synced(), g.Synced())
		}
		return nil
	})
	return g
}

// allow lets the adapter's service account do more, for the length of the test.
func allow(t *testing.T, rule rbacv1.PolicyRule) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	meta := metav1.ObjectMeta{GenerateName: "groups-"}
	role, err := shared.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	meta = metav1.ObjectMeta{Name: role.Name}
	_, err = shared.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: cluster.AdapterNamespace, Name: cluster.AdapterName}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(shared.Client.RbacV1().ClusterRoleBindings().Delete(ctx, role.Name, metav1.DeleteOptions{}),
			shared.Client.RbacV1().ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{}))
		if err != nil {
			t.Error(err)
		}
	})
}

func patchStatus(t *testing.T, ns, kind, name, status string) {
	t.Helper()
	kubectl(t, "patch", kind, "-n", ns, name, "--subresource=status", "--type=merge", "-p", `{"status": `+status+`}`)
}

func kubectl(t *testing.T, args ...string) {
	t.Helper()
	if _, err := shared.Kubectl(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

func names(all []*pods.Pod) []string {
	var out []string
	for _, p := range all {
		out = append(out, p.Name)
	}
	return out
}
