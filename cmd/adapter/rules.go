package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/inference-metrics/adapter/internal/rules"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// newRulesCommand is about files of rules.
func newRulesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Look at rules of prometheus-adapter",
		Long:  "adapter rules check FILE tells what the rules of a configuration file of prometheus-adapter will serve.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cliflag.SetUsageAndHelpFunc(cmd, cliflag.NamedFlagSets{}, 0)
	cmd.AddCommand(newRulesCheckCommand())
	return cmd
}

func newRulesCheckCommand() *cobra.Command {
	o := newOptions()
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Tell what each rule of a configuration file of prometheus-adapter will serve, or why not",
		Long: `check tells of each rule what it will serve when the file is given with --rules, or why it will not. With
--prometheus-url it asks that server which series there are. It fails when a rule has a fault; the others would
be served all the same.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := rules.Read(args[0])
			if err != nil {
				return err
			}
			check := rules.Check{Resources: rules.BuiltIn, Ours: isSignal, Timeout: checkTimeout}
			if check.Matchers, err = o.parseMatchers(); err != nil {
				return err
			}
			if o.prometheusURL != "" {
				check.Server, err = prometheus.New(prometheus.Config{URL: o.prometheusURL, ClientConfigFile: o.prometheusClientConfig})
				if err != nil {
					return err
				}
			}
			if faults := check.Write(cmd.Context(), cmd.OutOrStdout(), file); faults > 0 {
				return fmt.Errorf("%s has faults: %d", args[0], faults)
			}
			return nil
		},
	}
	var sets cliflag.NamedFlagSets
	fs := sets.FlagSet("check")
	fs.StringVar(&o.prometheusURL, "prometheus-url", "", "Server with Prometheus's query API to ask which series there are, such as http://prometheus.monitoring:9090.")
	fs.StringVar(&o.prometheusClientConfig, "prometheus-client-config", "", "File in Prometheus's HTTP client format that says how to reach the server.")
	fs.StringArrayVar(&o.prometheusMatchers, "prometheus-matcher", nil, `Look only at series with this label, such as 'cluster="a"'. May be given several times.`)
	cmd.Flags().AddFlagSet(fs)
	cliflag.SetUsageAndHelpFunc(cmd, sets, 0)
	return cmd
}

// checkTimeout bounds what a check asks of one rule.
const checkTimeout = 30 * time.Second

// isSignal reports whether a metric is a signal of the catalogue, which comes before any rule.
func isSignal(metric string) bool {
	_, err := signals.Prepare(signals.Query{Signal: metric})
	return !errors.Is(err, signals.ErrNoSignal)
}
