package rules

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// matching is one matcher of a query, and its values one by one.
type matching struct {
	matcher *promlabels.Matcher
	values  []string
}

func match(label string, kind promlabels.MatchType, value string, values ...string) matching {
	return matching{promlabels.MustNewMatcher(kind, label, value), values}
}

// oneOf matches a label that has one of some values, each taken as it is.
func oneOf(label string, values []string) matching {
	if len(values) == 1 {
		return match(label, promlabels.MatchEqual, values[0], values...)
	}
	return match(label, promlabels.MatchRegexp, alternatives(values), values...)
}

func alternatives(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = regexp.QuoteMeta(v)
	}
	return strings.Join(quoted, "|")
}

// anyOf matches a label that is there.
func anyOf(label string) matching { return match(label, promlabels.MatchNotEqual, "") }

// ofSelector makes matchers of a metric selector. One that cannot be carried into a query is refused: what it
// leaves out would be in the answer.
func ofSelector(selector labels.Selector) ([]matching, error) {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return nil, fmt.Errorf("the metric selector chooses nothing: leave it out for all")
	}
	var all []matching
	for _, r := range requirements {
		label, values := r.Key(), r.Values().List()
		if !model.LegacyValidation.IsValidLabelName(label) {
			return nil, fmt.Errorf("metric selector: %q is no label of a series: they have letters, digits and underscores only", label)
		}
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			all = append(all, oneOf(label, values))
		case selection.NotEquals, selection.NotIn:
			if len(values) == 1 {
				all = append(all, match(label, promlabels.MatchNotEqual, values[0], values...))
			} else {
				all = append(all, match(label, promlabels.MatchNotRegexp, alternatives(values), values...))
			}
		case selection.Exists:
			all = append(all, anyOf(label))
		case selection.DoesNotExist:
			all = append(all, match(label, promlabels.MatchEqual, ""))
		default:
			return nil, fmt.Errorf("metric selector: %s: labels of series cannot be compared by size", r.String())
		}
	}
	return all, nil
}

// byName returns the values of matchers for LabelValuesByName. Rules write them between quotes of their own,
// so that no value may end those; several are the alternatives of a regular expression.
func byName(all []matching) map[string]string {
	out := map[string]string{}
	for _, m := range all {
		values := m.values
		if len(values) > 1 {
			values = make([]string, len(m.values))
			for i, v := range m.values {
				values[i] = strings.ReplaceAll(v, ".", "[.]") // of what these values may have, the one with a meaning
			}
		}
		out[m.matcher.Name] = strings.Join(values, "|")
	}
	return out
}

func matchersText(all []matching) string {
	texts := make([]string, len(all))
	for i, m := range all {
		texts[i] = m.matcher.String()
	}
	return strings.Join(texts, ",")
}
