package sources

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/test/cluster"
)

// programs are what the tests run, by path.
type programs struct {
	emulator, prometheus3, prometheus2, victoriaMetrics string
}

var (
	// built has the programs at hand, built or fetched where they are not.
	built = sync.OnceValues(func() (p programs, err error) {
		ctx := context.Background()
		own, err := os.MkdirTemp("", "sources-")
		if err != nil {
			return p, err
		}
		if err := cluster.OwnBinaries(ctx, own, "engine-emulator"); err != nil {
			return p, err
		}
		bin, err := cluster.Binaries(ctx, os.Stderr)
		if err != nil {
			return p, fmt.Errorf("building Prometheus: %w", err)
		}
		debian, err := cluster.DebianBinaries(ctx, os.Stderr)
		if err != nil {
			return p, err
		}
		return programs{
			emulator:        filepath.Join(own, "engine-emulator"),
			prometheus3:     filepath.Join(bin, "prometheus"),
			prometheus2:     filepath.Join(debian, "prometheus"),
			victoriaMetrics: filepath.Join(debian, "victoria-metrics"),
		}, nil
	})
	// thanos is the path of Thanos, which one test needs, and which takes minutes to build at first.
	thanos = sync.OnceValues(func() (string, error) { return cluster.ThanosBinary(context.Background(), os.Stderr) })
)

func TestMain(m *testing.M) {
	flag.Parse()
	// They wait for time to pass, mostly, however few processors there are.
	_ = flag.Set("test.parallel", "3")
	if testing.Short() {
		fmt.Println("skipped: real stores are not short")
		return
	}
	klog.SetLogger(klog.Logger{}) // which drops everything
	code := m.Run()
	if p, err := built(); err == nil {
		os.RemoveAll(filepath.Dir(p.emulator))
	}
	os.Exit(code)
}

// a world is engines, what stands before them, and the stores that scrape them.
type world struct {
	*programs
	stores  *cluster.Stores
	engines *cluster.Emulator
	front   *front
}

// Each request takes four tenths of a second of one of the four seats of an engine, which so serves ten
// per second.
var smallEngines = []string{
	"--max-num-seqs=4", "--max-model-len=4096", "--num-gpu-blocks=1025",
	"--step-base-seconds=0.02", "--step-prefill-token-seconds=0", "--step-prefill-pair-seconds=0",
	"--step-sequence-seconds=0", "--step-context-token-seconds=0", "--step-jitter=0",
	"--dcgm-interval=1s", "--routing=round-robin",
}

func newWorld(t *testing.T, replicas int) *world {
	t.Helper()
	p, err := built()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sources-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{programs: &p, stores: cluster.NewStores(dir)}
	t.Cleanup(func() {
		w.stores.Stop()
		if t.Failed() {
			t.Logf("data and logs: %s", dir)
		} else {
			os.RemoveAll(dir)
		}
	})
	w.engines, err = w.stores.StartEngines(t.Context(), p.emulator, append(smallEngines, fmt.Sprintf("--replicas=%d", replicas))...)
	if err != nil {
		t.Fatal(err)
	}
	w.front = newFront(t, w.engines)
	return w
}
