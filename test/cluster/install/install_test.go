// Package install installs the adapter as the guide says, into a control plane of its own: with the
// manifests as shipped, where package e2e brings its own certificates.
package install

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"

	"github.com/inference-metrics/adapter/test/cluster"
)

const (
	manifests = "../../../deploy/manifests"
	installer = "../../../deploy/install.sh"
	guide     = "../../../docs/install.md"
	secret    = "inference-metrics-adapter-tls"
)

// variants are overlays, each with the components that are in it instead of its own or besides.
var variants = []struct {
	overlay    string
	components []string
}{
	{overlay: "prometheus"},
	{overlay: "embedded"},
	{overlay: "prometheus", components: []string{"certificates", "external"}},
	{overlay: "embedded", components: []string{"external", "cert-manager"}},
}

// TestInstall is one story: a cluster in which the adapter is installed by one command, works, changes its
// certificates under load, and is installed in other ways then.
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
	i.defineOthers(t)
	t.Run("no variant trusts without a certificate", i.testSecure)

	// All that there is to do.
	i.kubectl(t, "apply", "-k", manifests+"/overlays/prometheus")

	// That the pods are there says that the namespace's "restricted" profile admits them.
	i.kubectl(t, "rollout", "status", "deployment", cluster.AdapterName, "-n", cluster.AdapterNamespace, "--timeout=2m")
	t.Run("restricted profile is enforced", i.testRestricted)

	// The emulated kubelets run no program and give no address that a Service may lead to, so the
	// adapters are processes of the host, with the Deployment's arguments and service account.
	service, err := c.NewBalancer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(service.Close)
	i.lead(t, service.Address)
	// The first is the one that makes certificates. Nobody asks it, so that no request is lost with it.
	leader := i.start(t, "prometheus", "--serving-cert-lifetime="+lifetime.String())
	var adapters []*cluster.Adapter
	for range 2 {
		a := i.start(t, "prometheus", "--serving-cert-lifetime="+lifetime.String())
		service.Add(a.Address)
		adapters = append(adapters, a)
	}
	if err := c.AwaitAvailable(ctx); err != nil {
		t.Fatal(err)
	}
	load := i.startLoad(t)
	t.Run("permissions", i.testPermissions)
	t.Run("roles for teams", i.testTeams)
	// Together, as each waits most of the time.
	t.Run("while requests are made", func(t *testing.T) {
		t.Run("certificates are replaced", func(t *testing.T) { t.Parallel(); i.testRotation(t, leader, adapters, load) })
		t.Run("the CA of kube-apiserver's requests is replaced", func(t *testing.T) { t.Parallel(); i.testFrontProxyCA(t, adapters[0]) })
		t.Run("the token of its service account is replaced", func(t *testing.T) { t.Parallel(); i.testTokenFile(t) })
	})
	t.Run("nothing is granted that is not used", i.testGranted)
	for _, a := range adapters {
		a.Stop()
	}

	t.Run("embedded overlay", func(t *testing.T) {
		i.kubectl(t, "apply", "-k", manifests+"/overlays/embedded")
		adapter := i.start(t, "embedded")
		i.lead(t, adapter.Address)
		// Applied again, and the trust in the certificate is still there.
		i.staysAvailable(t)
		i.testGranted(t)
		adapter.Stop()
	})
	t.Run("external metrics", i.testExternal)
	t.Run("cert-manager", i.testCertManager)
}

