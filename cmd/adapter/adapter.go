package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	prom "github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	apimetrics "sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver/metrics"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/discover"
	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/slo"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/prometheus"
	"github.com/inference-metrics/adapter/pkg/provider"
)

// adapter is everything that runs.
type adapter struct {
	server *genericapiserver.GenericAPIServer
	served *provider.Provider
	// metrics are our own, beside those of the server.
	metrics []prom.Collector
	// feeds run beside the server, and bring what it answers from.
	feeds []func(context.Context) error
	// found follows the cluster for targets; nil if nothing is to be found.
	found *discover.Discoverer
}

// newAdapter wires the whole program.
func newAdapter(c *completed) (*adapter, error) {
	a := &adapter{}
	var client kubernetes.Interface
	var err error
	if !c.standalone {
		if client, err = newClient(c.client); err != nil {
			return nil, err
		}
	}
	src, mirrors, err := a.newSource(c, client)
	if err != nil {
		return nil, err
	}
	var lister pods.Lister
	var groups pods.Groups = pods.NoGroups{}
	if c.standalone {
		lister = staticPods(c.pods)
	} else {
		dynamicClient, err := dynamic.NewForConfig(c.client)
		if err != nil {
			return nil, fmt.Errorf("making a client of the cluster: %w", err)
		}
		var podMirror *kube.Mirror
		podMirror, lister = kube.NewPods(client)
		workloads := kube.NewGroups(client, dynamicClient, podMirror, lister, c.config.Kinds)
		groups = workloads
		mirrors = append(mirrors, podMirror, workloads)
		if c.external && c.certificates.service == "" { // else the keeper of certificates looks
			a.feeds = append(a.feeds, func(ctx context.Context) error { checkExternalOwner(ctx, dynamicClient); return nil })
		}
	}
	objectives := slo.New(groups.Annotations)
	collector, err := collect.New(collect.Config{
		Source: src, Pods: lister, Settings: settingsOf(c.config, objectives), Interval: c.collectInterval,
	})
	if err != nil {
		return nil, err
	}
	a.feeds = append(a.feeds, collector.Run)
	a.metrics = append(collector.Collectors(), objectives)
	reload := newReloader(collector, objectives, c.config)
	if c.file != nil {
		a.feeds = append(a.feeds, func(ctx context.Context) error { return c.file.Watch(ctx, reload.apply) })
		a.metrics = append(a.metrics, c.file.Collectors()...)
	}
	if !c.standalone {
		mirrors = append(mirrors, kube.NewHPAs(client, reload.named))
	}
	answers := provider.Config{Snapshots: collector, Pods: lister, Groups: groups, External: c.external}
	if err := a.serveRules(c, src, client, &answers); err != nil {
		return nil, err
	}
	a.served = provider.New(answers)
	if a.server, err = provider.NewServer(a.served, c.server, c.client); err != nil {
		return nil, err
	}
	a.showStatus(c, src, collector, a.served)
	if c.certificates.service != "" {
		if err := a.keepCertificates(c, client); err != nil {
			return nil, err
		}
	}
	if err := a.watch(src, a.served, mirrors, c.exposed); err != nil {
		return nil, err
	}
	for _, m := range mirrors {
		a.feeds = append(a.feeds, func(ctx context.Context) error { m.Run(ctx); return nil })
		if err := a.server.AddReadyzChecks(synced(m)); err != nil {
			return nil, fmt.Errorf("adding a readiness check: %w", err)
		}
	}

	warn(c.config)
	if c.standalone {
		s := c.server.SecureServing
		klog.Background().Info("Serving anybody on this machine", "try",
			fmt.Sprintf("curl -k 'https://%s/apis/custom.metrics.k8s.io/v1beta2/namespaces/%s/pods/*/vllm_queue_depth'", s.Listener.Addr(), c.pods[0].Namespace))
	}
	return a, nil
}

// mirror is what is kept in memory of the cluster.
type mirror interface {
	Run(context.Context)
	Synced() bool
	String() string
}

// newSource returns the source, and what it needs to know of the cluster.
func (a *adapter) newSource(c *completed, client kubernetes.Interface) (source.Source, []mirror, error) {
	if c.prometheusURL != "" {
		s, err := prometheus.New(prometheus.Config{
			URL:              c.prometheusURL,
			ClientConfigFile: c.prometheusClientConfig,
			Matchers:         c.matchers,
			ReplicaLabel:     c.prometheusReplicaLabel,
		})
		return s, nil, err
	}
	s, found, err := newScrape(c, client)
	if err != nil {
		return nil, nil, err
	}
	a.feeds = append(a.feeds, s.Run)
	if a.found = found; found == nil {
		return s, nil, nil
	}
	return s, []mirror{found}, nil
}

func newClient(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = "inference-metrics-adapter/" + buildVersion()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the cluster: %w", err)
	}
	return client, nil
}

// staticPods returns the pods of targets. Nobody tells when they are Ready, so they always are: an
// engine that is not up has no fresh samples, and so no value.
func staticPods(of []podLabels) pods.Lister {
	var list []*pods.Pod
	for _, p := range of {
		list = append(list, &pods.Pod{NamespacedName: p.NamespacedName, Labels: p.labels, Ready: true, WasReady: true})
	}
	return pods.NewStatic(list)
}

// synced makes the adapter Ready once the cluster's objects are known. It does not wait for samples:
// else a restart while the source is down would leave the API without anybody to answer for it.
func synced(m mirror) healthz.HealthChecker {
	return healthz.NamedCheck(m.String()+"-synced", func(*http.Request) error {
		if !m.Synced() {
			return fmt.Errorf("the %s of the cluster have not been read yet", m)
		}
		return nil
	})
}

// run serves until ctx ends. What feeds the server outlives it, so that the last requests are
// answered like any other; a feed that fails ends it all.
func (a *adapter) run(ctx context.Context) error {
	unregister, err := register(a.metrics)
	if err != nil {
		return err
	}
	defer unregister()

	live, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	feeds, live := errgroup.WithContext(live)
	for _, feed := range a.feeds {
		feeds.Go(func() error { return feed(live) })
	}
	serve, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(live, cancel)

	err = a.server.PrepareRun().RunWithContext(serve)
	stop()
	return errors.Join(err, feeds.Wait())
}

// register adds our metrics to those of the server, and returns how to take them away.
func register(own []prom.Collector) (unregister func(), err error) {
	if err := apimetrics.RegisterMetrics(legacyregistry.Register); err != nil && !errors.As(err, new(prom.AlreadyRegisteredError)) {
		return nil, fmt.Errorf("registering the metrics of the API: %w", err)
	}
	registry := legacyregistry.Registerer()
	unregister = func() {
		for _, c := range own {
			registry.Unregister(c)
		}
	}
	for _, c := range own {
		if err := registry.Register(c); err != nil {
			unregister()
			return nil, fmt.Errorf("registering the metrics of the collector: %w", err)
		}
	}
	return unregister, nil
}
