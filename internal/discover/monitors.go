package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

var monitoring = schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}

// monitorKinds are the kinds that are read, by their resource.
var monitorKinds = map[string]string{"podmonitors": podMonitor, "servicemonitors": serviceMonitor}

const (
	// again is how long after a kind was not there it is looked for again.
	again = 30 * time.Second
	// maxMonitors bounds how many of a namespace are followed, and how many that select in others.
	maxMonitors = 256
)

// monitors follows PodMonitors and ServiceMonitors for as long as the cluster has them. A kind may come
// and go: finding engines by how they look does not depend on it.
type monitors struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	again   time.Duration
	changed chan struct{}

	mu    sync.Mutex
	kinds map[string]*monitorKind // by resource
}

// monitorKind is what is known of one kind.
type monitorKind struct {
	objects, services cache.Store // nil while the cluster does not have the kind
	// settled says that it has been read, or that it is known why it cannot be.
	settled bool
	failing bool
}

func newMonitors(client kubernetes.Interface, dynamicClient dynamic.Interface) *monitors {
	m := &monitors{client: client, dynamic: dynamicClient, again: again, changed: make(chan struct{}, 1), kinds: map[string]*monitorKind{}}
	for resource := range monitorKinds {
		m.kinds[resource] = &monitorKind{}
	}
	return m
}

// run follows until ctx ends.
func (m *monitors) run(ctx context.Context) {
	var running sync.WaitGroup
	for resource := range monitorKinds {
		// Spread, so that the replicas of the adapter do not all ask at once.
		running.Go(func() {
			wait.JitterUntilWithContext(ctx, func(ctx context.Context) { m.follow(ctx, resource) }, m.again, 0.2, true)
		})
	}
	running.Wait()
}

// follow looks for a kind, and reads it until it goes away.
func (m *monitors) follow(ctx context.Context, resource string) {
	there, err := m.look(ctx, resource)
	if ctx.Err() != nil {
		return
	}
	if !there {
		m.settle(ctx, resource, err)
		return
	}
	logger := klog.FromContext(ctx).WithValues("objects", resource)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	failed := func(_ context.Context, _ *cache.Reflector, err error) {
		switch {
		case apierrors.IsNotFound(err):
			stop()
		case reading.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), errors.Is(err, io.EOF):
			// A watch that ends is begun again.
		default:
			m.settle(ctx, resource, err)
		}
	}
	changed := func() {
		m.settle(ctx, resource, nil)
	}
	start := func(i cache.SharedIndexInformer, trim cache.TransformFunc) error {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		})
		return errors.Join(err, i.SetTransform(trim), i.SetWatchErrorHandlerWithContext(failed))
	}
	objects := dynamicinformer.NewFilteredDynamicInformer(m.dynamic, monitoring.WithResource(resource), metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	informers := []cache.SharedIndexInformer{objects}
	err = start(objects, parsed)
	var services cache.Store
	if monitorKinds[resource] == serviceMonitor {
		i := coreinformers.NewServiceInformer(m.client, metav1.NamespaceAll, 0, cache.Indexers{})
		informers, services = append(informers, i), i.GetStore()
		err = errors.Join(err, start(i, trimService))
	}
	if err != nil {
		m.settle(ctx, resource, err)
		return
	}

	logger.Info("Reading where pods serve their metrics")
	m.set(func() { m.kinds[resource].objects, m.kinds[resource].services = objects.GetStore(), services })
	var running sync.WaitGroup
	var all []cache.InformerSynced
	for _, i := range informers {
		all = append(all, i.HasSynced)
		running.Go(func() { i.RunWithContext(reading) })
	}
	if cache.WaitForCacheSync(reading.Done(), all...) {
		m.settle(ctx, resource, nil)
	}
	running.Wait()
	m.set(func() { m.kinds[resource].objects, m.kinds[resource].services = nil, nil })
	if ctx.Err() == nil {
		logger.Info("The cluster does not have these objects any more; they are looked for again")
	}
}