// defineOthers defines the kinds of others that the adapter reads, and that its manifests make.
func (i *install) defineOthers(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for _, kind := range []struct{ group, version, plural, name string }{
		{"leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"},
		{"inference.networking.k8s.io", "v1", "inferencepools", "InferencePool"},
		{"inference.networking.x-k8s.io", "v1alpha2", "inferencepools", "InferencePool"},
		{"monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"},
		{"monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor"},
		{"cert-manager.io", "v1", "issuers", "Issuer"},
		{"cert-manager.io", "v1", "certificates", "Certificate"},
	} {
		fmt.Fprintf(&text, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[3]s.%[1]s
  annotations: {api-approved.kubernetes.io: "unapproved, for a test"}
spec:
  group: %[1]s
  names: {plural: %[3]s, kind: %[4]s}
  scope: Namespaced
  versions:
  - name: %[2]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---`, kind.group, kind.version, kind.plural, kind.name)
	}
	if err := i.cluster.Apply(t.Context(), text.String()); err != nil {
		t.Fatal(err)
	}
	i.kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=1m")
}

// testSecure renders every variant, and applies it as far as a server does without keeping it.
func (i *install) testSecure(t *testing.T) {
	i.kubectl(t, "create", "namespace", cluster.AdapterNamespace) // which a dry run does not make
	for _, v := range variants {
		overlay := i.variant(t, v.overlay, v.components)
		text := i.kubectl(t, "kustomize", overlay)
		if strings.Contains(strings.ToLower(text), "insecure") {
			t.Errorf("overlay %s with %q trusts without a certificate:\n%s", v.overlay, v.components, text)
		}
		if !strings.Contains(text, "kind: APIService") {
			t.Fatalf("overlay %s with %q has no APIService", v.overlay, v.components)
		}
		i.kubectl(t, "apply", "--dry-run=server", "-k", overlay)
	}
	i.kubectl(t, "delete", "namespace", cluster.AdapterNamespace)
}

// variant returns the directory of a copy of an overlay, with these components where there are any.
func (i *install) variant(t *testing.T, overlay string, components []string) string {
	t.Helper()
	if components == nil {
		return filepath.Join(manifests, "overlays", overlay)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(manifests)); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(copied, "overlays", overlay)
	file := filepath.Join(dir, "kustomization.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const own = "  - ../../components/certificates\n"
	var wanted string
	for _, c := range components {
		wanted += "  - ../../components/" + c + "\n"
	}
	if strings.Count(string(text), own) != 1 {
		t.Fatalf("%s does not list the component of certificates:\n%s", file, text)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), own, wanted, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
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
func (i *install) testExternal(t *testing.T) {
	ctx := t.Context()
	const group = "external.metrics.k8s.io"
	hold(t, i, []permission{
		{user: "viewer", verb: "get", group: group, resource: "vllm_queue_depth", namespace: "seen"},
	})
	overlay := i.variant(t, "prometheus", []string{"certificates", "external"})
	spec := func() string {
		return i.kubectl(t, "get", "apiservice", externalAPI, "-o", "jsonpath={.spec}")
	}

	// The script says whose it is, and takes nothing.
	if err := i.cluster.Apply(ctx, keda); err != nil {
		t.Fatal(err)
	}
	before := spec()
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, installer, append([]string{overlay}, args...)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+i.cluster.Kubeconfig, "PATH="+i.cluster.Bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run()
	if err == nil || !strings.Contains(out, externalAPI+" is served by keda/keda-operator-metrics-apiserver") {
		t.Errorf("%s, %v:\n%s", installer, err, out)
	}
	if after := spec(); after != before {
		t.Errorf("%s changed another server's APIService from %s to %s", installer, before, after)
	}
	if out, err := run("--take"); err != nil {
		t.Fatalf("%s --take: %v\n%s", installer, err, out)
	}
	adapter := i.start(t, "prometheus with external metrics")
	i.lead(t, adapter.Address)
	_, port, err := net.SplitHostPort(adapter.Address)
	if err != nil {
		t.Fatal(err)
	}
	i.kubectl(t, "patch", "apiservice", externalAPI, "--type=merge", "-p", `{"spec":{"service":{"port":`+port+`}}}`)
	eventually(t, 2*time.Minute, "external metrics are listed", func() error {
		text, err := i.cluster.Kubectl(ctx, "get", "--raw", "/apis/external.metrics.k8s.io/v1beta1")
		if err == nil && !strings.Contains(text, `"name":"vllm_queue_depth"`) {
			err = fmt.Errorf("it answers %.200s", text)
		}
		return err
	})
	hold(t, i, []permission{
		{user: adapterUser, verb: "patch", group: "apiregistration.k8s.io", resource: "apiservices", name: externalAPI, want: true},
		{user: adapterUser, verb: "get", group: "apiregistration.k8s.io", resource: "apiservices", name: "v1.apps"},
		{user: adapterUser, verb: "list", group: "apiregistration.k8s.io", resource: "apiservices"},
		{user: hpaUser, verb: "list", group: group, resource: "vllm_queue_depth", namespace: "unseen", want: true},
		{user: "viewer", verb: "list", group: group, resource: "vllm_queue_depth", namespace: "seen", want: true},
		{user: "viewer", verb: "list", group: group, resource: "vllm_queue_depth", namespace: "unseen"},
	})
	i.checkEnforced(t, func(ns string) []string {
		return []string{"/apis", group, "v1beta1", "namespaces", ns, "vllm_queue_depth"}
	})
	if log := logOf(t, adapter); strings.Contains(log, "left alone") {
		t.Errorf("the adapter serves external metrics, and complains:\n%s", log)
	}
	i.testGranted(t)

	// KEDA is installed over it.
	if err := i.cluster.Apply(ctx, keda); err != nil {
		t.Fatal(err)
	}
	before = spec()
	eventually(t, 2*time.Minute, "the adapter says who serves external metrics", func() error {
		if log := logOf(t, adapter); !strings.Contains(log, "keda/keda-operator-metrics-apiserver") {
			return fmt.Errorf("it says:\n%s", log)
		}
		return nil
	})
	if after := spec(); after != before || !strings.Contains(after, "a2VkYQ==") {
		t.Errorf("the adapter changed another server's APIService from %s to %s", before, after)
	}
	i.staysAvailable(t)
	adapter.Stop()
	i.kubectl(t, "delete", "apiservice", externalAPI)
}

// testCertManager plays cert-manager: it makes a certificate and a bundle, and then others.
func (i *install) testCertManager(t *testing.T) {
	i.kubectl(t, "apply", "-k", i.variant(t, "prometheus", []string{"cert-manager"}))
	if text := i.kubectl(t, "get", "apiservice", "v1beta1.custom.metrics.k8s.io", "-o", "jsonpath={.metadata.annotations}"); !strings.Contains(text, `"cert-manager.io/inject-ca-from":"inference-metrics/inference-metrics-adapter"`) {
		t.Errorf("cert-manager is not told which bundle the APIService is to have: %s", text)
	}
	ca := newAuthority(t, "cert-manager's CA")
	i.certs = t.TempDir()
	issue := func() {
		der, key := ca.issue(t, &x509.Certificate{DNSNames: []string{cluster.AdapterName + "." + cluster.AdapterNamespace + ".svc"}})
		keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{
			"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), "tls.key": keyPEM,
		} {
			if err := os.WriteFile(filepath.Join(i.certs, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	issue()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": ca.pem()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range cluster.APIVersions {
		i.kubectl(t, "patch", "apiservice", version+".custom.metrics.k8s.io", "--type=merge", "-p", string(patch))
	}
	adapter := i.start(t, "prometheus with cert-manager")
	i.lead(t, adapter.Address)
	i.staysAvailable(t)
	old := servedCertificate(t, adapter.Address)
	issue()
	eventually(t, 2*time.Minute, "the adapter serves with the new certificate", func() error {
		if servedCertificate(t, adapter.Address) == old {
			return fmt.Errorf("it serves with the old one; its log:\n%s", logOf(t, adapter))
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
	// certs is the directory that /certs of the pods stands for.
	certs string
}

func (i *install) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := i.cluster.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
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

// start runs the adapter on the host as the Deployment that is installed says, and with these arguments.
func (i *install) start(t *testing.T, overlay string, more ...string) *cluster.Adapter {
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
		arg = strings.ReplaceAll(arg, "/certs/", i.certs+"/")
		arg = strings.ReplaceAll(arg, "/config/", config+"/")
		arg = address.ReplaceAllString(arg, "http://127.0.0.1:9") // nothing beyond loopback
		args = append(args, arg)
	}
	adapter, err := i.cluster.StartAdapter(t.Context(), i.program, append(args, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(adapter.Stop)
	eventually(t, 2*time.Minute, "the adapter is ready with the arguments of overlay "+overlay, func() error {
		if adapter.Exited() {
			t.Fatalf("with the arguments of overlay %s %q the adapter ended:\n%s", overlay, args, logOf(t, adapter))
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
	for _, version := range cluster.APIVersions {
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
