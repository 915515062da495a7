package engine

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// client is how a Prometheus client library writes the text format. The differences are legal, and
// are what a reader of it must cope with.
type client struct {
	number func([]byte, float64) []byte
	// insertionOrder leaves labels as the engine named them; else they are sorted by name.
	insertionOrder bool
	// sortedLE gives le its place among the sorted labels; else it comes last.
	sortedLE bool
	// empty writes HELP and TYPE of a family that has no series yet.
	empty bool
	// created writes a _created gauge for each counter and histogram.
	created bool
	// gap ends each family with an empty line.
	gap bool
	// order is that of a histogram's series: the letters of bucket, count and sum.
	order string
}

var (
	// python is client_python in one process, and pythonMulti what it writes of the files that
	// several processes share.
	python      = client{number: appendFloat, sortedLE: true, empty: true, created: true, order: "bcs"}
	pythonMulti = client{number: appendFloat, sortedLE: true, order: "sbc"}
	goClient    = client{number: appendGoFloat, order: "bsc"}
	rust        = client{number: appendPlainFloat, order: "bsc"}                                  // the crate prometheus
	rustMetrics = client{number: appendPlainFloat, insertionOrder: true, gap: true, order: "bsc"} // the crate metrics
	cpp         = client{number: appendDigits(16), order: "csb"}                                  // prometheus-cpp
	iostream    = client{number: appendDigits(6)}                                                 // C++ without a library
)

// withoutCreated is the client after disable_created_metrics.
func (c client) withoutCreated() client {
	c.created = false
	return c
}

// view is what one series tells of: an engine, or several taken together.
type view []*Engine

// sum makes a value of a view out of one of an engine.
func sum(f func(*Engine) float64) func(view) float64 {
	return func(v view) float64 {
		s := 0.0
		for _, e := range v {
			s += f(e)
		}
		return s
	}
}

// count is sum for integers.
func count(f func(*Engine) int) func(view) float64 {
	return sum(func(e *Engine) float64 { return float64(f(e)) })
}

// constant is the same for every view.
func constant(c float64) func(view) float64 { return func(view) float64 { return c } }

func none(view) float64 { return 0 }

// series is a view with the labels that tell it apart: name, value, name, value, …
type series struct {
	labels []string
	view   view
	// value or hist, if set, is this series' own in place of its family's.
	value func(view) float64
	hist  func(*metrics) *histogram
}

// metric is a family of an exposition.
type metric struct {
	name, typ, help string

	// A gauge or a counter has value, or split and values: one series for each value of the label.
	value  func(view) float64
	split  string
	values []string
	at     func(view, int) float64

	// A histogram has these.
	hist  func(*metrics) *histogram
	edges func(Config) []float64
	scale float64 // of edges and sum; 0 is 1

	// once, if set, is whether the family has series yet. A lazy family has each only when its value
	// is above 0, or the histogram has an observation.
	once func(view) bool
	lazy bool
	// labels are added to all series.
	labels []string
}

func gauge(name, help string, value func(view) float64) metric {
	return metric{name: name, typ: "gauge", help: help, value: value}
}

func counter(name, help string, value func(view) float64) metric {
	return metric{name: name, typ: "counter", help: help, value: value}
}

func hist(name, help string, edges []float64, h func(*metrics) *histogram) metric {
	return metric{name: name, typ: "histogram", help: help, hist: h, edges: func(Config) []float64 { return edges }}
}

func tokensHist(name, help string, h func(*metrics) *histogram) metric {
	m := hist(name, help, nil, h)
	m.edges = func(c Config) []float64 { return tokenEdges(c.MaxModelLen) }
	return m
}

// by gives the family one series for each value of a label.
func (m metric) by(label string, values []string, at func(view, int) float64) metric {
	m.split, m.values, m.at = label, values, at
	return m
}

// with adds labels to all series of the family.
func (m metric) with(labels ...string) metric {
	m.labels = append(m.labels[:len(m.labels):len(m.labels)], labels...)
	return m
}

