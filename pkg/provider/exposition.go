package provider

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Exposition shows signals as series of Prometheus, for those who ask a Prometheus and not us: dashboards,
// alerts, KEDA. It answers from memory, as requests are, and holds to the same law: what is unknown has no
// series of its value, and a series that says so.
//
// Whoever gathers it asks for its signals, so that they are collected.
type Exposition struct {
	provider *Provider
	plans    []*signals.Plan

	pod, podState, object, objectState, replicas *prometheus.Desc
}

var _ prometheus.Collector = (*Exposition)(nil)

// NewExposition shows signals of the provider's pods and objects. Of each plan there are at most two series
// for each pod with an engine, and two for each object that stands for such pods.
func NewExposition(p *Provider, plans []*signals.Plan) *Exposition {
	desc := func(name, help string, of ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"signal", "namespace"}, of...), nil)
	}
	return &Exposition{
		provider: p, plans: plans,
		pod:         desc("inference_signal", "Signal of a pod. While it is unknown there is no series.", "pod"),
		podState:    desc("inference_signal_state", "1 for the state that the signal of a pod is in: value, idle, stalled or unknown.", "pod", "state"),
		object:      desc("inference_object_signal", "Signal of all pods of an object together. While it is unknown there is no series.", "resource", "name"),
		objectState: desc("inference_object_signal_state", "1 for the state that the signal of an object is in: value, idle, stalled or unknown.", "resource", "name", "state"),
		replicas: prometheus.NewDesc("inference_object_replicas", "Pods of an object that count for its signals: those that have been Ready and are not ending.",
			[]string{"namespace", "resource", "name"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (e *Exposition) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{e.pod, e.podState, e.object, e.objectState, e.replicas} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (e *Exposition) Collect(ch chan<- prometheus.Metric) {
	for _, plan := range e.plans {
		_ = e.provider.Snapshots.Ask(plan) // there is room for every signal without parameters
	}
	snapshot := e.provider.Snapshots.Snapshot()
	plans := slices.DeleteFunc(slices.Clone(e.plans), func(p *signals.Plan) bool { return !snapshot.Collected(p.Query) })
	ofPods := slices.DeleteFunc(slices.Clone(plans), func(p *signals.Plan) bool { return p.Signal().OfPool() })
	ofPools := slices.DeleteFunc(slices.Clone(plans), func(p *signals.Plan) bool { return !p.Signal().OfPool() })

	// Where there are pods at all, and where there are engines.
	inhabited, serving := map[string]bool{}, map[string]bool{}
	e.provider.Pods.All(func(pod *pods.Pod) {
		inhabited[pod.Namespace] = true
		if !counts(snapshot, pod) {
			return
		}
		serving[pod.Namespace] = true
		for _, plan := range ofPods {
			if m := snapshot.Measure(plan.Query, pod); !m.Foreign() {
				show(ch, e.pod, e.podState, m.Result, plan.Query.Signal, pod.Namespace, pod.Name)
			}
		}
	})
	for _, kind := range e.provider.Groups.Kinds() {
		if skipped[kind] {
			continue
		}
		if len(ofPods) > 0 {
			for namespace := range serving {
				for _, o := range e.objects(kind, namespace) {
					e.group(ch, snapshot, o, ofPods)
				}
			}
		}
		if len(ofPools) > 0 && isPool(kind) {
			for namespace := range inhabited {
				for _, o := range e.objects(kind, namespace) {
					for _, plan := range ofPools {
						m := snapshot.Pool(plan.Query, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
						show(ch, e.object, e.objectState, m.Result, plan.Query.Signal, o.Namespace, o.GroupResource.String(), o.Name)
					}
				}
			}
		}
	}
}

// skipped are kinds that would show once more what others do: a ReplicaSet what its Deployment does. A
// namespace can be summed up by whoever reads the series.
var skipped = map[schema.GroupResource]bool{
	{Group: "apps", Resource: "replicasets"}: true,
	pods.Namespaces:                          true,
}

// counts reports whether a pod has an engine, and has a part of the load.
func counts(snapshot *collect.Snapshot, pod *pods.Pod) bool {
	return pod.Exports() && pod.WasReady && snapshot.Exports(pod)
}

// objects returns the objects of a kind in a namespace: none where the kind is not there or not read, which
// other metrics tell.
func (e *Exposition) objects(kind schema.GroupResource, namespace string) []pods.Object {
	objects, _ := e.provider.Groups.Objects(kind, namespace, labels.Everything())
	return objects
}

// group shows an object that stands for pods with an engine. A signal of engines that none of them runs is
// not there: nobody would expect it.
func (e *Exposition) group(ch chan<- prometheus.Metric, snapshot *collect.Snapshot, o pods.Object, plans []*signals.Plan) {
	told := false
	for _, plan := range plans {
		members, roles, err := e.provider.members(o, query.Request{Plan: plan}, snapshot)
		if err != nil || !slices.ContainsFunc(members, func(pod *pods.Pod) bool { return counts(snapshot, pod) }) {
			continue
		}
		if !told {
			told = true
			ch <- prometheus.MustNewConstMetric(e.replicas, prometheus.GaugeValue, float64(len(members)), o.Namespace, o.GroupResource.String(), o.Name)
		}
		if slices.ContainsFunc(members, func(pod *pods.Pod) bool {
			return counts(snapshot, pod) && !snapshot.Measure(plan.Query, pod).Foreign()
		}) {
			show(ch, e.object, e.objectState, snapshot.Merge(plan, members, roles), plan.Query.Signal, o.Namespace, o.GroupResource.String(), o.Name)
		}
	}
}

// show sends a result, where it has a value that the API would answer, and its state.
func show(ch chan<- prometheus.Metric, value, state *prometheus.Desc, r signals.Result, of ...string) {
	if _, err := milliValue(r.Value); r.HasValue && err == nil {
		ch <- prometheus.MustNewConstMetric(value, prometheus.GaugeValue, r.Value, of...)
	}
	ch <- prometheus.MustNewConstMetric(state, prometheus.GaugeValue, 1, append(of, r.State.String())...)
}
