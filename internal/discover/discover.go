// Package discover finds what the adapter scrapes in a cluster: which pods are engines, and where each
// serves its metrics.
//
// Pods come from Prometheus's Kubernetes discovery, as a library. The rules that choose among them are
// in rules.go: a table of how engines look, and entries of the configuration, which come first. What a
// pod says of itself chooses a port and a path of its own, and never another host. PodMonitors and
// ServiceMonitors of the Prometheus operator say where engines serve, too; monitor.go holds what is
// followed of them.
package discover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promkube "github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Exporter is what a target speaks for, and so which of its series are read.
type Exporter string

// The kinds of exporter.
const (
	Engine Exporter = "engine" // requests in its own pod
	GPU    Exporter = "gpu"    // the GPUs of its node, and the pods that hold them
	Pool   Exporter = "pool"   // InferencePools of its own namespace
)

// Config says what to find.
type Config struct {
	// Off turns the table of rules off: only Entries find anything.
	Off bool
	// Namespaces are those in which the table finds engines and pools; nil for all.
	Namespaces []string
	// Selector narrows the pods in which it does; nil for all.
	Selector labels.Selector
	// GPUNamespaces are those whose GPU exporters are believed in what they say of other pods.
	GPUNamespaces []string
	// MonitorNamespaces are those whose monitors are followed in other namespaces, too.
	MonitorNamespaces []string
	// Entries name pods. The table has no say in a pod that one of them names.
	Entries []Entry
}

// DefaultGPUNamespaces are where the installers of the DCGM exporter put it. A tenant cannot make a pod
// there, who could otherwise speak for the GPUs of others on the same node.
var DefaultGPUNamespaces = []string{"gpu-operator", "nvidia-gpu-operator", "dcgm-exporter", "gke-managed-system", "kube-system"}

// Entry names pods, and says where they serve their metrics.
type Entry struct {
	// Namespace and Selector say which pods; "" and nil for all.
	Namespace string
	Selector  labels.Selector
	// Port is the name of a port of a container, or a number.
	Port string
	// Path and Scheme complete the address.
	Path, Scheme string
	// Exporter is what the pods speak for.
	Exporter Exporter
}

// Target is where to scrape one pod.
type Target struct {
	Namespace, Pod string
	// URL has the pod's own IP for its host.
	URL      string
	Exporter Exporter
	// Entry is the index of the entry that found it; -1 for the table.
	Entry int
}

const (
	// settle is how long changes are gathered before they are told: a rollout is many.
	settle = 500 * time.Millisecond
	// patience is how long the first targets wait for monitors, so that no port is asked for a second that
	// they know better.
	patience = 10 * time.Second
)

// Discoverer follows the pods of a cluster.
type Discoverer struct {
	config   Config
	informer cache.SharedIndexInformer
	changed  func([]Target) error
	synced   atomic.Bool
	monitors *monitors

	mu       sync.RWMutex
	nodes    map[types.NamespacedName]string
	problems []Problem
}

// New returns a discoverer of a cluster, which calls changed with all targets whenever they change. It
// does nothing until it runs.
func New(client kubernetes.Interface, dynamicClient dynamic.Interface, config Config, changed func([]Target) error) (*Discoverer, error) {
	d := &Discoverer{
		config:   config,
		changed:  changed,
		monitors: newMonitors(client, dynamicClient),
		nodes:    map[types.NamespacedName]string{},
		// Of all namespaces, as the exporter of a GPU and the pod that holds it are in two.
		informer: coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{}),
	}
	if err := d.informer.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("discovering engines: %w", err)
	}
	return d, nil
}

// trim leaves what the rules read of a pod, before it is kept.
func trim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	annotations := map[string]string{}
	for _, key := range annotationsRead {
		if value := pod.Annotations[key]; value != "" {
			annotations[key] = value
		}
	}
	containers := func(all []corev1.Container) []corev1.Container {
		var out []corev1.Container
		for _, c := range all {
			kept := corev1.Container{Name: c.Name, Image: c.Image, Ports: c.Ports}
			if accelerated(c) {
				kept.Resources = c.Resources
			}
			out = append(out, kept)
		}
		return out
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, Annotations: annotations,
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork,
			Containers: containers(pod.Spec.Containers), InitContainers: containers(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP},
	}, nil
}

