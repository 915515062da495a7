package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/inference-metrics/adapter/test/cluster"
)

const (
	custom   = "/apis/custom.metrics.k8s.io"
	external = "/apis/external.metrics.k8s.io"

	applicationJSON = "application/json"
	protobuf        = "application/vnd.kubernetes.protobuf"
)

// The namespaces of two teams, that are alike but for what waits there. The name of the second is in no
// request of the first but where a test puts it.
const (
	teamA = "team-a"
	teamB = "team-b"
)

var (
	// shared is the control plane, service what its API server takes for the adapter's Service, bin the
	// directory of our own programs.
	shared  *cluster.Cluster
	service *cluster.Balancer
	bin     string

	// pods are those of each team, queues what waits at each of them.
	pods   = map[string][]string{}
	queues = map[string]map[string]int{}
	// reader may read all metrics of teamA, and nothing else.
	reader *rest.Config
)

func TestMain(m *testing.M) {
	cluster.Main(m, cluster.Options{HPASyncPeriod: 2 * time.Second, ScrapeInterval: time.Second}, prepare)
}

// prepare installs the adapter's API, and brings up the teams.
func prepare(ctx context.Context, s *cluster.Shared) error {
	shared, service, bin = s.Cluster, s.Service, s.Programs
	if err := shared.Install(ctx, service.Address); err != nil {
		return err
	}
	if err := shared.InstallExternal(ctx, service.Address); err != nil {
		return err
	}
	for i, team := range []string{teamA, teamB} {
		if err := shared.Apply(ctx, strings.ReplaceAll(teamManifest, "TEAM", team)); err != nil {
			return err
		}
		if err := crowd(ctx, team, 60+120*i); err != nil {
			return fmt.Errorf("engines of %s: %w", team, err)
		}
	}
	if err := shared.Apply(ctx, readerManifest); err != nil {
		return err
	}
	var err error
	reader, err = shared.ServiceAccountConfig(ctx, teamA, "reader")
	return err
}

const teamManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: TEAM}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm, namespace: TEAM, labels: {app: vllm}}
spec:
  replicas: 2
  selector: {matchLabels: {app: vllm}}
  template:
    metadata: {labels: {app: vllm}}
    spec:
      containers:
        - name: vllm
          image: emulated
          ports: [{name: metrics, containerPort: 8000}]
          resources: {limits: {nvidia.com/gpu: "1"}}
---
apiVersion: v1
kind: Service
metadata: {name: vllm, namespace: TEAM, labels: {app: vllm}}
spec: {selector: {app: vllm}, ports: [{port: 8000}]}
`

// readerManifest grants as much as a team may be granted in its namespace.
const readerManifest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: team-a}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: team-a}
rules: [{apiGroups: [custom.metrics.k8s.io, external.metrics.k8s.io], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: team-a}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: team-a}]
`

// crowd has at least so many requests wait at each engine of a team, and freezes them.
func crowd(ctx context.Context, team string, atLeast int) error {
	engines, err := shared.StartEmulator(ctx, filepath.Join(bin, "engine-emulator"), team,
		"--max-num-seqs=4", "--max-model-len=4096", "--num-gpu-blocks=1025", "--step-base-seconds=0.02")
	if err != nil {
		return err
	}
	var replicas []cluster.Replica
	if err := poll(2*time.Minute, func() (err error) {
		if replicas, err = engines.Replicas(ctx); err == nil && len(replicas) != 2 {
			err = fmt.Errorf("%d replicas", len(replicas))
		}
		return err
	}); err != nil {
		return err
	}
	if err := engines.Load(ctx, "vllm", "constant:rate=60,prompt=100,output=50"); err != nil {
		return err
	}
	if err := poll(2*time.Minute, func() error {
		replicas, err = engines.Replicas(ctx)
		for _, r := range replicas {
			if r.Waiting < atLeast {
				err = fmt.Errorf("%d requests wait at %s", r.Waiting, r.Name)
			}
		}
		return err
	}); err != nil {
		return err
	}
	if err := engines.Load(ctx, "vllm", "none"); err != nil {
		return err
	}
	for _, r := range replicas {
		if err := engines.Act(ctx, r.Name, "freeze"); err != nil {
			return err
		}
	}
	queues[team] = map[string]int{}
	for _, r := range replicas {
		pods[team] = append(pods[team], r.Name)
		if queues[team][r.Name], err = exportedQueue("http://" + r.Address + "/metrics"); err != nil {
			return err
		}
	}
	return nil
}

var queueSeries = regexp.MustCompile(`(?m)^vllm:num_requests_waiting\{.*\} (\d+)`)

// exportedQueue is what an engine exports, which is what it had when it was frozen.
func exportedQueue(url string) (int, error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	found := queueSeries.FindSubmatch(body)
	if found == nil {
		return 0, fmt.Errorf("%s exports no queue", url)
	}
	return strconv.Atoi(string(found[1]))
}

