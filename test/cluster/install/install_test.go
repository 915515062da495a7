// Package install installs the adapter as the README says, into a control plane of its own: with
// the manifests and the script as shipped, where package e2e brings its own certificates.
package install

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/inference-metrics/adapter/test/cluster"
)

const (
	manifests = "../../../deploy/manifests"
	script    = "../../../deploy/tls.sh"
	installer = "../../../deploy/install.sh"
	secret    = "inference-metrics-adapter-tls"
)

func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("a control plane is not short")
	}
	ctx := t.Context()
	c, err := cluster.Start(ctx, cluster.Options{Dir: t.TempDir(), Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	program := t.TempDir()
	if err := cluster.OwnBinaries(ctx, program, "adapter"); err != nil {
		t.Fatal(err)
	}
	i := &install{cluster: c, program: filepath.Join(program, "adapter")}

	// The README's steps.
	i.kubectl(t, "apply", "-k", manifests+"/overlays/prometheus")
	i.makeCertificate(t)

	// That the pods are there says that the namespace's "restricted" profile admits them.
	i.kubectl(t, "rollout", "status", "deployment", cluster.AdapterName, "-n", cluster.AdapterNamespace, "--timeout=2m")
	t.Run("restricted profile is enforced", i.testRestricted)

	// The emulated kubelets run no program and give no address that a Service may lead to, so the
	// adapter is a process of the host, with the Deployment's arguments, service account and Secret.
	certs := t.TempDir()
	i.mountSecret(t, certs)
	adapter := i.start(t, "prometheus", certs)
	i.lead(t, adapter.Address)
	if err := c.AwaitAvailable(ctx); err != nil {
		t.Fatal(err)
	}
	t.Run("permissions", i.testPermissions)

	t.Run("certificate is replaced", func(t *testing.T) {
		old := servedCertificate(t, adapter.Address)
		i.makeCertificate(t)
		// Kubelets take a while to renew a mounted Secret: the old certificate still has to do.
		i.staysAvailable(t)
		i.mountSecret(t, certs)
		eventually(t, 2*time.Minute, "the adapter serves with the new certificate", func() error {
			if servedCertificate(t, adapter.Address) == old {
				return fmt.Errorf("it serves with the old one")
			}
			return nil
		})
		i.staysAvailable(t)
	})

	t.Run("embedded overlay", func(t *testing.T) {
		i.kubectl(t, "apply", "-k", manifests+"/overlays/embedded")
		adapter := i.start(t, "embedded", certs)
		i.lead(t, adapter.Address)
		// Applied again, and the trust in the certificate is still there.
		i.staysAvailable(t)
	})

	t.Run("external metrics", func(t *testing.T) { i.testExternal(t, certs) })
}

const externalAPI = "v1beta1.external.metrics.k8s.io"

// keda is who serves external metrics in a cluster with KEDA.
const keda = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: ` + externalAPI + `}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: a2VkYQ==
  service: {namespace: keda, name: keda-operator-metrics-apiserver, port: 443}