// look reports whether the cluster has a kind.
func (m *monitors) look(ctx context.Context, resource string) (bool, error) {
	list, err := m.client.Discovery().ServerResourcesForGroupVersionWithContext(ctx, monitoring.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading what is in %s: %w", monitoring, err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }), nil
}

// settle notes that a kind was read or is not there, or why it cannot be known, which is logged once.
func (m *monitors) settle(ctx context.Context, resource string, err error) {
	if ctx.Err() != nil {
		return
	}
	m.set(func() {
		k := m.kinds[resource]
		if err != nil && !k.failing {
			klog.FromContext(ctx).Error(err, "Cannot read where pods serve their metrics, and tries again; engines are found by how they look", "objects", resource)
		}
		k.failing, k.settled = err != nil, true
	})
}

// set changes what is known, and tells of it.
func (m *monitors) set(change func()) {
	m.mu.Lock()
	change()
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default: // whoever follows has yet to look
	}
}

// settled reports whether of each kind it is known what there is, or that it cannot be known.
func (m *monitors) settled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.kinds {
		if !k.settled {
			return false
		}
	}
	return true
}

// service is what is kept of a Service.
type service struct {
	metav1.ObjectMeta
	selector labels.Selector // nil if it selects no pods
	ports    []corev1.ServicePort
}

func trimService(object any) (any, error) {
	from, ok := object.(*corev1.Service)
	if !ok {
		return object, nil
	}
	s := &service{ports: from.Spec.Ports, ObjectMeta: metav1.ObjectMeta{
		Namespace: from.Namespace, Name: from.Name, UID: from.UID, ResourceVersion: from.ResourceVersion, Labels: from.Labels,
	}}
	if len(from.Spec.Selector) > 0 {
		s.selector = labels.SelectorFromSet(from.Spec.Selector)
	}
	return s, nil
}

// said is what all monitors say at one time.
type said struct {
	// own are those that select in a namespace, of its own; wide are those that select in others.
	own      map[string][]*monitor
	wide     []*monitor
	services map[string][]*service
	// trusted are the namespaces whose monitors are followed in others.
	trusted []string

	problems map[Problem]bool
}

