package provider

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

var _ provider.ExternalMetricsProvider = (*Provider)(nil)

// ListAllExternalMetrics returns the signals of pods: one of a pool cannot be told from that of another
// pool by a name and a namespace.
func (p *Provider) ListAllExternalMetrics() []provider.ExternalMetricInfo {
	var out []provider.ExternalMetricInfo
	for _, s := range signals.Catalogue() {
		if !s.OfPool() {
			out = append(out, provider.ExternalMetricInfo{Metric: s.Name})
		}
	}
	if p.Rules != nil {
		for _, name := range p.Rules.External() {
			out = append(out, provider.ExternalMetricInfo{Metric: name})
		}
	}
	return out
}

// GetExternalMetric returns one value: a signal of all pods of the namespace together in which an engine
// is. The selector chooses among their series, and never among namespaces: who may ask was decided by
// the namespace in the request.
func (p *Provider) GetExternalMetric(_ context.Context, namespace string, metricSelector labels.Selector, info provider.ExternalMetricInfo) (*external_metrics.ExternalMetricValueList, error) {
	if p.ruled(info.Metric) {
		return p.ruledExternal(namespace, metricSelector, info.Metric)
	}
	snapshot := p.Snapshots.Snapshot()
	of := "namespace " + namespace
	r, err := p.ask(snapshot, info.Metric, metricSelector, of, external, false)
	if err != nil {
		return nil, err
	}
	if err := collected(snapshot, r, of); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(p.Pods.Select(namespace, labels.Everything()), func(pod *pods.Pod) bool { return !pod.Exports() })
	members, roles, err := counting(all, anything, r, snapshot, of)
	if err != nil {
		return nil, err
	}
	var none reasons
	if len(members) == 0 {
		none.add(absence{reason: "it has no pod with an engine that has been Ready and is not ending" + ofRole(r), data: true})
		return nil, none.err(fmt.Sprintf("no value of %s for %s", info.Metric, of), snapshot)
	}
	v, why := p.value(r, snapshot.Merge(r.Plan, members, roles))
	if why != nil {
		none.add(*why)
		return nil, none.err(fmt.Sprintf("no value of %s for %s", info.Metric, of), snapshot)
	}
	item := external_metrics.ExternalMetricValue{MetricName: info.Metric, Timestamp: v.Timestamp, WindowSeconds: v.WindowSeconds, Value: v.Value}
	if r.Selector != nil {
		item.MetricLabels = r.Selector.MatchLabels
	}
	return &external_metrics.ExternalMetricValueList{Items: []external_metrics.ExternalMetricValue{item}}, nil
}
