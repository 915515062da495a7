package main

import (
	"sync"

	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/config"
	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/internal/slo"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// reloader keeps what HPAs name and what the configuration says together: what a selector asks for depends
// on the windows that are configured.
type reloader struct {
	collector  *collect.Collector
	objectives *slo.Resolver

	mu     sync.Mutex
	parser query.Parser
	refs   []kube.MetricRef
}

func newReloader(collector *collect.Collector, objectives *slo.Resolver, c config.Config) *reloader {
	return &reloader{collector: collector, objectives: objectives, parser: parserOf(c)}
}

// named takes what the HPAs of the cluster name.
func (r *reloader) named(refs []kube.MetricRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refs = refs
	r.collector.SetStanding(r.plans())
}

// apply puts another configuration into effect.
func (r *reloader) apply(c config.Config) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.parser
	r.parser = parserOf(c)
	if err := r.collector.Configure(settingsOf(c, r.objectives), r.plans()); err != nil {
		r.parser = before
		return err
	}
	warn(c)
	return nil
}

// plans returns the plans of those metrics that are ours. One with a selector that we refuse is refused
// again when it is asked for, where the HPA says so.
func (r *reloader) plans() []*signals.Plan {
	var plans []*signals.Plan
	for _, m := range r.refs {
		if q, err := r.parser.ParseText(m.Name, m.Selector); err == nil {
			plans = append(plans, q.Plan)
		}
	}
	return plans
}

func parserOf(c config.Config) query.Parser {
	return query.Parser{Window: c.Params.Window, Windows: c.Windows}
}

func settingsOf(c config.Config, objectives *slo.Resolver) collect.Settings {
	return collect.Settings{
		Params: c.Params, Windows: c.Windows, SLO: objectives.Under(c.Params.SLO, c.Objectives),
		Role: func(p *pods.Pod) string { return pods.Role(p, c.RoleLabels) },
	}
}

// warn says what is allowed, and seldom meant.
func warn(c config.Config) {
	for _, w := range c.Warnings() {
		klog.Background().Info("Objective lies off the edges of an engine's buckets", "config", w)
	}
}
