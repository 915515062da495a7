package zero

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

var (
	hpaSync   = flag.Duration("hpa-sync", 3*time.Second, "how often the HPA controller looks; Kubernetes's own default is 15s")
	coldStart = flag.Duration("cold-start", 5*time.Second, "from when a pod runs until it is Ready")
)

// shared is the control plane, bin the directory of our own programs.
var (
	shared *cluster.Cluster
	bin    string
)

func TestMain(m *testing.M) {
	flag.Parse()
	cluster.Main(m, cluster.Options{HPASyncPeriod: *hpaSync, ScrapeInterval: time.Second}, prepare)
}

// prepare installs the adapter and the CRD of pools.
func prepare(ctx context.Context, s *cluster.Shared) error {
	shared, bin = s.Cluster, s.Programs
	if err := shared.Apply(ctx, poolCRD); err != nil {
		return err
	}
	if _, err := shared.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s",
		"crd", "inferencepools.inference.networking.k8s.io"); err != nil {
		return err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return err
	}
	if err := shared.Install(ctx, fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return err
	}
	config := filepath.Join(shared.Dir, "adapter.yaml")
	if err := os.WriteFile(config, []byte("window: "+window.String()+"\n"), 0o644); err != nil {
		return err
	}
	adapter, err := shared.StartAdapterAt(ctx, port, filepath.Join(bin, "adapter"),
		"--prometheus-url="+shared.Prometheus.URL, "--config="+config, "--collect-interval=1s")
	if err != nil {
		return err
	}
	if err := adapter.AwaitReady(ctx); err != nil {
		return err
	}
	return shared.AwaitAvailable(ctx)
}

// window is what the adapter looks back.
const window = 12 * time.Second

// poolCRD is what the HPA controller and the adapter need of the Gateway API Inference Extension.
const poolCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: inferencepools.inference.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for a test"}
spec:
  group: inference.networking.k8s.io
  scope: Namespaced
  names: {kind: InferencePool, listKind: InferencePoolList, plural: inferencepools, singular: inferencepool}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
