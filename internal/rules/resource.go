package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is a kind of object.
type Resource struct {
	schema.GroupResource
	Version, Kind string
	// Singular is the resource's name for one: pod.
	Singular string
	// Namespaced says that its objects are in a namespace.
	Namespaced bool
}

// The resource that says in which namespace the others are.
var namespaces = schema.GroupResource{Resource: "namespaces"}

// BuiltIn are the kinds that every cluster has. Of two of one name the first is meant.
var BuiltIn = []Resource{
	{schema.GroupResource{Resource: "pods"}, "v1", "Pod", "pod", true},
	{namespaces, "v1", "Namespace", "namespace", false},
	{schema.GroupResource{Resource: "nodes"}, "v1", "Node", "node", false},
	{schema.GroupResource{Resource: "services"}, "v1", "Service", "service", true},
	{schema.GroupResource{Resource: "endpoints"}, "v1", "Endpoints", "endpoints", true},
	{schema.GroupResource{Resource: "persistentvolumeclaims"}, "v1", "PersistentVolumeClaim", "persistentvolumeclaim", true},
	{schema.GroupResource{Resource: "persistentvolumes"}, "v1", "PersistentVolume", "persistentvolume", false},
	{schema.GroupResource{Resource: "replicationcontrollers"}, "v1", "ReplicationController", "replicationcontroller", true},
	{schema.GroupResource{Group: "apps", Resource: "deployments"}, "v1", "Deployment", "deployment", true},
	{schema.GroupResource{Group: "apps", Resource: "statefulsets"}, "v1", "StatefulSet", "statefulset", true},
	{schema.GroupResource{Group: "apps", Resource: "replicasets"}, "v1", "ReplicaSet", "replicaset", true},
	{schema.GroupResource{Group: "apps", Resource: "daemonsets"}, "v1", "DaemonSet", "daemonset", true},
	{schema.GroupResource{Group: "batch", Resource: "jobs"}, "v1", "Job", "job", true},
	{schema.GroupResource{Group: "batch", Resource: "cronjobs"}, "v1", "CronJob", "cronjob", true},
	{schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}, "v1", "Ingress", "ingress", true},
	{schema.GroupResource{Group: "autoscaling", Resource: "horizontalpodautoscalers"}, "v2", "HorizontalPodAutoscaler", "horizontalpodautoscaler", true},
}

// find returns the resource that a rule means by a name in the singular or the plural. Without a group it is
// the first of that name.
func find(all []Resource, group, name string) (Resource, bool) {
	for _, r := range all {
		if (group == "" || group == r.Group) && (name == r.Resource || name == r.Singular) {
			return r, true
		}
	}
	return Resource{}, false
}

// binding says which label of a rule's series stands for which kind of object.
type binding struct {
	resources map[string]Resource               // by label
	labels    map[schema.GroupResource]string   // of each
	byName    map[schema.GroupResource]Resource // those bound
}

// bind finds what the labels of a rule stand for, among the kinds that there are. What is said of a kind that
// is not there is a fault, and the rest holds without it.
func (r *Rule) bind(all []Resource) (binding, []Fault) {
	b := binding{resources: map[string]Resource{}, labels: map[schema.GroupResource]string{}, byName: map[schema.GroupResource]Resource{}}
	var faults []Fault
	put := func(label string, res Resource) {
		b.resources[label], b.labels[res.GroupResource], b.byName[res.GroupResource] = res, label, res
	}
	for _, label := range slices.Sorted(maps.Keys(r.overrides)) {
		path := r.Path + ".resources.overrides." + label
		named := r.overrides[label]
		res, ok := find(all, named.Group, named.Resource)
		if !ok {
			gr := schema.GroupResource{Group: named.Group, Resource: named.Resource}
			faults = append(faults, Fault{path, fmt.Errorf("%s is no kind of object that is known here: name it and its group as kubectl api-resources does", gr)})
			continue
		}
		if first, twice := b.labels[res.GroupResource]; twice {
			faults = append(faults, Fault{path, fmt.Errorf("%s are told by label %s already: leave one of them out", res.GroupResource, first)})
			continue
		}
		put(label, res)
	}
	if r.labelOf != nil {
		for _, res := range all {
			label, err := labelFor(r.labelOf, res)
			if err != nil {
				continue // such as of a group with a character that no label has
			}
			if _, taken := b.resources[label]; taken {
				continue
			}
			if _, overridden := b.labels[res.GroupResource]; overridden {
				continue
			}
			put(label, res)
		}
	}
	return b, faults
}

// labelArgs are what a template of labels is given.
type labelArgs struct{ Group, Resource string }

func newLabelTemplate(text string) (*template.Template, error) {
	t, err := newTemplate(text)
	if err != nil {
		return nil, err
	}
	a, err := execute(t, labelArgs{"groupa", "resourcea"})
	if err != nil {
		return nil, err
	}
	b, err := execute(t, labelArgs{"groupa", "resourceb"})
	switch {
	case err != nil:
		return nil, err
	case a == b:
		return nil, errors.New("it has no <<.Resource>> in it, so that one label would stand for every kind of object")
	case !model.LegacyValidation.IsValidLabelName(a):
		return nil, fmt.Errorf("it makes labels such as %q, which is no name of a label", a)
	}
	return t, nil
}

func labelFor(t *template.Template, res Resource) (string, error) {
	label, err := execute(t, labelArgs{strings.NewReplacer(".", "_", "-", "_").Replace(res.Group), res.Singular})
	if err == nil && !model.LegacyValidation.IsValidLabelName(label) {
		err = fmt.Errorf("%q is no name of a label", label)
	}
	return label, err
}
