package provider

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/rules"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Rules serve the metrics whose names are not those of signals.
type Rules interface {
	// Custom lists metrics of objects, and External those of no object.
	Custom() []rules.Metric
	External() []string
	// Resource returns the kind of object that a request is about.
	Resource(rules.Request) (rules.Resource, *rules.Error)
	Get(q rules.Request, name string) (rules.Value, *rules.Error)
	Select(ctx context.Context, q rules.Request, objects labels.Selector) ([]rules.Value, *rules.Error)
	OfNamespace(namespace, metric string, selector labels.Selector) ([]rules.Value, *rules.Error)
}

// ruled reports whether a metric is for rules to serve. Signals come first.
func (p *Provider) ruled(metric string) bool {
	if p.Rules == nil {
		return false
	}
	_, err := signals.Prepare(signals.Query{Signal: metric})
	return errors.Is(err, signals.ErrNoSignal)
}

func requestOf(namespace string, info provider.CustomMetricInfo, metricSelector labels.Selector) rules.Request {
	return rules.Request{Resource: info.GroupResource, Namespace: namespace, Metric: info.Metric, Selector: metricSelector}
}

func (p *Provider) ruledByName(name types.NamespacedName, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	q := requestOf(name.Namespace, info, metricSelector)
	v, err := p.Rules.Get(q, name.Name)
	if err != nil {
		return nil, ruleError(err, info.Metric, fmt.Sprintf("%s %s", info.GroupResource, name.Name), name.Namespace, preferred)
	}
	kind, err := p.Rules.Resource(q)
	if err != nil {
		return nil, ruleError(err, info.Metric, info.GroupResource.String(), name.Namespace, preferred)
	}
	item := ruledValue(kind, q, v)
	return &item, nil
}

func (p *Provider) ruledBySelector(ctx context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	q := requestOf(namespace, info, metricSelector)
	of := fmt.Sprintf("the %s selected", info.GroupResource)
	all, err := p.Rules.Select(ctx, q, selector)
	if err != nil {
		return nil, ruleError(err, info.Metric, of, namespace, preferred)
	}
	kind, err := p.Rules.Resource(q)
	if err != nil {
		return nil, ruleError(err, info.Metric, of, namespace, preferred)
	}
	list := &custom_metrics.MetricValueList{Items: make([]custom_metrics.MetricValue, len(all))}
	for i, v := range all {
		list.Items[i] = ruledValue(kind, q, v)
	}
	return list, nil
}

func (p *Provider) ruledExternal(namespace string, metricSelector labels.Selector, metric string) (*external_metrics.ExternalMetricValueList, error) {
	all, err := p.Rules.OfNamespace(namespace, metric, metricSelector)
	if err != nil {
		return nil, ruleError(err, metric, "the external metric", namespace, external)
	}
	list := &external_metrics.ExternalMetricValueList{Items: make([]external_metrics.ExternalMetricValue, len(all))}
	for i, v := range all {
		list.Items[i] = external_metrics.ExternalMetricValue{
			MetricName: metric, MetricLabels: v.Labels, Timestamp: metav1.NewTime(v.Time),
			Value: *resource.NewMilliQuantity(v.Milli, resource.DecimalSI),
		}
	}
	return list, nil
}

func ruledValue(kind rules.Resource, q rules.Request, v rules.Value) custom_metrics.MetricValue {
	item := custom_metrics.MetricValue{
		DescribedObject: custom_metrics.ObjectReference{
			Kind: kind.Kind, APIVersion: schema.GroupVersion{Group: kind.Group, Version: kind.Version}.String(), Namespace: q.Namespace, Name: v.Name,
		},
		Metric:    custom_metrics.MetricIdentifier{Name: q.Metric},
		Timestamp: metav1.NewTime(v.Time),
		Value:     *resource.NewMilliQuantity(v.Milli, resource.DecimalSI),
	}
	if !q.Selector.Empty() {
		// It has been made a query, so that it has a form that this one can have.
		item.Metric.Selector, _ = metav1.ParseToLabelSelector(q.Selector.String())
	}
	return item
}

// ruleError says why rules have no value; lists is the version whose document lists what there is.
func ruleError(err *rules.Error, metric, of, namespace string, lists schema.GroupVersion) error {
	if namespace != "" {
		of += " in namespace " + namespace
	}
	switch err.Why {
	case rules.NotNow:
		return unavailable("no value of %s for %s: %v", metric, of, err)
	case rules.Refused:
		return badRequest("%s for %s: %v", metric, of, err)
	}
	return notFound("no value of %s for %s: %v; kubectl get --raw %s lists what there is", metric, of, err, versionPath(lists))
}
