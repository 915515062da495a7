// Package query reads what a metric's name and its selector ask for.
//
// An HPA can say no more about a metric than its name and a label selector, so that parameters are
// labels: quantile=0.95, window=2m, ttft=1500ms, tpot=80ms, e2e=30s, role=prefill. Every other key
// chooses among the series of a replica by their labels: model, engine, finished_reason and so on.
package query

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// Request is what is asked for.
type Request struct {
	// Plan says what to measure of a replica.
	Plan *signals.Plan
	// Selector is what was asked, to be repeated in the answer; nil for nothing.
	Selector *metav1.LabelSelector
	// role chooses the replicas; nil for all of them.
	role *labels.Requirement
}

// Takes reports whether a replica of a role is asked for. One that does both has none.
func (r Request) Takes(role string) bool {
	if r.role == nil {
		return true
	}
	of := labels.Set{}
	if role != "" {
		of[keyRole] = role
	}
	return r.role.Matches(of)
}

// Roles reports whether replicas are chosen by their role.
func (r Request) Roles() bool { return r.role != nil }

// Parser reads requests.
type Parser struct {
	// Window is what signals describe unless asked otherwise, and Windows are those that may be asked for besides.
	Window  time.Duration
	Windows []time.Duration
}

// The keys of parameters.
const (
	keyQuantile = "quantile"
	keyWindow   = "window"
	keyTTFT     = "ttft"
	keyTPOT     = "tpot"
	keyE2E      = "e2e"
	keyRole     = "role"
)

// Parse reads a request for a signal. The error is signals.ErrNoSignal, signals.ErrNotComputable, or the
// fault of the selector.
func (p Parser) Parse(signal string, selector labels.Selector) (Request, error) {
	q := signals.Query{Signal: signal}
	plain, err := signals.Prepare(q)
	if err != nil {
		return Request{}, err
	}
	s := plain.Signal()
	var r Request
	var where []labels.Requirement
	requirements, selectable := selector.Requirements()
	if !selectable {
		return Request{}, fmt.Errorf("the metric selector chooses nothing: leave it out for all")
	}
	known := s.Labels()
	given := map[string]bool{}
	for _, req := range requirements {
		var err error
		switch key := req.Key(); {
		case given[key] && slices.Contains([]string{keyRole, keyQuantile, keyWindow, keyTTFT, keyTPOT, keyE2E}, key):
			err = fmt.Errorf("%s: it is there twice", key)
		case req.Operator() == selection.GreaterThan || req.Operator() == selection.LessThan:
			err = fmt.Errorf("%s: labels are equal or not, and not greater or less than others", key)
		case key == keyRole:
			if s.OfPool() {
				err = fmt.Errorf("%s: %s is of a pool, and pools have no role; it has %s",
					key, signal, strings.Join(append(parameters(s), known...), ", "))
				break
			}
			r.role, err = &req, checkRole(req)
		case key == keyQuantile:
			err = one(req, func(v string) (err error) { q.Quantile, err = strconv.ParseFloat(v, 64); return err }, "a number between 0 and 1, such as 0.95")
			if err == nil && !(q.Quantile > 0 && q.Quantile < 1) {
				err = fmt.Errorf("%s: %g is not between 0 and 1", key, q.Quantile)
			}
		case key == keyWindow:
			if err = duration(req, &q.Window); err == nil {
				q.Window, err = p.window(q.Window)
			}
		case key == keyTTFT:
			err = duration(req, &q.SLO.TTFT)
		case key == keyTPOT:
			err = duration(req, &q.SLO.TPOT)
		case key == keyE2E:
			err = duration(req, &q.SLO.E2E)
		case slices.Contains(known, key):
			where = append(where, req)
		default:
			err = fmt.Errorf("%s: %s has neither a parameter nor a label of that name; it has %s",
				key, signal, strings.Join(append(parameters(s), known...), ", "))
		}
		if err != nil {
			return Request{}, fmt.Errorf("metric selector: %w", err)
		}
		given[req.Key()] = true
	}
	if len(requirements) > 0 {
		r.Selector = written(requirements)
	}
	q.Where = canonical(where)
	if r.Plan, err = signals.Prepare(q); err != nil {
		return Request{}, fmt.Errorf("metric selector: %w", err)
	}
	return r, nil
}

