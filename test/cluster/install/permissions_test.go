package install

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/inference-metrics/adapter/test/cluster"
)

const (
	adapterUser = "system:serviceaccount:" + cluster.AdapterNamespace + ":" + cluster.AdapterName
	hpaUser     = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
)

// permission is what somebody may do, or not.
type permission struct {
	user, verb, group, resource, name, namespace string
	groups                                       []string
	want                                         bool
}

// hold waits until kube-apiserver says the same of all permissions.
func hold(t *testing.T, i *install, all []permission) {
	t.Helper()
	for _, p := range all {
		resource, sub, _ := strings.Cut(p.resource, "/")
		eventually(t, 30*time.Second, fmt.Sprintf("may %s %s %s.%s %s in %q: %t", p.user, p.verb, p.resource, p.group, p.name, p.namespace, p.want), func() error {
			review, err := i.cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: p.user, Groups: append(p.groups, "system:authenticated"), ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: p.verb, Group: p.group, Resource: resource, Subresource: sub, Name: p.name, Namespace: p.namespace,
				}},
			}, metav1.CreateOptions{})
			if err == nil && review.Status.Allowed != p.want {
				err = fmt.Errorf("it is %t: %s", review.Status.Allowed, review.Status.Reason)
			}
			return err
		})
	}
}

// checkEnforced asks the adapter as the viewer of namespace seen: it knows the user whom kube-apiserver
// passes on, and refuses what he may not see.
func (i *install) checkEnforced(t *testing.T, path func(namespace string) []string) {
	t.Helper()
	config := rest.CopyConfig(i.cluster.Config)
	config.Impersonate.UserName = "viewer"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for ns, forbidden := range map[string]bool{"seen": false, "unseen": true} {
		err := client.Discovery().RESTClient().Get().AbsPath(path(ns)...).Do(t.Context()).Error()
		if apierrors.IsForbidden(err) != forbidden {
			t.Errorf("the viewer asks for %s: got %v, want forbidden: %t", strings.Join(path(ns), "/"), err, forbidden)
		}
	}
}

// testPermissions checks who may do what: the adapter no more than it needs, and people who may
// view a namespace its signals, in that namespace only.
func (i *install) testPermissions(t *testing.T) {
	for _, ns := range []string{"seen", "unseen"} {
		i.kubectl(t, "create", "namespace", ns)
	}
	_, err := i.cluster.Client.RbacV1().RoleBindings("seen").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	const group = "custom.metrics.k8s.io"
	const adapter, hpa, own = adapterUser, hpaUser, cluster.AdapterNamespace
	hold(t, i, []permission{
		// What it needs is what it is seen to ask. Of what else is near, nothing is granted.
		{user: adapter, verb: "get", resource: "configmaps", namespace: "kube-system"}, // but for one by name
		{user: adapter, verb: "get", resource: "secrets", name: secret, namespace: own, want: true},
		{user: adapter, verb: "get", resource: "secrets", namespace: own},
		{user: adapter, verb: "list", resource: "secrets", namespace: own},
		{user: adapter, verb: "get", resource: "secrets", name: secret, namespace: "default"},
		{user: adapter, verb: "delete", resource: "secrets", name: secret, namespace: own},
		{user: adapter, verb: "patch", group: "apiregistration.k8s.io", resource: "apiservices", name: externalAPI},
		{user: adapter, verb: "patch", group: "apiregistration.k8s.io", resource: "apiservices", name: "v1.apps"},
		{user: adapter, verb: "create", group: "apiregistration.k8s.io", resource: "apiservices"},
		{user: adapter, verb: "list", resource: "nodes"},
		{user: adapter, verb: "list", resource: "namespaces"}, // the pods say which there are
		{user: adapter, verb: "list", group: "apps", resource: "daemonsets"},
		{user: adapter, verb: "update", group: "apps", resource: "deployments/scale", namespace: "default"},
		{user: adapter, verb: "delete", resource: "pods", namespace: "default"},
		{user: adapter, verb: "update", group: "autoscaling", resource: "horizontalpodautoscalers", namespace: "default"},
		{user: hpa, verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "unseen", want: true},
		{user: "viewer", verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "seen", want: true},
		{user: "viewer", verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "unseen"},
		// Who is only known to the cluster gets nothing.
		{user: "somebody", verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "seen"},
		{user: "somebody", verb: "list", group: group, resource: "*", namespace: "seen"},
	})

	i.checkEnforced(t, func(ns string) []string {
		return []string{"/apis", group, "v1beta2", "namespaces", ns, "pods", "*", "vllm_queue_depth"}
	})
}

