package pods

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// The index is held to the obvious: a map, filtered and sorted at every question.
func TestIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Index
		model := map[types.NamespacedName]*Pod{}
		name := rapid.Custom(func(t *rapid.T) types.NamespacedName {
			return types.NamespacedName{
				Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace"),
				Name:      fmt.Sprintf("pod-%d", rapid.IntRange(0, 6).Draw(t, "pod")),
			}
		})
		pod := rapid.Custom(func(t *rapid.T) *Pod {
			return &Pod{NamespacedName: name.Draw(t, "name"), Labels: labels.Set{"role": rapid.SampledFrom([]string{"prefill", "decode"}).Draw(t, "role")}}
		})
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				p := pod.Draw(t, "pod")
				x.Set(p)
				model[p.NamespacedName] = p
			},
			"delete": func(t *rapid.T) {
				n := name.Draw(t, "name")
				x.Delete(n)
				delete(model, n)
			},
			"replace": func(t *rapid.T) {
				list := rapid.SliceOf(pod).Draw(t, "list")
				x.Replace(list)
				model = map[types.NamespacedName]*Pod{}
				for _, p := range list {
					model[p.NamespacedName] = p
				}
			},
			"": func(t *rapid.T) {
				all := map[types.NamespacedName]*Pod{}
				x.All(func(p *Pod) { all[p.NamespacedName] = x.Get(p.Namespace, p.Name) })
				if diff := cmp.Diff(model, all); diff != "" {
					t.Fatalf("All and Get (-want +got):\n%s", diff)
				}
				for _, namespace := range []string{"a", "b"} {
					for _, s := range []string{"", "role=decode", "role!=decode", "other"} {
						selector, err := labels.Parse(s)
						if err != nil {
							t.Fatal(err)
						}
						var want []string
						for n, p := range model {
							if n.Namespace == namespace && selector.Matches(p.Labels) {
								want = append(want, n.Name)
							}
						}
						slices.Sort(want)
						var got []string
						for _, p := range x.Select(namespace, selector) {
							if model[p.NamespacedName] != p {
								t.Fatalf("Select returned a pod that is no longer there: %v", p)
							}
							got = append(got, p.Name)
						}
						if diff := cmp.Diff(want, got); diff != "" {
							t.Fatalf("Select(%s, %q) (-want +got):\n%s", namespace, s, diff)
						}
					}
				}
			},
		})
	})
}

func TestSelectedPodsOutliveChanges(t *testing.T) {
	var x Index
	for i := range 3 {
		x.Set(&Pod{NamespacedName: types.NamespacedName{Namespace: "a", Name: fmt.Sprint(i)}})
	}
	got := x.Select("a", labels.Everything())
	x.Delete(types.NamespacedName{Namespace: "a", Name: "0"})
	if len(got) != 3 || got[0].Name != "0" || got[2].Name != "2" {
		t.Fatalf("a list that was handed out has changed: %v", got)
	}
}
