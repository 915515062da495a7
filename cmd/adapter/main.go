// Adapter serves custom.metrics.k8s.io, and external.metrics.k8s.io where asked to: what LLM engines
// tell of themselves, as signals that a HorizontalPodAutoscaler can scale on.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

// version is set by the build.
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	klog.Flush()
	os.Exit(code)
}

// run is the program, but for the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintf(stderr, "adapter: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nadapter: "))
		return 1
	}
	return 0
}

func newCommand() *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "adapter",
		Short: "Serve the signals of LLM engines as custom metrics",
		Long: `adapter serves custom.metrics.k8s.io: queue depth, KV-cache usage, time to first token and goodput
of LLM engines, as metrics that a HorizontalPodAutoscaler can scale on. Samples come from a server with
Prometheus's query API (--prometheus-url), or from the engines themselves, which it finds in the cluster.
Rules of prometheus-adapter are served beside them (--rules); adapter rules check FILE tells what of.

Without Kubernetes, for an engine on this machine:

  adapter --standalone --target 'default/vllm-0{app=vllm}=http://127.0.0.1:8000/metrics'
  curl -k 'https://127.0.0.1:6443/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/vllm_queue_depth'`,
		Version:           buildVersion(),
		Args:              cobra.NoArgs,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			c, err := o.complete()
			if err != nil {
				return err
			}
			a, err := newAdapter(c)
			if err != nil {
				return err
			}
			return a.run(cmd.Context())
		},
	}
	flags := o.flags()
	for _, name := range flags.Order {
		cmd.Flags().AddFlagSet(flags.FlagSets[name])
	}
	cliflag.SetUsageAndHelpFunc(cmd, flags, 0)
	cmd.AddCommand(newRulesCommand())
	return cmd
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
