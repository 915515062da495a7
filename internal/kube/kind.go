package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/pods"
)

// kind is one kind of object that stands for groups of pods. What changes is guarded by Groups.mu.
type kind struct {
	groups   *Groups
	resource schema.GroupResource
	// dynamic and discovery are what a kind is found by that is not built in; nil for one that is.
	dynamic   dynamic.Interface
	discovery rest.Interface

	// mirror reads the objects. It is nil while the kind has not been found, for the reason absent.
	mirror *Mirror
	absent *pods.GroupError
	// looked says that the kind has been looked for.
	looked bool
	// objects holds what was read, by namespace and name.
	objects map[string]map[string]*object
	// complete says that the objects have been read once, and the scale subresource of each.
	complete atomic.Bool
}

func newKind(g *Groups, client kubernetes.Interface, dynamicClient dynamic.Interface, resource schema.GroupResource) *kind {
	k := &kind{groups: g, resource: resource, objects: map[string]map[string]*object{}}
	if resource == pods.Namespaces {
		return k // the pods say which there are
	}
	if k.mirror = builtIn(k, client); k.mirror == nil {
		k.dynamic, k.discovery = dynamicClient, client.Discovery().RESTClient()
		k.absent = groupError(pods.NotRead, "whether the cluster has %s is not known yet", resource)
	}
	return k
}

// settled reports whether nothing more is to be waited for. A kind that is not built in is not worth
// the rest: the conversion webhook of its CRD may be broken for days. Groups.mu is held.
func (k *kind) settled() bool {
	switch {
	case k.resource == pods.Namespaces:
		return true
	case k.mirror == nil:
		return k.looked
	case k.mirror.Synced():
		return k.completed()
	}
	err := k.mirror.failure()
	return err != nil && (k.dynamic != nil || apierrors.IsForbidden(err))
}

// completed reports whether every object that was listed first has a selector, or a reason why not.
func (k *kind) completed() bool {
	if k.complete.Load() {
		return true
	}
	for _, of := range k.objects {
		for _, o := range of {
			if o.without == scaleUnread {
				return false
			}
		}
	}
	k.complete.Store(true)
	return true
}

// unread says why the objects are not known, or returns nil. Groups.mu is held.
func (k *kind) unread() error {
	switch {
	case k.mirror == nil:
		return k.absent
	case k.mirror.Synced():
		return nil
	}
	switch err := k.mirror.failure(); {
	case err == nil:
		return groupError(pods.NotRead, "the %s of the cluster have not been read yet", k.resource)
	case apierrors.IsForbidden(err):
		return groupError(pods.NotRead, "the adapter may not read %s: %v; grant list and watch to its ServiceAccount", k.resource, err)
	default:
		return groupError(pods.NotRead, "the %s of the cluster cannot be read: %v", k.resource, err)
	}
}

// run mirrors the kind until ctx ends; one that is not built in for as long as it is there.
func (k *kind) run(ctx context.Context) {
	switch {
	case k.resource == pods.Namespaces:
		return
	case k.dynamic == nil:
		k.mirror.Run(ctx)
		return
	}
	// Spread, so that the replicas of the adapter do not all ask at once.
	wait.JitterUntilWithContext(ctx, k.follow, k.groups.again, 0.2, true)
}

