package signals

import (
	"slices"
	"strings"
)

// engines lists every engine of the catalogue.
var engines = []*Engine{vllm, dcgm}

// definitions lists every signal, before it is offered for an engine.
var definitions = slices.Concat(
	[]definition{queueDepth, runningRequests, inflightRequests, kvCacheUsage, requestRate, gpuUtilization},
	ttftQuantiles(),
	goodputBounds(),
)

// definition is a signal for whatever engine exports the canonical series it needs.
type definition struct {
	name string
	unit string
	help string
	// needs are the canonical series without which there is no value; an engine that lacks one
	// does not offer the signal.
	needs []Canonical
	// reads are further ones that sharpen it: whether somebody waits, whether there is progress.
	reads []Canonical
	eval  func(*Replica, Params) Result
}

var catalogue, byName = func() ([]*Signal, map[string]*Signal) {
	var all []*Signal
	index := map[string]*Signal{}
	for _, e := range engines {
		for _, d := range definitions {
			if !e.has(d.needs) {
				continue
			}
			s := &Signal{
				Name:   e.Prefix + d.name,
				Unit:   d.unit,
				Help:   d.help,
				engine: e,
				uses:   e.filter(slices.Concat(d.needs, d.reads)),
				eval:   d.eval,
			}
			all = append(all, s)
			index[s.Name] = s
		}
	}
	slices.SortFunc(all, func(a, b *Signal) int { return strings.Compare(a.Name, b.Name) })
	return all, index
}()

// Catalogue returns every signal as served, sorted by name.
func Catalogue() []*Signal { return slices.Clone(catalogue) }

// Lookup returns the signal of that name, or nil.
func Lookup(name string) *Signal { return byName[name] }

// Names returns the raw series that the signals are computed from, by canonical series: each inner
// slice holds the spellings of one.
func Names(sigs []*Signal) [][]string {
	type key struct {
		engine    *Engine
		canonical Canonical
	}
	seen := map[key]bool{}
	var out [][]string
	for _, s := range sigs {
		for _, c := range s.uses {
			if k := (key{s.engine, c}); !seen[k] {
				seen[k] = true
				out = append(out, s.engine.series[c].names())
			}
		}
	}
	return out
}

func (e *Engine) has(cs []Canonical) bool { return len(e.filter(cs)) == len(cs) }

func (e *Engine) filter(cs []Canonical) []Canonical {
	var out []Canonical
	for _, c := range cs {
		if _, ok := e.series[c]; ok {
			out = append(out, c)
		}
	}
	return out
}
