// Package kube keeps in memory the little that the adapter needs of a cluster: a trimmed view of
// its pods, the selectors of the objects that stand for groups of them, and the names of the metrics
// that its HorizontalPodAutoscalers use.
//
// All are mirrors: one list, then a watch. Objects are converted as they arrive, so that a request
// reads what is ready, and only the trimmed view is kept.
package kube

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Mirror keeps one kind of object in memory.
type Mirror struct {
	kind      string
	reflector *cache.Reflector
	synced    *atomic.Bool
	// listing and watching are told apart, as one may be refused while the other works.
	listing, watching *health
	// gone is told when the cluster does not have the kind (any more); it may be nil.
	gone func()
}

// Run mirrors until ctx ends. A server that cannot be reached, or refuses, is asked again.
func (m *Mirror) Run(ctx context.Context) {
	backoff := wait.Backoff{Duration: time.Second, Cap: 30 * time.Second, Steps: 10, Factor: 2, Jitter: 1}
	// A mirror that worked for two minutes starts over at a short delay.
	delay := backoff.DelayWithReset(clock.RealClock{}, 2*time.Minute)
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := m.reflector.ListAndWatchWithContext(ctx)
		if err != nil && ctx.Err() == nil && m.failure() == nil {
			klog.FromContext(ctx).Error(err, "Cannot keep what was read from the Kubernetes API", "objects", m.kind)
		}
		return false, nil
	})
}

func (m *Mirror) report(ctx context.Context, of *health, err error) {
	if m.gone != nil && apierrors.IsNotFound(err) {
		m.gone() // which whoever looks for the kind reports
		return
	}
	of.report(ctx, err)
}

// failure returns why the cluster does not answer at the moment, or nil.
func (m *Mirror) failure() error {
	return cmp.Or(m.listing.failure(), m.watching.failure())
}

// Synced reports whether all that was there has been read once.
func (m *Mirror) Synced() bool { return m.synced.Load() }

// String names what is mirrored, in the plural.
func (m *Mirror) String() string { return m.kind }

// objects is where a mirror puts what it reads.
type objects[T runtime.Object] interface {
	// trim clears what is not needed, before anything is kept.
	trim(T)
	replace([]T)
	set(T)
	remove(T)
}

type (
	listFunc[L runtime.Object] func(context.Context, metav1.ListOptions) (L, error)
	watchFunc                  func(context.Context, metav1.ListOptions) (watch.Interface, error)
)

// newMirror mirrors what list and watch of client answer into the objects.
func newMirror[T, L runtime.Object](client any, kind string, list listFunc[L], watches watchFunc, into objects[T]) *Mirror {
	m := &Mirror{
		kind:     kind,
		synced:   new(atomic.Bool),
		listing:  &health{kind: kind, verb: "list"},
		watching: &health{kind: kind, verb: "watch"},
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := list(ctx, o)
			m.report(ctx, m.listing, err)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := watches(ctx, o)
			if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
				return w, err // a server that cannot stream a list yet; it is asked for a plain one
			}
			m.report(ctx, m.watching, err)
			return w, err
		},
	}
	m.reflector = cache.NewReflectorWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, client),
		reflect.New(reflect.TypeFor[T]().Elem()).Interface(),
		&store[T]{objects: into, synced: m.synced},
		cache.ReflectorOptions{Name: kind, TypeDescription: kind},
	)
	return m
}

// health logs when requests start to fail, fail for another reason, or work again: a server that is
// down for an hour is a few lines, not hundreds.
type health struct {
	kind, verb string

	mu sync.Mutex
	// err is why the last request failed; nil when it did not.
	err error
}

func (h *health) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // stopping, which is no fault
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	logger := klog.FromContext(ctx).WithValues("verb", h.verb, "objects", h.kind)
	switch {
	case err == nil && h.err != nil:
		logger.Info("The Kubernetes API answers again")
	case err == nil, h.err != nil && apierrors.ReasonForError(err) == apierrors.ReasonForError(h.err):
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return // a watch that must start over, in the course of things
	case apierrors.IsForbidden(err):
		logger.Error(err, "The Kubernetes API refuses; grant it to the adapter's ServiceAccount")
	default:
		logger.Error(err, "The Kubernetes API fails; what was read before stays in use")
	}
	h.err = err
}

func (h *health) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// store is how a reflector hands over what it reads.
type store[T runtime.Object] struct {
	objects objects[T]
	synced  *atomic.Bool
}

func (s *store[T]) Add(obj any) error { return s.with(obj, s.objects.set) }

func (s *store[T]) Update(obj any) error { return s.with(obj, s.objects.set) }

func (s *store[T]) Delete(obj any) error { return s.with(obj, s.objects.remove) }

func (s *store[T]) Replace(list []any, _ string) error {
	all := make([]T, 0, len(list))
	for _, obj := range list {
		if err := s.with(obj, func(o T) { all = append(all, o) }); err != nil {
			return err
		}
	}
	s.objects.replace(all)
	s.synced.Store(true)
	return nil
}

func (s *store[T]) Resync() error { return nil }

// Transformer has the reflector trim objects while the first list streams in, instead of holding
// all of them whole.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return obj, s.with(obj, s.objects.trim) }
}

func (s *store[T]) with(obj any, f func(T)) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("got a %T where a %T was watched", obj, o)
	}
	f(o)
	return nil
}
