// Command cluster starts and stops a control plane for use by hand.
//
//	eval "$(go run ./cmd/cluster up)"    # prints: export KUBECONFIG=... PATH=... EMULATOR=...
//	kubectl get nodes
//	go run ./cmd/cluster down
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
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
	flags := flag.NewFlagSet("cluster up|down [flags]", flag.ContinueOnError)
	dir := flags.String("dir", filepath.Join(os.TempDir(), "inference-metrics-cluster"), "directory of the cluster's data, credentials and logs")
	sync := flags.Duration("hpa-sync-period", 15*time.Second, "how often the HPA controller looks at each HPA")
	interval := flags.Duration("scrape-interval", 5*time.Second, "how often Prometheus scrapes the engines")
	nodes := flags.Int("nodes", 4, "number of nodes, with 8 GPUs each")
	bare := flags.Bool("bare", false, "start neither the adapter nor the engine emulator")
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("%q is one word too many: say up or down, then any flags", flags.Arg(0))
	}
	switch verb {
	case "up":
		return up(ctx, *bare, cluster.Options{
			Dir: *dir, Detached: true, Nodes: *nodes,
			HPASyncPeriod: *sync, ScrapeInterval: *interval, Progress: os.Stderr,
		})
	case "down":
		// Only what up made is removed, whatever --dir says.
		if _, err := os.Stat(filepath.Join(*dir, "front-proxy-ca.crt")); err != nil {
			return fmt.Errorf("there is no cluster in %s", *dir)
		}
		if err := cluster.StopDetached(*dir); err != nil {
			return err
		}
		return os.RemoveAll(*dir)
	default:
		return errors.New("say up or down, then any flags")
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
	export := fmt.Sprintf("export KUBECONFIG=%s PATH=%s:$PATH", c.Kubeconfig, c.Bin)
	if !bare {
		emulator, err := serve(ctx, c)
		if err != nil {
			c.Stop()
			return err
		}
		export += " EMULATOR=" + emulator
	}
	fmt.Println(export)
	return nil
}

// serve starts the adapter on the cluster's Prometheus, and engines for every pod with a label app.
// It returns the address of the emulator's control API.
func serve(ctx context.Context, c *cluster.Cluster) (emulatorURL string, err error) {
	bin := filepath.Join(c.Dir, "bin")
	if err := cluster.OwnBinaries(ctx, bin, "adapter", "engine-emulator"); err != nil {
		return "", err
	}
	emulator, err := c.StartEmulator(ctx, filepath.Join(bin, "engine-emulator"), "")
	if err != nil {
		return "", err
	}
	if err := c.Prometheus.ScrapeDCGM(true, emulator.DCGM); err != nil {
		return "", err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return "", err
	}
	// The only adapter, so the Service leads straight to it.
	if err := c.Install(ctx, fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return "", err
	}
	adapter, err := c.StartAdapterAt(ctx, port, filepath.Join(bin, "adapter"), "--prometheus-url="+c.Prometheus.URL)
	if err != nil {
		return "", err
	}
	if err := adapter.AwaitReady(ctx); err != nil {
		return "", err
	}
	if err := c.AwaitAvailable(ctx); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "engine emulator: %s\nadapter:         https://%s\n", emulator.Control, adapter.Address)
	return emulator.Control, nil
}
