package statetable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	customclient "k8s.io/metrics/pkg/client/custom_metrics"
	library "sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/provider"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// adapter is the adapter as its program wires it, less the API server.
type adapter struct {
	*provider.Provider
	collector *collect.Collector
	groups    *kube.Groups
	pods      pods.Lister
}

// deployments is the kind of object whose pods the HPAs here ask for as a group.
var deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

func startAdapter(t *testing.T, ctx context.Context, client kubernetes.Interface, src source.Source) *adapter {
	t.Helper()
	parser := query.Parser{Window: signals.DefaultParams().Window}
	podMirror, lister := kube.NewPods(client)
	collector, err := collect.New(collect.Config{Source: src, Pods: lister, Settings: collect.Settings{
		Params: signals.DefaultParams(),
		Role:   func(p *pods.Pod) string { return pods.Role(p, nil) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	hpaMirror := kube.NewHPAs(client, func(named []kube.MetricRef) {
		var plans []*signals.Plan
		for _, m := range named {
			if r, err := parser.ParseText(m.Name, m.Selector); err == nil {
				plans = append(plans, r.Plan)
			}
		}
		collector.SetStanding(plans)
	})
	groups := kube.NewGroups(client, nil, podMirror, lister, []schema.GroupResource{deployments})
	go podMirror.Run(ctx)
	go groups.Run(ctx)
	go hpaMirror.Run(ctx)
	go func() { _ = collector.Run(ctx) }()
	return &adapter{provider.New(provider.Config{Snapshots: collector, Pods: lister, Groups: groups}), collector, groups, lister}
}

// state is that of a metric, as collected last: on the first pod, or on the Deployment.
func (a *adapter) state(t *testing.T, m metric) signals.State {
	t.Helper()
	plan, err := signals.Prepare(signals.Query{Signal: m.signal})
	if err != nil {
		t.Fatal(err)
	}
	snapshot := a.collector.Snapshot()
	if m.kind == podsAverage {
		pod := a.pods.Get(namespace, podName(0))
		if pod == nil {
			return signals.Unknown
		}
		return snapshot.Measure(plan.Query, pod).State
	}
	members, err := a.groups.Members(pods.Object{GroupResource: deployments, Namespace: namespace, Name: app})
	if err != nil {
		t.Fatal(err)
	}
	members = slices.DeleteFunc(members, func(p *pods.Pod) bool { return !p.WasReady })
	return snapshot.Merge(plan, members, make([]string, len(members))).State
}

// metricsClient is what the HPA controller asks: its own client, over a connection that carries
// the adapter's answers as the API server would, and keeps them.
type metricsClient struct {
	adapter *adapter
	began   time.Time

	mu      sync.Mutex
	answers []answer
}

// answer is one answer of the adapter.
type answer struct {
	at     time.Duration
	values map[string]string // by object
	err    error
}

func (a answer) String() string {
	if a.err != nil {
		var status apierrors.APIStatus
		if !errors.As(a.err, &status) {
			return a.err.Error()
		}
		return fmt.Sprint(status.Status().Code)
	}
	pods := map[string]int{}
	for _, v := range a.values {
		pods[v]++
	}
	if len(a.values) == 1 {
		for v := range pods {
			return v
		}
	}
	var parts []string
	for v, n := range pods {
		parts = append(parts, fmt.Sprintf("%d × %s", n, v))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func (c *metricsClient) rest() metrics.MetricsClient {
	return metrics.NewRESTMetricsClient(nil, c, nil)
}

var _ customclient.CustomMetricsClient = (*metricsClient)(nil)

func (c *metricsClient) NamespacedMetrics(ns string) customclient.MetricsInterface {
	return namespaced{c, ns}
}

func (c *metricsClient) RootScopedMetrics() customclient.MetricsInterface {
	panic("the HPAs here scale on what is in a namespace")
}

type namespaced struct {
	*metricsClient
	namespace string
}

func (c namespaced) GetForObject(of schema.GroupKind, name, metric string, selector labels.Selector) (*v1beta2.MetricValue, error) {
	value, err := c.adapter.GetMetricByName(context.Background(), types.NamespacedName{Namespace: c.namespace, Name: name}, info(of, metric), inURL(selector))
	if err != nil {
		c.keep(err)
		return nil, err
	}
	list, err := c.carry(&custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{*value}})
	if err != nil {
		return nil, err
	}
	c.keep(nil, list.Items...)
	return &list.Items[0], nil
}

func (c namespaced) GetForObjects(of schema.GroupKind, podSelector labels.Selector, metric string, selector labels.Selector) (*v1beta2.MetricValueList, error) {
	values, err := c.adapter.GetMetricBySelector(context.Background(), c.namespace, inURL(podSelector), info(of, metric), inURL(selector))
	if err != nil {
		c.keep(err)
		return nil, err
	}
	list, err := c.carry(values)
	if err != nil {
		return nil, err
	}
	c.keep(nil, list.Items...)
	return list, nil
}

func info(of schema.GroupKind, metric string) library.CustomMetricInfo {
	resource, ok := map[schema.GroupKind]schema.GroupResource{
		{Kind: "Pod"}:                       {Resource: "pods"},
		{Group: "apps", Kind: "Deployment"}: deployments,
	}[of]
	if !ok {
		panic(fmt.Sprintf("the HPAs here scale on pods and Deployments, not on %s", of))
	}
	return library.CustomMetricInfo{GroupResource: resource, Namespaced: true, Metric: metric}
}

// inURL is what becomes of a selector in a URL: no selector, which matches nothing in memory, is
// empty there and matches everything.
func inURL(s labels.Selector) labels.Selector {
	out, err := labels.Parse(s.String())
	if err != nil {
		panic(err)
	}
	return out
}

// carry converts and serializes a list, with what that loses.
func (c namespaced) carry(in *custom_metrics.MetricValueList) (*v1beta2.MetricValueList, error) {
	var sent, received v1beta2.MetricValueList
	if err := v1beta2.Convert_custom_metrics_MetricValueList_To_v1beta2_MetricValueList(in, &sent, nil); err != nil {
		return nil, err
	}
	wire, err := json.Marshal(&sent)
	if err != nil {
		return nil, err
	}
	return &received, json.Unmarshal(wire, &received)
}

func (c namespaced) keep(err error, items ...v1beta2.MetricValue) {
	a := answer{at: time.Since(c.began), err: err}
	if err == nil {
		a.values = map[string]string{}
		for _, item := range items {
			a.values[item.DescribedObject.Name] = fmt.Sprintf("%g", item.Value.AsApproximateFloat64())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = append(c.answers, a)
}
