package rules

import (
	"errors"
	"fmt"
	"strings"
	"text/template"
)

// queryArgs are what a template of queries is given. Their names are prometheus-adapter's.
type queryArgs struct {
	// Series is the name of the series.
	Series string
	// LabelMatchers choose the objects, and what the metric selector says, with commas between.
	LabelMatchers string
	// LabelValuesByName are the values in LabelMatchers by their label, with | between several.
	LabelValuesByName map[string]string
	// GroupBy are the labels that tell objects apart, with commas between, and GroupBySlice are the same.
	GroupBy      string
	GroupBySlice []string
}

func newQueryTemplate(text string) (*template.Template, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("it is missing: it is the query that gives the values, such as 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'")
	}
	return newTemplate(text)
}

func newTemplate(text string) (*template.Template, error) {
	t, err := template.New("template").Delims("<<", ">>").Parse(text)
	if err != nil {
		return nil, said(err)
	}
	return t, nil
}

// maxQuery bounds what a template makes.
const maxQuery = 64 << 10

func execute(t *template.Template, args any) (string, error) {
	var out limited
	if err := t.Execute(&out, args); err != nil {
		return "", said(err)
	}
	if out.Len() == 0 {
		return "", errors.New("the template makes an empty text")
	}
	return out.String(), nil
}

// said is an error of a template in fewer words.
func said(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "template: "))
}

type limited struct{ strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxQuery {
		return 0, fmt.Errorf("the template makes more than %d KiB", maxQuery>>10)
	}
	return l.Builder.Write(p)
}
