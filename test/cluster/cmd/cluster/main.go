// Command cluster starts and stops a control plane for use by hand.
//
//	eval "$(go run ./cmd/cluster up)"    # prints: export KUBECONFIG=... PATH=...
//	kubectl get nodes
//	go run ./cmd/cluster down
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cluster [flags] up|down", flag.ContinueOnError)
	dir := flags.String("dir", filepath.Join(os.TempDir(), "inference-metrics-cluster"), "directory of the cluster's data, credentials and logs")
	sync := flags.Duration("hpa-sync-period", 15*time.Second, "how often the HPA controller looks at each HPA")
	interval := flags.Duration("scrape-interval", 5*time.Second, "how often Prometheus scrapes the engines")
	nodes := flags.Int("nodes", 4, "number of nodes, with 8 GPUs each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch flags.Arg(0) {
	case "up":
		return up(ctx, cluster.Options{
			Dir: *dir, Detached: true, Nodes: *nodes,
			HPASyncPeriod: *sync, ScrapeInterval: *interval, Progress: os.Stderr,
		})
	case "down":
		// Only what up made is removed, whatever --dir says.
		if _, err := os.Stat(filepath.Join(*dir, "front-proxy-ca.crt")); err != nil {
			return fmt.Errorf("no cluster in %s: %w", *dir, err)
		}
		if err := cluster.StopDetached(*dir); err != nil {
			return err
		}
		return os.RemoveAll(*dir)
	default:
		return fmt.Errorf("say up or down, after any flags")
	}
}

func up(ctx context.Context, options cluster.Options) error {
	if _, err := os.Stat(options.Dir); err == nil {
		return fmt.Errorf("%s is there already: take that cluster down first (or choose another --dir)", options.Dir)
	}
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "Prometheus: %s\nlogs:       %s\n", c.Prometheus.URL, c.Dir)
	fmt.Printf("export KUBECONFIG=%s PATH=%s:$PATH\n", c.Kubeconfig, c.Bin)
	return nil
}
