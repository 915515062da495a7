package provider

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/query"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// ofObject returns a signal of the group of pods that an object stands for.
func (p *Provider) ofObject(o pods.Object, r query.Request, snapshot *collect.Snapshot) (*custom_metrics.MetricValue, error) {
	if err := collected(snapshot, r, o.String()); err != nil {
		return nil, err
	}
	var result signals.Result
	if r.Plan.Signal().OfPool() {
		result = snapshot.Pool(r.Plan.Query, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}).Result
	} else {
		members, roles, err := p.members(o, r, snapshot)
		if err != nil {
			return nil, err
		}
		if len(members) == 0 {
			return nil, notFound("no value of %s for %s: it has no pod that has been Ready and is not ending%s%s", r.Plan.Query.Signal, o, ofRole(r), more)
		}
		result = snapshot.Merge(r.Plan, members, roles)
	}
	item, why := p.value(r, result)
	if why != nil {
		var none reasons
		none.add(*why)
		return nil, none.err(fmt.Sprintf("no value of %s for %s", r.Plan.Query.Signal, o), snapshot)
	}
	item.DescribedObject = reference(o)
	return &item, nil
}

// ofObjects returns a signal of each of the selected objects that has a value.
func (p *Provider) ofObjects(kind schema.GroupResource, namespace string, selector labels.Selector, r query.Request, of string, snapshot *collect.Snapshot) (*custom_metrics.MetricValueList, error) {
	objects, err := p.Groups.Objects(kind, namespace, selector)
	if err != nil {
		return nil, groupError(r.Plan.Query.Signal, kind, of, err)
	}
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	var first error
	for _, o := range objects {
		item, err := p.ofObject(o, r, snapshot)
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		list.Items = append(list.Items, *item)
	}
	if len(list.Items) == 0 && first != nil {
		return nil, first
	}
	return list, nil
}

// members returns the pods that count for an object, with their roles.
func (p *Provider) members(o pods.Object, r query.Request, snapshot *collect.Snapshot) ([]*pods.Pod, []string, error) {
	all, err := p.Groups.Members(o)
	if err != nil {
		return nil, nil, groupError(r.Plan.Query.Signal, o.GroupResource, o.String(), err)
	}
	return counting(all, mixtureOf(o.GroupResource), r, snapshot, o.String())
}

// mixture says what pods may be in a group besides those of engines.
type mixture int

const (
	// pure: none; it is one workload.
	pure mixture = iota
	// routed: what stands in front of engines, and has no GPU.
	routed
	// anything: whatever is in a namespace, jobs on GPUs too.
	anything
)

// counting returns those pods that count for a request, with their roles; of says whose they are. In a mixture
// those count that have an engine; where a GPU tells one, also before it has ever been seen to.
func counting(all []*pods.Pod, in mixture, r query.Request, snapshot *collect.Snapshot, of string) (members []*pods.Pod, roles []string, err error) {
	for _, pod := range all {
		role := snapshot.Settings().Role(pod)
		switch {
		case !pod.WasReady: // it has no part of the load yet
		case !r.Takes(role):
		case in != pure && !snapshot.Exports(pod) && !(in == routed && pod.GPU):
			// A router or a web server: the selector takes it in, and no engine is in it.
			if !snapshot.Surveyed(r.Plan.Query) {
				return nil, nil, unavailable("no value of %s for %s: whether pod %s has an engine is not known yet; the source cannot be read: %v%s", r.Plan.Query.Signal, of, pod.Name, snapshot.Err, more)
			}
		default:
			members, roles = append(members, pod), append(roles, role)
		}
	}
	return members, roles, nil
}

func ofRole(r query.Request) string {
	if r.Roles() {
		return ", of the role that the metric selector asks for"
	}
	return ""
}

// groupError says that the pods of an object, or of objects, cannot be told.
func groupError(metric string, kind schema.GroupResource, of string, err error) error {
	var why *pods.GroupError
	errors.As(err, &why)
	switch {
	case why != nil && why.Why == pods.NotRead:
		return unavailable("%s for %s: %v%s", metric, of, err, more)
	case why != nil && why.Why == pods.NotThere:
		return notFound("%s: %v; kubectl get %s lists those there are", metric, err, kind)
	}
	return notFound("%s for %s: %v; docs/api.md tells what can be asked for", metric, of, err)
}

// The kinds of object that take in pods of different workloads.
var (
	services = schema.GroupResource{Resource: "services"}
	pools    = []schema.GroupResource{
		{Group: "inference.networking.k8s.io", Resource: "inferencepools"},
		{Group: "inference.networking.x-k8s.io", Resource: "inferencepools"},
	}
)

func isPool(kind schema.GroupResource) bool { return slices.Contains(pools, kind) }

func mixtureOf(kind schema.GroupResource) mixture {
	switch {
	case kind == pods.Namespaces:
		return anything
	case kind == services || isPool(kind):
		return routed
	}
	return pure
}

// references are the kinds that objects are described by.
var references = map[schema.GroupResource]schema.GroupVersionKind{
	{Group: "apps", Resource: "deployments"}:  {Group: "apps", Version: "v1", Kind: "Deployment"},
	{Group: "apps", Resource: "statefulsets"}: {Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps", Resource: "replicasets"}:  {Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	services:                                  {Version: "v1", Kind: "Service"},
	pods.Namespaces:                           {Version: "v1", Kind: "Namespace"},
	pools[0]:                                  {Group: pools[0].Group, Version: "v1", Kind: "InferencePool"},
	pools[1]:                                  {Group: pools[1].Group, Version: "v1alpha2", Kind: "InferencePool"},
	{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}: {Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"},
}

// reference describes an object. One of a kind that is not built in is described by its resource: no
// client reads it, as the request has named the object.
func reference(o pods.Object) custom_metrics.ObjectReference {
	ref := custom_metrics.ObjectReference{Kind: o.Resource, APIVersion: o.Group, Namespace: o.Namespace, Name: o.Name}
	if gvk, ok := references[o.GroupResource]; ok {
		ref.APIVersion, ref.Kind = gvk.ToAPIVersionAndKind()
	}
	return ref
}
