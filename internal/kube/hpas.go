package kube

import (
	"maps"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// NewHPAs mirrors which metrics the HorizontalPodAutoscalers of all namespaces name. At the first
// reading, and whenever that changes, it calls onChange with all the names, sorted.
func NewHPAs(client kubernetes.Interface, onChange func(metrics []string)) *Mirror {
	h := &hpaObjects{onChange: onChange, metrics: map[types.NamespacedName][]string{}}
	c := client.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll)
	return newMirror[*autoscalingv2.HorizontalPodAutoscaler](client, "horizontalpodautoscalers", c.List, c.Watch, h)
}

// hpaObjects is used by one goroutine, that of the mirror.
type hpaObjects struct {
	onChange func([]string)
	metrics  map[types.NamespacedName][]string
	// told is what onChange was last called with; nil before the first time.
	told []string
}

func (h *hpaObjects) replace(list []*autoscalingv2.HorizontalPodAutoscaler) {
	clear(h.metrics)
	for _, hpa := range list {
		h.metrics[key(hpa)] = metricNames(hpa)
	}
	h.tell()
}

func (h *hpaObjects) set(hpa *autoscalingv2.HorizontalPodAutoscaler) {
	h.metrics[key(hpa)] = metricNames(hpa)
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
	distinct := map[string]bool{}
	for _, names := range h.metrics {
		for _, name := range names {
			distinct[name] = true
		}
	}
	all := slices.AppendSeq(make([]string, 0, len(distinct)), maps.Keys(distinct))
	slices.Sort(all)
	if h.told != nil && slices.Equal(all, h.told) {
		return
	}
	h.told = all
	h.onChange(slices.Clone(all))
}

func key(hpa *autoscalingv2.HorizontalPodAutoscaler) types.NamespacedName {
	return types.NamespacedName{Namespace: hpa.Namespace, Name: hpa.Name}
}

// metricNames returns the names that an HPA asks the metrics APIs for. CPU and memory come from
// elsewhere.
func metricNames(hpa *autoscalingv2.HorizontalPodAutoscaler) []string {
	var names []string
	for _, m := range hpa.Spec.Metrics {
		switch {
		case m.Pods != nil:
			names = append(names, m.Pods.Metric.Name)
		case m.Object != nil:
			names = append(names, m.Object.Metric.Name)
		case m.External != nil:
			names = append(names, m.External.Metric.Name)
		}
	}
	return names
}