// after keeps the family without series until something has happened.
func (m metric) after(once func(view) bool) metric {
	m.once = once
	return m
}

// afterFirst keeps each series away until its value is above 0, or a histogram until its first
// observation: what a client does whose series are made when they are first used.
func (m metric) afterFirst() metric {
	m.lazy = true
	return m
}

// of is the family as the series has it: with the series' own value or histogram, if it has one.
func (m metric) of(s series) metric {
	if s.value != nil {
		m.value = s.value
	}
	if s.hist != nil {
		m.hist = s.hist
	}
	return m
}

// begun reports whether the series (of the i-th value of the label, if there is one) is there yet.
func (m *metric) begun(v view, i int) bool {
	switch {
	case m.once != nil && !m.once(v):
		return false
	case !m.lazy:
		return true
	case m.at != nil:
		return m.at(v, i) > 0
	case m.hist != nil:
		return slices.ContainsFunc(v, func(e *Engine) bool { return m.hist(&e.metrics).observed() })
	}
	return m.value(v) > 0
}

// writer appends families to an exposition.
type writer struct {
	b      []byte
	client client
	// head is what names begin with in HELP and TYPE, prefix in samples.
	head, prefix string
	created      time.Time

	pairs  []string // of the sample being written
	counts []int    // of the histogram being written
	le     []byte   // of the bucket being written
}

// write appends the families, each with all the series.
func (w *writer) write(all []series, ms ...metric) {
	for i := range ms {
		w.family(all, &ms[i])
	}
}

func (w *writer) family(all []series, m *metric) {
	before := len(w.b)
	w.headline(m.name, m.typ, m.help)
	start := len(w.b)
	for _, s := range all {
		m := m.of(s)
		switch {
		case m.at != nil:
			for i, v := range m.values {
				if m.begun(s.view, i) {
					w.sample(m.name, "", s.labels, m.labels, m.split, v, m.at(s.view, i))
				}
			}
		case !m.begun(s.view, 0):
		case m.hist != nil:
			w.histogram(&m, s)
		default:
			w.sample(m.name, "", s.labels, m.labels, "", "", m.value(s.view))
		}
	}
	if len(w.b) == start && !w.client.empty {
		w.b = w.b[:before]
		return
	}
	if w.client.gap {
		w.b = append(w.b, '\n')
	}
	if w.client.created && m.typ != "gauge" {
		w.creations(all, m)
	}
}

func (w *writer) creations(all []series, m *metric) {
	name := m.name
	if m.typ == "counter" { // a histogram keeps the _total of iteration_tokens_total
		name = strings.TrimSuffix(name, "_total")
	}
	at := float64(w.created.UnixNano()) / 1e9
	w.headline(name+"_created", "gauge", m.help)
	for _, s := range all {
		for i := range max(len(m.values), 1) {
			value := ""
			if m.at != nil {
				value = m.values[i]
			}
			if m.begun(s.view, i) {
				w.sample(name, "_created", s.labels, m.labels, m.split, value, at)
			}
		}
	}
}

func (w *writer) headline(name, typ, help string) {
	for _, s := range [...]string{"# HELP ", w.head, name, " ", help, "\n# TYPE ", w.head, name, " ", typ, "\n"} {
		w.b = append(w.b, s...)
	}
}

func (w *writer) histogram(m *metric, s series) {
	edges := m.edges(s.view[0].cfg)
	w.counts = append(w.counts[:0], make([]int, len(edges)+1)...)
	total := 0.0
	for _, e := range s.view {
		h := m.hist(&e.metrics)
		h.addTo(w.counts, edges)
		total += h.sum
	}
	scale := m.scale
	if scale == 0 {
		scale = 1
	}
	for _, part := range w.client.order {
		switch part {
		case 'b':
			for i, n := range w.counts {
				edge := math.Inf(1)
				if i < len(edges) {
					edge = edges[i] * scale
				}
				w.le = w.client.number(w.le[:0], edge)
				w.sample(m.name, "_bucket", s.labels, m.labels, "le", string(w.le), float64(n))
			}
		case 'c':
			w.sample(m.name, "_count", s.labels, m.labels, "", "", float64(w.counts[len(edges)]))
		case 's':
			w.sample(m.name, "_sum", s.labels, m.labels, "", "", total*scale)
		}
	}
}

