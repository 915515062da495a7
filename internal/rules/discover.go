package rules

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Server is a server with Prometheus's query API.
type Server interface {
	// String names it, without credentials.
	String() string
	// Query evaluates a query now. A scalar is a sample without labels.
	Query(ctx context.Context, query string) (model.Vector, error)
	// LabelNames returns the names of labels of the series that a selector chooses, and LabelValues the values
	// of one of them.
	LabelNames(ctx context.Context, selector string) ([]string, error)
	LabelValues(ctx context.Context, label, selector string) ([]string, error)
}

// found is a series that a rule is about, with those of its labels that stand for objects.
type found struct {
	series string
	labels []string
}

// known returns the series that the rule names itself, so that it is served whether or not the server has it now,
// or answers. It is complete when the server has nothing to add.
func (r *Rule) known(b binding) (all []found, complete bool) {
	series, ok := r.fixed()
	if !ok {
		return nil, false
	}
	if r.External {
		return []found{{series: series}}, true
	}
	f := found{series: series}
	for _, label := range slices.Sorted(maps.Keys(b.resources)) {
		_, overridden := r.overrides[label]
		if !r.excludes(label) && (overridden || r.requires(label)) {
			f.labels = append(f.labels, label)
		}
	}
	return []found{f}, r.labelOf == nil
}

// merge returns the series of both, each with the labels that either knows.
func merge(a, b []found) []found {
	labels := map[string][]string{}
	for _, f := range slices.Concat(a, b) {
		labels[f.series] = append(labels[f.series], f.labels...)
	}
	var all []found
	for _, series := range slices.Sorted(maps.Keys(labels)) {
		of := labels[series]
		slices.Sort(of)
		all = append(all, found{series, slices.Compact(of)})
	}
	return all
}

// requires reports whether all series that the rule is about have a label, and excludes whether none has.
func (r *Rule) requires(label string) bool {
	return slices.ContainsFunc(r.matchers, func(m *promlabels.Matcher) bool { return m.Name == label && !m.Matches("") })
}

func (r *Rule) excludes(label string) bool {
	return slices.ContainsFunc(r.matchers, func(m *promlabels.Matcher) bool {
		return m.Name == label && m.Type == promlabels.MatchEqual && m.Value == ""
	})
}

// discover asks a server which series the rule is about. It asks for names only, one label at a time: the series
// themselves may be millions. extra matchers narrow what is looked at.
func (r *Rule) discover(ctx context.Context, server Server, b binding, extra []*promlabels.Matcher) ([]found, error) {
	if r.External {
		names, err := server.LabelValues(ctx, model.MetricNameLabel, r.selector(extra))
		if err != nil {
			return nil, err
		}
		var all []found
		for _, name := range names {
			all = append(all, found{series: name})
		}
		return all, nil
	}
	candidates := slices.Sorted(maps.Keys(r.overrides))
	if r.labelOf != nil {
		labels, err := server.LabelNames(ctx, r.selector(extra))
		if err != nil {
			return nil, err
		}
		candidates = append(candidates, labels...)
		slices.Sort(candidates)
		candidates = slices.Compact(candidates)
	}
	having := map[string][]string{} // labels by series
	for _, label := range candidates {
		if _, ok := b.resources[label]; !ok {
			continue
		}
		names, err := server.LabelValues(ctx, model.MetricNameLabel, r.selector(extra, anyOf(label).matcher))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			having[name] = append(having[name], label)
		}
	}
	var all []found
	for _, series := range slices.Sorted(maps.Keys(having)) {
		all = append(all, found{series, having[series]})
	}
	return all, nil
}

// selector is seriesQuery, narrowed.
func (r *Rule) selector(extra []*promlabels.Matcher, more ...*promlabels.Matcher) string {
	var texts []string
	for _, m := range slices.Concat(r.matchers, extra, more) {
		texts = append(texts, m.String())
	}
	return "{" + strings.Join(texts, ",") + "}"
}

// entry is a metric of one kind of object, and how it is asked for.
type entry struct {
	rule   *Rule
	metric string
	series string
	// resource is of what kind the objects are; zero for an external metric.
	resource Resource
	// label stands for the objects, and namespaceLabel for their namespace if they are in one.
	label, namespaceLabel string
	batch                 batch
}

// entries returns what is served of some series, and says of what else it is not.
func (r *Rule) entries(b binding, all []found) (entries []entry, not []string) {
	for _, f := range all {
		metric, ok := r.metric(f.series)
		if !ok {
			continue
		}
		if why := badName(metric); why != "" {
			not = append(not, fmt.Sprintf("%s would be the metric %q, which is no name that can be asked for: %s", f.series, metric, why))
			continue
		}
		if r.External {
			e := entry{rule: r, metric: metric, series: f.series}
			if r.namespaced {
				e.namespaceLabel = b.labels[namespaces]
			}
			entries = append(entries, e)
			continue
		}
		for _, label := range f.labels {
			e := entry{rule: r, metric: metric, series: f.series, resource: b.resources[label], label: label}
			if e.resource.Namespaced {
				if e.namespaceLabel = b.labels[namespaces]; !slices.Contains(f.labels, e.namespaceLabel) {
					not = append(not, fmt.Sprintf("%s has no label that says in which namespace %s are", f.series, e.resource.GroupResource))
					continue
				}
			}
			e.batch = r.batch(f.series, e.label, e.namespaceLabel)
			entries = append(entries, e)
		}
	}
	return entries, not
}

// unfit says why an external rule cannot be asked, or returns nil.
func (r *Rule) unfit(b binding) error {
	if r.External && r.namespaced && b.labels[namespaces] == "" {
		return Fault{r.Path + ".resources", fmt.Errorf("no label says of which namespace a series is: add {overrides: {namespace: {resource: namespace}}}, or {namespaced: false} for series of all namespaces")}
	}
	return nil
}

func badName(metric string) string {
	switch {
	case metric == "":
		return "it is empty"
	case len(metric) > 253:
		return "it is too long"
	case strings.ContainsAny(metric, "/% \t\n*?#"):
		return "it does not fit into a path"
	}
	return ""
}

// metricKey is what a request names.
type metricKey struct {
	schema.GroupResource
	metric string
}
