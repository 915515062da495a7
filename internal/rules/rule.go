package rules

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// queries reads PromQL with all that a server may have switched on.
var queries = parser.NewParser(parser.Options{EnableExperimentalFunctions: true, EnableBinopFillModifiers: true})

// A Rule says which series become metrics of which objects, and by what query. It does not change.
type Rule struct {
	// Path is where it stands: rules[3].
	Path string
	// External says that its metrics are of no object.
	External bool
	// SeriesQuery chooses the series that it is about.
	SeriesQuery string

	matchers []*labels.Matcher // of SeriesQuery
	filters  []filter
	naming   naming
	// template makes the query; matched says that it has a place for matchers, and named that it takes their
	// values apart.
	template       *template.Template
	matched, named bool

	// overrides say what labels stand for, and labelOf what the label of any other kind is; nil for none.
	overrides map[string]textResource
	labelOf   *template.Template
	// namespaced says that an external metric is of the namespace that it is asked for in.
	namespaced bool
}

// compile makes a rule of its text, or says all that is wrong with it.
func compile(t text, path string, external bool) (*Rule, []Fault) {
	r := &Rule{
		Path: path, External: external, SeriesQuery: t.SeriesQuery,
		overrides: t.Resources.Overrides, namespaced: t.Resources.Namespaced == nil || *t.Resources.Namespaced,
	}
	var faults []Fault
	fault := func(field string, err error) {
		if err != nil {
			faults = append(faults, Fault{path + "." + field, err})
		}
	}
	var err error
	if r.matchers, err = parseSeries(t.SeriesQuery); err != nil {
		fault("seriesQuery", err)
	}
	for i, f := range t.SeriesFilters {
		filter, err := newFilter(f)
		fault(fmt.Sprintf("seriesFilters[%d]", i), err)
		r.filters = append(r.filters, filter)
	}
	r.naming, err = newNaming(t.Name.Matches, t.Name.As)
	fault("name", err)
	for _, label := range slices.Sorted(maps.Keys(t.Resources.Overrides)) {
		field := "resources.overrides." + label
		switch {
		case !model.LegacyValidation.IsValidLabelName(label):
			fault(field, fmt.Errorf("%q is no name of a label", label))
		case t.Resources.Overrides[label].Resource == "":
			fault(field, errors.New("it has no resource, such as {resource: pod}"))
		}
	}
	if t.Resources.Template != "" {
		r.labelOf, err = newLabelTemplate(t.Resources.Template)
		fault("resources.template", err)
	}
	if !external && len(t.Resources.Overrides) == 0 && t.Resources.Template == "" {
		fault("resources", errors.New(`no label says whose metric it is: add a template, such as "<<.Resource>>", or overrides, such as {pod: {resource: pod}}`))
	}
	r.template, err = newQueryTemplate(t.MetricsQuery)
	fault("metricsQuery", err)
	if len(faults) == 0 {
		r.named = strings.Contains(t.MetricsQuery, "LabelValuesByName")
		if name, fixed := r.fixed(); fixed {
			if _, ok := r.metric(name); !ok {
				fault("seriesFilters", fmt.Errorf("seriesQuery asks for %s, which seriesFilters and name.matches leave out: the rule is about nothing", name))
			}
		}
		fault("metricsQuery", r.probe())
	}
	return r, faults
}

func parseSeries(query string) ([]*labels.Matcher, error) {
	if strings.TrimSpace(query) == "" {
		return nil, errors.New(`it is missing: it says which series the rule is about, such as 'http_requests_total{namespace!="",pod!=""}'`)
	}
	matchers, err := queries.ParseMetricSelector(query)
	if err != nil {
		return nil, fmt.Errorf("%q chooses no series: %w", query, err)
	}
	return matchers, nil
}

// fixed returns the name of the one series that the rule is about, if it says so.
func (r *Rule) fixed() (string, bool) {
	for _, m := range r.matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual && m.Value != "" {
			return m.Value, true
		}
	}
	return "", false
}

// metric returns what a series is called in the API. It is not ok for one that the rule is not about.
func (r *Rule) metric(series string) (string, bool) {
	for _, f := range r.filters {
		if !f.takes(series) {
			return "", false
		}
	}
	return r.naming.of(series)
}

// filter takes names of series, or leaves them out.
type filter struct {
	regex *regexp.Regexp
	is    bool
}

func newFilter(t textFilter) (filter, error) {
	text := t.Is + t.IsNot
	switch {
	case t.Is != "" && t.IsNot != "":
		return filter{}, errors.New("it has both is and isNot: make two filters of it")
	case text == "":
		return filter{}, errors.New("it has neither is nor isNot")
	}
	regex, err := regexp.Compile(text)
	return filter{regex, t.Is != ""}, err
}

func (f filter) takes(series string) bool { return f.regex.MatchString(series) == f.is }

// naming makes names of metrics.
type naming struct {
	matches *regexp.Regexp // nil for all
	as      string
}

func newNaming(matches, as string) (naming, error) {
	n := naming{as: as}
	if matches == "" {
		matches = ".*"
	}
	var err error
	if n.matches, err = regexp.Compile(matches); err != nil {
		return n, fmt.Errorf("matches: %w", err)
	}
	if as == "" {
		switch n.matches.NumSubexp() {
		case 0:
			n.as = "$0"
		case 1:
			n.as = "$1"
		default:
			return n, errors.New(`as is missing: with several groups in matches it has to say what the name is made of, such as "${1}_per_second"`)
		}
	}
	return n, nil
}

func (n naming) of(series string) (string, bool) {
	found := n.matches.FindStringSubmatchIndex(series)
	if found == nil {
		return "", false
	}
	return string(n.matches.ExpandString(nil, n.as, series, found)), true
}
