// Package slo says which objectives hold for a pod: those of its annotations, else those that the
// configuration has for its namespace and labels, else the default.
package slo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// annotationPrefix goes before the name of an objective: ttft, tpot or e2e.
const annotationPrefix = pods.AnnotationPrefix + "slo-"

// Rule is what the configuration says of some pods.
type Rule struct {
	// Namespace is that of the pods; "" for any.
	Namespace string
	// Selector selects them by their labels; nil for all.
	Selector labels.Selector
	// SLO holds their objectives: one that it leaves out does not exist.
	SLO signals.SLO
}

func (r Rule) matches(p *pods.Pod) bool {
	return (r.Namespace == "" || r.Namespace == p.Namespace) && (r.Selector == nil || r.Selector.Matches(p.Labels))
}

// Resolver finds the objectives of pods. It remembers what it found, as it is asked for every pod at
// every collection.
type Resolver struct {
	annotations func(*pods.Pod) map[string]string
	unreadable  *prometheus.Desc

	mu    sync.Mutex
	known map[types.NamespacedName]*resolved
	swept time.Time
}

// configured is what the configuration says.
type configured struct {
	def   signals.SLO
	rules []Rule
}

// resolved is what was found for a pod.
type resolved struct {
	pod         *pods.Pod
	under       *configured
	annotations map[string]string
	slo         signals.SLO
	faults      []string // of the annotations
	used        time.Time
}

// A pod that was not asked for in the time of forgotten is no more.
const forgotten = 2 * time.Minute

// New returns a resolver; annotations returns the annotations that hold for a pod, which may be its
// workload's.
func New(annotations func(*pods.Pod) map[string]string) *Resolver {
	return &Resolver{
		annotations: annotations,
		known:       map[types.NamespacedName]*resolved{},
		unreadable: prometheus.NewDesc("inference_metrics_adapter_unreadable_objectives",
			"Replicas with an annotation for an objective that cannot be read, by namespace; what would hold without the annotation holds instead.",
			[]string{"namespace"}, nil),
	}
}

// Under returns the objectives of pods under a configuration: the first of the rules that matches a pod
// holds for it, and def where none does. An annotation that cannot be read counts as one that is not there;
// it is logged once, also where the configuration changes, and counted in a metric.
func (r *Resolver) Under(def signals.SLO, rules []Rule) func(*pods.Pod) signals.SLO {
	c := &configured{def: def, rules: rules}
	return func(p *pods.Pod) signals.SLO { return r.of(p, c) }
}

func (r *Resolver) of(p *pods.Pod, c *configured) signals.SLO {
	annotations := r.annotations(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.sweep(now)
	before := r.known[p.NamespacedName]
	if before != nil && before.pod == p && before.under == c && maps.Equal(before.annotations, annotations) {
		before.used = now
		return before.slo
	}
	found := &resolved{pod: p, under: c, annotations: annotations, slo: c.of(p), used: now}
	found.annotate()
	if len(found.faults) > 0 && !r.told(found) {
		klog.Background().Info("Annotations cannot be read; what would hold without them holds",
			"pod", klog.KRef(p.Namespace, p.Name), "faults", found.faults)
	}
	r.known[p.NamespacedName] = found
	return found.slo
}

func (c *configured) of(p *pods.Pod) signals.SLO {
	for _, rule := range c.rules {
		if rule.matches(p) {
			return rule.SLO
		}
	}
	return c.def
}

// annotate puts the objectives of the annotations in the place of the others, one by one.
func (f *resolved) annotate() {
	objectives := map[string]*time.Duration{"ttft": &f.slo.TTFT, "tpot": &f.slo.TPOT, "e2e": &f.slo.E2E}
	for _, key := range slices.Sorted(maps.Keys(f.annotations)) {
		name, ours := strings.CutPrefix(key, annotationPrefix)
		if !ours {
			continue
		}
		to, ok := objectives[name]
		if !ok {
			f.faults = append(f.faults, fmt.Sprintf("%s: there are %[2]sttft, %[2]stpot and %[2]se2e", key, annotationPrefix))
			continue
		}
		text := f.annotations[key]
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			f.faults = append(f.faults, fmt.Sprintf("%s: %.40q is no duration: write a number and a unit, such as 2.5s or 100ms", key, text))
		case d <= 0 || d > signals.MaxObjective:
			f.faults = append(f.faults, fmt.Sprintf("%s: %s is outside 0 to %s", key, d, signals.MaxObjective))
		default:
			*to = d
		}
	}
}

// told reports whether the same was logged of this pod, or of another one of its workload.
func (r *Resolver) told(f *resolved) bool {
	for _, k := range r.known {
		sameOwner := f.pod.Owner != "" && k.pod.Owner == f.pod.Owner
		if (sameOwner || k.pod.NamespacedName == f.pod.NamespacedName) && slices.Equal(k.faults, f.faults) {
			return true
		}
	}
	return false
}

// sweep forgets pods that are no more.
func (r *Resolver) sweep(now time.Time) {
	if now.Sub(r.swept) < forgotten {
		return
	}
	r.swept = now
	maps.DeleteFunc(r.known, func(_ types.NamespacedName, k *resolved) bool { return now.Sub(k.used) >= forgotten })
}

var _ prometheus.Collector = (*Resolver)(nil)

// Describe implements prometheus.Collector.
func (r *Resolver) Describe(ch chan<- *prometheus.Desc) { ch <- r.unreadable }

// Collect counts the pods with an annotation that cannot be read.
func (r *Resolver) Collect(ch chan<- prometheus.Metric) {
	faulty := map[string]int{}
	r.mu.Lock()
	for name, k := range r.known {
		if len(k.faults) > 0 && time.Since(k.used) < forgotten {
			faulty[name.Namespace]++
		}
	}
	r.mu.Unlock()
	for namespace, n := range faulty {
		ch <- prometheus.MustNewConstMetric(r.unreadable, prometheus.GaugeValue, float64(n), namespace)
	}
}
