// Package provider answers the custom metrics API, and the external one, from the collector's snapshots.
//
// A request reads what is in memory already, the pods, the objects they belong to and the newest
// snapshot; it makes no LIST and no query. The package holds to the project's first law at the edge where
// an HPA would be harmed: what has no value is left out of a list or answered with an error that says
// why, never with a zero.
package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Snapshots is what the provider needs of a collector.
type Snapshots interface {
	// Snapshot returns the newest snapshot, never nil.
	Snapshot() *collect.Snapshot
	// Ask says that somebody asked a query. It is called for every request.
	Ask(plan *signals.Plan) error
}

// Config is what a Provider answers from.
type Config struct {
	Snapshots Snapshots
	Pods      pods.Lister
	Groups    pods.Groups
	// External says that external metrics are served too.
	External bool
	// Rules, if set, serve what is no signal.
	Rules Rules
}

// Provider serves every signal of the catalogue, on pods and on the objects that stand for groups of them.
type Provider struct {
	Config
	served  []provider.CustomMetricInfo
	metrics *metrics
}

var _ provider.CustomMetricsProvider = (*Provider)(nil)

var podResource = schema.GroupResource{Resource: "pods"}

// New returns a provider.
func New(c Config) *Provider {
	p := &Provider{Config: c, metrics: newMetrics()}
	for _, s := range signals.Catalogue() {
		if !s.OfPool() {
			p.served = append(p.served, provider.CustomMetricInfo{GroupResource: podResource, Namespaced: true, Metric: s.Name})
		}
		for _, kind := range c.Groups.Kinds() {
			if !s.OfPool() || isPool(kind) {
				p.served = append(p.served, provider.CustomMetricInfo{GroupResource: kind, Namespaced: kind != pods.Namespaces, Metric: s.Name})
			}
		}
	}
	return p
}

// ListAllMetrics returns what is served, whether or not it has a value now: a list that followed the
// data would be empty while the source is down.
func (p *Provider) ListAllMetrics() []provider.CustomMetricInfo {
	if p.Rules == nil {
		return p.served
	}
	all := slices.Clone(p.served)
	for _, m := range p.Rules.Custom() {
		all = append(all, provider.CustomMetricInfo{GroupResource: m.GroupResource, Namespaced: m.Namespaced, Metric: m.Name})
	}
	return all
}

// GetMetricByName returns a signal of one pod, or of one object.
func (p *Provider) GetMetricByName(_ context.Context, name types.NamespacedName, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	if p.ruled(info.Metric) {
		return p.ruledByName(name, info, metricSelector)
	}
	snapshot := p.Snapshots.Snapshot()
	o := pods.Object{GroupResource: info.GroupResource, Namespace: name.Namespace, Name: name.Name}
	of := o.String()
	if info.GroupResource == podResource {
		of = fmt.Sprintf("pod %s in namespace %s", name.Name, name.Namespace)
	}
	r, err := p.askOf(snapshot, info, metricSelector, of)
	if err != nil {
		return nil, err
	}
	if info.GroupResource != podResource {
		return p.ofObject(o, r, snapshot)
	}
	pod := p.Pods.Get(name.Namespace, name.Name)
	if pod == nil {
		return nil, notFound("%s: there is no %s; kubectl get pods --namespace %s lists those there are", info.Metric, of, name.Namespace)
	}
	if err := collected(snapshot, r, of); err != nil {
		return nil, err
	}
	item, why := p.ofPod(snapshot, r, pod)
	if why != nil {
		var none reasons
		none.add(*why)
		return nil, none.err(fmt.Sprintf("no value of %s for %s", info.Metric, of), snapshot)
	}
	return &item, nil
}

