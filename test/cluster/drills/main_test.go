package drills

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/inference-metrics/adapter/test/cluster"
)

const (
	hpaSync = 2 * time.Second
	// fresh is for how long a sample counts at these scrape intervals, and a bit.
	fresh = 12 * time.Second
)

var (
	// soak makes the drills long.
	soak = os.Getenv("IMA_SOAK") != ""
	// hold is for how long a fault lasts, once it has had its effect.
	hold = 2 * hpaSync

	// shared is the control plane that all drills use, service what its API server takes for the
	// adapter's Service, bin the directory of our own programs.
	shared  *cluster.Cluster
	service *cluster.Balancer
	bin     string
)

func TestMain(m *testing.M) {
	// They wait for time to pass, mostly, however few processors there are.
	_ = flag.Set("test.parallel", "8")
	if soak {
		hold = 30 * time.Second
	}
	options := cluster.Options{HPASyncPeriod: hpaSync, ScrapeInterval: time.Second}
	cluster.Main(m, options, func(ctx context.Context, s *cluster.Shared) error {
		shared, service, bin = s.Cluster, s.Service, s.Programs
		return s.Install(ctx, service.Address)
	})
}

// config is the adapter's configuration file.
const config = "window: 20s\nslo:\n  ttft: 2.5s\n  tpot: 100ms\n"

// startAdapter starts an adapter that is not in the Service.
func startAdapter(t *testing.T, args ...string) *cluster.Adapter {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	a, err := shared.StartAdapter(t.Context(), filepath.Join(bin, "adapter"),
		append([]string{"--config=" + file, "--collect-interval=1s"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	if err := a.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// serve puts an adapter behind the Service, and waits until the API server has found it.
func serve(t *testing.T, a *cluster.Adapter) {
	t.Helper()
	service.Add(a.Address)
	t.Cleanup(func() { service.Remove(a.Address) })
	if err := shared.AwaitAvailable(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// directly is the configuration of an administrator's client of an adapter.
func directly(a *cluster.Adapter) *rest.Config {
	config := rest.CopyConfig(shared.Config)
	config.Host = "https://" + a.Address
	config.TLSClientConfig.CAData = shared.AdapterCA()
	return config
}

// residentMiB is the memory that a process holds.
func residentMiB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb >> 10
		}
	}
	t.Fatalf("process %d has no VmRSS", pid)
	return 0
}

// eventually polls until done returns nil, and fails the test with its last error otherwise.
func eventually(t *testing.T, within time.Duration, what string, done func() error) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(200 * time.Millisecond) {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", within, what, err)
		}
	}
}
