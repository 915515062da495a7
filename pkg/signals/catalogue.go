package signals

import (
	"maps"
	"slices"
	"strings"
)

// engines lists every engine of the catalogue; of two whose series a pod has, the first counts.
var engines = []*Engine{vllm, sglang, trtllm, triton, tgi, lmdeploy, llamacpp, dynamo, nim, dcgm, epp}

// definitions lists every signal, before it is offered for an engine.
var definitions = slices.Concat(
	[]definition{queueDepth, runningRequests, inflightRequests, kvCacheUsage, kvCacheTokensFree, saturation},
	latencyQuantiles(),
	goodputBounds(),
	[]definition{arrivalRate, prefillBacklogSeconds, prefixCacheHitRatio},
	[]definition{requestRate, promptTokensRate, generationTokensRate, preemptionRate},
	[]definition{demandReplicas},
	[]definition{gpuUtilization, gpuEngineActive, gpuTensorActive, gpuMemoryUsed},
	[]definition{poolQueueDepth, poolHeldRequests, poolArrivalRate, poolSaturation},
)

// definition is a signal for whatever engine exports the canonical series it needs.
type definition struct {
	name string
	unit string
	// help is one sentence for people; formula says how it is computed from the canonical series,
	// and where that comes from.
	help, formula string
	// needs are the canonical series without which there is no value. Where there are several ways,
	// or lists the others, in the order in which they are tried.
	needs []Canonical
	or    [][]Canonical
	// reads are further ones that sharpen it: whether somebody waits, whether there is progress.
	reads []Canonical
	// by maps a label to the canonical series that is read in the place of the first needed one when a
	// query chooses by that label.
	by map[string]Canonical

	// whole says that no query may choose among the series, as they are of several kinds.
	whole bool

	// quantile is the one it answers unless asked for another; 0 for what is no quantile. One that is
	// fixed has it in its name.
	quantile float64
	fixed    bool
	// slo says that it depends on objectives.
	slo bool

	// eval measures one replica; merge makes one result of what was measured of several.
	eval  func(*replica, args) Measure
	merge merger
	roles roles

	// says says what is answered in a state, where it is not what is usual: for people, as the following.
	says map[State]string
	// overload says which way it moves as a service is overloaded, and target whether it is fit as
	// the target of an HPA and of which type.
	overload, target string
}

// roles says what a signal takes of a group in which prefill and decode replicas are together. Both
// report what is one request to its user, so that most counters cannot be summed over them.
type roles int

const (
	// bothRoles adds the replicas of both: a request is in one of them at a time.
	bothRoles roles = iota
	// prefillRole and decodeRole take one of them, of which the other repeats what it counts.
	prefillRole
	decodeRole
	// oneRole needs to be told which: what it measures is a part of the user's in either.
	oneRole
)

// first returns the canonical series that an engine computes the signal from, or nil when it cannot.
func (d *definition) first(e *Engine) []Canonical {
	for _, needs := range slices.Concat([][]Canonical{d.needs}, d.or) {
		if e.has(needs) {
			return needs
		}
	}
	return nil
}

// uses returns all that is read of an engine for the signal, where a query chooses by the keys.
func (d *definition) uses(e *Engine, keys []string) []Canonical {
	out := slices.Clone(d.first(e))
	for _, k := range keys {
		if c, ok := d.by[k]; ok {
			out = append(out, c)
		}
	}
	for _, c := range d.reads {
		if c == Generated {
			c = e.progress()
			if e.refresh > 0 && !slices.Contains(out, Prompt) {
				out = append(out, Prompt) // its gauges are 0 while a first prompt is computed
			}
		}
		out = append(out, c)
	}
	return e.filter(out)
}

// lacks says why an engine cannot give the signal; "" when it can.
func (d *definition) lacks(e *Engine) string {
	if d.first(e) != nil {
		return ""
	}
	for _, c := range d.needs {
		if why, ok := e.unsupported[c]; ok {
			return why
		}
	}
	return "it does not export what is needed"
}

// anyPrefix goes before the name of the signals that are read of whatever engine a pod runs.
const anyPrefix = "inference_"

