package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
)

// batchSeries are pods of two namespaces, some of one name, and what rules join them with.
const batchSeries = `load 10s
  x{namespace="a",pod="p",verb="GET",le="1"} 0+1x30
  x{namespace="a",pod="p",verb="PUT",le="2"} 0+2x30
  x{namespace="a",pod="q",verb="GET",le="1"} 0+3x30
  x{namespace="b",pod="p",verb="GET",le="1"} 0+5x30
  x{namespace="b",pod="r",verb="PUT",le="2"} 0+7x30
  y{namespace="a",pod="p"} 2x30
  y{namespace="a",pod="q"} 4x30
  y{namespace="b",pod="p"} 8x30
  y{namespace="b",pod="r"} 16x30
  info{pod="p",team="t",uid="1"} 1x30
  info{pod="q",team="u",uid="2"} 1x30
  info{pod="r",team="t",uid="3"} 1x30
  quota{namespace="a"} 10x30
  quota{namespace="b"} 20x30
`

// TestBatch: where queries are batched, each object has the value that a query for it alone gives. Those that
// would not are known.
func TestBatch(t *testing.T) {
	server := newFakeServer(t, batchSeries)
	const m = "{<<.LabelMatchers>>}"
	for query, want := range map[string]batch{
		"sum(x" + m + ") by (<<.GroupBy>>)":                                                                     everywhere,
		"avg without (verb, le) (x" + m + ")":                                                                   everywhere,
		"rate(x{verb=\"GET\",<<.LabelMatchers>>}[1m])":                                                          everywhere,
		"sum(x" + m + ") by (<<.GroupBy>>) / sum(y" + m + ") by (<<.GroupBy>>)":                                 everywhere,
		"max_over_time(sum by (<<.GroupBy>>) (x" + m + ")[1m:10s]) > 100 or sum by (<<.GroupBy>>) (y" + m + ")": everywhere,
		"y" + m + " + y" + m:                         everywhere,
		"sum by (<<.GroupBy>>) (x" + m + ") + y" + m: perNamespace,
		"max_over_time(sum by (<<.GroupBy>>) (x" + m + ")[1m:10s]) > 1000 or y" + m:      perNamespace,
		"y" + m + " unless on (<<.GroupBy>>) x{verb=\"PUT\",<<.LabelMatchers>>}":         everywhere,
		"label_replace(y" + m + ", \"other\", \"$1\", \"pod\", \"(.*)\")":                everywhere,
		"histogram_quantile(0.5, sum(rate(x" + m + "[1m])) by (le, <<.GroupBy>>))":       everywhere,
		"topk by (<<.GroupBy>>) (1, x" + m + ")":                                         everywhere,
		"-sum(x" + m + ") by (<<.GroupBy>>) * 2 + time() * 0":                            everywhere,
		"sum(x" + m + ") by (pod)":                                                       perNamespace,
		"sum(x" + m + " * on (pod) group_left (team) info) by (<<.GroupBy>>)":            perNamespace,
		"sum(x" + m + ") by (<<.GroupBy>>) / on (pod) sum(y" + m + ") by (pod)":          perNamespace,
		"sum(x" + m + ") by (<<.GroupBy>>, namespace) / on (namespace) group_left quota": perNamespace,
		"sum(x" + m + ") by (<<.GroupBy>>) / scalar(sum(quota))":                         perNamespace,
		"sum(x) by (pod)": perNamespace,
		"sum(x" + m + ") by (<<.GroupBy>>) / scalar(sum(x" + m + "))":                       each,
		"sum(x" + m + ") by (<<.GroupBy>>) / ignoring (pod) group_left sum(x" + m + ")":     each,
		"topk(1, sum(x" + m + ") by (<<.GroupBy>>))":                                        each,
		"sum(x" + m + ") by (le)":                                                           each,
		"sum(x" + m + ")":                                                                   each,
		"avg without (pod) (x" + m + ")":                                                    each,
		"absent(x" + m + ")":                                                                each,
		"label_replace(y" + m + ", \"pod\", \"$1x\", \"pod\", \"(.*)\")":                    each,
		"label_join(y" + m + ", \"pod\", \"-\", \"pod\", \"namespace\")":                    each,
		"count_values(\"pod\", x" + m + ")":                                                 each,
		"count_values by (<<.GroupBy>>) (\"pod\", x" + m + ")":                              each,
		"sum(x" + m + ") by (<<.GroupBy>>) or on () vector(0)":                              each,
		"quantile by (<<.GroupBy>>) (scalar(max(y" + m + "))/16, x" + m + ")":               each,
		"sum(y" + m + " * on (namespace) group_left (pod) quota) by (<<.GroupBy>>)":         each,
		"sum(x{pod=\"<<.LabelValuesByName.pod>>\",<<.LabelMatchers>>}) by (<<.GroupBy>>)":   each,
		"sum(x{namespace!=\"\",pod=~\"<<.LabelValuesByName.pod>>\"}) by (<<.GroupBy>>)":     each,
		"sum(x" + m + ") by (<<.GroupBy>>) + on (pod) group_right sum(x" + m + ") by (pod)": perNamespace,
	} {
		r := podRule(t, query)
		if got := r.batch("x", "pod", "namespace"); got != want {
			t.Errorf("%s: %v, want %v", query, got, want)
			continue
		}
		if want == each {
			continue
		}
		alone := map[string]string{}
		for _, pod := range []string{"a/p", "a/q", "b/p", "b/r"} {
			namespace, name, _ := strings.Cut(pod, "/")
			answer := evaluate(t, server, r, about{label: "pod", names: []string{name}, namespaceLabel: "namespace", namespaces: []string{namespace}})
			alone[pod] = only(answer, namespace, name)
		}
		for _, namespaces := range [][]string{{"a"}, {"b"}, {"a", "b"}} {
			if len(namespaces) > 1 && want != everywhere {
				continue
			}
			answer := evaluate(t, server, r, about{label: "pod", namespaceLabel: "namespace", namespaces: namespaces, telling: len(namespaces) > 1})
			for pod, value := range alone {
				namespace, name, _ := strings.Cut(pod, "/")
				if !slices.Contains(namespaces, namespace) {
					continue
				}
				if got := only(answer, namespace, name); got != value {
					t.Errorf("%s: pod %s is %s in a query of %v, and %s alone", query, pod, got, namespaces, value)
				}
			}
		}
	}
}

func podRule(t testing.TB, query string) *Rule {
	t.Helper()
	var of text
	of.SeriesQuery, of.MetricsQuery = `x{namespace!="",pod!=""}`, query
	of.Resources.Overrides = map[string]textResource{"namespace": {Resource: "namespace"}, "pod": {Resource: "pod"}}
	r, faults := compile(of, "rules[0]", false)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return r
}

func evaluate(t testing.TB, server Server, r *Rule, a about) model.Vector {
	t.Helper()
	a.series = "x"
	query, err := r.query(a)
	if err != nil {
		t.Fatal(err)
	}
	v, err := server.Query(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// only returns the values that an answer has of a pod. What does not say its namespace is of the one asked for.
func only(v model.Vector, namespace, name string) string {
	var all []string
	for _, s := range v {
		if s.Metric["pod"] == model.LabelValue(name) && (s.Metric["namespace"] == "" || s.Metric["namespace"] == model.LabelValue(namespace)) {
			all = append(all, fmt.Sprint(s.Value))
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}
