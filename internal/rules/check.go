package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	promlabels "github.com/prometheus/prometheus/model/labels"
)

// Check tells what is to become of a file.
type Check struct {
	// Resources are the kinds of object that there are.
	Resources []Resource
	// Ours tells which metrics are served by the adapter itself, whatever rules say.
	Ours func(metric string) bool
	// Server, if set, is asked which series there are, with Matchers and for Timeout at most.
	Server   Server
	Matchers []*promlabels.Matcher
	Timeout  time.Duration
}

// Write tells of each rule what it will serve, or why it will not, and returns the number of faults.
func (c Check) Write(ctx context.Context, w io.Writer, f *File) (faults int) {
	p := &printer{w: w}
	rules := map[string]*Rule{}
	for _, r := range f.Rules {
		rules[r.Path] = r
	}
	byRule := map[string][]Fault{}
	for _, fault := range f.Faults {
		path, _, _ := strings.Cut(fault.Path, ".")
		byRule[path] = append(byRule[path], fault)
	}
	order := slices.Collect(maps.Keys(rules))
	for path := range byRule {
		if rules[path] == nil {
			order = append(order, path)
		}
	}
	slices.SortFunc(order, inFile)
	claimed := map[metricKey]string{}
	for _, path := range order {
		for _, fault := range byRule[path] {
			p.fault(fault)
		}
		if r := rules[path]; r != nil {
			c.rule(ctx, p, r, claimed)
		}
	}
	if len(order) == 0 {
		p.line("no rules")
	}
	if f.ResourceRules {
		p.line("resourceRules: not served: CPU and memory of the resource metrics API (kubectl top, HPAs of type Resource) are metrics-server's; leave the APIService v1beta1.metrics.k8s.io with what serves it now, or install metrics-server")
	}
	return p.faults
}

func (c Check) rule(ctx context.Context, p *printer, r *Rule, claimed map[metricKey]string) {
	p.line("%s: %s", r.Path, clip(r.SeriesQuery))
	b, faults := r.bind(c.Resources)
	for _, fault := range faults {
		p.fault(fault)
	}
	if err := r.unfit(b); err != nil {
		p.fault(err)
		return
	}
	all, complete := r.known(b)
	if c.Server != nil {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		there, err := r.discover(ctx, c.Server, b, c.Matchers)
		cancel()
		if err != nil {
			p.fault(Fault{r.Path + ".seriesQuery", err})
		} else {
			p.missing(all, there)
			all, complete = merge(all, there), true
		}
	}
	entries, not := r.entries(b, all)
	told := map[string]bool{}
	for _, e := range entries {
		if head := e.series + "\x00" + e.metric; !told[head] {
			told[head] = true
			p.line("  %s is served as %s%s", e.series, e.metric, e.asExternal())
			if c.Ours != nil && c.Ours(e.metric) {
				p.fault(Fault{r.Path + ".name", fmt.Errorf("%s is a signal of the adapter, which is served in its place: give the rule's metric another name", e.metric)})
			}
		}
		key := metricKey{e.resource.GroupResource, e.metric}
		if before := claimed[key]; before != "" && r.External == strings.HasPrefix(before, "external") {
			p.note("%s%s is what %s serves, too; the last rule counts", e.metric, e.onResource(), before)
		}
		claimed[key] = r.Path
		if !r.External {
			p.line("    on %s, by label %s: %s", e.resource.GroupResource, e.label, e.asked())
		}
	}
	for i, why := range not {
		switch {
		case len(entries) == 0 && i == 0: // nothing is left of the rule
			p.fault(Fault{r.Path, errors.New(why)})
		case i < maxNotes:
			p.note("%s", why)
		case i == maxNotes:
			p.note("and %d more of that kind", len(not)-maxNotes)
		}
	}
	switch {
	case len(all) == 0 && !complete && r.External:
		p.line("  serves each series that seriesQuery finds%s", r.how())
	case !complete:
		p.line("  serves each %s that seriesQuery finds, on what its labels stand for%s", orLabel(len(all) > 0), r.how())
		p.line("    %s", c.stands(r, b))
	case len(entries) == 0 && len(not) == 0 && c.Server != nil:
		p.note("the server has no such series now: nothing is listed until it has")
	}
	if r.External && !r.namespaced {
		p.note("namespaced is false: whoever may read it in any namespace reads series of all namespaces")
	}
	if !r.matched {
		p.note("metricsQuery has no <<.LabelMatchers>>: it reads the series of all namespaces each time, and no metric selector can be taken")
	}
}

// maxNotes is how many remarks of one kind are told of a rule.
const maxNotes = 5

func orLabel(fixed bool) string {
	if fixed {
		return "label"
	}
	return "series"
}

// stands lists which labels may stand for what.
func (c Check) stands(r *Rule, b binding) string {
	var all []string
	for _, label := range slices.Sorted(maps.Keys(b.resources)) {
		if !r.excludes(label) {
			all = append(all, fmt.Sprintf("%s (%s)", label, b.resources[label].GroupResource))
		}
	}
	return "labels: " + strings.Join(all, ", ")
}

// how says what the rule makes of the names of series.
func (r *Rule) how() string {
	var out string
	for _, f := range r.filters {
		if f.is {
			out += fmt.Sprintf(", if it matches %s", f.regex)
		} else {
			out += fmt.Sprintf(", unless it matches %s", f.regex)
		}
	}
	if m := r.naming.matches.String(); m != ".*" {
		out += fmt.Sprintf(", if it matches %s", m)
	}
	if r.naming.as != "$0" {
		out += fmt.Sprintf(", as %s", r.naming.as)
	}
	return out
}

func (e entry) asExternal() string {
	switch {
	case !e.rule.External:
		return ""
	case e.namespaceLabel != "":
		return ", an external metric of the series whose label " + e.namespaceLabel + " is the namespace asked for"
	}
	return ", an external metric"
}

func (e entry) onResource() string {
	if e.rule.External {
		return ""
	}
	return " on " + e.resource.String()
}

// asked says how many queries it takes.
func (e entry) asked() string {
	switch {
	case e.resource.GroupResource == namespaces && e.batch == everywhere:
		return "one query for all that are asked for"
	case e.batch == everywhere && e.resource.Namespaced:
		return "one query for all of all namespaces asked for"
	case e.batch == everywhere:
		return "one query for all"
	case e.batch == perNamespace:
		return "one query for all of a namespace"
	case e.rule.named:
		return "a query for each request that differs, as metricsQuery uses LabelValuesByName"
	}
	return "a query for each request that differs, as metricsQuery does not keep objects apart"
}

// printer writes a report.
type printer struct {
	w      io.Writer
	faults int
}

func (p *printer) line(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format+"\n", args...) }

func (p *printer) note(format string, args ...any) { p.line("  note: "+format, args...) }

func (p *printer) fault(err error) {
	p.faults++
	p.line("FAULT %v", err)
}

// missing tells which series a rule names, and the server has not.
func (p *printer) missing(named, there []found) {
	for _, f := range named {
		if !slices.ContainsFunc(there, func(t found) bool { return t.series == f.series }) {
			p.note("the server has no series %s now; its metrics are listed all the same, and have no value", f.series)
		}
	}
}

// inFile orders the places of rules as they are in a file.
func inFile(a, b string) int {
	if ea, eb := strings.HasPrefix(a, "external"), strings.HasPrefix(b, "external"); ea != eb {
		if eb {
			return -1
		}
		return 1
	}
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
