package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
	serveroptions "sigs.k8s.io/custom-metrics-apiserver/pkg/cmd/options"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/config"
	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
)

// options are the flags as given.
type options struct {
	configFile string
	standalone bool
	kubeconfig string
	external   bool

	prometheusURL          string
	prometheusClientConfig string
	prometheusMatchers     []string
	prometheusReplicaLabel string

	targets        []string
	scrapeInterval time.Duration

	collectInterval time.Duration

	certificates certificateOptions
	exposed      exposed
	rules        rulesOption

	server *serveroptions.CustomMetricsAdapterServerOptions

	// sets are the flags by section, to tell what was given from what is default.
	sets cliflag.NamedFlagSets
}

// Sections of flags.
const (
	sectionAdapter        = "adapter"
	sectionServing        = "serving"
	sectionAuthentication = "authentication"
	sectionAuthorization  = "authorization"
	sectionLogging        = "logging"
)

const (
	defaultPort           = 6443 // no privilege is needed to listen on it
	defaultScrapeInterval = 5 * time.Second
	minInterval           = 100 * time.Millisecond
	maxInterval           = time.Minute
)

func newOptions() *options {
	o := &options{
		prometheusReplicaLabel: prometheus.DefaultReplicaLabel,

		scrapeInterval:  defaultScrapeInterval,
		collectInterval: collect.DefaultInterval,
		certificates:    newCertificateOptions(),
		server:          serveroptions.NewCustomMetricsAdapterServerOptions(),
	}
	o.server.SecureServing.BindPort = defaultPort
	o.server.SecureServing.Required = true
	// A certificate that nobody gave is made in memory: the root file system may be read-only.
	o.server.SecureServing.ServerCert.CertDirectory = ""
	o.server.Features.EnableProfiling = false
	return o
}

// flags returns the flags of the options, by section.
func (o *options) flags() cliflag.NamedFlagSets {
	fs := o.sets.FlagSet(sectionAdapter)
	fs.StringVar(&o.configFile, "config", o.configFile, "File with windows, service level objectives, the kinds of object that are served, and what labels mean, in YAML; docs/configuration.md describes it. It is read again when it changes. Such as {window: 60s, slo: {ttft: 2.5s, tpot: 100ms}}.")
	fs.BoolVar(&o.standalone, "standalone", o.standalone, "Run without Kubernetes: serve on loopback only, to anybody on this machine, and take the pods from the targets.")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "File that says how to reach the cluster. Not needed in a pod of the cluster.")
	fs.BoolVar(&o.external, "external-metrics", o.external, "Serve external.metrics.k8s.io too: the same signals, of all pods of a namespace. Off, as one server only can own that API in a cluster, and often it is KEDA.")
	fs.StringVar(&o.prometheusURL, "prometheus-url", o.prometheusURL, "Server with Prometheus's query API to read samples from, such as http://prometheus.monitoring:9090. Without it, and without a --target, engines are found in the cluster and scraped.")
	fs.StringVar(&o.prometheusClientConfig, "prometheus-client-config", o.prometheusClientConfig, "File in Prometheus's HTTP client format that says how to reach the server: TLS, credentials, headers.")
	fs.StringArrayVar(&o.prometheusMatchers, "prometheus-matcher", o.prometheusMatchers, `Read only series with this label, such as 'cluster="a"'. May be given several times.`)
	fs.StringVar(&o.prometheusReplicaLabel, "prometheus-replica-label", o.prometheusReplicaLabel, "Label by which the servers of a pair that scrape the same engines tell their series apart, where the store does not merge them; of each pair one is read.")
	fs.StringArrayVar(&o.targets, "target", o.targets, "Engine to scrape instead of those that are found, as NAMESPACE/POD=URL. Standalone, as NAMESPACE/POD{LABEL=VALUE,...}=URL, where the labels are those of the pod. May be given several times.")
	fs.DurationVar(&o.scrapeInterval, "scrape-interval", o.scrapeInterval, "Time between two scrapes of a target; it comes before the one in the configuration file.")
	fs.DurationVar(&o.collectInterval, "collect-interval", o.collectInterval, "Time between two collections of samples; signals are as new as the last.")
	o.exposed.addFlag(fs)
	o.rules.addFlag(fs)

	o.certificates.addFlags(o.sets.FlagSet(sectionServing))
	o.server.SecureServing.AddFlags(o.sets.FlagSet(sectionServing))
	o.server.Authentication.AddFlags(o.sets.FlagSet(sectionAuthentication))
	o.server.Authorization.AddFlags(o.sets.FlagSet(sectionAuthorization))

	var all flag.FlagSet
	klog.InitFlags(&all)
	for _, name := range []string{"v", "vmodule"} {
		o.sets.FlagSet(sectionLogging).AddGoFlag(all.Lookup(name))
	}
	return o.sets
}

// given reports whether a flag is on the command line.
func (o *options) given(section, name string) bool { return o.sets.FlagSet(section).Changed(name) }

