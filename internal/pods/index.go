package pods

import (
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// Index holds pods in memory and is the Lister over them. Its zero value is empty and ready to use,
// by any number of goroutines.
type Index struct {
	mu     sync.RWMutex
	byName map[types.NamespacedName]*Pod
	// sorted holds the pods of each namespace by name, so that a request only filters.
	sorted map[string][]*Pod
}

var _ Lister = (*Index)(nil)

// NewStatic returns a lister of pods that never change: those of static targets.
func NewStatic(list []*Pod) Lister {
	x := new(Index)
	x.Replace(list)
	return x
}

// Replace makes list all there is. Of two pods of one name the later counts.
func (x *Index) Replace(list []*Pod) {
	byName := make(map[types.NamespacedName]*Pod, len(list))
	for _, p := range list {
		byName[p.NamespacedName] = p
	}
	sorted := map[string][]*Pod{}
	for _, p := range byName {
		sorted[p.Namespace] = append(sorted[p.Namespace], p)
	}
	for _, of := range sorted {
		slices.SortFunc(of, func(a, b *Pod) int { return strings.Compare(a.Name, b.Name) })
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byName, x.sorted = byName, sorted
}

// Set adds a pod, in the place of any other of its name.
func (x *Index) Set(p *Pod) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byName == nil {
		x.byName, x.sorted = map[types.NamespacedName]*Pod{}, map[string][]*Pod{}
	}
	x.byName[p.NamespacedName] = p
	of := x.sorted[p.Namespace]
	i, found := search(of, p.Name)
	if found {
		of[i] = p
		return
	}
	x.sorted[p.Namespace] = slices.Insert(of, i, p)
}

// Delete forgets a pod.
func (x *Index) Delete(name types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byName, name)
	of := x.sorted[name.Namespace]
	i, found := search(of, name.Name)
	switch {
	case !found:
	case len(of) == 1:
		delete(x.sorted, name.Namespace)
	default:
		x.sorted[name.Namespace] = slices.Delete(of, i, i+1)
	}
}

// All calls f for every pod that is there when it is called; f may use the index.
func (x *Index) All(f func(*Pod)) {
	x.mu.RLock()
	all := make([]*Pod, 0, len(x.byName))
	for _, p := range x.byName {
		all = append(all, p)
	}
	x.mu.RUnlock()
	for _, p := range all {
		f(p)
	}
}

// Get returns a pod, or nil.
func (x *Index) Get(namespace, name string) *Pod {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byName[types.NamespacedName{Namespace: namespace, Name: name}]
}

// Select returns the pods of a namespace that match the selector, sorted by name.
func (x *Index) Select(namespace string, selector labels.Selector) []*Pod {
	x.mu.RLock()
	defer x.mu.RUnlock()
	of := x.sorted[namespace]
	if selector.Empty() {
		return slices.Clone(of)
	}
	var out []*Pod
	for _, p := range of {
		if selector.Matches(p.Labels) {
			out = append(out, p)
		}
	}
	return out
}

func search(of []*Pod, name string) (int, bool) {
	return slices.BinarySearchFunc(of, name, func(p *Pod, name string) int { return strings.Compare(p.Name, name) })
}
