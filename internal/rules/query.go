package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// about is what a query asks for.
type about struct {
	series   string
	selector []matching
	// label stands for the objects, and names are theirs; nil for all. There is no label for an external metric.
	label string
	names []string
	// namespaceLabel stands for their namespace, and namespaces are those; there is none for what is in none.
	namespaceLabel string
	namespaces     []string
	// telling has the answer say of each value in which namespace it is.
	telling bool
}

// query makes the text of a query.
func (r *Rule) query(a about) (string, error) {
	all := slices.Clone(a.selector)
	if a.namespaceLabel != "" {
		all = append(all, oneOf(a.namespaceLabel, a.namespaces))
	}
	args := queryArgs{Series: a.series}
	if a.label != "" {
		if a.names == nil {
			all = append(all, anyOf(a.label))
		} else {
			all = append(all, oneOf(a.label, a.names))
		}
		args.GroupBySlice = append(args.GroupBySlice, a.label)
		if a.telling {
			args.GroupBySlice = append(args.GroupBySlice, a.namespaceLabel)
		}
		args.GroupBy = strings.Join(args.GroupBySlice, ",")
	}
	args.LabelMatchers, args.LabelValuesByName = matchersText(all), byName(all)
	if len(all) == 0 {
		args.LabelMatchers = anything // a template may go on with a comma
	}
	return execute(r.template, args)
}

// anything is a matcher of every series, and of those without the label.
const anything = `job=~".*"`

// parse reads a query that a template has made.
func parse(query string) (parser.Expr, error) {
	expr, err := queries.ParseExpr(query)
	if err != nil {
		return nil, fmt.Errorf("it makes %s, which is no query: %w", clip(query), err)
	}
	switch expr.Type() {
	case parser.ValueTypeVector, parser.ValueTypeScalar:
		return expr, nil
	}
	return nil, fmt.Errorf("it makes %s, which gives a %s, and not one value for each object", clip(query), parser.DocumentedType(expr.Type()))
}

// narrowed adds matchers to every selector of a query.
func narrowed(query string, matchers []*promlabels.Matcher) (string, error) {
	expr, err := parse(query)
	if err != nil || len(matchers) == 0 {
		return query, err
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			s.LabelMatchers = append(s.LabelMatchers, matchers...)
		}
		return nil
	})
	return expr.String(), nil
}

// probe makes a query as for somebody, to see that the template can, and what it uses.
func (r *Rule) probe() error {
	labels := slices.Sorted(maps.Keys(r.overrides))
	if len(labels) == 0 {
		labels = []string{"namespace", "pod"}
	}
	series, ok := r.fixed()
	if !ok {
		series = "series"
	}
	make := func(value string) (string, error) {
		var all []matching
		for _, l := range labels {
			all = append(all, oneOf(l, []string{value}))
		}
		args := queryArgs{Series: series, LabelMatchers: matchersText(all), LabelValuesByName: byName(all)}
		if !r.External {
			args.GroupBy, args.GroupBySlice = labels[0], labels[:1]
		}
		return execute(r.template, args)
	}
	a, err := make("a")
	if err != nil {
		return err
	}
	b, err := make("b")
	if err != nil {
		return err
	}
	r.matched = a != b
	expr, err := parse(a)
	if err != nil {
		return err
	}
	if !r.External && expr.Type() == parser.ValueTypeScalar {
		return errors.New("it gives one number without labels, so that nobody can tell whose it is: have it by (<<.GroupBy>>)")
	}
	return nil
}

// clip makes a text fit for a message.
func clip(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if r := []rune(text); len(r) > 200 {
		return string(r[:200]) + "…"
	}
	return text
}
