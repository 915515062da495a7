package signals

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/labels"
)

// Query is a signal together with what the asker said about it. It is comparable: equal queries are
// evaluated once.
type Query struct {
	// Signal is the name of the signal.
	Signal string
	// Quantile is the one that is asked for, 0..1; 0 for the signal's own.
	Quantile float64
	// Window is the stretch of time that is asked for; 0 for the configured one.
	Window time.Duration
	// SLO holds the objectives that are asked for; the zero ones are as configured.
	SLO SLO
	// Where chooses among the series of a replica by their labels, in the notation of Kubernetes'
	// label selectors; "" takes all of them.
	Where string
}

// Errors of Prepare. Any other is the fault of a parameter.
var (
	// ErrNoSignal says that there is no signal of that name.
	ErrNoSignal = errors.New("there is no such signal")
	// ErrNotComputable says that the engine cannot give the signal.
	ErrNotComputable = errors.New("not computable")
)

// Plan is a query that can be evaluated.
type Plan struct {
	Query
	signal *Signal
	where  labels.Selector // nil for all series
	keys   []string        // that where chooses by
}

// Signal returns the signal that is planned.
func (p *Plan) Signal() *Signal { return p.signal }

// Prepare checks a query.
func Prepare(q Query) (*Plan, error) {
	s := byName[q.Signal]
	if s == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoSignal, q.Signal)
	}
	if s.missing != "" {
		return nil, fmt.Errorf("%s is %w on %s, because %s", q.Signal, ErrNotComputable, s.engine.Name, s.missing)
	}
	p := &Plan{Query: q, signal: s}
	if q.Quantile != 0 {
		if s.definition.quantile == 0 {
			return nil, fmt.Errorf("quantile: %s is no quantile", q.Signal)
		}
		if !(q.Quantile > 0 && q.Quantile < 1) {
			return nil, fmt.Errorf("quantile: %g is not between 0 and 1", q.Quantile)
		}
		if s.definition.fixed {
			return nil, fmt.Errorf("quantile: %s has its quantile in its name; ask for %s", q.Signal, s.family())
		}
	}
	for _, o := range q.SLO.objectives() {
		if o.limit == 0 {
			continue
		}
		if !s.definition.slo {
			return nil, fmt.Errorf("%s: %s does not depend on objectives", o.canonical, q.Signal)
		}
		if o.limit < 0 || o.limit > MaxObjective {
			return nil, fmt.Errorf("%s: %s is outside 0 to %s", o.canonical, o.limit, MaxObjective)
		}
	}
	if q.Where != "" {
		var err error
		if p.where, err = labels.Parse(q.Where); err != nil {
			return nil, fmt.Errorf("selector: %w", err)
		}
		reqs, _ := p.where.Requirements()
		known := s.Labels()
		for _, r := range reqs {
			if !slices.Contains(known, r.Key()) {
				return nil, fmt.Errorf("%s: %s has no label of that name; it has %s", r.Key(), q.Signal, orNone(known))
			}
			p.keys = append(p.keys, r.Key())
		}
	}
	return p, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// args are the parameters that hold for a query.
type args struct {
	Params
	quantile float64 // that is asked for, or the signal's own
}

// args returns the parameters that hold for the query where those of are the configured ones.
func (p *Plan) args(of Params) args {
	if p.Window != 0 {
		of.Window = p.Window
	}
	if p.SLO != (SLO{}) {
		of.SLO = of.SLO.or(p.SLO)
	}
	return args{of, cmp.Or(p.Quantile, p.signal.definition.quantile)}
}

// modelKey is the key by which a user chooses the model, whatever label an engine has it in.
const modelKey = "model"

// HasQuantile reports whether a query may ask for a quantile.
func (s *Signal) HasQuantile() bool { return s.definition.quantile != 0 && !s.definition.fixed }

// HasSLO reports whether a query may set objectives.
func (s *Signal) HasSLO() bool { return s.definition.slo }

// Labels lists the labels of the signal's series that a query may choose by, sorted.
func (s *Signal) Labels() []string {
	var out []string
	for _, e := range s.engines() {
		out = append(out, s.definition.labels(e)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// labels lists those of one engine, in no order.
func (d *definition) labels(e *Engine) []string {
	if d.whole {
		return nil
	}
	var out []string
	for _, c := range d.first(e) {
		out = append(out, e.labels(c)...)
	}
	for key, c := range d.by {
		if e.has([]Canonical{c}) {
			out = append(out, key)
		}
	}
	return out
}

// misses returns a key by which the query chooses and that no series of the signal on an engine has, so
// that it chooses nothing there; "" when there is none.
func (p *Plan) misses(e *Engine) string {
	if p.where == nil {
		return ""
	}
	has := p.signal.definition.labels(e)
	reqs, _ := p.where.Requirements()
	for _, r := range reqs {
		if !slices.Contains(has, r.Key()) && !r.Matches(seriesLabels{}) {
			return r.Key()
		}
	}
	return ""
}

// instead says which canonical series the plan reads in the place of which.
func (p *Plan) instead(e *Engine) map[Canonical]Canonical {
	for _, key := range p.keys {
		if c, ok := p.signal.definition.by[key]; ok {
			return map[Canonical]Canonical{p.signal.definition.first(e)[0]: c}
		}
	}
	return nil
}

// chosen reports whether a query takes a series. A key that this canonical series does not have
// leaves it alone: a reason for which requests finished says nothing of the queue.
func (p *Plan) chosen(pl *place) bool {
	if p.where == nil || pl.engine == nil {
		return true
	}
	has := pl.engine.labels(pl.canonical)
	reqs, _ := p.where.Requirements()
	for _, r := range reqs {
		if slices.Contains(has, r.Key()) && !r.Matches(seriesLabels{pl.labels, pl.engine.model}) {
			return false
		}
	}
	return true
}

// told reports whether a series has all of the labels that the query chooses by. Of one that has lost the
// label of its model on the way it is not known whose it is.
func (p *Plan) told(pl *place) bool {
	has := pl.engine.labels(pl.canonical)
	return !slices.ContainsFunc(p.keys, func(key string) bool {
		return slices.Contains(has, key) && !seriesLabels{pl.labels, pl.engine.model}.Has(key)
	})
}

// seriesLabels are the labels of a series as a selector can name them.
type seriesLabels struct {
	labels promlabels.Labels
	model  string
}

func (s seriesLabels) Has(key string) bool { return s.raw(key) != "" }

func (s seriesLabels) Get(key string) string { return LabelValue(s.raw(key)) }

func (s seriesLabels) Lookup(key string) (string, bool) { return s.Get(key), s.Has(key) }

func (s seriesLabels) raw(key string) string {
	if key == modelKey {
		key = s.model
	}
	return s.labels.Get(key)
}

// LabelValue returns how a selector spells a value. One of Kubernetes' holds letters, digits, '-', '_'
// and '.', begins and ends with a letter or digit, and is at most 63 characters long: every other
// character becomes '_', what stands outside the first and last letter or digit falls away, and so
// does what is too long. So model=meta-llama_Llama-3.1-8B chooses meta-llama/Llama-3.1-8B.
func LabelValue(v string) string {
	b := []byte(v)
	for i, c := range b {
		if !alphanumeric(c) && c != '-' && c != '.' {
			b[i] = '_'
		}
	}
	const longest = 63
	for len(b) > 0 && !alphanumeric(b[0]) {
		b = b[1:]
	}
	b = b[:min(len(b), longest)]
	for len(b) > 0 && !alphanumeric(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return string(b)
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