// Synced reports whether the pods that were there have been read once.
func (d *Discoverer) Synced() bool { return d.synced.Load() }

// String names what is read, in the plural.
func (d *Discoverer) String() string { return "targets" }

// Run discovers until ctx ends.
func (d *Discoverer) Run(ctx context.Context) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "events"}, []string{"role", "event"}) // wanted by the library
	pods := promkube.NewPod(nil, d.informer, nil, nil, nil, nil, false, false, false, events)
	groups := make(chan []*targetgroup.Group)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.informer.RunWithContext(ctx) })
	running.Go(func() { pods.Run(ctx, groups) })
	if !d.config.Off {
		running.Go(func() { d.monitors.run(ctx) })
	}
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), d.informer.HasSynced) {
			d.synced.Store(true)
		}
	})
	d.follow(ctx, groups)
}

// follow turns what becomes of pods and monitors into targets.
func (d *Discoverer) follow(ctx context.Context, groups <-chan []*targetgroup.Group) {
	found := map[string]*candidate{} // by pod
	where := map[string]types.NamespacedName{}
	var told []Target
	var log problemLog
	began := time.Now()
	timer := time.NewTimer(settle)
	defer timer.Stop()
	armed := true
	// From the first change on: who changes an object every moment holds nothing up.
	arm := func() {
		if !armed {
			armed = true
			timer.Reset(settle)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case some := <-groups:
			for _, g := range some {
				d.take(g, found, where)
			}
			arm()
		case <-d.monitors.changed:
			arm()
		case <-timer.C:
			armed = false
			if told == nil && !d.config.Off && !d.monitors.settled() && time.Since(began) < patience {
				arm()
				continue
			}
			targets := d.targets(found)
			if log.waits(ctx, d.Problems()) {
				timer.Reset(quiet) // unless something changes before
			}
			if slices.Equal(targets, told) {
				continue
			}
			if err := d.changed(targets); err != nil {
				klog.FromContext(ctx).Error(err, "Discovered targets were refused; those before are scraped on")
				continue
			}
			klog.FromContext(ctx).V(1).Info("Targets changed", "targets", len(targets), "before", len(told))
			told = targets
		}
	}
}

// targets returns all targets, sorted, and notes what of monitors is not followed.
func (d *Discoverer) targets(found map[string]*candidate) []Target {
	said := d.monitors.said(d.config.MonitorNamespaces)
	var targets []Target
	for _, k := range found {
		targets = append(targets, d.config.targets(k, said)...)
	}
	slices.SortFunc(targets, compare)

	problems := said.known()
	d.mu.Lock()
	d.problems = problems
	d.mu.Unlock()
	return targets
}

// take notes what one pod has become.
func (d *Discoverer) take(g *targetgroup.Group, found map[string]*candidate, where map[string]types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nodes, where[g.Source])
	delete(where, g.Source)
	delete(found, g.Source)
	if len(g.Targets) == 0 {
		return // the pod is gone, or has no address
	}
	p := read(g)
	if !p.running {
		return
	}
	p.devices(d.informer.GetStore())
	where[g.Source], d.nodes[p.NamespacedName] = p.NamespacedName, p.node
	if k := d.config.candidate(p); k != nil {
		found[g.Source] = k
	}
}

// Problems returns what of monitors is not followed, sorted by namespace, kind, name and field.
func (d *Discoverer) Problems() []Problem {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.problems
}

// OnNode reports whether two pods run on one node.
func (d *Discoverer) OnNode(a, b types.NamespacedName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	node := d.nodes[a]
	return node != "" && node == d.nodes[b]
}

func compare(a, b Target) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.URL, b.URL))
}
