// Package e2e runs the adapter against a real control plane. The README beside package cluster says
// how, and which file shows what.
//
// The tests share one control plane, each in a namespace of its own, and take turns: the metrics
// API is one per cluster, and so is the Prometheus that some of them stop. Times are short, so that
// all of them fit in a CI run: the HPA controller looks every 5 seconds, Prometheus scrapes every
// second, the adapter collects every second over a window of 20.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

const (
	hpaSync = 5 * time.Second
	// testWindow is what the adapter's rates and quantiles are over.
	testWindow = 20 * time.Second
)

var (
	// shared is the control plane that all tests use.
	shared *cluster.Cluster
	// service is what the API server takes for the adapter's Service.
	service *cluster.Balancer
	// programs builds our own programs and returns their directory.
	programs func() (string, error)
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: a control plane is not short")
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx := context.Background() // a signal ends this process, and all others die with it
	keep := os.Getenv("IMA_ARTIFACTS")
	c, err := cluster.Start(ctx, cluster.Options{
		Dir:            keep,
		HPASyncPeriod:  hpaSync,
		ScrapeInterval: time.Second,
		Progress:       os.Stderr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		c.Stop()
		if code == 0 && keep == "" {
			os.RemoveAll(c.Dir)
		} else {
			fmt.Fprintf(os.Stderr, "data and logs of the control plane: %s\n", c.Dir)
		}
	}()
	shared = c
	programs = sync.OnceValues(func() (string, error) {
		dir := filepath.Join(c.Dir, "bin")
		return dir, cluster.OwnBinaries(ctx, dir, "adapter", "engine-emulator")
	})
	if service, err = c.NewBalancer(); err == nil {
		defer service.Close()
		err = c.Install(ctx, service.Address)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