// validate returns every fault of the flags.
func (o *options) validate() error {
	var errs []error
	fault := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}

	_, _, err := o.parseTargets()
	errs = append(errs, err)
	_, err = o.parseMatchers()
	errs = append(errs, err, o.rules.validate(o.prometheusURL))

	if o.standalone {
		if len(o.targets) == 0 {
			fault("target", "--standalone takes its pods from targets: give at least one, such as --target 'default/vllm-0{app=vllm}=http://127.0.0.1:8000/metrics'")
		}
		if o.prometheusURL != "" {
			fault("prometheus-url", "--standalone takes its pods from the targets that it scrapes: leave one of them out")
		}
		if o.kubeconfig != "" {
			fault("kubeconfig", "--standalone runs without Kubernetes: leave one of them out")
		}
		if address := o.server.SecureServing.BindAddress; o.given(sectionServing, "bind-address") && !address.IsLoopback() {
			fault("bind-address", "--standalone serves anybody who can reach it, so it binds loopback addresses only, not %s: use 127.0.0.1 or leave it out", address)
		}
		for _, section := range []string{sectionAuthentication, sectionAuthorization} {
			for _, f := range changed(o.sets, section) {
				fault(f, "--standalone has no authentication and no authorization: leave it out")
			}
		}
	} else {
		if o.prometheusURL != "" && len(o.targets) > 0 {
			fault("target", "samples come either from the engines or from --prometheus-url: leave one of them out")
		}
	}

	if !model.UTF8Validation.IsValidLabelName(o.prometheusReplicaLabel) {
		fault("prometheus-replica-label", "%q is no name of a label", o.prometheusReplicaLabel)
	}
	if o.prometheusURL == "" {
		for _, name := range []string{"prometheus-client-config", "prometheus-matcher", "prometheus-replica-label"} {
			if o.given(sectionAdapter, name) {
				fault(name, "it is about the server of --prometheus-url, which is not given")
			}
		}
	}
	if o.prometheusURL != "" && o.given(sectionAdapter, "scrape-interval") {
		fault("scrape-interval", "nothing is scraped with --prometheus-url")
	}
	for _, i := range []struct {
		flag  string
		value time.Duration
	}{{"scrape-interval", o.scrapeInterval}, {"collect-interval", o.collectInterval}} {
		if i.value < minInterval || i.value > maxInterval {
			fault(i.flag, "%s is outside %s to %s", i.value, minInterval, maxInterval)
		}
	}

	errs = append(errs, o.validateCertificates())
	_, err = o.exposed.plans()
	errs = append(errs, err)
	errs = append(errs, o.server.Validate()...)
	return errors.Join(errs...)
}

func changed(sets cliflag.NamedFlagSets, section string) []string {
	var names []string
	sets.FlagSet(section).VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			names = append(names, f.Name)
		}
	})
	return names
}

// credentials are those in a URL, which no message shows. A password may hold a / or @.
var credentials = regexp.MustCompile(`(?s)//.*@`)

// parseTargets returns the targets, and the pods that they are of.
func (o *options) parseTargets() ([]target, []podLabels, error) {
	var errs []error
	var targets []target
	for _, text := range o.targets {
		t, err := parseTarget(text)
		if err == nil && !o.standalone && len(t.labels) > 0 {
			err = errors.New("in a cluster a pod has labels already: {...} is for --standalone")
		}
		if err != nil {
			hidden := func(s string) string { return credentials.ReplaceAllString(s, "//...@") }
			errs = append(errs, fmt.Errorf("--target %s: %s", hidden(text), hidden(err.Error())))
			continue
		}
		targets = append(targets, t)
	}
	pods, err := podsOf(targets)
	if err != nil {
		errs = append(errs, fmt.Errorf("--target: %w", err))
	}
	return targets, pods, errors.Join(errs...)
}

func (o *options) parseMatchers() ([]*promlabels.Matcher, error) {
	var all []*promlabels.Matcher
	var errs []error
	for _, text := range o.prometheusMatchers {
		matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector("{" + text + "}")
		if err != nil {
			errs = append(errs, fmt.Errorf(`--prometheus-matcher %s: want a label and a value in quotes, such as cluster="a"`, text))
			continue
		}
		all = append(all, matchers...)
	}
	return all, errors.Join(errs...)
}

// completed is what the adapter is wired from: the options, and what they point to.
type completed struct {
	*options
	config config.Config
	// file is where config was read from; nil without --config.
	file     *config.File
	targets  []target
	pods     []podLabels
	matchers []*promlabels.Matcher
	// client says how to reach the cluster; empty when standalone.
	client *rest.Config
}

// complete reads what valid options point to, and settles what depends on other options.
func (o *options) complete() (*completed, error) {
	c := &completed{options: o, config: config.Default(kube.DefaultKinds()), client: &rest.Config{}}
	var err error
	if o.configFile != "" {
		if c.file, c.config, err = config.Open(o.configFile, kube.DefaultKinds()); err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
	}
	if err := o.rules.read(); err != nil {
		return nil, err
	}
	if err := o.checkScrape(c.config); err != nil {
		return nil, fmt.Errorf("--config: %s: %w", o.configFile, err)
	}
	if c.targets, c.pods, err = o.parseTargets(); err != nil {
		return nil, err
	}
	if c.matchers, err = o.parseMatchers(); err != nil {
		return nil, err
	}
	if o.standalone {
		o.server.Authentication, o.server.Authorization = nil, nil
		if !o.given(sectionServing, "bind-address") {
			o.server.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
		}
		return c, nil
	}
	if c.client, err = o.clientConfig(); err != nil {
		return nil, err
	}
	for _, file := range []*string{&o.server.Authentication.RemoteKubeConfigFile, &o.server.Authorization.RemoteKubeConfigFile} {
		if *file == "" {
			*file = o.kubeconfig
		}
	}
	return c, nil
}

func (o *options) clientConfig() (*rest.Config, error) {
	if o.kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig is not given, and this is no pod of a cluster (%w): give it, or run with --standalone", err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)
	}
	return c, nil
}
