package kube

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/inference-metrics/adapter/internal/pods"
)

// builtIn mirrors a kind that every cluster has; nil for any other.
func builtIn(k *kind, client kubernetes.Interface) *Mirror {
	apps, core := client.AppsV1(), client.CoreV1()
	switch k.resource {
	case deployments:
		c := apps.Deployments(metav1.NamespaceAll)
		return selecting(k, client, c.List, c.Watch, func(d *appsv1.Deployment) (labels.Selector, error) {
			d.Spec, d.Status = appsv1.DeploymentSpec{Selector: d.Spec.Selector}, appsv1.DeploymentStatus{}
			return metav1.LabelSelectorAsSelector(d.Spec.Selector)
		})
	case statefulSets:
		c := apps.StatefulSets(metav1.NamespaceAll)
		return selecting(k, client, c.List, c.Watch, func(s *appsv1.StatefulSet) (labels.Selector, error) {
			s.Spec, s.Status = appsv1.StatefulSetSpec{Selector: s.Spec.Selector}, appsv1.StatefulSetStatus{}
			return metav1.LabelSelectorAsSelector(s.Spec.Selector)
		})
	case replicaSets:
		c := apps.ReplicaSets(metav1.NamespaceAll)
		return selecting(k, client, c.List, c.Watch, func(r *appsv1.ReplicaSet) (labels.Selector, error) {
			r.Spec, r.Status = appsv1.ReplicaSetSpec{Selector: r.Spec.Selector}, appsv1.ReplicaSetStatus{}
			return metav1.LabelSelectorAsSelector(r.Spec.Selector)
		})
	case services:
		c := core.Services(metav1.NamespaceAll)
		return selecting(k, client, c.List, c.Watch, func(s *corev1.Service) (labels.Selector, error) {
			s.Spec, s.Status = corev1.ServiceSpec{Selector: s.Spec.Selector}, corev1.ServiceStatus{}
			return labels.ValidatedSelectorFromSet(s.Spec.Selector)
		})
	}
	return nil
}

// custom mirrors a kind that was found, and reads the scale subresources of its objects where those
// alone say a selector.
func custom(k *kind, f found) (*Mirror, *scales) {
	c := k.dynamic.Resource(f.resource)
	if selector, ok := selectorsOf[k.resource]; ok {
		return selecting(k, k.dynamic, c.List, c.Watch, selector), nil
	}
	s := newScales(k, c)
	m := newMirror(k.dynamic, k.resource.String(), c.List, c.Watch, objects[*unstructured.Unstructured](scaledObjects{s}))
	return m, s
}

// selectorsOf reads the selectors of those kinds that are not built in, and do not need their scale
// subresource for it: they have none, or it says what a field of the object does.
var selectorsOf = map[schema.GroupResource]func(*unstructured.Unstructured) (labels.Selector, error){
	leaderWorkerSets: func(u *unstructured.Unstructured) (labels.Selector, error) {
		keep(u, "status", "hpaPodSelector")
		text, _, err := unstructured.NestedString(u.Object, "status", "hpaPodSelector")
		if err != nil {
			return nil, err
		}
		return labels.Parse(text)
	},
	inferencePools:    poolSelector,
	inferencePoolsOld: poolSelector,
}

// poolSelector reads both forms: v1's matchLabels, and the plain map before it.
func poolSelector(u *unstructured.Unstructured) (labels.Selector, error) {
	keep(u, "spec", "selector")
	spec, _, err := unstructured.NestedMap(u.Object, "spec", "selector")
	if err != nil {
		return nil, err
	}
	match, plain := spec, true
	if nested, ok := spec["matchLabels"].(map[string]any); ok {
		match, plain = nested, false
	}
	if !plain && len(spec) > 1 {
		// What else a later version selects by would be passed over, and more pods be counted.
		return nil, errors.New("it has more than matchLabels")
	}
	set := labels.Set{}
	for key, value := range match {
		text, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("the value of %s is no text", key)
		}
		set[key] = text
	}
	return labels.ValidatedSelectorFromSet(set)
}

// keep clears all of an object but its metadata and one field.
func keep(u *unstructured.Unstructured, field ...string) {
	kept := map[string]any{"apiVersion": u.Object["apiVersion"], "kind": u.Object["kind"], "metadata": u.Object["metadata"]}
	if value, ok, err := unstructured.NestedFieldNoCopy(u.Object, field...); ok && err == nil {
		_ = unstructured.SetNestedField(kept, value, field...) // nothing is in its way
	}
	u.Object = kept
}

// kubeObject is an object with its metadata.
type kubeObject interface {
	runtime.Object
	metav1.Object
}

// selecting mirrors objects that say their selector themselves. The function returns it, and clears
// all of spec and status that it does not need.
func selecting[T kubeObject, L runtime.Object](k *kind, client any, list listFunc[L], watches watchFunc, selector func(T) (labels.Selector, error)) *Mirror {
	return newMirror(client, k.resource.String(), list, watches, objects[T](selectingObjects[T]{k, selector}))
}

type selectingObjects[T kubeObject] struct {
	kind     *kind
	selector func(T) (labels.Selector, error)
}

func (s selectingObjects[T]) trim(o T) {
	_, _ = s.selector(o) // an error is kept when the object is
	trimMeta(o)
}

func (s selectingObjects[T]) replace(list []T) {
	converted := make([]*object, len(list))
	for i, o := range list {
		converted[i] = s.convert(o)
	}
	g := s.kind.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clear(s.kind)
	for _, o := range converted {
		g.put(s.kind, o)
	}
}

func (s selectingObjects[T]) set(o T) {
	converted := s.convert(o)
	g := s.kind.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	g.put(s.kind, converted)
}

func (s selectingObjects[T]) remove(o T) {
	g := s.kind.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(s.kind, name(o))
}

func (s selectingObjects[T]) convert(o T) *object {
	converted := s.kind.convert(o)
	converted.selector, converted.without = usable(s.selector(o))
	return converted
}

// usable returns the selector, or why it is none. One that is empty would select every pod of the
// namespace, or none: kinds differ, and none of them means it.
func usable(selector labels.Selector, err error) (labels.Selector, *pods.GroupError) {
	switch {
	case err != nil:
		return nil, groupError(pods.NoSelector, "its selector cannot be read: %v", err)
	case selector.String() == "":
		return nil, groupError(pods.NoSelector, "it has no selector")
	}
	return selector, nil
}

// convert keeps what all kinds have.
func (k *kind) convert(o metav1.Object) *object {
	c := &object{
		NamespacedName: name(o),
		uid:            o.GetUID(),
		owner:          owner(o),
		labels:         o.GetLabels(),
		annotations:    ours(o.GetAnnotations()),
	}
	if k.resource == replicaSets && c.owner != "" {
		// The controller copies a Deployment's annotations to its ReplicaSets, and leaves those of
		// older ones, and what was removed, as they were. The Deployment has them first hand.
		c.annotations = nil
	}
	return c
}

func name(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// trimMeta clears what is not needed of an object's metadata.
func trimMeta(o metav1.Object) {
	o.SetAnnotations(ours(o.GetAnnotations()))
	o.SetOwnerReferences(controller(o))
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
}

// controller returns the owner references of an object but those that do not control it.
func controller(o metav1.Object) []metav1.OwnerReference {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return []metav1.OwnerReference{*ref}
	}
	return nil
}

func owner(o metav1.Object) types.UID {
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return ref.UID
	}
	return ""
}

// ours returns the annotations that are ours, or nil.
func ours(all map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range all {
		if !strings.HasPrefix(key, pods.AnnotationPrefix) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}
