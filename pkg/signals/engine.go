package signals

import (
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/window"
)

// Engine is what the catalogue knows of one exporter of series.
type Engine struct {
	// Name is the engine's name in messages.
	Name string
	// Prefix goes before the name of each of its signals: "vllm_".
	Prefix string

	// series maps the canonical series that the engine exports.
	series map[Canonical]mapping
	// unsupported says, for every other canonical series, why the engine has none.
	unsupported map[Canonical]string
	// own says that the series come from targets in the pod itself, so that one of these that cannot be
	// scraped is a part that is missing.
	own bool
	// podLabels are the pairs of labels that may name the pod a series belongs to, in the order
	// in which they are believed.
	podLabels []podLabel
}

type podLabel struct{ namespace, pod string }

// mapping says where an engine keeps one canonical series.
type mapping struct {
	kind Kind
	// spellings are the exact names the series may be stored under, the preferred one first;
	// those of a histogram are without _bucket. Names are matched exactly, because recording
	// rules of users share the engines' prefixes.
	spellings []string
	// part lists the labels that tell the parts of a replica apart.
	part []string
	// within lists the labels whose values are added up inside a part.
	within []string
	fold   Fold
	// scale multiplies samples into the canonical unit; 0 stands for 1.
	scale float64
	// valid refuses values that stand for "no reading"; nil accepts all.
	valid func(float64) bool
	// edges are the upper bounds of a histogram as the engine ships it.
	edges []float64
}

func (m mapping) names() []string {
	if m.kind != Histogram {
		return m.spellings
	}
	out := make([]string, len(m.spellings))
	for i, s := range m.spellings {
		out[i] = s + "_bucket"
	}
	return out
}

// address is where a raw series belongs.
type address struct {
	engine    *Engine
	canonical Canonical
	rank      int // of its spelling: 0 is the preferred one
	mapping   mapping
}

// addresses finds the address of a raw series by its name.
var addresses = func() map[string]address {
	out := map[string]address{}
	for _, e := range engines {
		for c, m := range e.series {
			for rank, name := range m.names() {
				out[name] = address{engine: e, canonical: c, rank: rank, mapping: m}
			}
		}
	}
	return out
}()

// upName is the series by which a source that scrapes says of each target whether it could be. It is
// read where a source delivers it, and asked of none.
const upName = "up"

// GroupKey is the key under which the series of a pod are grouped.
func GroupKey(namespace, pod string) string { return namespace + "/" + pod }

// GroupOf says which pod a raw series belongs to. ok is false for a series that the catalogue does
// not read, or that belongs to no pod.
func GroupOf(ls labels.Labels) (group string, ok bool) {
	name := ls.Get(model.MetricNameLabel)
	if name == upName {
		pod, ns := ls.Get("pod"), ls.Get("namespace")
		return GroupKey(ns, pod), pod != "" && ns != ""
	}
	a, ok := addresses[name]
	if !ok {
		return "", false
	}
	for _, pl := range a.engine.podLabels {
		if pod, ns := ls.Get(pl.pod), ls.Get(pl.namespace); pod != "" && ns != "" {
			return GroupKey(ns, pod), true
		}
	}
	return "", false
}

// place is an address together with what the labels of one series add to it. It is kept with the
// series, so that labels are read once and not at every tick.
type place struct {
	address
	instance string  // the target it was read from
	part     string  // the part of the replica, unique over its targets
	within   string  // the summand inside the part
	le       float64 // the upper bound of a histogram's bucket
}

// placeOf returns the place of a series, or nil when a bucket has no readable bound.
func placeOf(s *window.Series) *place {
	if p, ok := s.Tag.(*place); ok {
		return p
	}
	p := &place{address: addresses[s.Labels.Get(model.MetricNameLabel)], instance: s.Labels.Get("instance")}
	p.part = joined(p.instance, s.Labels, p.mapping.part)
	p.within = joined("", s.Labels, p.mapping.within)
	if p.mapping.kind == Histogram {
		le, err := strconv.ParseFloat(s.Labels.Get(labels.BucketLabel), 64)
		if err != nil || !(le > 0) { // no time is below 0: a bound there is as bad as none
			p = nil
		} else {
			p.le = le
		}
	}
	s.Tag = p
	return p
}

func joined(first string, ls labels.Labels, names []string) string {
	out := first
	for _, n := range names {
		out += "\xff" + ls.Get(n)
	}
	return out
}
