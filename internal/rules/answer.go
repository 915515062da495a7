package rules

import (
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Request names a metric.
type Request struct {
	// Resource is of what kind the objects are, and Namespace is where; "" for a kind that is in none.
	Resource  schema.GroupResource
	Namespace string
	Metric    string
	// Selector chooses among the series.
	Selector labels.Selector
}

// Value is what an object, or an external metric, has.
type Value struct {
	// Name is the object's.
	Name string
	// Labels are those of an external metric.
	Labels map[string]string
	// Milli is the value in thousandths.
	Milli int64
	// Time is when it was asked for.
	Time time.Time
}

// Why says for what reason there is no value.
type Why int

const (
	// NotThere: nothing has such a metric, or the query gives nothing for it.
	NotThere Why = iota + 1
	// NotNow: it is not known at the moment.
	NotNow
	// Refused: the request cannot be made a query.
	Refused
)

// Error is why there is no value.
type Error struct {
	Why     Why
	Message string
}

func (e *Error) Error() string { return e.Message }

func absent(why Why, format string, args ...any) *Error {
	return &Error{why, fmt.Sprintf(format, args...)}
}

// held is how long values are served that no newer ones have come after, besides a query that takes all its time.
const held = 15 * time.Second

// Custom lists the metrics of objects, and External the others. The lists are shared.
func (r *Rules) Custom() []Metric { return r.current.Load().listed }

// External lists the names of the metrics that are of no object.
func (r *Rules) External() []string { return r.current.Load().listedExternal }

// Resource returns the kind that the objects of a metric are of.
func (r *Rules) Resource(q Request) (Resource, *Error) {
	e, err := r.entry(q)
	return e.resource, err
}

// Get returns the metric of one object.
func (r *Rules) Get(q Request, name string) (Value, *Error) {
	e, err := r.entry(q)
	if err != nil {
		return Value{}, err
	}
	if !safe(name) {
		return Value{}, absent(NotThere, "%q is no name of an object", name)
	}
	a := askOf(e, q)
	if e.batch == each || e.resource.GroupResource == namespaces && e.batch == everywhere {
		a.name = name
	}
	o, err := r.outcome(e, q, a, nil)
	if err != nil {
		return Value{}, err
	}
	v, err := o.of(q.Namespace, name)
	if err != nil {
		return Value{}, absent(err.Why, "%s: %s", e.rule.Path, err.Message)
	}
	return v, nil
}

// Select returns the metric of those objects that have labels, and a value. Without one for any of them it says
// why.
func (r *Rules) Select(ctx context.Context, q Request, objects labels.Selector) ([]Value, *Error) {
	e, err := r.entry(q)
	if err != nil {
		return nil, err
	}
	a := askOf(e, q)
	if e.batch == each || e.resource.GroupResource == namespaces && e.batch == everywhere {
		if a.objects = objects.String(); a.objects == "" {
			a.objects = "everything"
		}
	}
	o, err := r.outcome(e, q, a, objects)
	if err != nil {
		return nil, err
	}
	var list []string
	if objects.Empty() && e.resource.GroupResource != podResource {
		for of := range maps.Keys(o.values) {
			if of.Namespace == q.Namespace {
				list = append(list, of.Name)
			}
		}
		slices.Sort(list)
	} else {
		var fault error
		if list, fault = r.config.Objects.Names(ctx, e.resource, q.Namespace, objects); fault != nil {
			return nil, absent(NotNow, "the %s selected are not known: %v", e.resource.GroupResource, fault)
		}
	}
	var all []Value
	var none *Error
	for _, name := range list {
		v, err := o.of(q.Namespace, name)
		if err != nil {
			if none == nil {
				none = absent(err.Why, "%s: of %s: %s", e.rule.Path, name, err.Message)
			}
			continue
		}
		all = append(all, v)
	}
	if len(all) == 0 && none != nil {
		return nil, none
	}
	return all, fits(all)
}

var podResource = schema.GroupResource{Resource: "pods"}

// OfNamespace returns an external metric as a namespace sees it. Whoever asks adds up what is there, so that one
// part that is no number leaves nothing.
func (r *Rules) OfNamespace(namespace, metric string, selector labels.Selector) ([]Value, *Error) {
	x := r.current.Load()
	e, ok := x.external[metric]
	if !ok {
		return nil, x.unknown(Request{Metric: metric})
	}
	q := Request{Namespace: namespace, Metric: metric, Selector: selector}
	if !safe(namespace) {
		return nil, absent(NotThere, "%q is no name of a namespace", namespace)
	}
	a := ask{metricKey: metricKey{metric: metric}, external: true, selector: selector.String()}
	if e.namespaceLabel != "" {
		a.namespace = namespace
	}
	o, err := r.outcome(e, q, a, nil)
	if err != nil {
		return nil, err
	}
	if len(o.external) == 0 {
		return nil, absent(NotThere, "%s: metricsQuery gives nothing%s", e.rule.Path, ifNamespaced(e, namespace))
	}
	all := make([]Value, len(o.external))
	for i, v := range o.external {
		if v.absent != "" {
			return nil, absent(NotNow, "%s: %s", e.rule.Path, v.absent)
		}
		all[i] = Value{Labels: v.labels, Milli: v.milli, Time: o.at}
	}
	return all, fits(all)
}

func ifNamespaced(e entry, namespace string) string {
	if e.namespaceLabel == "" {
		return ""
	}
	return fmt.Sprintf(" for %s=%q", e.namespaceLabel, namespace)
}

func (r *Rules) entry(q Request) (entry, *Error) {
	x := r.current.Load()
	e, ok := x.custom[metricKey{q.Resource, q.Metric}]
	switch {
	case !ok:
		return e, x.unknown(q)
	case e.resource.Namespaced && q.Namespace == "":
		return e, absent(NotThere, "%s are in a namespace, which is not named", q.Resource)
	case !e.resource.Namespaced && q.Namespace != "":
		return e, absent(NotThere, "%s are in no namespace: ask for them in none", q.Resource)
	case q.Namespace != "" && !safe(q.Namespace):
		return e, absent(NotThere, "%q is no name of a namespace", q.Namespace)
	}
	return e, nil
}

// unknown says that no rule serves a metric, or that it is too early to tell.
func (x *index) unknown(q Request) *Error {
	if x.pending != nil {
		return absent(NotNow, "no rule is known yet that serves it: %v", x.pending)
	}
	var kinds []string
	for _, m := range x.listed {
		if m.Name == q.Metric {
			kinds = append(kinds, m.String())
		}
	}
	if len(kinds) > 0 && q.Resource.Resource != "" {
		return absent(NotThere, "rules serve it on %v only", kinds)
	}
	return absent(NotThere, "no rule serves it")
}

func askOf(e entry, q Request) ask {
	return ask{metricKey: metricKey{q.Resource, q.Metric}, selector: q.Selector.String(), namespace: q.Namespace}
}

// outcome notes that somebody asks, and returns what the newest query gave.
func (r *Rules) outcome(e entry, q Request, a ask, objects labels.Selector) (*outcome, *Error) {
	if !q.Selector.Empty() && !e.rule.matched && !e.rule.named {
		return nil, absent(Refused, "%s: metricsQuery has no <<.LabelMatchers>>, so that it cannot take a metric selector", e.rule.Path)
	}
	matching, err := ofSelector(q.Selector)
	if err != nil {
		return nil, absent(Refused, "%v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if !r.demand.touch(a, wanted{now, matching, objects}) {
		return nil, absent(NotNow, "%s", errCrowded)
	}
	o := r.outcomes[a]
	switch {
	case o == nil || o.rule != e.rule:
		poke(r.wake)
		return nil, absent(NotNow, "%s: it is warming up, as it has not been asked for lately: ask again in %.0f s", e.rule.Path, math.Ceil(r.config.Interval.Seconds()))
	case o.at.IsZero():
		return nil, absent(NotNow, "%s: %v", e.rule.Path, o.err)
	case now.Sub(o.at) > r.config.Interval+r.config.Timeout+held:
		if o.err != nil {
			return nil, absent(NotNow, "%s: %v", e.rule.Path, o.err)
		}
		return nil, absent(NotNow, "%s: the newest value is %s old", e.rule.Path, now.Sub(o.at).Round(time.Second))
	}
	return o, nil
}

// of returns the value of an object.
func (o *outcome) of(namespace, name string) (Value, *Error) {
	v, ok := o.values[types.NamespacedName{Namespace: namespace, Name: name}]
	switch {
	case !ok:
		return Value{}, absent(NotThere, "metricsQuery gives nothing for it")
	case v.absent != "":
		return Value{}, absent(NotNow, "%s", v.absent)
	}
	return Value{Name: name, Milli: v.milli, Time: o.at}, nil
}

// fits says that values cannot be added up, as an HPA will, or returns nil.
func fits(all []Value) *Error {
	var sum float64
	for _, v := range all {
		sum += math.Abs(float64(v.Milli))
	}
	if sum >= math.MaxInt64 {
		return absent(NotNow, "the sum of the values does not fit into a quantity")
	}
	return nil
}

// names of objects, which a template may write between quotes.
var nameOfObject = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.:]{0,251}[A-Za-z0-9])?$`)

func safe(name string) bool { return nameOfObject.MatchString(name) }
