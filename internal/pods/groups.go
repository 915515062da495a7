package pods

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AnnotationPrefix is that of the annotations which are ours.
const AnnotationPrefix = "inference-metrics.github.io/"

// Namespaces is the kind that stands for all pods of a namespace. It alone is not in a namespace:
// Name is the namespace, as in the metrics API.
var Namespaces = schema.GroupResource{Resource: "namespaces"}

// Object names an object of the cluster that stands for a group of pods.
type Object struct {
	schema.GroupResource
	Namespace, Name string
}

func (o Object) String() string {
	if o.Namespace == "" {
		return fmt.Sprintf("%s %s", o.GroupResource, o.Name)
	}
	return fmt.Sprintf("%s %s in namespace %s", o.GroupResource, o.Name, o.Namespace)
}

// Groups finds the pods of objects, from memory. What it returns is shared and must not be changed.
// Its errors are of type *GroupError.
type Groups interface {
	// Kinds lists the kinds of object that may be asked for, in the plural. All but Namespaces are
	// in a namespace. A kind may be listed that the cluster does not have, so that the list is the
	// same whenever it is asked for.
	Kinds() []schema.GroupResource
	// Members returns the pods of an object that should export, sorted by name: not those that are
	// Gone, and of a replica of several pods only the leader. None is no error: the object may be
	// scaled to zero.
	Members(Object) ([]*Pod, error)
	// Objects returns the objects of a kind in a namespace whose labels match, sorted by name.
	Objects(kind schema.GroupResource, namespace string, selector labels.Selector) ([]Object, error)
	// Annotations returns our annotations that hold for a pod: its own, and those of the objects
	// that control it, of which the nearest wins, key by key.
	Annotations(*Pod) map[string]string
}

// Why says for what reason the pods of an object cannot be told.
type Why int

const (
	// NotServed: the kind is not allowed, or the cluster does not have it.
	NotServed Why = iota + 1
	// NotThere: there is no such object.
	NotThere
	// NoSelector: the object does not say which pods are its own.
	NoSelector
	// NotRead: it is not known at the moment, as the cluster has not answered yet, or refuses to.
	NotRead
)

// GroupError is why the pods of an object cannot be told.
type GroupError struct {
	Why     Why
	Message string
}

func (e *GroupError) Error() string { return e.Message }

// NoGroups is Groups where there are no objects: without Kubernetes.
type NoGroups struct{}

var _ Groups = NoGroups{}

// Kinds returns none.
func (NoGroups) Kinds() []schema.GroupResource { return nil }

// Members knows no object.
func (NoGroups) Members(o Object) ([]*Pod, error) { return nil, noObjects(o.GroupResource) }

// Objects knows no object.
func (NoGroups) Objects(kind schema.GroupResource, _ string, _ labels.Selector) ([]Object, error) {
	return nil, noObjects(kind)
}

// Annotations returns the pod's own.
func (NoGroups) Annotations(p *Pod) map[string]string { return p.Annotations }

func noObjects(kind schema.GroupResource) error {
	return &GroupError{NotServed, fmt.Sprintf("there are no %s, as there is no cluster: ask for pods", kind)}
}

// Overlay returns the annotations near, and those of far that near does not have. It returns one of
// the two when that is all.
func Overlay(near, far map[string]string) map[string]string {
	switch {
	case len(far) == 0:
		return near
	case len(near) == 0:
		return far
	}
	both := maps.Clone(far)
	maps.Copy(both, near)
	return both
}

// workers are labels that tell the pods of a replica that spans several from the one that has the
// API server: by a number, which is 0 for that one, or by a name.
var workers = []struct{ label, leader, worker string }{
	{label: "leaderworkerset.sigs.k8s.io/worker-index", leader: "0"},
	{label: "stormservice.orchestration.aibrix.ai/pod-group-index", leader: "0"},
	{label: "ray.io/node-type", worker: "worker"},
}

// Exports reports whether a pod is one that should export an engine's metrics. The workers of a
// replica that spans pods run a part of the model, and count no requests.
func (p *Pod) Exports() bool {
	if p.Gone {
		return false
	}
	for _, w := range workers {
		value, ok := p.Labels[w.label]
		if ok && (value == w.worker || w.leader != "" && value != w.leader) {
			return false
		}
	}
	return true
}
