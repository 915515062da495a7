// Package pods says what the adapter knows of the pods it answers for: a trimmed view of the
// Kubernetes object, or of a static target when there is no Kubernetes.
package pods

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is a trimmed, immutable view of one pod.
type Pod struct {
	types.NamespacedName
	UID    types.UID
	Labels labels.Set
	// Owner is the UID of the object that controls the pod; "" if none does.
	Owner types.UID
	// Annotations are those of AnnotationPrefix; nil without any.
	Annotations map[string]string

	// Variant is equal for pods that serve equally fast: the same model on the same hardware, from the
	// same image, with the same arguments. It is "" when that is not known.
	Variant string
	// Seats is how many requests may run at once, and BatchTokens how many tokens a step may have, as
	// the arguments say; 0 when they do not.
	Seats, BatchTokens float64
	// GPU says that the pod asks for a GPU, or another accelerator.
	GPU bool

	// Start is when the kubelet took the pod (status.startTime); zero when unknown. Samples older
	// than it belong to an earlier pod of the same name.
	Start time.Time
	// Ready is the Ready condition.
	Ready bool
	// ReadySince is the last transition of the Ready condition; zero when unknown.
	ReadySince time.Time
	// WasReady says that the pod has been Ready at some time. It is derived from the object
	// alone, so that every replica of the adapter agrees on it, also after a restart.
	WasReady bool
	// Gone says that the pod is being deleted, or has failed or succeeded.
	Gone bool
}

// Lister reads pods from memory. Returned pods are shared and must not be changed.
type Lister interface {
	// All calls f for every pod.
	All(f func(*Pod))
	// Get returns a pod, or nil.
	Get(namespace, name string) *Pod
	// Select returns the pods of a namespace that match the selector, sorted by name.
	Select(namespace string, selector labels.Selector) []*Pod
}