`

// testExternal adds the component of external metrics to the overlay that comes first, as the component
// says, and has KEDA take the API away again.
func (i *install) testExternal(t *testing.T, certs string) {
	ctx := t.Context()
	listed := func() error {
		text, err := i.cluster.Kubectl(ctx, "get", "--raw", "/apis/external.metrics.k8s.io/v1beta1")
		if err == nil && !strings.Contains(text, `"name":"vllm_queue_depth"`) {
			err = fmt.Errorf("it answers %.200s", text)
		}
		return err
	}
	const group = "external.metrics.k8s.io"
	hold(t, i, []permission{
		{user: adapterUser, verb: "get", group: "apiregistration.k8s.io", resource: "apiservices", name: externalAPI},
		{user: "viewer", verb: "get", group: group, resource: "vllm_queue_depth", namespace: "seen"},
	})

	// What is another server's stays as it is.
	if err := i.cluster.Apply(ctx, keda); err != nil {
		t.Fatal(err)
	}
	spec := func() string {
		return i.kubectl(t, "get", "apiservice", externalAPI, "-o", "jsonpath={.spec}")
	}
	before := spec()
	i.makeCertificate(t)
	if after := spec(); after != before || !strings.Contains(after, "a2VkYQ==") {
		t.Errorf("%s changed another server's APIService from %s to %s", script, before, after)
	}

	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(manifests)); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(copied, "overlays", "prometheus")
	file, err := os.OpenFile(filepath.Join(overlay, "kustomization.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("components:\n  - ../../components/external\n"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	// The installer says whose it is, and takes nothing.
	out, err := i.run(t, installer, overlay)
	if err == nil || !strings.Contains(out, externalAPI+" is served by keda/keda-operator-metrics-apiserver") {
		t.Errorf("%s, %v:\n%s", installer, err, out)
	}
	if after := spec(); after != before {
		t.Errorf("%s changed another server's APIService from %s to %s", installer, before, after)
	}
	i.kubectl(t, "delete", "apiservice", externalAPI)
	if out, err := i.run(t, installer, overlay); err != nil {
		t.Fatalf("%s: %v\n%s", installer, err, out)
	}
	i.mountSecret(t, certs)
	adapter := i.start(t, "prometheus with external metrics", certs)
	i.lead(t, adapter.Address)
	_, port, err := net.SplitHostPort(adapter.Address)
	if err != nil {
		t.Fatal(err)
	}
	i.kubectl(t, "patch", "apiservice", externalAPI, "--type=merge", "-p", `{"spec":{"service":{"port":`+port+`}}}`)

	i.makeCertificate(t)
	// The adapter still serves with the certificate before.
	eventually(t, 2*time.Minute, "external metrics are listed", listed)
	i.mountSecret(t, certs)
	i.kubectl(t, "apply", "-k", overlay)
	i.staysAvailable(t)
	eventually(t, 2*time.Minute, "external metrics are listed after applying again", listed)

	hold(t, i, []permission{
		{user: adapterUser, verb: "get", group: "apiregistration.k8s.io", resource: "apiservices", name: externalAPI, want: true},
		{user: adapterUser, verb: "get", group: "apiregistration.k8s.io", resource: "apiservices", name: "v1beta2.custom.metrics.k8s.io", want: true},
		{user: adapterUser, verb: "get", group: "apiregistration.k8s.io", resource: "apiservices", name: "v1.apps"},
		{user: adapterUser, verb: "list", group: "apiregistration.k8s.io", resource: "apiservices"},
		{user: adapterUser, verb: "update", group: "apiregistration.k8s.io", resource: "apiservices", name: externalAPI},
		{user: hpaUser, verb: "list", group: group, resource: "vllm_queue_depth", namespace: "unseen", want: true},
		{user: "viewer", verb: "list", group: group, resource: "vllm_queue_depth", namespace: "seen", want: true},
		{user: "viewer", verb: "list", group: group, resource: "vllm_queue_depth", namespace: "unseen"},
	})
	i.checkEnforced(t, func(ns string) []string {
		return []string{"/apis", group, "v1beta1", "namespaces", ns, "vllm_queue_depth"}
	})
	if log := logOf(t, adapter); strings.Contains(log, "External metrics are on") {
		t.Errorf("the adapter serves external metrics, and complains:\n%s", log)
	}

	// KEDA is installed over it.
	if err := i.cluster.Apply(ctx, keda); err != nil {
		t.Fatal(err)
	}
	before = spec()
	i.makeCertificate(t)
	if after := spec(); after != before {
		t.Errorf("%s changed another server's APIService from %s to %s", script, before, after)
	}
	i.mountSecret(t, certs)
	adapter = i.start(t, "prometheus with external metrics", certs)
	i.lead(t, adapter.Address)
	eventually(t, time.Minute, "the adapter says who serves external metrics", func() error {
		if log := logOf(t, adapter); !strings.Contains(log, `service="keda/keda-operator-metrics-apiserver"`) {
			return fmt.Errorf("it says:\n%s", log)
		}
		return nil
	})
	i.staysAvailable(t)
}

func logOf(t *testing.T, a *cluster.Adapter) string {
	t.Helper()
	log, err := os.ReadFile(a.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

// insecure asks whoever listens: the certificate is for the Service's name, and checking it is the
// aggregation layer's part.
var insecure = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

type install struct {
	cluster *cluster.Cluster
	program string
}

func (i *install) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := i.cluster.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (i *install) makeCertificate(t *testing.T) {
	t.Helper()
	if out, err := i.run(t, script); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// run runs one of the scripts that we ship, and returns what it printed.
func (i *install) run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+i.cluster.Kubeconfig, "PATH="+i.cluster.Bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// mountSecret writes the certificate's Secret into dir, as a kubelet would.
func (i *install) mountSecret(t *testing.T, dir string) {
	t.Helper()
	s, err := i.cluster.Client.CoreV1().Secrets(cluster.AdapterNamespace).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range s.Data {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// mountConfig writes the ConfigMap that the Deployment mounts into a directory.
func (i *install) mountConfig(t *testing.T, d *appsv1.Deployment) string {
	t.Helper()
	dir := t.TempDir()
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		m, err := i.cluster.Client.CoreV1().ConfigMaps(cluster.AdapterNamespace).Get(t.Context(), v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range m.Data {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// start runs the adapter on the host as the Deployment of the overlay that is installed says.
func (i *install) start(t *testing.T, overlay, certs string) *cluster.Adapter {
	t.Helper()
	d, err := i.cluster.Client.AppsV1().Deployments(cluster.AdapterNamespace).Get(t.Context(), cluster.AdapterName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := i.mountConfig(t, d)
	address := regexp.MustCompile(`http://[^/]+`)
	var args []string
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "--secure-port=") {
			continue // the harness chooses a free one
		}
		arg = strings.ReplaceAll(arg, "/certs/", certs+"/")
		arg = strings.ReplaceAll(arg, "/config/", config+"/")
		arg = address.ReplaceAllString(arg, "http://127.0.0.1:9") // nothing beyond loopback
		args = append(args, arg)
	}
	adapter, err := i.cluster.StartAdapter(t.Context(), i.program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(adapter.Stop)
	eventually(t, 2*time.Minute, "the adapter is ready with the arguments of overlay "+overlay, func() error {
		if adapter.Exited() {
			log, _ := os.ReadFile(adapter.Log)
			t.Fatalf("with the arguments of overlay %s %q the adapter ended:\n%s", overlay, args, log)
		}
		resp, err := insecure.Get("https://" + adapter.Address + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return adapter
}

// lead has the Service lead to an address of the host.
func (i *install) lead(t *testing.T, address string) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	i.kubectl(t, "patch", "service", cluster.AdapterName, "-n", cluster.AdapterNamespace, "--type=merge",
		"-p", `{"spec":{"type":"ExternalName","externalName":"localhost","clusterIP":null,"clusterIPs":null}}`)
	for _, version := range []string{"v1beta1", "v1beta2"} {
		i.kubectl(t, "patch", "apiservice", version+".custom.metrics.k8s.io", "--type=merge",
			"-p", `{"spec":{"service":{"port":`+port+`}}}`)
	}
}

// testRestricted shows that the rollout proves something: a pod with more rights is refused.
func (i *install) testRestricted(t *testing.T) {
	d, err := i.cluster.Client.AppsV1().Deployments(cluster.AdapterNamespace).Get(t.Context(), cluster.AdapterName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "loose"}, Spec: d.Spec.Template.Spec}
	create := func() error {
		_, err := i.cluster.Client.CoreV1().Pods(cluster.AdapterNamespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := create(); err != nil {
		t.Errorf("the Deployment's pod: %v", err)
	}
	pod.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
	if err := create(); !apierrors.IsForbidden(err) {
		t.Errorf("a pod that may escalate its privileges: got %v, want forbidden", err)
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
	const adapter, hpa = adapterUser, hpaUser
	hold(t, i, []permission{
		{user: adapter, verb: "watch", resource: "pods", want: true},
		{user: adapter, verb: "watch", group: "autoscaling", resource: "horizontalpodautoscalers", want: true},
		{user: adapter, verb: "watch", resource: "services", want: true},
		{user: adapter, verb: "watch", group: "apps", resource: "deployments", want: true},
		{user: adapter, verb: "watch", group: "apps", resource: "replicasets", want: true},
		{user: adapter, verb: "watch", group: "apps", resource: "statefulsets", want: true},
		{user: adapter, verb: "watch", group: "leaderworkerset.x-k8s.io", resource: "leaderworkersets", want: true},
		{user: adapter, verb: "watch", group: "inference.networking.k8s.io", resource: "inferencepools", want: true},
		{user: adapter, verb: "watch", group: "inference.networking.x-k8s.io", resource: "inferencepools", want: true},
		{user: adapter, verb: "create", group: "authentication.k8s.io", resource: "tokenreviews", want: true},
		{user: adapter, verb: "create", group: "authorization.k8s.io", resource: "subjectaccessreviews", want: true},
		{user: adapter, verb: "get", resource: "configmaps", namespace: "kube-system"}, // but for one by name
		{user: adapter, verb: "get", resource: "secrets", namespace: cluster.AdapterNamespace},
		{user: adapter, verb: "list", resource: "nodes"},
		{user: adapter, verb: "list", resource: "namespaces"}, // the pods say which there are
		{user: adapter, verb: "list", group: "apps", resource: "daemonsets"},
		{user: adapter, verb: "update", group: "apps", resource: "deployments/scale", namespace: "default"},
		{user: adapter, verb: "delete", resource: "pods", namespace: "default"},
		{user: adapter, verb: "update", group: "autoscaling", resource: "horizontalpodautoscalers", namespace: "default"},
		{user: hpa, verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "unseen", want: true},
		{user: "viewer", verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "seen", want: true},
		{user: "viewer", verb: "get", group: group, resource: "pods/vllm_queue_depth", namespace: "unseen"},
	})

	i.checkEnforced(t, func(ns string) []string {
		return []string{"/apis", group, "v1beta2", "namespaces", ns, "pods", "*", "vllm_queue_depth"}
	})
}

const (
	adapterUser = "system:serviceaccount:" + cluster.AdapterNamespace + ":" + cluster.AdapterName
	hpaUser     = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
)

// permission is what somebody may do, or not.
type permission struct {
	user, verb, group, resource, name, namespace string
	want                                         bool
}

// hold waits until kube-apiserver says the same of all permissions.
func hold(t *testing.T, i *install, all []permission) {
	t.Helper()
	for _, p := range all {
		resource, sub, _ := strings.Cut(p.resource, "/")
		eventually(t, 30*time.Second, fmt.Sprintf("may %s %s %s.%s %s in %q: %t", p.user, p.verb, p.resource, p.group, p.name, p.namespace, p.want), func() error {
			review, err := i.cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: p.user, ResourceAttributes: &authorizationv1.ResourceAttributes{
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

// staysAvailable asks for the list of metrics through the aggregation layer, which checks the
// certificate, for long enough for kube-apiserver to have seen the newest APIServices.
func (i *install) staysAvailable(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := i.cluster.AwaitAvailable(ctx); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var list metav1.APIResourceList
		if err := json.Unmarshal([]byte(i.kubectl(t, "get", "--raw", "/apis/custom.metrics.k8s.io/v1beta2")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.APIResources) == 0 {
			t.Fatal("no metrics are listed")
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func servedCertificate(t *testing.T, address string) string {
	t.Helper()
	resp, err := insecure.Get("https://" + address + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return string(resp.TLS.PeerCertificates[0].Raw)
}

func eventually(t *testing.T, within time.Duration, what string, done func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}
