package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// MetricRef is a metric that an HPA names, with the selector that it gives it, as text.
type MetricRef struct{ Name, Selector string }

// NewHPAs mirrors which metrics the HorizontalPodAutoscalers of all namespaces name. At the first
// reading, and whenever that changes, it calls onChange with all of them, sorted.
func NewHPAs(client kubernetes.Interface, onChange func([]MetricRef)) *Mirror {
	h := &hpaObjects{onChange: onChange, metrics: map[types.NamespacedName][]MetricRef{}}
	c := client.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll)
	return newMirror[*autoscalingv2.HorizontalPodAutoscaler](client, "horizontalpodautoscalers", c.List, c.Watch, h)
}

// hpaObjects is used by one goroutine, that of the mirror.
type hpaObjects struct {
	onChange func([]MetricRef)
	metrics  map[types.NamespacedName][]MetricRef
	// told is what onChange was last called with; nil before the first time.
	told []MetricRef
}

func (h *hpaObjects) replace(list []*autoscalingv2.HorizontalPodAutoscaler) {
	clear(h.metrics)
	for _, hpa := range list {
		h.metrics[key(hpa)] = metricRefs(hpa)
	}
	h.tell()
}

func (h *hpaObjects) set(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	h.metrics[key(hpa)] = metricRefs(hpa)
	h.tell()
}

func (h *hpaObjects) remove(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	delete(h.metrics, key(hpa))
	h.tell()
}

func (h *hpaObjects) trim(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	hpa.ObjectMeta = metav1.ObjectMeta{Namespace: hpa.Namespace, Name: hpa.Name, ResourceVersion: hpa.ResourceVersion}
	hpa.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: hpa.Spec.Metrics}
	hpa.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
}

func (h *hpaObjects) tell() {
	distinct := map[MetricRef]bool{}
	for _, refs := range h.metrics {
		for _, ref := range refs {
			distinct[ref] = true
		}
	}
	all := slices.AppendSeq(make([]MetricRef, 0, len(distinct)), maps.Keys(distinct))
	slices.SortFunc(all, func(a, b MetricRef) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Selector, b.Selector))
	})
	if h.told != nil && slices.Equal(all, h.told) {
		return
	}
	h.told = all
	h.onChange(slices.Clone(all))
}

func key(hpa *autoscalingv2.HorizontalPodAutoscaler) types.NamespacedName {
	return types.NamespacedName{Namespace: hpa.Namespace, Name: hpa.Name}
}

// metricRefs returns what an HPA asks the metrics APIs for. CPU and memory come from elsewhere.
func metricRefs(hpa *autoscalingv2.HorizontalPodAutoscaler) []MetricRef {
	var refs []MetricRef
	add := func(m autoscalingv2.MetricIdentifier) {
		// The API server has checked the selector.
		if selector, err := metav1.LabelSelectorAsSelector(m.Selector); err == nil {
			ref := MetricRef{Name: m.Name}
			if m.Selector != nil {
				ref.Selector = selector.String()
			}
			refs = append(refs, ref)
		}
	}
	for _, m := range hpa.Spec.Metrics {
		switch {
		case m.Pods != nil:
			add(m.Pods.Metric)
		case m.Object != nil:
			add(m.Object.Metric)
		case m.External != nil:
			add(m.External.Metric)
		}
	}
	return refs
}
