// Package provider answers the custom metrics API from the collector's snapshots.
//
// A request reads two things that are in memory already, the pods and the newest snapshot; it makes
// no LIST and no query. The package holds to the project's first law at the edge where an HPA would
// be harmed: what has no value is left out of a list or answered with an error that says why, never
// with a zero.
package provider

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Snapshots is what the provider needs of a collector.
type Snapshots interface {
	// Snapshot returns the newest snapshot, never nil.
	Snapshot() *collect.Snapshot
	// Ask says that somebody asked for a signal. It is called for every request.
	Ask(signal string)
}

// Provider serves every signal of the catalogue on pods.
type Provider struct {
	snapshots Snapshots
	pods      pods.Lister
	served    []provider.CustomMetricInfo
}

var _ provider.CustomMetricsProvider = (*Provider)(nil)

var podResource = schema.GroupResource{Resource: "pods"}

// New returns a provider of what the snapshots hold for the pods.
func New(snapshots Snapshots, lister pods.Lister) *Provider {
	p := &Provider{snapshots: snapshots, pods: lister}
	for _, s := range signals.Catalogue() {
		p.served = append(p.served, provider.CustomMetricInfo{GroupResource: podResource, Namespaced: true, Metric: s.Name})
	}
	return p
}

// ListAllMetrics returns what is served, whether or not it has a value now: a list that followed the
// data would be empty while the source is down.
func (p *Provider) ListAllMetrics() []provider.CustomMetricInfo { return p.served }

// GetMetricByName returns a signal of one pod.
func (p *Provider) GetMetricByName(_ context.Context, name types.NamespacedName, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	if err := p.ask(info, metricSelector); err != nil {
		return nil, err
	}
	pod := p.pods.Get(name.Namespace, name.Name)
	if pod == nil {
		return nil, notFound("%s: there is no pod %s in namespace %s", info.Metric, name.Name, name.Namespace)
	}
	snapshot := p.snapshots.Snapshot()
	if err := collected(snapshot, info.Metric); err != nil {
		return nil, err
	}
	item, why := value(snapshot, info.Metric, pod)
	if why != nil {
		var none reasons
		none.add(*why)
		return nil, none.err(fmt.Sprintf("no value of %s for pod %s in namespace %s", info.Metric, name.Name, name.Namespace), snapshot)
	}
	return &item, nil
}

// GetMetricBySelector returns a signal of the selected pods that have a value. An HPA counts those
// left out as missing, which is the safe side.
func (p *Provider) GetMetricBySelector(_ context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	if err := p.ask(info, metricSelector); err != nil {
		return nil, err
	}
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	selected := p.pods.Select(namespace, selector)
	if len(selected) == 0 {
		return list, nil
	}
	snapshot := p.snapshots.Snapshot()
	if err := collected(snapshot, info.Metric); err != nil {
		return nil, err
	}
	list.Items = make([]custom_metrics.MetricValue, 0, len(selected))
	var none reasons
	for _, pod := range selected {
		item, why := value(snapshot, info.Metric, pod)
		if why != nil {
			none.add(*why)
			continue
		}
		list.Items = append(list.Items, item)
	}
	if len(list.Items) == 0 {
		return nil, none.err(fmt.Sprintf("no value of %s for any of the pods selected (%d) in namespace %s", info.Metric, len(selected), namespace), snapshot)
	}
	return list, nil
}

// ask tells the collector that a metric is wanted, or says why it cannot be had.
func (p *Provider) ask(info provider.CustomMetricInfo, metricSelector labels.Selector) error {
	if info.GroupResource != podResource {
		return notFound("%s is not served on %s: signals are served on pods", info.Metric, info.GroupResource)
	}
	if !info.Namespaced {
		return notFound("%s is served on pods, which are in a namespace: ask under .../namespaces/NAMESPACE/pods/...", info.Metric)
	}
	if signals.Lookup(info.Metric) == nil {
		return notFound("there is no metric %s; kubectl get --raw %s lists those there are", info.Metric, versionPath(preferred))
	}
	p.snapshots.Ask(info.Metric)
	if !metricSelector.Empty() {
		return badRequest("%s of a pod has no labels that a metric selector (%s) could choose by: leave it out", info.Metric, metricSelector)
	}
	return nil
}

// collected says when a signal that nobody wanted before will be there.
func collected(snapshot *collect.Snapshot, signal string) error {
	switch {
	case snapshot.Collected(signal):
		return nil
	case snapshot.Err != nil:
		return unavailable("%s is not collected yet, and the source cannot be read: %v", signal, snapshot.Err)
	}
	return unavailable("%s is warming up, as it has not been asked for lately: ask again in %.0f s", signal, max(1, snapshot.Next().Seconds()))
}

// absence is why a pod has no value.
type absence struct {
	reason string
	// data says that it is for want of data, not because of what the pod is.
	data bool
}

// value returns a signal of a pod, or why there is none.
func value(snapshot *collect.Snapshot, signal string, pod *pods.Pod) (custom_metrics.MetricValue, *absence) {
	switch {
	case pod.Gone:
		return custom_metrics.MetricValue{}, &absence{reason: "being deleted, or ended"}
	case !pod.WasReady:
		return custom_metrics.MetricValue{}, &absence{reason: "warming up (never Ready)"}
	}
	r := snapshot.Result(signal, pod)
	if !r.HasValue {
		return custom_metrics.MetricValue{}, &absence{reason: r.Reason, data: true}
	}
	milli, err := milliValue(r.Value)
	if err != nil {
		return custom_metrics.MetricValue{}, &absence{reason: err.Error(), data: true}
	}
	return custom_metrics.MetricValue{
		DescribedObject: custom_metrics.ObjectReference{
			Kind:       "Pod",
			Namespace:  pod.Namespace,
			Name:       pod.Name,
			APIVersion: "v1",
		},
		Metric:        custom_metrics.MetricIdentifier{Name: signal},
		Timestamp:     metav1.NewTime(r.Time),
		WindowSeconds: seconds(r.Window),
		Value:         *resource.NewMilliQuantity(milli, resource.DecimalSI),
	}, nil
}

// seconds returns a window in whole seconds, at least one; nil for an instantaneous value.
func seconds(window time.Duration) *int64 {
	if window <= 0 {
		return nil
	}
	s := max(1, int64(window.Round(time.Second)/time.Second))
	return &s
}
