package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/rules"
)

// kinds are the kinds of object that rules may be about: those that every cluster has, and those of this one.
type kinds struct {
	client discovery.DiscoveryInterface

	mu   sync.Mutex
	list []rules.Resource
	read bool
}

const (
	kindsEvery = 10 * time.Minute
	kindsAgain = 10 * time.Second
)

func newKinds(client discovery.DiscoveryInterface) *kinds {
	return &kinds{client: client, list: rules.BuiltIn}
}

// all returns the kinds known, and whether the cluster has been asked.
func (k *kinds) all() ([]rules.Resource, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list, k.read
}

// run asks the cluster now and then, until ctx ends: kinds come and go.
func (k *kinds) run(ctx context.Context) error {
	failed := false
	for {
		wait := kindsEvery
		found, err := kube.Resources(k.client)
		if err != nil {
			wait = kindsAgain
			if !failed {
				klog.FromContext(ctx).Error(err, "Cannot tell all kinds of object of the cluster; rules about others are served")
			}
		}
		failed = err != nil
		if len(found) > 0 {
			list := slices.Clone(rules.BuiltIn)
			for _, r := range found {
				of := schema.GroupResource{Group: r.Group, Resource: r.Name}
				if !slices.ContainsFunc(rules.BuiltIn, func(b rules.Resource) bool { return b.GroupResource == of }) {
					list = append(list, rules.Resource{GroupResource: of, Version: r.Version, Kind: r.Kind, Singular: r.SingularName, Namespaced: r.Namespaced})
				}
			}
			k.mu.Lock()
			k.list, k.read = list, true
			k.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// objects finds the names of objects: those that are mirrored from memory, and others by a list that serves for a
// while.
type objects struct {
	client metadata.Interface
	lister pods.Lister
	groups pods.Groups
	keep   time.Duration

	mu    sync.Mutex
	lists map[listed]*list
}

var _ rules.Objects = (*objects)(nil)

type listed struct {
	schema.GroupVersionResource
	namespace, selector string
}

type list struct {
	mu    sync.Mutex
	at    time.Time
	names []string
}

// maxLists bounds how many lists are kept.
const maxLists = 1000

func newObjects(client metadata.Interface, lister pods.Lister, groups pods.Groups, interval time.Duration) *objects {
	return &objects{client: client, lister: lister, groups: groups, keep: 3 * interval, lists: map[listed]*list{}}
}

// Names implements rules.Objects. Pods that are gone are none.
func (o *objects) Names(ctx context.Context, of rules.Resource, namespace string, selector labels.Selector) ([]string, error) {
	switch {
	case of.GroupResource == schema.GroupResource{Resource: "pods"}:
		var names []string
		for _, p := range o.lister.Select(namespace, selector) {
			if !p.Gone {
				names = append(names, p.Name)
			}
		}
		return names, nil
	case of.GroupResource != pods.Namespaces && slices.Contains(o.groups.Kinds(), of.GroupResource):
		all, err := o.groups.Objects(of.GroupResource, namespace, selector)
		if err != nil {
			return nil, err
		}
		var names []string
		for _, object := range all {
			names = append(names, object.Name)
		}
		return names, nil
	}
	key := listed{of.WithVersion(of.Version), namespace, selector.String()}
	o.mu.Lock()
	l := o.lists[key]
	if l == nil {
		if len(o.lists) >= maxLists {
			clear(o.lists)
		}
		l = &list{}
		o.lists[key] = l
	}
	o.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && time.Since(l.at) < o.keep {
		return l.names, nil
	}
	names, err := kube.Names(ctx, o.client, key.GroupVersionResource, namespace, selector)
	if err != nil {
		return nil, err
	}
	l.at, l.names = time.Now(), names
	return names, nil
}
