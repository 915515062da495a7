package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
)

// TestQueries runs the files of testdata/query:
//
//	rule TEMPLATE                      the metricsQuery of those that follow, up to the next
//	ask [ns=a,b] [pods=x,y] [where=SELECTOR]
//	    the query of pods in namespaces, or why there is none; all pods without pods=
//	external [ns=a] [where=SELECTOR]
//	    the query of an external metric
//
// In a selector _ is a space, and ; is a comma.
func TestQueries(t *testing.T) {
	files, err := filepath.Glob("testdata/query/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			var template string
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, " ") {
					continue // an answer of the last time
				}
				out.WriteString(line)
				command, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
				switch command {
				case "rule":
					template = rest
				case "ask", "external":
					query, err := queryFor(template, rest, command == "external")
					if err != nil {
						query = "error: " + err.Error()
					} else if _, err := parse(query); err != nil {
						query += "\n    error: " + err.Error()
					}
					fmt.Fprintf(&out, "    %s\n", query)
				}
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(out.String(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func queryFor(template, rest string, external bool) (string, error) {
	var t text
	t.SeriesQuery, t.MetricsQuery = `series{namespace!="",pod!=""}`, template
	t.Resources.Overrides = map[string]textResource{"namespace": {Resource: "namespace"}, "pod": {Resource: "pod"}}
	r, faults := compile(t, "rules[0]", external)
	if len(faults) > 0 {
		return "", faults[0]
	}
	a := about{series: "series"}
	if !external {
		a.label = "pod"
	}
	for field := range strings.FieldsSeq(rest) {
		key, value, _ := strings.Cut(field, "=")
		list := strings.Split(value, ",")
		switch key {
		case "ns":
			a.namespaceLabel, a.namespaces, a.telling = "namespace", list, !external && len(list) > 1
		case "pods":
			a.names = list
		case "where":
			selector, err := labels.Parse(strings.NewReplacer(";", ",", "_", " ").Replace(value))
			if err != nil {
				return "", err
			}
			if a.selector, err = ofSelector(selector); err != nil {
				return "", err
			}
		}
	}
	return r.query(a)
}