// sample writes one sample, with a last label unless its name is empty.
func (w *writer) sample(name, suffix string, labels, more []string, label, value string, v float64) {
	w.pairs = append(append(w.pairs[:0], labels...), more...)
	if label != "" && (label != "le" || w.client.sortedLE) {
		w.pairs = append(w.pairs, label, value)
	}
	if !w.client.insertionOrder {
		sortPairs(w.pairs)
	}
	if label == "le" && !w.client.sortedLE {
		w.pairs = append(w.pairs, label, value)
	}
	w.b = append(append(append(w.b, w.prefix...), name...), suffix...)
	for i := 0; i < len(w.pairs); i += 2 {
		if i == 0 {
			w.b = append(w.b, '{')
		} else {
			w.b = append(w.b, ',')
		}
		w.b = append(append(w.b, w.pairs[i]...), `="`...)
		w.b = append(append(w.b, labelEscaper.Replace(w.pairs[i+1])...), '"')
	}
	if len(w.pairs) > 0 {
		w.b = append(w.b, '}')
	}
	w.b = append(w.client.number(append(w.b, ' '), v), '\n')
}

// sortPairs sorts by insertion: there are few, and they mostly are in order.
func sortPairs(p []string) {
	for i := 2; i < len(p); i += 2 {
		for j := i; j > 0 && p[j] < p[j-2]; j -= 2 {
			p[j], p[j-2] = p[j-2], p[j]
			p[j+1], p[j-1] = p[j-1], p[j+1]
		}
	}
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// appendFloat writes a float as the Python client does: as repr(), except that numbers from a
// million on get an exponent.
func appendFloat(b []byte, v float64) []byte {
	if special(v) {
		return appendSpecial(b, v, "NaN")
	}
	if abs := math.Abs(v); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(b, v, 'e', -1, 64)
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, 'f', -1, 64)
	s := string(b[start:])
	dot := strings.IndexByte(s, '.')
	if dot < 0 {
		dot = len(s)
		s += ".0"
		b = append(b, ".0"...)
	}
	if v <= 0 || dot <= 6 {
		return b
	}
	mantissa := strings.TrimRight(s[:1]+"."+s[1:dot]+s[dot+1:], "0.")
	b = append(b[:start], mantissa...)
	b = append(b, "e+0"...) // the client's own constant, right up to 1e+09
	return strconv.AppendInt(b, int64(dot-1), 10)
}

// appendGoFloat writes a float as client_golang does.
func appendGoFloat(b []byte, v float64) []byte {
	if special(v) {
		return appendSpecial(b, v, "NaN")
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// appendPlainFloat writes a float as Rust prints it: the shortest digits, never an exponent.
func appendPlainFloat(b []byte, v float64) []byte {
	if special(v) {
		return appendSpecial(b, v, "NaN")
	}
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}

// appendDigits writes a float as a C++ stream of that precision does.
func appendDigits(precision int) func([]byte, float64) []byte {
	return func(b []byte, v float64) []byte {
		if special(v) {
			return appendSpecial(b, v, "Nan")
		}
		start := len(b)
		b = strconv.AppendFloat(b, v, 'g', precision, 64)
		if !strings.ContainsRune(string(b[start:]), '.') {
			return b
		}
		// %g has no zeros at the end of its digits.
		digits, exponent, found := strings.Cut(string(b[start:]), "e")
		b = append(b[:start], strings.TrimRight(strings.TrimRight(digits, "0"), ".")...)
		if found {
			b = append(append(b, 'e'), exponent...)
		}
		return b
	}
}

func special(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

func appendSpecial(b []byte, v float64, nan string) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	}
	return append(b, nan...)
}