var catalogue, byName = func() ([]*Signal, map[string]*Signal) {
	var all []*Signal
	index := map[string]*Signal{}
	add := func(s *Signal) {
		index[s.Name] = s
		if s.missing == "" {
			all = append(all, s)
		}
	}
	for i := range definitions {
		d := &definitions[i]
		generic := false
		for _, e := range engines {
			s := &Signal{Name: e.Prefix + d.name, Unit: d.unit, Help: d.help, definition: d, engine: e, missing: d.lacks(e)}
			if s.missing != "" && (d.anyIn(gpuSeries) || d.anyIn(poolSeries) || !e.serves()) {
				continue // it is of another kind of thing: nobody asks a GPU for a queue
			}
			add(s)
			generic = generic || s.missing == "" && e.generic()
		}
		if generic {
			add(&Signal{Name: anyPrefix + d.name, Unit: d.unit, Help: d.help, definition: d})
		}
	}
	slices.SortFunc(all, func(a, b *Signal) int { return strings.Compare(a.Name, b.Name) })
	return all, index
}()

func (d *definition) anyIn(cs []Canonical) bool {
	return slices.ContainsFunc(d.needs, func(c Canonical) bool { return slices.Contains(cs, c) })
}

// Catalogue returns every signal that is served, sorted by name.
func Catalogue() []*Signal { return slices.Clone(catalogue) }

// Lookup returns the signal of that name, or nil.
func Lookup(name string) *Signal { return byName[name] }

// Names returns the raw series that plans are computed from, by canonical series: each inner slice
// holds the spellings of one.
func Names(plans []*Plan) [][]string {
	seen := map[string]bool{} // by the preferred spelling, as one name may hold several canonical series
	var out [][]string
	for _, p := range plans {
		for _, e := range p.signal.engines() {
			for _, c := range p.signal.definition.uses(e, p.keys) {
				m := e.series[c]
				for _, m := range []*mapping{&m, m.second()} {
					if m == nil || seen[m.names()[0]] {
						continue
					}
					seen[m.names()[0]] = true
					out = append(out, m.names())
				}
				for _, names := range m.also {
					if !seen[names[0]] {
						seen[names[0]] = true
						out = append(out, names)
					}
				}
			}
		}
	}
	return out
}

// AllNames returns every raw name of the catalogue, sorted.
func AllNames() []string { return slices.Sorted(maps.Keys(addresses)) }

// Exporter is what exports series.
type Exporter int

// The exporters there are.
const (
	FromEngine Exporter = iota // an engine in its own pod
	FromNode                   // the exporter of the GPUs of a node, of the pods that hold them
	FromPool                   // the endpoint picker of an InferencePool
)

// NamesFrom returns every raw name of the catalogue that such an exporter has, sorted.
func NamesFrom(x Exporter) []string {
	names := map[string]bool{}
	for name, as := range addresses {
		for _, a := range as {
			if x == FromEngine && a.engine.own || x == FromPool && a.engine.pool || x == FromNode && !a.engine.own && !a.engine.pool {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// engines returns those that the signal is read of.
func (s *Signal) engines() []*Engine {
	if s.engine != nil {
		return []*Engine{s.engine}
	}
	var out []*Engine
	for _, e := range engines {
		if e.generic() && s.definition.first(e) != nil {
			out = append(out, e)
		}
	}
	return out
}

// family is the name of the signal without a quantile in it.
func (s *Signal) family() string {
	for _, d := range definitions {
		if !d.fixed && d.quantile != 0 && slices.Equal(d.needs, s.definition.needs) {
			return strings.TrimSuffix(s.Name, s.definition.name) + d.name
		}
	}
	return "another signal"
}

// OfPool reports whether the signal is of an InferencePool, and not of pods.
func (s *Signal) OfPool() bool { return s.engine != nil && s.engine.pool }

func (e *Engine) has(cs []Canonical) bool { return len(cs) > 0 && len(e.filter(cs)) == len(cs) }

func (e *Engine) filter(cs []Canonical) []Canonical {
	var out []Canonical
	for _, c := range cs {
		if _, ok := e.series[c]; ok {
			out = append(out, c)
		}
	}
	return out
}
