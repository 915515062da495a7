package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/inference-metrics/adapter/internal/pods"
)

var (
	deployments  = schema.GroupResource{Group: "apps", Resource: "deployments"}
	statefulSets = schema.GroupResource{Group: "apps", Resource: "statefulsets"}
	replicaSets  = schema.GroupResource{Group: "apps", Resource: "replicasets"}
	services     = schema.GroupResource{Resource: "services"}

	leaderWorkerSets  = schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}
	inferencePools    = schema.GroupResource{Group: "inference.networking.k8s.io", Resource: "inferencepools"}
	inferencePoolsOld = schema.GroupResource{Group: "inference.networking.x-k8s.io", Resource: "inferencepools"}
)

// DefaultKinds are the kinds of object whose pods are found unless the configuration says otherwise.
// The ClusterRole that we ship allows to read these.
func DefaultKinds() []schema.GroupResource {
	return []schema.GroupResource{
		deployments, statefulSets, replicaSets, leaderWorkerSets, services, inferencePools, inferencePoolsOld, pods.Namespaces,
	}
}

// Groups finds the pods of objects by mirrors of their selectors.
type Groups struct {
	pods     pods.Lister
	podsRead func() bool
	kinds    []*kind
	byName   map[schema.GroupResource]*kind
	// again is how long after a kind was not there it is looked for again.
	again time.Duration

	// mu guards what the kinds hold: objects come and go far less often than they are asked for.
	mu sync.RWMutex
	// byUID holds the objects of all kinds.
	byUID map[types.UID]*object
}

var _ pods.Groups = (*Groups)(nil)

// object is what is kept of an object of the cluster. It does not change: another takes its place.
type object struct {
	types.NamespacedName
	uid, owner  types.UID
	labels      labels.Set
	annotations map[string]string
	// selector selects its pods. It is nil when that is not known, for the reason without.
	selector labels.Selector
	without  *pods.GroupError
	// stamp changes when the scale subresource has to be read again; for kinds that have one.
	stamp string
}

// NewGroups finds the pods of objects of some kinds, among those that a mirror of pods reads. A kind
// that is not built in need not be there yet: it is looked for until it is.
func NewGroups(client kubernetes.Interface, dynamicClient dynamic.Interface, mirror *Mirror, lister pods.Lister, kinds []schema.GroupResource) *Groups {
	g := &Groups{
		pods: lister, podsRead: mirror.Synced,
		byName: map[schema.GroupResource]*kind{}, byUID: map[types.UID]*object{},
		again: time.Minute,
	}
	for _, resource := range kinds {
		k := newKind(g, client, dynamicClient, resource)
		g.kinds = append(g.kinds, k)
		g.byName[resource] = k
	}
	return g
}

// Run mirrors until ctx ends.
func (g *Groups) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, k := range g.kinds {
		running.Go(func() { k.run(ctx) })
	}
	running.Wait()
}

// Synced reports whether of every kind all that was there has been read once. A kind that the
// cluster does not have, or does not let us read, is not waited for: the rest works without it.
func (g *Groups) Synced() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return !slices.ContainsFunc(g.kinds, func(k *kind) bool { return !k.settled() })
}

// String names what is mirrored, in the plural.
func (g *Groups) String() string { return "groups" }

// Kinds lists the kinds that were allowed.
func (g *Groups) Kinds() []schema.GroupResource {
	all := make([]schema.GroupResource, len(g.kinds))
	for i, k := range g.kinds {
		all[i] = k.resource
	}
	return all
}

// Members returns the pods of an object that should export.
func (g *Groups) Members(of pods.Object) ([]*pods.Pod, error) {
	if of.GroupResource == pods.Namespaces {
		return g.inNamespace(of)
	}
	selector, err := g.selector(of)
	if err != nil {
		return nil, err
	}
	if !g.podsRead() {
		return nil, podsNotRead()
	}
	return exporting(g.pods.Select(of.Namespace, selector)), nil
}

func (g *Groups) inNamespace(of pods.Object) ([]*pods.Pod, error) {
	if _, err := g.kind(of.GroupResource); err != nil {
		return nil, err
	}
	if !g.podsRead() {
		return nil, podsNotRead()
	}
	all := g.pods.Select(of.Name, labels.Everything())
	if len(all) == 0 {
		// Namespaces are not read, so that one which is not there cannot be told from an empty one.
		return nil, groupError(pods.NotThere, "there are no pods in a namespace %s", of.Name)
	}
	return exporting(all), nil
}

