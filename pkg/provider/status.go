package provider

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Shown are the kinds of object that are shown to people.
func (p *Provider) Shown() []schema.GroupResource {
	return slices.DeleteFunc(slices.Clone(p.Groups.Kinds()), func(kind schema.GroupResource) bool { return skipped[kind] })
}

// Result returns what a request for a signal of an object would be answered from a snapshot, and asks for
// nothing. It is not ok where nobody would expect one: the signal is another kind of object's, none of its
// pods has an engine, or none of their engines is the signal's.
func (p *Provider) Result(snapshot *collect.Snapshot, o pods.Object, plan *signals.Plan) (r signals.Result, ok bool) {
	if plan.Signal().OfPool() {
		if !isPool(o.GroupResource) {
			return r, false
		}
		return snapshot.Pool(plan.Query, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}).Result, true
	}
	members, roles, err := p.members(o, query.Request{Plan: plan}, snapshot)
	if err != nil || !slices.ContainsFunc(members, func(pod *pods.Pod) bool {
		return counts(snapshot, pod) && !snapshot.Measure(plan.Query, pod).Foreign()
	}) {
		return r, false
	}
	return snapshot.Merge(plan, members, roles), true
}
