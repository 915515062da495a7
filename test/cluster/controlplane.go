package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed kwok.yaml
var kwokStages []byte

// controllers are those that workloads, their autoscaling and their namespaces need. The rest
// would only take memory and watches.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"deployment-controller",
	"disruption-controller",
	"endpointslice-controller",
	"garbage-collector-controller",
	"horizontal-pod-autoscaler-controller",
	"job-controller",
	"namespace-controller",
	"node-lifecycle-controller",
	"pod-garbage-collector-controller",
	"replicaset-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"statefulset-controller",
	"taint-eviction-controller",
}

// path is a file in the cluster's directory.
func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

func (c *Cluster) issueCertificates(context.Context) (err error) {
	for name, ca := range map[string]**authority{"ca": &c.ca, "front-proxy-ca": &c.proxyCA, "serving-ca": &c.servingCA} {
		if *ca, err = newAuthority(name); err != nil {
			return err
		}
		if err := os.WriteFile(c.path(name+".crt"), (*ca).pem, 0o644); err != nil {
			return err
		}
	}
	// What service account tokens are signed with.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyPEM, err := marshalKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("service-account.key"), keyPEM, 0o600)
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	serving, err := c.ca.server(c.Dir, "etcd", "127.0.0.1")
	if err != nil {
		return err
	}
	client, err := FreePort()
	if err != nil {
		return err
	}
	peer, err := FreePort()
	if err != nil {
		return err
	}
	url, peerURL := "https://"+loopback(client), "http://"+loopback(peer)
	if err := os.WriteFile(c.path("etcd.url"), []byte(url), 0o644); err != nil {
		return err
	}
	_, err = c.processes.start("etcd", filepath.Join(c.Bin, "etcd"),
		"--data-dir="+c.path("etcd"),
		"--unsafe-no-fsync", // the data need not outlive the machine
		"--log-level=warn",
		"--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--cert-file="+serving.certFile, "--key-file="+serving.keyFile,
		"--client-cert-auth", "--trusted-ca-file="+c.path("ca.crt"),
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=default="+peerURL)
	return err
}

// auditPolicy has what the adapters ask of the Kubernetes API written down, and nothing else.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:` + AdapterNamespace + `:` + AdapterName + `"]
- level: None
`

func (c *Cluster) startAPIServer(ctx context.Context) error {
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.server = "https://" + loopback(port)
	etcdURL, err := os.ReadFile(c.path("etcd.url"))
	if err != nil {
		return err
	}
	serving, err := c.ca.server(c.Dir, "kube-apiserver", "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	etcdClient, err := c.ca.client(c.Dir, "kube-apiserver-etcd-client", "kube-apiserver")
	if err != nil {
		return err
	}
	proxyClient, err := c.proxyCA.client(c.Dir, "front-proxy-client", "front-proxy-client")
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o644); err != nil {
		return err
	}
	c.apiServerArgs = []string{
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // the others refuse to advertise a loopback address
		"--tls-cert-file=" + serving.certFile, "--tls-private-key-file=" + serving.keyFile,
		"--client-ca-file=" + c.path("ca.crt"),
		"--etcd-servers=" + string(etcdURL), "--etcd-cafile=" + c.path("ca.crt"),
		"--etcd-certfile=" + etcdClient.certFile, "--etcd-keyfile=" + etcdClient.keyFile,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path("service-account.key"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
		"--audit-policy-file=" + c.path("audit.yaml"), "--audit-log-path=" + c.path("audit.log"),
		// The aggregation layer.
		"--requestheader-client-ca-file=" + c.path("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + proxyClient.certFile, "--proxy-client-key-file=" + proxyClient.keyFile,
	}
	if err := c.connect(); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// StartAPIServer starts kube-apiserver again, where it was before KillAPIServer, and waits until it is
// ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	c.apiServer, err = c.processes.start("kube-apiserver", filepath.Join(c.Bin, "kube-apiserver"), c.apiServerArgs...)
	if err != nil {
		return err
	}
	return await(ctx, c.apiServer, "kube-apiserver to be ready", func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// KillAPIServer ends kube-apiserver without a chance to tidy up, and cuts all connections to it.
func (c *Cluster) KillAPIServer() { c.apiServer.Kill() }

func (c *Cluster) startControllers(ctx context.Context) error {
	// Both write to objects of their own: neither needs a leader to be elected.
	for _, start := range []func() error{c.startControllerManager, c.startScheduler} {
		if err := start(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startControllerManager() error {
	kubeconfig, err := c.userKubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + c.path("kube-controller-manager"),
		"--leader-elect=false",
		// Every controller acts as its own service account, under the RBAC roles that Kubernetes
		// ships: whether the HPA controller may read our metrics is part of what is tested.
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.path("service-account.key"),
		"--root-ca-file=" + c.path("ca.crt"),
		"--controllers=" + strings.Join(controllers, ","),
	}
	if d := c.options.HPASyncPeriod; d != 0 {
		args = append(args, "--horizontal-pod-autoscaler-sync-period="+d.String())
	}
	_, err = c.processes.start("kube-controller-manager", filepath.Join(c.Bin, "kube-controller-manager"), args...)
	return err
}

func (c *Cluster) startScheduler() error {
	kubeconfig, err := c.userKubeconfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	_, err = c.processes.start("kube-scheduler", filepath.Join(c.Bin, "kube-scheduler"),
		"--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+c.path("kube-scheduler"),
		"--leader-elect=false")
	return err
}

// startNodes starts kwok, makes the nodes, and waits until pods can be made and scheduled.
func (c *Cluster) startNodes(ctx context.Context) (err error) {
	// kwok stands in for the kubelets of all nodes, which no role that Kubernetes ships covers.
	kubeconfig, err := c.userKubeconfig("kwok", "system:masters")
	if err != nil {
		return err
	}
	if c.network, err = freePodNetwork(); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("kwok.yaml"), kwokStages, 0o644); err != nil {
		return err
	}
	p, err := c.processes.start("kwok", filepath.Join(c.Bin, "kwok"),
		"--kubeconfig="+kubeconfig,
		"--config="+c.path("kwok.yaml"),
		"--manage-all-nodes=true",
		"--node-lease-duration-seconds=40",
		"--node-ip=127.0.0.1",
		fmt.Sprintf("--cidr=127.%d.0.1/16", c.network),
		"--server-address="+kwokAddress(c.network))
	if err != nil {
		return err
	}
	for i := range c.options.Nodes {
		if err := c.createNode(ctx, fmt.Sprintf("gpu-%d", i)); err != nil {
			return err
		}
	}
	return await(ctx, p, "the nodes to take pods", func(ctx context.Context) error {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, node := range nodes.Items {
			if len(node.Spec.Taints) > 0 {
				return fmt.Errorf("node %s still has the taint %s", node.Name, node.Spec.Taints[0].Key)
			}
		}
		// Pods are refused before their namespace's service account is there.
		_, err = c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (c *Cluster) createNode(ctx context.Context, name string) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("512Gi"),
		corev1.ResourcePods:   resource.MustParse("250"),
		"nvidia.com/gpu":      *resource.NewQuantity(int64(c.options.GPUs), resource.DecimalSI),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:   name,
				corev1.LabelArchStable: "amd64",
				corev1.LabelOSStable:   "linux",
			},
		},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	_, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}
