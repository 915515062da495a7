package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metric is a metric of a kind of object.
type Metric struct {
	schema.GroupResource
	Namespaced bool
	Name       string
}

// index is what is served, by what requests name. It does not change.
type index struct {
	custom   map[metricKey]entry
	external map[string]entry
	// listed and listedExternal are the same in a fixed order.
	listed         []Metric
	listedExternal []string
	// pending is why more may be served than is known yet; nil when nothing is missing.
	pending error
	faults  []Fault
}

// discovery is what a server said of a rule.
type discovery struct {
	found []found
	err   error // of the last time
	// done says that it has answered once.
	done bool
}

// newIndex puts together what rules serve. Of two rules for one metric the later counts, as ever; of two series
// of one rule the first.
func newIndex(f *File, all []Resource, allKinds bool, ours func(string) bool, discovered map[*Rule]discovery) *index {
	x := &index{custom: map[metricKey]entry{}, external: map[string]entry{}, faults: slices.Clone(f.Faults)}
	told := map[string]bool{}
	for _, r := range f.Rules {
		b, faults := r.bind(all)
		if allKinds {
			x.faults = append(x.faults, faults...)
		} else if len(faults) > 0 {
			x.pending = errKinds
		}
		if err := r.unfit(b); err != nil {
			x.faults = append(x.faults, err.(Fault))
			continue
		}
		series, complete := r.known(b)
		if !complete {
			d := discovered[r]
			series = merge(series, d.found)
			if !d.done {
				x.pending = cmp.Or(d.err, x.pending, errNotAsked)
			}
		}
		entries, not := r.entries(b, series)
		if len(entries) == 0 && len(not) > 0 {
			x.faults = append(x.faults, Fault{r.Path, errors.New(not[0])})
		}
		for _, e := range entries {
			if ours != nil && ours(e.metric) {
				if !told[e.metric] {
					told[e.metric] = true
					x.faults = append(x.faults, Fault{r.Path + ".name", fmt.Errorf("%s is a signal of the adapter, which is served in its place: give the rule's metric another name", e.metric)})
				}
				continue
			}
			x.put(e)
		}
	}
	x.list()
	return x
}

var (
	errNotAsked = errors.New("the server has not been asked yet which series there are")
	errKinds    = errors.New("the kinds of object of the cluster are not known yet")
)

func (x *index) put(e entry) {
	if e.rule.External {
		if before, ok := x.external[e.metric]; !ok || before.rule != e.rule {
			x.external[e.metric] = e
		}
		return
	}
	key := metricKey{e.resource.GroupResource, e.metric}
	if before, ok := x.custom[key]; !ok || before.rule != e.rule {
		x.custom[key] = e
	}
}

func (x *index) list() {
	for key, e := range x.custom {
		x.listed = append(x.listed, Metric{key.GroupResource, e.resource.Namespaced, key.metric})
	}
	slices.SortFunc(x.listed, func(a, b Metric) int {
		return cmp.Or(cmp.Compare(a.String(), b.String()), cmp.Compare(a.Name, b.Name))
	})
	for name := range x.external {
		x.listedExternal = append(x.listedExternal, name)
	}
	slices.Sort(x.listedExternal)
}

// same reports whether the same metrics are listed.
func (x *index) same(y *index) bool {
	return slices.Equal(x.listed, y.listed) && slices.Equal(x.listedExternal, y.listedExternal)
}