// said sorts what is there at the moment, so that the order of events changes nothing.
func (m *monitors) said(trusted []string) *said {
	s := &said{own: map[string][]*monitor{}, services: map[string][]*service{}, trusted: trusted, problems: map[Problem]bool{}}
	var all []*monitor
	m.mu.Lock()
	for _, k := range m.kinds {
		if k.objects == nil {
			continue
		}
		all = append(all, of[*monitor](k.objects)...)
		if k.services != nil {
			for _, x := range of[*service](k.services) {
				s.services[x.Namespace] = append(s.services[x.Namespace], x)
			}
		}
	}
	m.mu.Unlock()
	slices.SortFunc(all, func(a, b *monitor) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, services := range s.services {
		slices.SortFunc(services, func(a, b *service) int { return cmp.Compare(a.Name, b.Name) })
	}
	for _, x := range all {
		if x.fault != nil {
			s.problems[*x.fault] = true
			continue
		}
		if x.in(x.Namespace) {
			s.own[x.Namespace] = s.bounded(s.own[x.Namespace], x, "of a namespace")
		}
		if x.wide() {
			s.wide = s.bounded(s.wide, x, "that select in other namespaces")
		}
	}
	return s
}

func (s *said) bounded(list []*monitor, m *monitor, what string) []*monitor {
	if len(list) < maxMonitors {
		return append(list, m)
	}
	s.problems[*m.problem("metadata.name", "of all %s %s the first %d are followed", m.kind+"s", what, maxMonitors)] = true
	return list
}

func of[T any](store cache.Store) []T {
	var out []T
	for _, x := range store.List() {
		if t, ok := x.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// A hint is where a monitor says that a pod serves metrics.
type hint struct {
	number              int
	scheme, path, query string
}

// maxHints bounds how many ports of one pod monitors can make us ask.
const maxHints = 8

// of returns what monitors say of a pod, and notes what of it is not followed.
func (s *said) of(p *pod) []hint {
	var out []hint
	for _, m := range s.own[p.Namespace] {
		out = s.hints(out, m, p)
	}
	for _, m := range s.wide {
		if m.Namespace == p.Namespace || !m.in(p.Namespace) || !s.selects(m, p) {
			continue
		}
		if !slices.Contains(s.trusted, m.Namespace) {
			s.problems[*m.problem("spec.namespaceSelector",
				"it selects engines in other namespaces, where it is not followed unless scrape.discovery.monitorNamespaces has %s", m.Namespace)] = true
			continue
		}
		out = s.hints(out, m, p)
	}
	return out
}

// selects reports whether a monitor selects a pod in a namespace in which it selects.
func (s *said) selects(m *monitor, p *pod) bool {
	if m.kind == podMonitor {
		return m.selector.Matches(podLabels{p})
	}
	return len(s.serving(m, p)) > 0
}

// serving returns the Services through which a ServiceMonitor selects a pod. Their selectors are what
// their EndpointSlices are made of; others than the cluster may write slices, of any address.
func (s *said) serving(m *monitor, p *pod) []*service {
	var out []*service
	for _, x := range s.services[p.Namespace] {
		if x.selector != nil && m.selector.Matches(labels.Set(x.Labels)) && x.selector.Matches(podLabels{p}) {
			out = append(out, x)
		}
	}
	return out
}

// hints adds what a monitor says of a pod.
func (s *said) hints(to []hint, m *monitor, p *pod) []hint {
	var services []*service
	if m.kind == serviceMonitor {
		if services = s.serving(m, p); len(services) == 0 {
			return to
		}
	} else if !m.selector.Matches(podLabels{p}) {
		return to
	}
	for i := range m.endpoints {
		e := &m.endpoints[i]
		if e.fault != nil {
			s.problems[*e.fault] = true
			continue
		}
		for _, number := range e.ports(p, services) {
			same := func(h hint) bool { return h.number == number }
			if slices.ContainsFunc(to, same) || !e.keeps(p, number) {
				continue // the monitor before holds
			}
			if len(to) == maxHints {
				s.problems[*m.problem(e.field, "of one pod the first %d ports that monitors name are asked", maxHints)] = true
				return to
			}
			to = append(to, hint{number, e.scheme, e.path, e.query})
		}
	}
	return to
}

// ports returns the ports of a pod that an endpoint means. A port that no container declares is one only
// if a Service leads there.
func (e *endpoint) ports(p *pod, services []*service) []int {
	if !e.service {
		return p.ports(e.port, e.number)
	}
	var out []int
	for _, s := range services {
		for _, x := range s.ports {
			if x.Name != e.port || x.Protocol != corev1.ProtocolTCP && x.Protocol != "" {
				continue
			}
			switch {
			case x.TargetPort.Type == intstr.String:
				out = append(out, p.ports(x.TargetPort.StrVal, 0)...)
			case x.TargetPort.IntVal != 0:
				out = append(out, int(x.TargetPort.IntVal))
			default:
				out = append(out, int(x.Port))
			}
		}
	}
	return out
}

// maxProblems bounds how many are told.
const maxProblems = 1000

// known returns the problems, sorted.
func (s *said) known() []Problem {
	all := slices.SortedFunc(maps.Keys(s.problems), func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
	})
	return all[:min(maxProblems, len(all))]
}

// quiet is the least time between two lines of the log about problems.
const quiet = 30 * time.Second

// problemLog tells each problem once.
type problemLog struct {
	told map[Problem]bool
	at   time.Time
}

// waits logs what is new, and reports whether that has to wait: who changes a monitor every second does not
// fill the log.
func (l *problemLog) waits(ctx context.Context, problems []Problem) bool {
	const few = 5
	now := map[Problem]bool{}
	var news []string
	for _, p := range problems {
		if now[p] = true; !l.told[p] {
			news = append(news, p.String())
		}
	}
	if len(news) > 0 {
		if time.Since(l.at) < quiet {
			return true
		}
		klog.FromContext(ctx).Info("Monitors are not followed in all that they say", "problems", len(news), "such", news[:min(few, len(news))])
		l.at = time.Now()
	}
	l.told = now
	return false
}
