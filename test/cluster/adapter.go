package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What deploy/manifests call the adapter.
const (
	AdapterNamespace = "inference-metrics"
	AdapterName      = "inference-metrics-adapter"
)

// installOverlay is how deploy/manifests are made to fit a cluster whose adapters are processes of
// the host: no pods, and a Service that leads to the host instead. All else, RBAC above all, is as
// shipped.
const installOverlay = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s]
components: [%[4]s]
replicas: [{name: inference-metrics-adapter, count: 0}]
patches:
- patch: |
    apiVersion: v1
    kind: Service
    metadata: {name: inference-metrics-adapter, namespace: inference-metrics}
    spec: {type: ExternalName, externalName: localhost, selector: null, ports: null}
- target: {kind: APIService}
  patch: |
    apiVersion: apiregistration.k8s.io/v1
    kind: APIService
    metadata: {name: any}
    spec: {caBundle: %[2]s, service: {port: %[3]s}}
`

// Install applies deploy/manifests and registers what listens at the loopback address as the
// adapter, which need not be there yet. It serves with a certificate of AdapterCertificate.
func (c *Cluster) Install(ctx context.Context, address string) error {
	return c.install(ctx, address, "")
}

// InstallExternal adds external metrics to what Install has installed, for the same address.
func (c *Cluster) InstallExternal(ctx context.Context, address string) error {
	return c.install(ctx, address, "external")
}

// UninstallExternal takes the API of external metrics away again.
func (c *Cluster) UninstallExternal(ctx context.Context) error {
	_, err := c.Kubectl(ctx, "delete", "--ignore-not-found", "apiservice", "v1beta1.external.metrics.k8s.io")
	return err
}

// install applies deploy/manifests with one of their components, or none.
func (c *Cluster) install(ctx context.Context, address, component string) error {
	module, err := moduleDir()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	overlay := c.path("install")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return err
	}
	// kustomize takes relative paths only.
	manifests, err := filepath.Rel(overlay, filepath.Join(module, "..", "..", "deploy", "manifests"))
	if err != nil {
		return err
	}
	if component != "" {
		component = filepath.Join(manifests, "components", component)
	}
	text := fmt.Sprintf(installOverlay, filepath.Join(manifests, "base"), base64.StdEncoding.EncodeToString(c.servingCA.pem), port, component)
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "apply", "-k", overlay)
	return err
}

// NewBalancer returns a balancer for adapters, which the caller has to Close.
func (c *Cluster) NewBalancer() (*Balancer, error) { return newBalancer() }

// AdapterCertificate issues a serving certificate for the adapter's Service, and for loopback.
func (c *Cluster) AdapterCertificate() (certFile, keyFile string, err error) {
	// Once only: several adapters may be started at the same time, and read both files while they start.
	pair, err := c.adapterPair()
	if err != nil {
		return "", "", err
	}
	return pair.certFile, pair.keyFile, nil
}

// Adapter is a running adapter.
type Adapter struct {
	*Process
	// Address is where it listens.
	Address string

	cluster *Cluster
}

// StartAdapter starts the adapter's program with the credentials of its service account, so Install
// comes first. Unless the arguments say how it comes by a certificate, it serves with one of
// AdapterCertificate. It does not wait for the adapter to be ready.
func (c *Cluster) StartAdapter(ctx context.Context, program string, args ...string) (*Adapter, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	return c.StartAdapterAt(ctx, port, program, args...)
}

// StartAdapterAt is StartAdapter on a port of the caller's choice.
func (c *Cluster) StartAdapterAt(ctx context.Context, port int, program string, args ...string) (*Adapter, error) {
	kubeconfig, err := c.ServiceAccountKubeconfig(ctx, AdapterNamespace, AdapterName)
	if err != nil {
		return nil, err
	}
	own := slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "--serving-cert-service=") || strings.HasPrefix(arg, "--tls-cert-file=")
	})
	if !own {
		cert, key, err := c.AdapterCertificate()
		if err != nil {
			return nil, err
		}
		args = append(args, "--tls-cert-file="+cert, "--tls-private-key-file="+key)
	}
	a := &Adapter{Address: loopback(port), cluster: c}
	a.Process, err = c.processes.start("adapter", program, append([]string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
	}, args...)...)
	return a, err
}

// AwaitReady waits until the adapter's /readyz answers 200.
func (a *Adapter) AwaitReady(ctx context.Context) error {
	client := a.cluster.AdapterClient()
	return await(ctx, a.Process, "the adapter to be ready", func(ctx context.Context) error {
		return getOK(ctx, client, "https://"+a.Address+"/readyz")
	})
}

// AdapterClient is an HTTP client that trusts the adapters' certificates, and says nothing of who
// it is.
func (c *Cluster) AdapterClient() *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(c.servingCA.cert)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
}

// APIVersions are the versions of custom.metrics.k8s.io that the adapter registers for.
var APIVersions = []string{"v1beta1", "v1beta2"}

// AwaitAvailable waits until the adapter's APIServices are Available.
func (c *Cluster) AwaitAvailable(ctx context.Context) error {
	return await(ctx, nil, "the APIServices to be available", c.Available)
}

// Available returns an error that says why, unless the adapter's APIServices are Available.
func (c *Cluster) Available(ctx context.Context) error {
	for _, version := range APIVersions {
		name := version + ".custom.metrics.k8s.io"
		data, err := c.Client.Discovery().RESTClient().Get().
			AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/" + name).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("reading APIService %s: %w", name, err)
		}
		var service struct {
			Status struct {
				Conditions []metav1.Condition `json:"conditions"`
			} `json:"status"`
		}
		if err := json.Unmarshal(data, &service); err != nil {
			return fmt.Errorf("reading APIService %s: %w", name, err)
		}
		available := meta.FindStatusCondition(service.Status.Conditions, "Available")
		if available == nil || available.Status != metav1.ConditionTrue {
			return fmt.Errorf("APIService %s is not available: %+v", name, available)
		}
	}
	return nil
}

// AdapterCA is the certificate of the authority that the adapters' certificates are issued by.
func (c *Cluster) AdapterCA() []byte { return c.servingCA.pem }

// Call is a request of an adapter to the Kubernetes API.
type Call struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	// ObjectRef is nil where no resource is asked for.
	ObjectRef *struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// AdapterCalls returns what all adapters have asked of the Kubernetes API, in the order in which it
// was answered.
func (c *Cluster) AdapterCalls() ([]Call, error) {
	text, err := os.ReadFile(c.path("audit.log"))
	if err != nil {
		return nil, fmt.Errorf("reading what the adapters asked: %w", err)
	}
	var all []Call
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		var call Call
		if err := json.Unmarshal(line, &call); err != nil {
			return nil, fmt.Errorf("reading what the adapters asked: %w", err)
		}
		all = append(all, call)
	}
	return all, nil
}