// testTeams applies the example of the installation guide, and checks that it does what is said there.
func (i *install) testTeams(t *testing.T) {
	i.kubectl(t, "create", "namespace", "chat")
	guide, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := bytes.Cut(guide, []byte("<!-- applied by a test -->\n```yaml\n"))
	example, _, closed := bytes.Cut(example, []byte("```"))
	if !found || !closed {
		t.Fatal("the installation guide has no example of a Role")
	}
	if err := i.cluster.Apply(t.Context(), string(example)); err != nil {
		t.Fatal(err)
	}
	const group, team = "custom.metrics.k8s.io", "oidc:chat-team"
	hold(t, i, []permission{
		{user: "a", group: group, groups: []string{team}, verb: "get", resource: "pods/vllm_queue_depth", namespace: "chat", want: true},
		{user: "a", group: group, groups: []string{team}, verb: "get", resource: "deployments.apps/vllm_ttft_p99_seconds", namespace: "chat", want: true},
		{user: "a", group: group, groups: []string{team}, verb: "get", resource: "pods/vllm_goodput", namespace: "chat"},
		{user: "a", group: group, groups: []string{team}, verb: "get", resource: "pods/vllm_queue_depth", namespace: "default"},
		{user: "a", group: group, verb: "get", resource: "pods/vllm_queue_depth", namespace: "chat"},
	})
	as := func(path string) error {
		config := rest.CopyConfig(i.cluster.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "a", Groups: []string{team}}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client.Discovery().RESTClient().Get().AbsPath("/apis", group, "v1beta2", "namespaces", "chat", path).Do(t.Context()).Error()
	}
	for path, forbidden := range map[string]bool{
		"pods/*/vllm_queue_depth": false, "deployments.apps/chat/vllm_ttft_p99_seconds": false, "pods/*/vllm_goodput": true,
	} {
		if err := as(path); apierrors.IsForbidden(err) != forbidden {
			t.Errorf("the team asks for %s: got %v, want forbidden: %t", path, err, forbidden)
		}
	}
}

// testGranted compares what the shipped roles grant the adapter with what it is seen to ask: nothing is
// refused, and nothing is granted that it has not used.
func (i *install) testGranted(t *testing.T) {
	calls, err := i.cluster.AdapterCalls()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, c := range calls {
		if c.ResponseStatus.Code == 403 {
			t.Errorf("refused: %s %s", c.Verb, c.RequestURI)
		}
		if o := c.ObjectRef; o != nil {
			resource := strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/")
			for _, name := range []string{"", o.Name} {
				used[fmt.Sprint(c.Verb, " ", resource, ".", o.APIGroup, " ", name)] = true
			}
		}
	}
	for where, rules := range i.granted(t) {
		for _, r := range rules {
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range r.APIGroups {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						for _, name := range names {
							if verb == "list" && slices.Contains(r.Verbs, "watch") {
								continue // this server streams what is there; one that cannot is asked for a list
							}
							if grant := fmt.Sprint(verb, " ", resource, ".", group, " ", name); !used[grant] {
								t.Errorf("%s grants what the adapter does not do: %s", where, grant)
							}
						}
					}
				}
			}
		}
	}
}

// granted returns the rules of all roles of ours that are bound to the adapter.
func (i *install) granted(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rbac := i.cluster.Client.RbacV1()
	rules := map[string][]rbacv1.PolicyRule{}
	add := func(namespace string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		ours := slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return s.Kind == "ServiceAccount" && s.Name == cluster.AdapterName && s.Namespace == cluster.AdapterNamespace
		})
		if !ours || !strings.HasPrefix(ref.Name, cluster.AdapterName) {
			return // Kubernetes' own roles are what they are
		}
		if ref.Kind == "ClusterRole" {
			role, err := rbac.ClusterRoles().Get(t.Context(), ref.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			rules["ClusterRole "+ref.Name] = role.Rules
			return
		}
		role, err := rbac.Roles(namespace).Get(t.Context(), ref.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		rules["Role "+ref.Name] = role.Rules
	}
	all, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all.Items {
		add("", b.RoleRef, b.Subjects)
	}
	local, err := rbac.RoleBindings(cluster.AdapterNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range local.Items {
		add(b.Namespace, b.RoleRef, b.Subjects)
	}
	if len(rules) < 3 {
		t.Fatalf("only %d roles are bound to the adapter", len(rules))
	}
	return rules
}
