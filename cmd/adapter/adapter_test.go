package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
)

// engine serves what vLLM would, with a queue of the test's choice.
type engine struct {
	*httptest.Server
	queue atomic.Int64
}

func newEngine(t *testing.T, queue int64) *engine {
	e := &engine{}
	e.queue.Store(queue)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = fmt.Fprintf(w, `# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} %d.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 16.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.4375
`, e.queue.Load())
	}))
	t.Cleanup(e.Close)
	return e
}

// client asks a running adapter.
type client struct {
	t       *testing.T
	address string
	http    *http.Client
	token   string
	stop    func() error
}

// start runs an adapter with these flags on a port of its own until the test ends.
func start(t *testing.T, args ...string) *client {
	t.Helper()
	o := parse(t, args...)
	var err error
	if o.server.SecureServing.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	a, err := newAdapter(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	stopped := false
	result := &client{
		t:       t,
		address: "https://" + o.server.SecureServing.Listener.Addr().String(),
		http:    &http.Client{Transport: transport, Timeout: time.Minute},
		stop: func() error {
			if stopped {
				return nil
			}
			stopped = true
			transport.CloseIdleConnections()
			cancel()
			return <-done
		},
	}
	t.Cleanup(func() {
		if err := result.stop(); err != nil {
			t.Error(err)
		}
	})
	result.await("/livez")
	return result
}

// await asks until the answer is a 200, and returns it.
func (c *client) await(path string) string {
	c.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		code, body := c.get(path)
		if code == http.StatusOK {
			return body
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s is still a %d after two minutes: %s", path, code, body)
		}
	}
}

func (c *client) get(path string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.address+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	r, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// values asks for a metric of selected pods, and returns the values by pod, or the error's code.
func (c *client) values(metric, selector string) string {
	c.t.Helper()
	code, body := c.get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/" + metric + "?labelSelector=" + selector)
	if code != http.StatusOK {
		return fmt.Sprint(code)
	}
	return valueOf(c.t, body)
}

// valueOf returns the values of an answer, by object.
func valueOf(t *testing.T, body string) string {
	t.Helper()
	var list v1beta2.MetricValueList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var out []string
	for _, i := range list.Items {
		out = append(out, i.DescribedObject.Name+"="+i.Value.String())
	}
	return strings.Join(out, " ")
}

// eventually asks until it is answered what is wanted.
func (c *client) eventually(want, metric, selector string) {
	c.t.Helper()
	var got string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = c.values(metric, selector); got == want {
			return
		}
	}
	c.t.Fatalf("%s of %s is %q, and did not come to be %q within a minute", metric, selector, got, want)
}

// A person with two engines and no cluster.
func TestStandalone(t *testing.T) {
	prefill, decode := newEngine(t, 0), newEngine(t, 7)
	c := start(t, "--standalone", "--external-metrics", "--scrape-interval=100ms", "--collect-interval=100ms",
		"--target=default/vllm-0{app=vllm,role=prefill}="+prefill.URL+"/metrics",
		"--target=default/vllm-1{app=vllm,role=decode}="+decode.URL+"/metrics",
		"--target=other/vllm-2{app=vllm}="+decode.URL+"/metrics")

	c.await("/readyz")
	code, body := c.get("/apis/custom.metrics.k8s.io")
	var group metav1.APIGroup
	if err := json.Unmarshal([]byte(body), &group); err != nil || code != http.StatusOK || len(group.Versions) != 2 {
		t.Errorf("group: %d %s (%v)", code, body, err)
	}

	// Nobody has asked before.
	if code, body := c.get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/vllm_queue_depth"); code != http.StatusServiceUnavailable || !strings.Contains(body, "warming up") {
		t.Errorf("the first answer is a %d: %s", code, body)
	}
	c.eventually("vllm-0=0 vllm-1=7", "vllm_queue_depth", "app=vllm")
	c.eventually("vllm-1=7", "vllm_queue_depth", "role=decode")
	c.eventually("", "vllm_queue_depth", "role=router")
	c.eventually("vllm-0=438m vllm-1=438m", "vllm_kv_cache_usage", "")
	c.eventually("vllm-1=23", "vllm_inflight_requests", "role+in+(decode)")

	// The load moves, and so does the answer.
	decode.queue.Store(41)
	c.eventually("vllm-0=0 vllm-1=41", "vllm_queue_depth", "app=vllm")

	// An external metric is of all pods of its namespace.
	if _, body := c.get("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/vllm_queue_depth"); !strings.Contains(body, `"value":"41"`) {
		t.Errorf("the queue of the namespace is %s, want 41", body)
	}

	// An engine dies. Its pod has no value then: neither the last one, nor zero.
	decode.Close()
	c.eventually("vllm-0=0", "vllm_queue_depth", "app=vllm")
	c.eventually("404", "vllm_queue_depth", "role=decode")
	if code, body := c.get("/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/vllm-1/vllm_queue_depth"); code != http.StatusNotFound || !strings.Contains(body, "no value of vllm_queue_depth for pod vllm-1") {
		t.Errorf("a dead engine's pod answers a %d: %s", code, body)
	}

	for path, want := range map[string]int{
		"/namespaces/default/pods/vllm-9/vllm_queue_depth":                           http.StatusNotFound,
		"/namespaces/other/pods/vllm-0/vllm_queue_depth":                             http.StatusNotFound,
		"/namespaces/default/pods/*/vllm_nonsense":                                   http.StatusNotFound,
		"/namespaces/default/deployments.apps/vllm/vllm_queue_depth":                 http.StatusNotFound,
		"/namespaces/default/pods/*/vllm_queue_depth?labelSelector=%3D":              http.StatusBadRequest,
		"/namespaces/default/pods/*/vllm_queue_depth?metricLabelSelector=%3D%3D%3D":  http.StatusBadRequest,
		"/namespaces/default/pods/*/vllm_queue_depth?metricLabelSelector=tenant%3Dx": http.StatusBadRequest,
	} {
		if code, body := c.get("/apis/custom.metrics.k8s.io/v1beta2" + path); code != want {
			t.Errorf("%s: got a %d, want a %d: %s", path, code, want, body)
		}
	}

	_, metrics := c.get("/metrics")
	for _, want := range []string{
		"\ninference_metrics_adapter_source_up 1\n",
		`metrics_apiserver_metric_freshness_seconds_count{group="custom.metrics.k8s.io"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics does not say %s", want)
		}
	}

	if err := c.stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if _, err := c.http.Get(c.address + "/readyz"); err == nil {
		t.Error("it still answers after it was stopped")
	}
	// Nothing is left behind that a second one in the process would trip over.
	start(t, "--standalone", "--target=default/vllm-0="+prefill.URL+"/metrics").await("/metrics")
}

func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	var stderr strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code := run(ctx, []string{"--standalone", vllm0, fmt.Sprintf("--secure-port=%d", taken.Addr().(*net.TCPAddr).Port)}, io.Discard, &stderr)
	want := fmt.Sprintf("adapter: failed to create listener: failed to listen on %s: listen tcp %[1]s: bind: address already in use\n", taken.Addr())
	if diff := cmp.Diff(want, stderr.String()); code != 1 || diff != "" {
		t.Errorf("exit code %d, stderr (-want +got):\n%s", code, diff)
	}
}

// kubeconfig writes a file that points to a server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