// follow looks for the kind, and mirrors it until it goes away.
func (k *kind) follow(ctx context.Context) {
	found, err := k.find(ctx)
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx).WithValues("objects", k.resource)
	switch {
	case apierrors.IsForbidden(err):
		if k.lacks(groupError(pods.NotRead, "the adapter may not look whether the cluster has %s: %v; grant it the ClusterRole system:discovery", k.resource, err)) {
			logger.Error(err, "The Kubernetes API refuses to say which kinds it has; it is asked again")
		}
		return
	case err != nil:
		if k.lacks(groupError(pods.NotRead, "whether the cluster has %s cannot be told: %v", k.resource, err)) {
			logger.Error(err, "Cannot look for a kind of object; it is looked for again")
		}
		return
	case found.absence != "":
		if k.lacks(groupError(pods.NotServed, "the cluster's %s: %s", k.resource, found.absence)) {
			logger.Info("The cluster has no such kind of object with pods; it is looked for again", "reason", found.absence)
		}
		return
	}

	logger.Info("Reading a kind of object", "version", found.resource.Version)
	ctx, stop := context.WithCancel(ctx)
	mirror, scales := custom(k, found)
	mirror.gone = stop
	k.groups.mu.Lock()
	k.mirror = mirror
	k.groups.mu.Unlock()
	var reading sync.WaitGroup
	if scales != nil {
		reading.Go(func() { scales.run(ctx) })
	}
	mirror.Run(ctx)
	stop()
	reading.Wait()

	k.groups.mu.Lock()
	defer k.groups.mu.Unlock()
	k.groups.clear(k)
	k.mirror, k.absent = nil, groupError(pods.NotServed, "the cluster does not have %s any more", k.resource)
}

// lacks keeps why there is no mirror, and reports whether that is news. One failure after another is
// none: their texts may differ by a port.
func (k *kind) lacks(why *pods.GroupError) bool {
	k.groups.mu.Lock()
	defer k.groups.mu.Unlock()
	news := !k.looked || k.absent.Why != why.Why || why.Why == pods.NotServed && k.absent.Message != why.Message
	k.absent, k.looked = why, true
	return news
}

// found is a kind as the cluster serves it.
type found struct {
	resource schema.GroupVersionResource
	// scaled says that its objects have a scale subresource.
	scaled bool
	// absence is why the kind is of no use; "" when it is.
	absence string
}

// discoveryTimeout bounds one question: a kind may be served by an API server that hangs.
const discoveryTimeout = 10 * time.Second

// find looks for the kind in its group's versions, the preferred one first. It asks for no more than
// that group, where the usual ways would read what all groups have.
func (k *kind) find(ctx context.Context) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	versions, err := k.versions(ctx)
	if err != nil {
		return found{}, err
	}
	for _, v := range versions {
		var list metav1.APIResourceList
		err := k.discovery.Get().AbsPath(apiPath(v.Group, v.Version)).Do(ctx).Into(&list)
		if apierrors.IsNotFound(err) {
			continue // went away between the questions
		}
		if err != nil {
			return found{}, fmt.Errorf("reading what is in %s: %w", v, err)
		}
		has := func(name string) int {
			return slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
		}
		i := has(k.resource.Resource)
		if i < 0 {
			continue
		}
		f := found{resource: v.WithResource(k.resource.Resource), scaled: has(k.resource.Resource+"/scale") >= 0}
		switch _, known := selectorsOf[k.resource]; {
		case !list.APIResources[i].Namespaced:
			f.absence = "they are in no namespace, where pods are"
		case !known && !f.scaled:
			f.absence = "they have no scale subresource, which would say their selector"
		}
		return f, nil
	}
	return found{absence: "it does not have that kind"}, nil
}

func (k *kind) versions(ctx context.Context) ([]schema.GroupVersion, error) {
	if k.resource.Group == "" {
		return []schema.GroupVersion{{Version: "v1"}}, nil
	}
	var group metav1.APIGroup
	err := k.discovery.Get().AbsPath(apiPath(k.resource.Group)).Do(ctx).Into(&group)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the versions of %s: %w", k.resource.Group, err)
	}
	versions := []schema.GroupVersion{{Group: k.resource.Group, Version: group.PreferredVersion.Version}}
	for _, v := range group.Versions {
		if v.Version != group.PreferredVersion.Version {
			versions = append(versions, schema.GroupVersion{Group: k.resource.Group, Version: v.Version})
		}
	}
	return versions, nil
}

// apiPath is where the API server has a group; the core's is elsewhere.
func apiPath(group string, version ...string) string {
	path := "/apis/" + group
	if group == "" {
		path = "/api"
	}
	for _, v := range version {
		path += "/" + v
	}
	return path
}
