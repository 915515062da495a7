package rules

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
)

// maxNamespaces bounds how many namespaces one query names: some servers take short queries only.
const maxNamespaces = 100

// task is one query, and what it is asked for.
type task struct {
	// key is the same from tick to tick, and group is that of all queries for a metric with a selector.
	key, group string

	entry entry
	about about
	asks  []ask
	// objects has the names found that the query is about; nil when they are known.
	objects func(context.Context) ([]string, error)
}

// plan makes the tasks for a demand. What is served by no rule (any more) makes none. alone says of which groups
// each namespace has a query of its own, as one of them would spoil it for all.
func plan(x *index, d demand, objects Objects, alone func(group string) bool) []*task {
	groups := map[string]*task{}
	for a, w := range d {
		e, ok := x.entry(a)
		if !ok {
			continue
		}
		group := fmt.Sprintf("%s|%s|%s|%s", e.rule.Path, a.metric, a.GroupResource, a.selector)
		key := group
		batched := e.batch == everywhere && !a.external
		switch {
		case !batched:
			key += "|" + a.namespace + "|" + a.name + "|" + a.objects
		case e.namespaceLabel != "" && alone(group):
			key += "|" + a.namespace
		}
		t := groups[key]
		if t == nil {
			t = &task{key: key, group: group, entry: e, about: about{series: e.series, selector: w.matching, label: e.label, namespaceLabel: e.namespaceLabel}}
			groups[key] = t
		}
		t.asks = append(t.asks, a)
		if e.namespaceLabel != "" && !slices.Contains(t.about.namespaces, a.namespace) {
			t.about.namespaces = append(t.about.namespaces, a.namespace)
		}
		if a.external || batched && e.resource.GroupResource != namespaces {
			continue
		}
		switch {
		case e.batch == perNamespace:
		case a.name != "":
			t.about.names = append(t.about.names, a.name)
		case w.objects != nil:
			t.objects = func(ctx context.Context) ([]string, error) {
				return objects.Names(ctx, e.resource, a.namespace, w.objects)
			}
		}
	}
	var all []*task
	for _, t := range groups {
		all = append(all, t.parts()...)
	}
	slices.SortFunc(all, func(a, b *task) int { return strings.Compare(a.key, b.key) })
	return all
}

// parts splits a task that is about too many namespaces.
func (t *task) parts() []*task {
	slices.Sort(t.about.names)
	t.about.names = slices.Compact(t.about.names)
	slices.Sort(t.about.namespaces)
	if len(t.about.namespaces) <= maxNamespaces {
		t.about.telling = len(t.about.namespaces) > 1
		return []*task{t}
	}
	var all []*task
	for chunk := range slices.Chunk(t.about.namespaces, maxNamespaces) {
		part := *t
		part.key = fmt.Sprintf("%s|%d", t.key, len(all))
		part.about.namespaces, part.about.telling = chunk, true
		part.asks = slices.DeleteFunc(slices.Clone(t.asks), func(a ask) bool { return !slices.Contains(chunk, a.namespace) })
		all = append(all, &part)
	}
	return all
}

func (x *index) entry(a ask) (entry, bool) {
	if a.external {
		e, ok := x.external[a.metric]
		return e, ok
	}
	e, ok := x.custom[a.metricKey]
	return e, ok
}

// outcome is what a query gave. It does not change.
type outcome struct {
	rule *Rule
	// at is when it was asked; zero while it never gave anything.
	at time.Time
	// values are those of objects, or in the order of the answer those of an external metric.
	values   map[types.NamespacedName]value
	external []value
	// err is why the newest query failed; nil when it did not.
	err error
}

// value is what an object has: thousandths, or why there is none.
type value struct {
	milli  int64
	labels map[string]string
	absent string
}

// run asks a server.
func (t *task) run(ctx context.Context, c Config) (*outcome, error) {
	if t.objects != nil {
		names, err := t.objects(ctx)
		if err != nil {
			return nil, err
		}
		t.about.names = append(t.about.names, names...)
		if len(t.about.names) == 0 {
			return &outcome{rule: t.entry.rule}, nil
		}
	}
	query, err := t.entry.rule.query(t.about)
	if err != nil {
		return nil, fmt.Errorf("metricsQuery: %w", err)
	}
	if query, err = narrowed(query, c.Matchers); err != nil {
		return nil, fmt.Errorf("metricsQuery: %w", err)
	}
	v, err := c.Server.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	o := &outcome{rule: t.entry.rule}
	if t.entry.rule.External {
		for _, s := range v {
			o.external = append(o.external, valueOf(s))
		}
		slices.SortFunc(o.external, func(a, b value) int { return cmp.Compare(fmt.Sprint(a.labels), fmt.Sprint(b.labels)) })
		return o, nil
	}
	o.values = t.values(v)
	return o, nil
}

// values finds whose each sample is. Two of one object are none, unless they are equal: which of them is meant
// nobody can tell.
func (t *task) values(v model.Vector) map[types.NamespacedName]value {
	all := make(map[types.NamespacedName]value, len(v))
	for _, s := range v {
		of := types.NamespacedName{Name: string(s.Metric[model.LabelName(t.entry.label)])}
		if of.Name == "" {
			continue
		}
		if t.entry.namespaceLabel != "" {
			of.Namespace = string(s.Metric[model.LabelName(t.entry.namespaceLabel)])
			if of.Namespace == "" && len(t.about.namespaces) == 1 {
				of.Namespace = t.about.namespaces[0]
			}
		}
		next := valueOf(s)
		if before, twice := all[of]; twice && (before.milli != next.milli || before.absent != next.absent) {
			next = value{absent: "metricsQuery gives several values for it: have it aggregate by (<<.GroupBy>>)"}
		}
		all[of] = next
	}
	return all
}

func valueOf(s *model.Sample) value {
	out := value{}
	for name, text := range s.Metric {
		if name != model.MetricNameLabel {
			if out.labels == nil {
				out.labels = map[string]string{}
			}
			out.labels[string(name)] = string(text)
		}
	}
	v := float64(s.Value)
	switch {
	case s.Histogram != nil:
		out.absent = "metricsQuery gives a histogram: have it take a quantile, or another function of it"
	case math.IsNaN(v):
		out.absent = "metricsQuery gives no number (NaN), such as of 0/0"
	case math.Abs(v) >= maxValue:
		out.absent = fmt.Sprintf("metricsQuery gives %g, which does not fit into a quantity", v)
	case v > 0 && v < 0.001:
		out.milli = 1 // a little is not nothing: zero is what lets an HPA scale in
	default:
		out.milli = int64(math.Round(v * 1000))
	}
	return out
}

// maxValue is what does not fit into thousandths of 64 bits.
const maxValue = math.MaxInt64 / 1000
