package kube

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/workqueue"

	"github.com/inference-metrics/adapter/internal/pods"
)

// scales reads the selectors of a kind's objects from their scale subresources, which cannot be
// watched: it reads one when the object that it belongs to has changed.
type scales struct {
	kind   *kind
	client dynamic.NamespaceableResourceInterface
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]
	health *health
}

func newScales(k *kind, client dynamic.NamespaceableResourceInterface) *scales {
	return &scales{
		kind:   k,
		client: client,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](100*time.Millisecond, time.Minute)),
		health: &health{kind: k.resource.String() + "/scale", verb: "get"},
	}
}

// scaleUnread is why an object has no selector before its scale subresource was asked for.
var scaleUnread = groupError(pods.NotRead, "its scale subresource has not been read yet")

// run reads until ctx ends.
func (s *scales) run(ctx context.Context) {
	defer context.AfterFunc(ctx, s.queue.ShutDown)()
	for {
		name, stopped := s.queue.Get()
		if stopped {
			return
		}
		err := s.read(ctx, name)
		s.health.report(ctx, err)
		if err == nil {
			s.queue.Forget(name)
		} else {
			s.queue.AddRateLimited(name)
		}
		s.queue.Done(name)
	}
}

// scaleTimeout bounds one reading, so that a hanging one does not hold up the rest for long.
const scaleTimeout = 10 * time.Second

func (s *scales) read(ctx context.Context, name types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	scale, err := s.client.Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{}, "scale")
	g := s.kind.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	before := s.kind.objects[name.Namespace][name.Name]
	if before == nil {
		return nil
	}
	now := *before
	switch {
	case apierrors.IsNotFound(err):
		// It was deleted meanwhile, of which the mirror hears, or the CRD has changed.
		now.selector, now.without = nil, groupError(pods.NoSelector, "it has no scale subresource")
		err = nil
	case err != nil && before.selector != nil:
		return err // what was read before stays in use
	case err != nil:
		now.without = groupError(pods.NotRead, "its scale subresource cannot be read: %v", err)
	case scale.GetUID() != "" && scale.GetUID() != before.uid:
		return nil // of another object of the name, of which the mirror hears
	default:
		text, _, textErr := unstructured.NestedString(scale.Object, "status", "selector")
		selector, parseErr := labels.Parse(text)
		if textErr != nil {
			parseErr = textErr
		}
		now.selector, now.without = usable(selector, parseErr)
	}
	g.put(s.kind, &now)
	return err
}

// scaledObjects keeps objects whose selector their scale subresource says.
type scaledObjects struct{ scales *scales }

func (s scaledObjects) trim(u *unstructured.Unstructured) {
	keep(u, "status", "observedGeneration")
	trimMeta(u)
}

func (s scaledObjects) replace(list []*unstructured.Unstructured) {
	k := s.scales.kind
	k.groups.mu.Lock()
	defer k.groups.mu.Unlock()
	before := k.objects
	k.groups.clear(k)
	for _, u := range list {
		s.put(u, before[u.GetNamespace()][u.GetName()])
	}
}

func (s scaledObjects) set(u *unstructured.Unstructured) {
	k := s.scales.kind
	k.groups.mu.Lock()
	defer k.groups.mu.Unlock()
	s.put(u, k.objects[u.GetNamespace()][u.GetName()])
}

func (s scaledObjects) remove(u *unstructured.Unstructured) {
	k := s.scales.kind
	k.groups.mu.Lock()
	defer k.groups.mu.Unlock()
	k.groups.drop(k, name(u))
}

// put keeps an object with the selector that it had, and has the selector read when it may be
// another by now. Groups.mu is held.
func (s scaledObjects) put(u *unstructured.Unstructured, before *object) {
	k := s.scales.kind
	now := k.convert(u)
	now.stamp = stamp(u)
	if before != nil && before.uid == now.uid {
		now.selector, now.without = before.selector, before.without
	} else {
		now.without = scaleUnread
	}
	if now.selector == nil || before.stamp != now.stamp {
		s.scales.queue.Add(now.NamespacedName)
	}
	k.groups.put(k, now)
}

// stamp changes when the selector may. A controller that says what generation it has seen puts the
// selector of that generation beside it; of one that does not, any change may be the one.
func stamp(u *unstructured.Unstructured) string {
	observed, ok, err := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
	if !ok || err != nil {
		return u.GetResourceVersion()
	}
	return fmt.Sprintf("%d of %d", observed, u.GetGeneration())
}