// startAdapter puts an adapter that serves both APIs behind the Service, in the place of any other.
func startAdapter(t *testing.T, args ...string) *cluster.Adapter {
	t.Helper()
	a := newAdapter(t, args...)
	service.Add(a.Address)
	t.Cleanup(func() {
		service.Remove(a.Address)
		a.Stop() // and with it the API server's connections
	})
	if err := shared.AwaitAvailable(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The external API has an APIService of its own.
	eventually(t, 2*time.Minute, "external metrics are served", func() error {
		return statusIs(ask(t, shared.Config, http.MethodGet, external+"/v1beta1", applicationJSON), http.StatusOK)
	})
	return a
}

// newAdapter starts an adapter that nobody asks yet.
func newAdapter(t *testing.T, args ...string) *cluster.Adapter {
	t.Helper()
	a, err := shared.StartAdapter(t.Context(), filepath.Join(bin, "adapter"), append([]string{"--external-metrics", "--collect-interval=1s"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	if err := a.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// refusing is the URL of a Prometheus that is not there.
func refusing(t *testing.T) string {
	t.Helper()
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// directly is the configuration of an administrator's client of an adapter.
func directly(a *cluster.Adapter) *rest.Config {
	config := rest.CopyConfig(shared.Config)
	config.Host = "https://" + a.Address
	config.TLSClientConfig.CAData = shared.AdapterCA()
	return config
}

// awaitServed waits until the engines' queues are answered as they are.
func awaitServed(t *testing.T) {
	t.Helper()
	for team, queue := range queues {
		eventually(t, 2*time.Minute, "the queues of "+team+" are answered", func() error {
			r := ask(t, shared.Config, http.MethodGet, custom+"/v1beta2/namespaces/"+team+"/pods/*/vllm_queue_depth", applicationJSON)
			if err := statusIs(r, http.StatusOK); err != nil {
				return err
			}
			got, err := valuesOf(r.body)
			if err != nil {
				return err
			}
			for pod, n := range queue {
				if got[team+"/"+pod] != fmt.Sprint(n) {
					return fmt.Errorf("%v, want %v", got, queue)
				}
			}
			return nil
		})
	}
}

// valuesOf are the values of an answer, by the namespace and name of what they describe, or by the name of
// the metric.
func valuesOf(body []byte) (map[string]string, error) {
	var list struct {
		Kind  string
		Items []struct {
			DescribedObject struct{ Namespace, Name string }
			MetricName      string
			Value           resource.Quantity
		}
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w in %.200s", err, body)
	}
	if !strings.HasSuffix(list.Kind, "MetricValueList") {
		return nil, fmt.Errorf("no values but %.200s", body)
	}
	out := map[string]string{}
	for _, i := range list.Items {
		name := i.DescribedObject.Namespace + "/" + i.DescribedObject.Name
		if name == "/" {
			name = i.MetricName
		}
		out[name] = i.Value.String()
	}
	return out, nil
}

type response struct {
	status int
	header http.Header
	body   []byte
}

func statusIs(r response, want int) error {
	if r.status != want {
		return fmt.Errorf("%d, want %d: %.500s", r.status, want, r.body)
	}
	return nil
}

// ask sends a request whose path and query are as given, to the byte.
func ask(t *testing.T, config *rest.Config, method, path, accept string, header ...string) response {
	t.Helper()
	r, err := request(t.Context(), config, method, path, accept, header...)
	if err != nil {
		t.Fatalf("%s %.200s: %v", method, path, err)
	}
	return r
}

func request(ctx context.Context, config *rest.Config, method, path, accept string, header ...string) (response, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return response{}, err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	host, err := url.Parse(config.Host)
	if err != nil {
		return response{}, err
	}
	path, query, _ := strings.Cut(path, "?")
	req := (&http.Request{
		Method: method, Host: host.Host, Header: http.Header{"Accept": {accept}},
		URL: &url.URL{Scheme: host.Scheme, Host: host.Host, Opaque: path, RawQuery: query},
	}).WithContext(ctx)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, body}, err
}

// kubectl runs kubectl with nothing in its cache, and returns what it says, on both of its outputs.
func kubectl(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also at the end of a test
	cmd := exec.CommandContext(ctx, filepath.Join(shared.Bin, "kubectl"), append([]string{
		"--kubeconfig", shared.Kubeconfig, "--cache-dir", t.TempDir()}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// namespace makes a namespace that goes away at the end of the test.
func namespace(t *testing.T, name string) {
	t.Helper()
	_, err := shared.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = shared.Client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) // the test may have deleted it
	})
}

// poll calls done until it returns nil, and returns its last error otherwise.
func poll(within time.Duration, done func() error) error {
	for deadline := time.Now().Add(within); ; time.Sleep(200 * time.Millisecond) {
		err := done()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func eventually(t *testing.T, within time.Duration, what string, done func() error) {
	t.Helper()
	if err := poll(within, done); err != nil {
		t.Fatalf("not within %s: %s: %v", within, what, err)
	}
}
