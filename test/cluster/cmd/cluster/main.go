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
	bare := flags.Bool("bare", false, "start neither the adapter nor the engine emulator")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch flags.Arg(0) {
	case "up":
		return up(ctx, *bare, cluster.Options{
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

func up(ctx context.Context, bare bool, options cluster.Options) error {
	if _, err := os.Stat(options.Dir); err == nil {
		return fmt.Errorf("%s is there already: take that cluster down first (or choose another --dir)", options.Dir)
	}
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "Prometheus:      %s\ndata and logs:   %s\n", c.Prometheus.URL, c.Dir)
	if !bare {
		if err := serve(ctx, c); err != nil {
			c.Stop()
			return err
		}
	}
	fmt.Printf("export KUBECONFIG=%s PATH=%s:$PATH\n", c.Kubeconfig, c.Bin)
	return nil
}

// serve starts the adapter on the cluster's Prometheus, and engines for every pod with a label app.
func serve(ctx context.Context, c *cluster.Cluster) error {
	bin := filepath.Join(c.Dir, "bin")
	if err := cluster.OwnBinaries(ctx, bin, "adapter", "engine-emulator"); err != nil {
		return err
	}
	emulator, err := c.StartEmulator(ctx, filepath.Join(bin, "engine-emulator"), "")
	if err != nil {
		return err
	}
	if err := c.Prometheus.ScrapeDCGM(true, emulator.DCGM); err != nil {
		return err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return err
	}
	// The only adapter, so the Service leads straight to it.
	if err := c.Install(ctx, fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return err
	}
	adapter, err := c.StartAdapterAt(ctx, port, filepath.Join(bin, "adapter"), "--prometheus-url="+c.Prometheus.URL)
	if err != nil {
		return err
	}
	if err := adapter.AwaitReady(ctx); err != nil {
		return err
	}
	if err := c.AwaitAvailable(ctx); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "engine emulator: %s\nadapter:         https://%s\n", emulator.Control, adapter.Address)
	return nil
}