// canonical writes requirements in one of their ways, so that those who ask the same share an evaluation.
func canonical(where []labels.Requirement) string {
	var texts []string
	for _, req := range where {
		text := req.String()
		if values := req.ValuesUnsorted(); len(values) == 1 {
			op := "="
			if o := req.Operator(); o == selection.NotIn || o == selection.NotEquals {
				op = "!="
			}
			text = req.Key() + op + values[0]
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), ",")
}

// written writes requirements as the API does.
func written(requirements labels.Requirements) *metav1.LabelSelector {
	out := new(metav1.LabelSelector)
	for _, r := range requirements {
		op := metav1.LabelSelectorOpIn
		switch r.Operator() {
		case selection.NotIn, selection.NotEquals:
			op = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			op = metav1.LabelSelectorOpExists
		case selection.DoesNotExist:
			op = metav1.LabelSelectorOpDoesNotExist
		}
		values := slices.Sorted(slices.Values(r.ValuesUnsorted()))
		if _, twice := out.MatchLabels[r.Key()]; op == metav1.LabelSelectorOpIn && len(values) == 1 && !twice {
			metav1.AddLabelToSelector(out, r.Key(), values[0])
			continue
		}
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: op, Values: values})
	}
	return out
}

// ParseText reads a request whose selector is text, as HPAs have it.
func (p Parser) ParseText(signal, selector string) (Request, error) {
	parsed, err := labels.Parse(selector)
	if err != nil {
		return Request{}, fmt.Errorf("metric selector: %w", err)
	}
	return p.Parse(signal, parsed)
}

// parameters lists the parameters that a signal has.
func parameters(s *signals.Signal) []string {
	out := []string{keyWindow}
	if !s.OfPool() {
		out = append([]string{keyRole}, out...)
	}
	if s.HasQuantile() {
		out = append(out, keyQuantile)
	}
	if s.HasSLO() {
		out = append(out, keyTTFT, keyTPOT, keyE2E)
	}
	return out
}

// one reads the one value of a requirement.
func one(req labels.Requirement, read func(string) error, want string) error {
	values := req.ValuesUnsorted()
	switch req.Operator() {
	case selection.Equals, selection.DoubleEquals, selection.In:
		if len(values) == 1 && read(values[0]) == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %q is not one value of a parameter: write %s=, and %s", req.Key(), req.String(), req.Key(), want)
}

func duration(req labels.Requirement, to *time.Duration) error {
	return one(req, func(v string) error {
		d, err := time.ParseDuration(v)
		if err == nil && d <= 0 {
			err = fmt.Errorf("%s is not positive", d)
		}
		*to = d
		return err
	}, "a number and a unit, such as 1500ms or 2m")
}

// window returns how the query says a window: as 0 where it is the one that holds anyway.
func (p Parser) window(w time.Duration) (time.Duration, error) {
	if w == p.Window {
		return 0, nil
	}
	if slices.Contains(p.Windows, w) {
		return w, nil
	}
	var all []string
	for _, w := range append([]time.Duration{p.Window}, p.Windows...) {
		all = append(all, w.String())
	}
	return 0, fmt.Errorf("%s: %s is not among the windows that are configured: %s", keyWindow, w, strings.Join(all, ", "))
}

func checkRole(req labels.Requirement) error {
	for _, v := range req.ValuesUnsorted() {
		if v != signals.Prefill && v != signals.Decode {
			return fmt.Errorf("%s: there are %s and %s, and not %q", keyRole, signals.Prefill, signals.Decode, v)
		}
	}
	return nil
}