// GetMetricBySelector returns a signal of the selected pods or objects that have a value. An HPA counts
// the pods left out as missing, which is the safe side.
func (p *Provider) GetMetricBySelector(ctx context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	if p.ruled(info.Metric) {
		return p.ruledBySelector(ctx, namespace, selector, info, metricSelector)
	}
	snapshot := p.Snapshots.Snapshot()
	of := fmt.Sprintf("the %s selected in namespace %s", info.GroupResource, namespace)
	if namespace == "" {
		of = fmt.Sprintf("the %s selected", info.GroupResource)
	}
	r, err := p.askOf(snapshot, info, metricSelector, of)
	if err != nil {
		return nil, err
	}
	if info.GroupResource != podResource {
		return p.ofObjects(info.GroupResource, namespace, selector, r, of, snapshot)
	}
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	selected := p.Pods.Select(namespace, selector)
	if len(selected) == 0 {
		return list, nil
	}
	if err := collected(snapshot, r, of); err != nil {
		return nil, err
	}
	list.Items = make([]custom_metrics.MetricValue, 0, len(selected))
	var none reasons
	for _, pod := range selected {
		item, why := p.ofPod(snapshot, r, pod)
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

// askOf asks for a signal of pods, or of objects of a kind; of says of which.
func (p *Provider) askOf(snapshot *collect.Snapshot, info provider.CustomMetricInfo, metricSelector labels.Selector, of string) (query.Request, error) {
	if kinds := p.Groups.Kinds(); info.GroupResource != podResource && !slices.Contains(kinds, info.GroupResource) {
		return query.Request{}, notFound("%s is not served on %s: signals are served on pods%s; asked for %s", info.Metric, info.GroupResource, listed(kinds), of)
	}
	switch {
	case info.GroupResource == pods.Namespaces && info.Namespaced:
		// The asker was let in for the namespace in the path, and asks for one that is named behind it.
		return query.Request{}, notFound("%s is served on namespaces, which are in none: ask for .../namespaces/NAMESPACE/metrics/%s, and not for %s", info.Metric, info.Metric, of)
	case info.GroupResource != pods.Namespaces && !info.Namespaced:
		return query.Request{}, notFound("%s is served on %s, which are in a namespace: ask under .../namespaces/NAMESPACE/%s/..., and not for %s", info.Metric, info.GroupResource, info.GroupResource, of)
	}
	return p.ask(snapshot, info.Metric, metricSelector, of, preferred, isPool(info.GroupResource))
}

// ask tells the collector what is wanted, or says why it cannot be had, of what it was asked for; lists is
// the version whose document lists what there is, and ofPool says that it is of a pool.
// The request is read by the settings that the snapshot was made under: other ones are not measured yet.
func (p *Provider) ask(snapshot *collect.Snapshot, metric string, metricSelector labels.Selector, of string, lists schema.GroupVersion, ofPool bool) (query.Request, error) {
	s := snapshot.Settings()
	r, err := query.Parser{Window: s.Params.Window, Windows: s.Windows}.Parse(metric, metricSelector)
	switch {
	case errors.Is(err, signals.ErrNoSignal):
		return r, notFound("there is no metric %s, asked for %s; kubectl get --raw %s lists those there are", metric, of, versionPath(lists))
	case errors.Is(err, signals.ErrNotComputable):
		return r, notFound("%v; asked for %s; kubectl get --raw %s lists what there is", err, of, versionPath(lists))
	case err != nil:
		return r, badRequest("%s for %s: %v; docs/api.md tells what a metric selector may say", metric, of, err)
	}
	if r.Plan.Signal().OfPool() && !ofPool {
		return r, notFound("%s is of the gateway in front of a pool, and not of %s: ask for it on an InferencePool", metric, of)
	}
	if err := p.Snapshots.Ask(r.Plan); err != nil {
		return r, unavailable("%s for %s: %v%s", metric, of, err, more)
	}
	return r, nil
}

func listed(kinds []schema.GroupResource) string {
	var out string
	for _, k := range kinds {
		out += ", " + k.String()
	}
	return out
}

// collected says when a query that nobody asked before will be there, of what it was asked for.
func collected(snapshot *collect.Snapshot, r query.Request, of string) error {
	signal := r.Plan.Query.Signal
	switch {
	case snapshot.Collected(r.Plan.Query):
		return nil
	case snapshot.Err != nil:
		return unavailable("no value of %s for %s: it is not collected yet, and the source cannot be read: %v%s", signal, of, snapshot.Err, more)
	}
	return unavailable("no value of %s for %s: %s is warming up, as it has not been asked for lately: ask again in %.0f s", signal, of, signal, max(1, snapshot.Next().Seconds()))
}

// absence is why a pod has no value.
type absence struct {
	reason string
	// data says that it is for want of data, not because of what the pod is.
	data bool
}

// ofPod returns a signal of a pod, or why there is none.
func (p *Provider) ofPod(snapshot *collect.Snapshot, r query.Request, pod *pods.Pod) (custom_metrics.MetricValue, *absence) {
	switch {
	case pod.Gone:
		return custom_metrics.MetricValue{}, &absence{reason: "being deleted, or ended"}
	case !pod.WasReady:
		return custom_metrics.MetricValue{}, &absence{reason: "warming up (never Ready)"}
	case r.Roles() && !r.Takes(snapshot.Settings().Role(pod)):
		return custom_metrics.MetricValue{}, &absence{reason: "not of the role that the metric selector asks for"}
	}
	item, why := p.value(r, snapshot.Measure(r.Plan.Query, pod).Result)
	if why != nil {
		return item, why
	}
	item.DescribedObject = custom_metrics.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, APIVersion: "v1"}
	return item, nil
}

// value makes a result a value of the API, without the object it describes, or says why there is none.
func (p *Provider) value(r query.Request, result signals.Result) (custom_metrics.MetricValue, *absence) {
	p.metrics.answered(r.Plan.Query.Signal, result.State)
	if !result.HasValue {
		return custom_metrics.MetricValue{}, &absence{reason: result.Reason, data: true}
	}
	milli, err := milliValue(result.Value)
	if err != nil {
		return custom_metrics.MetricValue{}, &absence{reason: err.Error(), data: true}
	}
	return custom_metrics.MetricValue{
		Metric:        custom_metrics.MetricIdentifier{Name: r.Plan.Query.Signal, Selector: r.Selector},
		Timestamp:     metav1.NewTime(result.Time),
		WindowSeconds: seconds(result.Window),
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
