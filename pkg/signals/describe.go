package signals

import (
	"slices"
	"strings"
)

// Description says of a signal what people need to know, for documents.
type Description struct {
	// Name is the signal's name without the prefix of an engine.
	Name string
	Unit string
	// Help is a sentence; Formula says how it is computed from canonical series, and by whose definition.
	Help, Formula string
	// States says what is answered in each state.
	States map[State]string
	// Overload says which way the signal moves as a service is overloaded, and Target whether it is
	// fit as the target of an HPA, and of which type.
	Overload, Target string
	// Group says how the pods of an object make one value.
	Group string
	// Generic is the name under which whatever engine a pod runs is read; "" where there is none.
	Generic string
	Offers  []Offer
}

// Offer says what a signal is computed from on one engine, or why it is not.
type Offer struct {
	Engine string
	// Metric is the name in the API.
	Metric string
	// Series are the raw names it is computed from, in their preferred spelling, and Sharpened are those
	// that tell besides whether somebody waits and whether there is progress.
	Series, Sharpened []string
	// Why says why the engine cannot give it; "" when it can.
	Why string
}

// Describe describes every signal, in the order of the catalogue. Of those that differ in a quantile only
// it describes the first.
func Describe() []Description {
	var out []Description
	for i := range definitions {
		d := &definitions[i]
		if d.fixed {
			continue
		}
		desc := Description{
			Name: d.name, Unit: d.unit, Help: d.help, Formula: d.formula, Overload: d.overload, Target: d.target,
			States: d.states(), Group: d.group(),
		}
		for _, e := range engines {
			s := byName[e.Prefix+d.name]
			if s == nil || s.definition != d || s.engine != e {
				continue
			}
			o := Offer{Engine: e.Name, Metric: s.Name, Why: s.missing}
			if s.missing == "" {
				first := d.first(e)
				o.Series = preferred(e, first)
				o.Sharpened = preferred(e, slices.DeleteFunc(d.uses(e, nil), func(c Canonical) bool { return slices.Contains(first, c) }))
				for _, key := range sortedKeys(d.by) {
					if e.has([]Canonical{d.by[key]}) {
						o.Sharpened = append(o.Sharpened, preferred(e, []Canonical{d.by[key]})...)
					}
				}
			}
			desc.Offers = append(desc.Offers, o)
		}
		if s := byName[anyPrefix+d.name]; s != nil {
			desc.Generic = s.Name
		}
		out = append(out, desc)
	}
	return out
}

func preferred(e *Engine, cs []Canonical) []string {
	var out []string
	for _, c := range cs {
		m := e.series[c]
		for _, names := range append([][]string{m.names()}, m.others()...) {
			if !slices.Contains(out, names[0]) {
				out = append(out, names[0])
			}
		}
	}
	return out
}

// others are the names of the series that this one is computed with.
func (m mapping) others() [][]string {
	out := slices.Clone(m.also)
	if second := m.second(); second != nil {
		out = append(out, second.names())
	}
	return out
}

func sortedKeys(of map[string]Canonical) []string {
	var out []string
	for k := range of {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// group says in words how several replicas are merged.
func (d *definition) group() string {
	if d.anyIn(poolSeries) {
		return "one value for each InferencePool"
	}
	out := d.merge.words
	switch d.roles {
	case prefillRole:
		out += "; of prefill and decode replicas the prefill ones"
	case decodeRole:
		out += "; of prefill and decode replicas the decode ones"
	case oneRole:
		out += "; with prefill and decode replicas only for a role that the query names"
	}
	return out
}

// states says in words what is answered in each state.
func (d *definition) states() map[State]string {
	out := map[State]string{
		Value:   "fresh samples gave it",
		Idle:    "0: nothing waits or runs",
		Stalled: "what the engine last said, as a lower bound",
		Unknown: "no value: no fresh sample, a part that is missing, or a window that is not whole after an outage",
	}
	switch {
	case d.quantile != 0:
		out[Idle] = "0: nothing was observed in the window, and nobody waits for it"
		out[Stalled] = "the time without progress, as a lower bound, at most twice the objective"
	case strings.HasSuffix(d.unit, "/s") || d.slo:
		out[Idle] = "0: nothing of it happened in the window, and nothing is in the engine"
		out[Stalled] = "no value: a rate that sinks to 0 would scale the engine in"
	case d.anyIn(gpuSeries), d.anyIn(poolSeries):
		out[Idle] = "0"
		out[Stalled] = "does not occur: nothing says whether it makes progress"
	}
	for s, words := range d.says {
		out[s] = words
	}
	return out
}

// Spelling is where an engine keeps a canonical series.
type Spelling struct {
	Engine string
	Series Canonical
	// Names are the exact names it may be stored under, the preferred one first.
	Names []string
	// Added are the names of further series that are added to it, where they are there, or that it is
	// divided or multiplied by, or less.
	Added [][]string
	// Why says why there is none.
	Why string
}

// Spellings lists every canonical series of every engine.
func Spellings() []Spelling {
	var out []Spelling
	for _, e := range engines {
		for _, c := range Canonicals() {
			if m, ok := e.series[c]; ok {
				out = append(out, Spelling{Engine: e.Name, Series: c, Names: m.names(), Added: m.others()})
			} else {
				out = append(out, Spelling{Engine: e.Name, Series: c, Why: e.unsupported[c]})
			}
		}
	}
	return out
}
