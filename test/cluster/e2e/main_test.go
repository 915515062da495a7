// Package e2e runs the adapter against a real control plane. See the README beside package cluster.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

// shared is the control plane that all tests use, each in a namespace of its own.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: a control plane is not short")
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{
		Dir:            os.Getenv("IMA_ARTIFACTS"),
		HPASyncPeriod:  5 * time.Second,
		ScrapeInterval: time.Second,
		Progress:       os.Stderr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = c
	code := m.Run()
	c.Stop()
	if code == 0 && os.Getenv("IMA_ARTIFACTS") == "" {
		os.RemoveAll(c.Dir)
	} else {
		fmt.Fprintf(os.Stderr, "logs of the control plane: %s\n", c.Dir)
	}
	os.Exit(code)
}
