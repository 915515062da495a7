package rules

import (
	"slices"
	"strings"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// batch is how many objects one query may be about, so that each has the value that a query for it alone would
// give. prometheus-adapter asks for some objects at a time, and rules are written for that.
type batch int

const (
	// each: those asked for. A value depends on which others are asked for, or the template says names itself.
	each batch = iota
	// perNamespace: all of a namespace.
	perNamespace
	// everywhere: all of all namespaces.
	everywhere
)

// probe values, that stand in a query for a namespace and for an object.
const (
	probeNamespace = "probed-namespace"
	probeObject    = "probed-object"
)

// batch tells how far queries of the rule can be batched, for objects that a label stands for.
func (r *Rule) batch(series, label, namespaceLabel string) batch {
	if r.named {
		return each
	}
	a := about{series: series, label: label, names: []string{probeObject}}
	if namespaceLabel != "" {
		a.namespaceLabel, a.namespaces = namespaceLabel, []string{probeNamespace}
	}
	query, err := r.query(a)
	if err != nil {
		return each
	}
	expr, err := queries.ParseExpr(query)
	if err != nil {
		return each
	}
	alone := keys{label: probeObject}
	if !alone.separate(expr) {
		return each
	}
	if namespaceLabel == "" {
		return everywhere
	}
	a.telling = true
	if query, err = r.query(a); err != nil {
		return perNamespace
	}
	both := keys{label: probeObject, namespaceLabel: probeNamespace}
	if expr, err = queries.ParseExpr(query); err == nil && both.separate(expr) && both.everywhere(expr) {
		return everywhere
	}
	return perNamespace
}

// keys are the labels that tell objects apart, with the value that each is probed with.
type keys map[string]string

// part is how the elements of an expression come from those of the objects asked for.
type part int

const (
	// unrelated: they are the same whatever is asked for.
	unrelated part = iota
	// separate: each comes from one object, and has its labels.
	separate
	// mixed: neither can be told.
	mixed
)

// separate reports whether each value comes from its object alone: asked for more objects, the query gives the
// same for each.
func (k keys) separate(e parser.Expr) bool { return k.of(e) != mixed }

// everywhere reports whether it makes no difference to an expression that the namespace is a label of what is
// grouped: every series is chosen by all keys, and what is joined by all labels there are has the same ones.
func (k keys) everywhere(e parser.Expr) bool {
	all := true
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			all = all && k.chosen(n) == separate
		case *parser.BinaryExpr:
			all = all && (n.VectorMatching == nil || n.VectorMatching.On || grouping(n.LHS) == grouping(n.RHS))
		}
		return nil
	})
	return all
}

// grouping tells which labels elements have: those that were grouped by, or "" for those of the series.
func grouping(e parser.Expr) string {
	switch e := e.(type) {
	case *parser.AggregateExpr:
		if e.Without || e.Op == parser.TOPK || e.Op == parser.BOTTOMK || e.Op == parser.LIMITK || e.Op == parser.LIMIT_RATIO {
			return grouping(e.Expr)
		}
		by := slices.Sorted(slices.Values(e.Grouping))
		return "by " + strings.Join(slices.Compact(by), ",")
	case *parser.BinaryExpr:
		if m := e.VectorMatching; m != nil && m.On && m.Card == parser.CardOneToOne {
			return "on " + e.String() // told apart from all others
		}
		return grouping(e.LHS)
	case *parser.Call:
		for _, arg := range e.Args {
			if t := arg.Type(); t == parser.ValueTypeVector || t == parser.ValueTypeMatrix {
				return grouping(arg)
			}
		}
	case *parser.SubqueryExpr:
		return grouping(e.Expr)
	case *parser.ParenExpr:
		return grouping(e.Expr)
	case *parser.UnaryExpr:
		return grouping(e.Expr)
	case *parser.StepInvariantExpr:
		return grouping(e.Expr)
	}
	return ""
}

func (k keys) of(e parser.Expr) part {
	switch e := e.(type) {
	case *parser.NumberLiteral, *parser.StringLiteral:
		return unrelated
	case *parser.VectorSelector:
		return k.chosen(e)
	case *parser.MatrixSelector:
		return k.of(e.VectorSelector)
	case *parser.SubqueryExpr:
		return k.of(e.Expr)
	case *parser.ParenExpr:
		return k.of(e.Expr)
	case *parser.UnaryExpr:
		return k.of(e.Expr)
	case *parser.StepInvariantExpr:
		return k.of(e.Expr)
	case *parser.AggregateExpr:
		return k.aggregated(e)
	case *parser.Call:
		return k.called(e)
	case *parser.BinaryExpr:
		return k.joined(e)
	}
	return mixed
}

// chosen tells whether a selector has the matchers of all keys, or of none.
func (k keys) chosen(s *parser.VectorSelector) part {
	n := 0
	for label, value := range k {
		if slices.ContainsFunc(s.LabelMatchers, func(m *promlabels.Matcher) bool {
			return m.Name == label && m.Type == promlabels.MatchEqual && m.Value == value
		}) {
			n++
		}
	}
	switch n {
	case 0:
		return unrelated
	case len(k):
		return separate
	}
	return mixed
}

func (k keys) aggregated(e *parser.AggregateExpr) part {
	of, parameter := k.of(e.Expr), unrelated
	if e.Param != nil {
		parameter = k.of(e.Param)
	}
	switch {
	case of == unrelated && parameter == unrelated:
		return unrelated
	case of != separate || parameter != unrelated:
		return mixed
	case e.Without && k.among(e.Grouping) == 0, !e.Without && k.among(e.Grouping) == len(k):
	default:
		return mixed
	}
	if label, ok := e.Param.(*parser.StringLiteral); ok && k.has(label.Val) { // count_values sets it
		return mixed
	}
	return separate
}

func (k keys) called(e *parser.Call) part {
	all := unrelated
	for _, arg := range e.Args {
		all = max(all, k.of(arg))
	}
	if all != separate {
		return all
	}
	switch e.Func.Name {
	case "absent", "absent_over_time", "scalar", "info": // made of no element, or of any
		return mixed
	case "label_replace", "label_join":
		if label, ok := e.Args[1].(*parser.StringLiteral); !ok || k.has(label.Val) {
			return mixed
		}
	}
	return separate
}

func (k keys) joined(e *parser.BinaryExpr) part {
	l, r := k.of(e.LHS), k.of(e.RHS)
	switch {
	case l == unrelated && r == unrelated:
		return unrelated
	case l == mixed || r == mixed:
		return mixed
	case e.VectorMatching == nil: // with a number
		return separate
	}
	m := e.VectorMatching
	if k.among(m.Include) > 0 || m.FillValues.LHS != nil || m.FillValues.RHS != nil {
		return mixed
	}
	switch {
	case m.On && k.among(m.MatchingLabels) == len(k), !m.On && k.among(m.MatchingLabels) == 0:
		return separate
	case l == separate && r == unrelated && (m.Card == parser.CardManyToOne || e.Op == parser.LAND || e.Op == parser.LUNLESS),
		r == separate && l == unrelated && m.Card == parser.CardOneToMany:
		return separate // each element of the one side is joined with what is the same for all
	}
	return mixed
}

// among counts the keys in a list of labels.
func (k keys) among(labels []string) int {
	n := 0
	for label := range k {
		if slices.Contains(labels, label) {
			n++
		}
	}
	return n
}

func (k keys) has(label string) bool { _, ok := k[label]; return ok }
