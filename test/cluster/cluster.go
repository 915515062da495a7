package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Options say what a cluster is to be like. The zero value is one.
type Options struct {
	// Dir holds the cluster's data, credentials and logs; a temporary directory when empty.
	Dir string
	// Detached lets the cluster outlive the process that starts it, until StopDetached.
	Detached bool
	// Nodes is how many nodes there are (default 4), GPUs how many each has (default 8).
	Nodes, GPUs int
	// HPASyncPeriod is how often the HPA controller looks at each HPA (default its own: 15 s).
	HPASyncPeriod time.Duration
	// ScrapeInterval is that of Prometheus (default 2 s).
	ScrapeInterval time.Duration
	// Bare leaves out controllers and nodes, which take time for many pods: pods, and the service
	// accounts that they need, are then what a test makes of them.
	Bare bool
	// Progress is told of what takes long (default: nobody).
	Progress io.Writer
}

// Cluster is a running control plane.
type Cluster struct {
	// Dir holds data, credentials and logs.
	Dir string
	// Bin holds the control plane's programs.
	Bin string
	// Config and Client are an administrator's; Kubeconfig is the same as a file.
	Config     *rest.Config
	Client     kubernetes.Interface
	Kubeconfig string
	// Prometheus scrapes the engines' pods.
	Prometheus *Prometheus

	options   Options
	processes *processes
	ca        *authority // issues what the API server serves with, and its clients
	proxyCA   *authority // issues what the aggregator shows to the servers behind it
	servingCA *authority // issues what those serve with
	server    string     // the API server's URL
	network   int        // X of the pods' 127.X.0.0/16

	adapterPair   func() (*keyPair, error)
	apiServer     *Process
	apiServerArgs []string
}

// Start starts a control plane, and returns once its nodes take pods. The caller has to Stop it,
// also when Start returns an error together with a cluster's logs worth keeping.
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	if options.Nodes == 0 {
		options.Nodes = 4
	}
	if options.GPUs == 0 {
		options.GPUs = 8
	}
	if options.ScrapeInterval == 0 {
		options.ScrapeInterval = 2 * time.Second
	}
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	c := &Cluster{options: options}
	if c.Bin, err = Binaries(ctx, options.Progress); err != nil {
		return nil, fmt.Errorf("building the control plane's programs: %w", err)
	}
	if options.Dir == "" {
		if options.Dir, err = os.MkdirTemp("", "cluster-"); err != nil {
			return nil, err
		}
	}
	if c.Dir, err = filepath.Abs(options.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	c.processes = &processes{dir: c.Dir, detached: options.Detached}
	c.adapterPair = sync.OnceValues(func() (*keyPair, error) {
		return c.servingCA.server(c.Dir, AdapterName, AdapterName+"."+AdapterNamespace+".svc", "localhost", "127.0.0.1")
	})
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()

	for _, step := range []struct {
		name string
		run  func(context.Context) error
		rich bool // not of a bare cluster
	}{
		{"issuing certificates", c.issueCertificates, false},
		{"etcd", c.startEtcd, false},
		{"kube-apiserver", c.startAPIServer, false},
		{"the controllers", c.startControllers, true},
		{"the nodes", c.startNodes, true},
		{"Prometheus", c.startPrometheus, false},
	} {
		if step.rich && options.Bare {
			continue
		}
		fmt.Fprintf(options.Progress, "starting: %s\n", step.name)
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("starting %s: %w", step.name, err)
		}
	}
	return c, nil
}

// Stop ends everything that the cluster started. Its directory stays.
func (c *Cluster) Stop() { c.processes.stop() }

// StopDetached ends the detached cluster whose directory is dir.
func StopDetached(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return stopRecorded(dir)
}

// Kubectl runs kubectl as an administrator and returns what it says. A "-" argument reads nothing.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, nil, args...)
}

// Apply applies manifests.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.kubectl(ctx, strings.NewReader(manifests), "apply", "-f", "-")
	return err
}

func (c *Cluster) kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "kubectl"), append([]string{
		"--kubeconfig", c.Kubeconfig, "--cache-dir", filepath.Join(c.Dir, "kubectl-cache"),
	}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// ServiceAccountConfig returns a client configuration with a token of the service account, which
// has to exist.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	hours := int64(lifetime.Seconds())
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token.Status.Token
	return config, nil
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of the service account and returns
// its name.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	config, err := c.ServiceAccountConfig(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	file := filepath.Join(c.Dir, namespace+"-"+name+".kubeconfig")
	return file, writeKubeconfig(file, c.server, c.ca.pem, clientcmdapi.AuthInfo{Token: config.BearerToken})
}

// userKubeconfig writes a kubeconfig with a client certificate.
func (c *Cluster) userKubeconfig(user string, groups ...string) (string, error) {
	base := strings.ReplaceAll(user, ":", "-")
	pair, err := c.ca.client(c.Dir, base, user, groups...)
	if err != nil {
		return "", err
	}
	file := filepath.Join(c.Dir, base+".kubeconfig")
	return file, writeKubeconfig(file, c.server, c.ca.pem, clientcmdapi.AuthInfo{
		ClientCertificateData: pair.cert, ClientKeyData: pair.key,
	})
}

// connect makes the administrator's client.
func (c *Cluster) connect() (err error) {
	if c.Kubeconfig, err = c.userKubeconfig("admin", "system:masters"); err != nil {
		return err
	}
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	// Tests poll: no client-side rate limit.
	c.Config.QPS = -1
	c.Client, err = kubernetes.NewForConfig(c.Config)
	return err
}

// await polls until done says so. It fails when the process ends, and when nothing comes of it in
// two minutes.
func await(ctx context.Context, p *Process, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		if p != nil && p.Exited() {
			return p.failure()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
