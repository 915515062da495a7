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
	// programs is the directory of our own programs.
	programs string
)

func TestMain(m *testing.M) {
	// Those that are side by side wait for time to pass, mostly, however few processors there are.
	_ = flag.Set("test.parallel", "8")
	options := cluster.Options{HPASyncPeriod: hpaSync, ScrapeInterval: time.Second}
	cluster.Main(m, options, func(ctx context.Context, s *cluster.Shared) error {
		shared, service, programs = s.Cluster, s.Service, s.Programs
		return s.Install(ctx, service.Address)
	})
}
