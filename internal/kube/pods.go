package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/inference-metrics/adapter/internal/pods"
)

// NewPods mirrors the pods of all namespaces. The lister is empty until the mirror runs.
func NewPods(client kubernetes.Interface) (*Mirror, pods.Lister) {
	index := new(pods.Index)
	c := client.CoreV1().Pods(metav1.NamespaceAll)
	return newMirror[*corev1.Pod](client, "pods", c.List, c.Watch, podObjects{index}), index
}

type podObjects struct{ index *pods.Index }

func (p podObjects) replace(list []*corev1.Pod) {
	converted := make([]*pods.Pod, len(list))
	for i, pod := range list {
		converted[i] = convert(pod)
	}
	p.index.Replace(converted)
}

func (p podObjects) set(pod *corev1.Pod) { p.index.Set(convert(pod)) }

func (p podObjects) remove(pod *corev1.Pod) {
	p.index.Delete(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
}

func (p podObjects) trim(pod *corev1.Pod) {
	variant := variantOf(pod)
	pod.Annotations, pod.OwnerReferences = ours(pod.Annotations), controller(pod)
	keepVariant(pod, variant)
	pod.ManagedFields, pod.Finalizers = nil, nil
	pod.Spec = corev1.PodSpec{}
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, Conditions: pod.Status.Conditions}
}

func convert(pod *corev1.Pod) *pods.Pod {
	p := &pods.Pod{
		NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		UID:            pod.UID,
		Labels:         pod.Labels,
		Owner:          owner(pod),
		Annotations:    ours(pod.Annotations),
		Gone:           pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded,
	}
	v := variantOf(pod)
	p.Variant, p.Seats, p.BatchTokens, p.GPU = v.Key, v.Seats, v.BatchTokens, v.GPU
	if delete(p.Annotations, variantKey); len(p.Annotations) == 0 {
		p.Annotations = nil
	}
	if pod.Status.StartTime != nil {
		p.Start = pod.Status.StartTime.Time
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			p.Ready = c.Status == corev1.ConditionTrue
			p.ReadySince = c.LastTransitionTime.Time
		}
	}
	p.WasReady = p.Ready || lostReady(p)
	return p
}

// birth is how long after its start a pod may get its first Ready condition, which says False. The
// kubelet sets both in one update, a second or so apart at most.
const birth = 10 * time.Second

// lostReady reports whether a pod that is not Ready has been so before: a condition that was never
// True keeps the transition time that it was born with.
func lostReady(p *pods.Pod) bool {
	return !p.Start.IsZero() && p.ReadySince.After(p.Start.Add(birth))
}