func exporting(all []*pods.Pod) []*pods.Pod {
	return slices.DeleteFunc(all, func(p *pods.Pod) bool { return !p.Exports() })
}

// Objects returns the objects of a kind in a namespace whose labels match. Of namespaces it is the
// one that was named, as their labels are not read.
func (g *Groups) Objects(resource schema.GroupResource, namespace string, selector labels.Selector) ([]pods.Object, error) {
	if resource == pods.Namespaces {
		of := pods.Object{GroupResource: resource, Name: namespace}
		if _, err := g.inNamespace(of); err != nil {
			return nil, err
		}
		if !selector.Empty() {
			return nil, groupError(pods.NoSelector, "namespaces cannot be selected by labels: name one")
		}
		return []pods.Object{of}, nil
	}
	k, err := g.kind(resource)
	if err != nil {
		return nil, err
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if err := k.unread(); err != nil {
		return nil, err
	}
	var all []pods.Object
	for _, o := range k.objects[namespace] {
		if selector.Matches(o.labels) {
			all = append(all, pods.Object{GroupResource: resource, Namespace: o.Namespace, Name: o.Name})
		}
	}
	slices.SortFunc(all, func(a, b pods.Object) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// maxOwners bounds a chain of owners, which only a broken object makes long.
const maxOwners = 8

// Annotations returns our annotations that hold for a pod. The chain of owners ends at one whose
// kind is not allowed, or cannot be read.
func (g *Groups) Annotations(p *pods.Pod) map[string]string {
	g.mu.RLock()
	defer g.mu.RUnlock()
	annotations, owner := p.Annotations, p.Owner
	for range maxOwners {
		o := g.byUID[owner]
		if owner == "" || o == nil {
			break
		}
		annotations, owner = pods.Overlay(annotations, o.annotations), o.owner
	}
	return annotations
}

func (g *Groups) selector(of pods.Object) (labels.Selector, error) {
	k, err := g.kind(of.GroupResource)
	if err != nil {
		return nil, err
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if err := k.unread(); err != nil {
		return nil, err
	}
	o := k.objects[of.Namespace][of.Name]
	switch {
	case o == nil:
		return nil, groupError(pods.NotThere, "there is no %s", of)
	case o.selector == nil:
		return nil, groupError(o.without.Why, "%s: %s", of, o.without.Message)
	}
	return o.selector, nil
}

func (g *Groups) kind(resource schema.GroupResource) (*kind, error) {
	if k := g.byName[resource]; k != nil {
		return k, nil
	}
	if len(g.kinds) == 0 {
		return nil, groupError(pods.NotServed, "%s are not served: the configuration allows pods only", resource)
	}
	var allowed []string
	for _, k := range g.kinds {
		allowed = append(allowed, k.resource.String())
	}
	return nil, groupError(pods.NotServed, "%s are not served: the configuration allows %s", resource, strings.Join(allowed, ", "))
}

// put keeps an object, in the place of any other of its name. mu is held.
func (g *Groups) put(k *kind, o *object) {
	of := k.objects[o.Namespace]
	if of == nil {
		of = map[string]*object{}
		k.objects[o.Namespace] = of
	}
	if before := of[o.Name]; before != nil {
		delete(g.byUID, before.uid)
	}
	of[o.Name] = o
	g.byUID[o.uid] = o
}

// drop forgets an object. mu is held.
func (g *Groups) drop(k *kind, name types.NamespacedName) {
	of := k.objects[name.Namespace]
	if o := of[name.Name]; o != nil {
		delete(g.byUID, o.uid)
	}
	if delete(of, name.Name); len(of) == 0 {
		delete(k.objects, name.Namespace)
	}
}

// clear forgets all objects of a kind. mu is held.
func (g *Groups) clear(k *kind) {
	for _, of := range k.objects {
		for _, o := range of {
			delete(g.byUID, o.uid)
		}
	}
	k.objects = map[string]map[string]*object{}
}

func podsNotRead() error {
	return groupError(pods.NotRead, "the pods of the cluster have not been read yet")
}

func groupError(why pods.Why, format string, args ...any) *pods.GroupError {
	return &pods.GroupError{Why: why, Message: fmt.Sprintf(format, args...)}
}
