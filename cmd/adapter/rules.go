package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/rules"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
	"github.com/inference-metrics/adapter/pkg/provider"
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

// rulesOption is where the rules of prometheus-adapter's kind are.
type rulesOption struct {
	name string
	// file is what was read from it at the start; nil without one.
	file *rules.File
}

func (o *rulesOption) addFlag(fs *pflag.FlagSet) {
	fs.StringVar(&o.name, "rules", o.name, "Configuration file of prometheus-adapter whose rules and externalRules are served too, from the server of --prometheus-url; docs/migrate-from-prometheus-adapter.md tells how. It is read again when it changes. Signals come before rules of the same name.")
}

func (o *rulesOption) validate(prometheusURL string) error {
	if o.name != "" && prometheusURL == "" {
		return errors.New("--rules: they are queries for a server: give --prometheus-url too")
	}
	return nil
}

// read reads the file. A rule in it that has a fault is left out; one that is no file of rules is refused.
func (o *rulesOption) read() (err error) {
	if o.name == "" {
		return nil
	}
	if o.file, err = rules.Read(o.name); err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	return nil
}

// serveRules has a provider serve rules too, if there are any.
func (a *adapter) serveRules(c *completed, src source.Source, client kubernetes.Interface, of *provider.Config) error {
	if c.rules.file == nil {
		return nil
	}
	server, ok := src.(*prometheus.Source)
	if !ok {
		return errors.New("--rules: there is no server to query")
	}
	metadataClient, err := metadata.NewForConfig(c.client)
	if err != nil {
		return fmt.Errorf("making a client of the cluster: %w", err)
	}
	kinds := newKinds(client.Discovery())
	served := rules.New(rules.Config{
		Server: server, Matchers: c.matchers, Objects: newObjects(metadataClient, of.Pods, of.Groups, c.collectInterval),
		Resources: kinds.all, Ours: isSignal, Interval: c.collectInterval, Timeout: collect.DefaultTimeout, Changed: a.publish,
	}, c.rules.file)
	of.Rules = served
	a.metrics = append(a.metrics, served.Collectors()...)
	a.feeds = append(a.feeds, kinds.run, served.Run, func(ctx context.Context) error { return served.Watch(ctx, c.rules.name) })
	return nil
}

// publish tells clients what is listed now.
func (a *adapter) publish() {
	if a.server == nil {
		return // which will be made with that
	}
	if err := provider.Publish(a.server, a.served); err != nil {
		klog.Background().Error(err, "Cannot tell clients which metrics are served")
	}
}

// isSignal reports whether a metric is a signal of the catalogue, which comes before any rule.
func isSignal(metric string) bool {
	_, err := signals.Prepare(signals.Query{Signal: metric})
	return !errors.Is(err, signals.ErrNoSignal)
}
