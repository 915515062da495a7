package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/inference-metrics/adapter/internal/config"
	"github.com/inference-metrics/adapter/internal/discover"
	"github.com/inference-metrics/adapter/internal/source/scrape"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// discovers reports whether engines are found in the cluster, and not named by flags.
func (o *options) discovers() bool {
	return o.prometheusURL == "" && len(o.targets) == 0 && !o.standalone
}

// checkScrape returns what a configuration says of scraping in vain.
func (o *options) checkScrape(c config.Config) error {
	var errs []error
	if c.Scrape.Given && !o.discovers() {
		errs = append(errs, errors.New("scrape: it says what to find and to scrape in a cluster: leave it out, or leave out --prometheus-url, --target and --standalone"))
	}
	if o.prometheusURL == "" && len(c.Params.PodLabels) > 0 {
		errs = append(errs, errors.New("podLabels: what the adapter scrapes carries the pod that it was found in, and a pod could say that it is another: leave it out, or give --prometheus-url"))
	}
	return errors.Join(errs...)
}

// newScrape returns the source that scrapes engines and, where it finds them itself, what follows the
// cluster for it, or nil.
func newScrape(c *completed, client kubernetes.Interface) (*scrape.Source, *discover.Discoverer, error) {
	cfg := scrape.Config{Interval: c.scrapeInterval, Timeout: c.config.Scrape.Timeout, Names: signals.AllNames()}
	for _, t := range c.targets {
		cfg.Targets = append(cfg.Targets, scrape.Target{Namespace: t.Namespace, Pod: t.Name, URL: t.url})
	}
	if !c.standalone {
		// Else whoever has a target could say how busy the GPUs of other pods are.
		cfg.Names = slices.Concat(signals.NamesFrom(signals.FromEngine), signals.NamesFrom(signals.FromPool))
	}
	if !c.discovers() {
		s, err := scrape.New(cfg)
		return s, nil, err
	}

	if c.config.Scrape.Interval != 0 && !c.given(sectionAdapter, "scrape-interval") {
		cfg.Interval = c.config.Scrape.Interval
	}
	var found *discover.Discoverer
	// The labels of a series say which pod a GPU is of.
	onNode := func(ls labels.Labels) bool {
		exporter := types.NamespacedName{Namespace: ls.Get("namespace"), Name: ls.Get("pod")}
		group, ok := signals.GroupOf(ls)
		namespace, name, _ := strings.Cut(group, "/")
		of := types.NamespacedName{Namespace: namespace, Name: name}
		return ok && (of == exporter || found.OnNode(exporter, of))
	}
	job := func(name string, of discover.Exporter) scrape.Job {
		switch of {
		case discover.GPU:
			return scrape.Job{Name: name, Names: signals.NamesFrom(signals.FromNode), Believe: onNode}
		case discover.Pool:
			return scrape.Job{Name: name, Names: signals.NamesFrom(signals.FromPool)}
		default:
			return scrape.Job{Name: name, Names: signals.NamesFrom(signals.FromEngine)}
		}
	}
	for _, of := range []discover.Exporter{discover.Engine, discover.GPU, discover.Pool} {
		cfg.Jobs = append(cfg.Jobs, job(string(of), of))
	}
	for i, e := range c.config.Scrape.Discovery.Entries {
		j, access := job(entryJob(i), e.Exporter), c.config.Scrape.Pods[i]
		j.Interval, j.Timeout, j.Credentials = access.Interval, access.Timeout, scrape.Credentials(access.Credentials)
		cfg.Jobs = append(cfg.Jobs, j)
	}
	s, err := scrape.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(c.client)
	if err != nil {
		return nil, nil, fmt.Errorf("making a client of the cluster: %w", err)
	}
	found, err = discover.New(client, dynamicClient, c.config.Scrape.Discovery, func(all []discover.Target) error { return s.SetTargets(toScrape(all)) })
	return s, found, err
}

// entryJob names the job of an entry of the configuration, as its field is.
func entryJob(i int) string { return fmt.Sprintf("pods[%d]", i) }

func toScrape(found []discover.Target) []scrape.Target {
	targets := make([]scrape.Target, len(found))
	for i, t := range found {
		targets[i] = scrape.Target{Namespace: t.Namespace, Pod: t.Pod, URL: t.URL, Job: string(t.Exporter)}
		if t.Entry >= 0 {
			targets[i].Job = entryJob(t.Entry)
		}
	}
	return targets
}
