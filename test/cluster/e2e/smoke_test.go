package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestControlPlane holds the harness itself to what the other tests take for granted: pods of a
// Deployment become Ready on addresses of their own, an HPA is looked at, an API server on the host
// is reached through the aggregation layer with its certificate checked, and namespaces go away.
func TestControlPlane(t *testing.T) {
	ctx := t.Context()
	ns := namespace(t)

	serveStub(t)
	if err := shared.AwaitAvailable(ctx); err != nil {
		t.Fatal(err)
	}

	deploy(t, ns, workload{name: "vllm", replicas: 2})
	pods := awaitReady(t, ns, 2)
	if a, b := pods[0].Status.PodIP, pods[1].Status.PodIP; a == b || !net.ParseIP(a).IsLoopback() || !net.ParseIP(b).IsLoopback() {
		t.Fatalf("pod addresses %q and %q, want two different loopback addresses", a, b)
	}

	autoscale(t, ns, hpaSpec{target: "vllm", min: 1, max: 3, metric: "vllm_queue_depth", average: "5"})
	eventually(t, time.Minute, "the HPA controller has asked the stub and says what it heard", func() error {
		out, err := shared.Kubectl(ctx, "describe", "hpa", "-n", ns, "vllm")
		if err == nil && !strings.Contains(out, "a stub knows no metrics") {
			return fmt.Errorf("describe hpa:\n%s", out)
		}
		return err
	})

	deleteNamespace(t, ns)
}

// serveStub serves empty lists of resources as an adapter would, and 404 for every metric.
func serveStub(t *testing.T) {
	t.Helper()
	cert, key, err := shared.AdapterCertificate()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	for _, version := range cluster.APIVersions {
		group := "custom.metrics.k8s.io/" + version
		mux.HandleFunc("GET /apis/"+group, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"`+group+`","resources":[]}`)
		})
		mux.HandleFunc("/apis/"+group+"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"a stub knows no metrics"}`)
		})
	}
	server := &http.Server{Handler: mux}
	go server.ServeTLS(listener, cert, key)
	service.Add(listener.Addr().String())
	t.Cleanup(func() {
		service.Remove(listener.Addr().String())
		server.Close()
	})
}
