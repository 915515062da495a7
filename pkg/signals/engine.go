package signals

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// part lists the labels that tell the parts of a replica apart in all of its series.
	part []string
	// worker lists labels that tell apart the processes behind one target, each with parts of its own.
	worker []string
	// model is the label that holds the name of the model; "" when there is none.
	model string
	// own says that the series come from targets in the pod itself, so that one of these that cannot be
	// scraped is a part that is missing.
	own bool
	// front says that it stands in front of engines, whose requests it repeats. It has signals of its
	// own name only: those of whatever engine a pod runs would count each request twice.
	front bool
	// owners are the pairs of labels that may name what a series belongs to, in the order in which
	// they are believed.
	owners []owner
	// pool says that what a series belongs to is an InferencePool, and not a pod.
	pool bool
	// refresh is how long after its last step an engine may leave its gauges as they were then; 0 for
	// one that sets them when its last request ends. Until then they do not say that somebody waits.
	refresh time.Duration
}

// owner is a pair of labels that name what a series belongs to.
type owner struct{ namespace, name string }

// ownPod is where a source says which pod it read a series from, the first spelling by a scrape with
// the usual relabelling, the others by older ones and by OpenTelemetry. A pod has no word in it: what
// it calls itself is renamed to exported_pod where the source's own label is there.
var ownPod = []owner{{"namespace", "pod"}, {"pod_namespace", "pod_name"}, {"kubernetes_namespace", "kubernetes_pod_name"}, {"k8s_namespace_name", "k8s_pod_name"}}

// progress is the series that shows that the engine works: its tokens, or its steps where tokens are
// not counted as they are generated.
func (e *Engine) progress() Canonical {
	if _, ok := e.series[Generated]; ok {
		return Generated
	}
	return Steps
}

// kind is what its series belong to, in messages.
func (e *Engine) kind() string {
	if e.pool {
		return "pool"
	}
	return "pod"
}

// serves reports whether the engine serves requests in pods.
func (e *Engine) serves() bool { return e.own }

// generic reports whether it is one of whatever engines a pod may run.
func (e *Engine) generic() bool { return e.own && !e.front }

// mapping says where an engine keeps one canonical series.
type mapping struct {
	kind Kind
	// spellings are the exact names the series may be stored under, the preferred one first;
	// those of a histogram are without _bucket. Names are matched exactly, because recording
	// rules of users share the engines' prefixes.
	spellings []string
	// match are labels that the series must have besides, for names that hold several series. A
	// label with the value "" must not be there.
	match map[string]string
	// among are labels of which the series must have one of the values besides; "" is as above.
	among map[string][]string
	// has is a label that the series must have with any value, for names that others may use too.
	has string
	// part lists labels that tell parts apart in this series, besides those of the engine.
	part []string
	// within lists the labels whose values are added up inside a part. Of series that differ in other
	// labels only, one counts: they are the same series twice.
	within []string
	fold   Fold
	// scale multiplies samples into the canonical unit; 0 stands for 1. Of a histogram it is the
	// bounds that are multiplied.
	scale float64
	// read takes the value from the labels, of a series that is always 1; ok is false when it is not there.
	read func(labels.Labels) (v float64, ok bool)
	// valid refuses values that stand for "no reading"; nil accepts all.
	valid func(float64) bool
	// atFinish says of a TTFT that it is observed as the request finishes, and not at its first token.
	atFinish bool
	// edges are the upper bounds of a histogram as the engine ships it.
	edges []float64
	// zeroWith are gauges of which each fresh 0 together prove that this one is 0 where it is absent:
	// an engine that has not set it yet. Without them absence is unknown.
	zeroWith []Canonical
	// lazy says that the series appears with its first event only: while nothing is in the engine,
	// and has not been for a window, its absence is a count of 0.
	lazy bool
	// also are further series whose samples are added, where they are there, each with its spellings.
	// They count nothing without the series itself. A histogram has none.
	also [][]string
	// over, times and less are a second series, by whose samples of the same part those of this one are
	// divided or multiplied, or which are taken off them. Neither has anything within it, and neither is
	// a histogram.
	over, times, less *mapping
	// beside is a series that the same target always writes, for one that comes and goes with what it
	// is of: where it is written and this one no more, what this one was of is gone, and counts nothing.
	beside Canonical
	// noneIsZero says that where beside is written and this one is not at all, it is 0.
	noneIsZero bool
	// unless is a counter of the same things: where it grew in the window there are some, and that this
	// series is not written at all is no 0.
	unless Canonical
	// ofAll says that the series does not carry the label of the model: it is of all the pod serves.
	ofAll bool
	// hint says what may be behind a series that is not there.
	hint string
}

// second is the series that the samples are combined with; nil when there is none.
func (m mapping) second() *mapping { return cmp.Or(m.over, m.times, m.less) }

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

// labels lists the labels of a canonical series that a user may choose by.
func (e *Engine) labels(c Canonical) []string {
	m := e.series[c]
	out := slices.Concat(e.part, m.part, m.within)
	if e.model != "" {
		out = append(out, e.model, modelKey)
	}
	if m.ofAll {
		out = slices.DeleteFunc(out, func(l string) bool { return l == e.model || l == modelKey })
	}
	return out
}

// matches reports whether a series with these labels is the canonical one.
func (m mapping) matches(ls labels.Labels) bool {
	for k, v := range m.match {
		if ls.Get(k) != v {
			return false
		}
	}
	for k, vs := range m.among {
		if !slices.Contains(vs, ls.Get(k)) {
			return false
		}
	}
	return m.has == "" || ls.Get(m.has) != ""
}

// address is where a raw name may belong.
type address struct {
	engine    *Engine
	canonical Canonical
	rank      int // of its spelling: 0 is the preferred one
	mapping   mapping
	second    bool // it is the one that the canonical series is combined with
	summand   int  // which of those that are added it is; 0 is the series itself
}

// addresses finds the addresses of a raw series by its name.
var addresses = func() map[string][]address {
	out := map[string][]address{}
	for _, e := range engines {
		for _, c := range slices.Sorted(maps.Keys(e.series)) {
			m := e.series[c]
			for rank, name := range m.names() {
				out[name] = append(out[name], address{engine: e, canonical: c, rank: rank, mapping: m})
			}
			for i, names := range m.also {
				for rank, name := range names {
					out[name] = append(out[name], address{engine: e, canonical: c, rank: rank, mapping: m, summand: i + 1})
				}
			}
			if m := m.second(); m != nil {
				for rank, name := range m.names() {
					out[name] = append(out[name], address{engine: e, canonical: c, rank: rank, mapping: *m, second: true})
				}
			}
		}
	}
	return out
}()

// upName is the series by which a source that scrapes says of each target whether it could be. It is
// read where a source delivers it, and asked of none.
const upName = "up"

// rankSuffix is what some stacks append to the name of a pod, for each of the data-parallel ranks in it.
var rankSuffix = regexp.MustCompile(`-rank-\d+$`)

// GroupKey is the key under which the series of a pod are grouped. Pods whose names differ in a rank
// only share it; Evaluate tells them apart.
func GroupKey(namespace, pod string) string { return namespace + "/" + withoutRank(pod) }

// PoolKey is the key under which the series of an InferencePool are grouped.
func PoolKey(namespace, pool string) string { return poolPrefix + namespace + "/" + pool }

// PoolOf returns the pool of a key; ok is false for that of a pod.
func PoolOf(key string) (namespace, pool string, ok bool) {
	rest, ok := strings.CutPrefix(key, poolPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/") // the key of a pod in a namespace of that name has no second slash
}

const poolPrefix = "inferencepools/"

func withoutRank(pod string) string {
	if len(pod) == 0 || pod[len(pod)-1] < '0' || pod[len(pod)-1] > '9' {
		return pod // most names, for which the expression would be dear
	}
	return rankSuffix.ReplaceAllString(pod, "")
}

// GroupOf says which pod or pool a raw series belongs to. ok is false for a series that the catalogue
// does not read, or that belongs to neither.
func (p Params) GroupOf(ls labels.Labels) (group string, ok bool) {
	name := ls.Get(model.MetricNameLabel)
	if name == upName {
		ns, pod, ok := p.ownerOf(ls, nil)
		return GroupKey(ns, pod), ok
	}
	for _, a := range addresses[name] {
		if !a.mapping.matches(ls) {
			continue
		}
		if ns, object, ok := p.ownerOf(ls, a.engine); ok {
			if a.engine.pool {
				return PoolKey(ns, object), true
			}
			return GroupKey(ns, object), true
		}
	}
	return "", false
}

// GroupOf says which pod or pool a raw series belongs to, with the labels that are built in.
func GroupOf(ls labels.Labels) (group string, ok bool) { return Params{}.GroupOf(ls) }

// ownerOf returns what a series of an engine belongs to; without an engine it is the series up. The
// labels that are configured are those of the target, which is the pod only of an engine in it.
func (p Params) ownerOf(ls labels.Labels, e *Engine) (namespace, name string, ok bool) {
	owners := ownPod
	if e != nil {
		owners = e.owners
	}
	if e == nil || e.own {
		for _, o := range p.PodLabels {
			if name, ns := ls.Get(o.Pod), ls.Get(o.Namespace); name != "" && ns != "" {
				return ns, name, true
			}
		}
	}
	for _, o := range owners {
		if name, ns := ls.Get(o.name), ls.Get(o.namespace); name != "" && ns != "" {
			return ns, name, true
		}
	}
	return "", "", false
}

// place is an address together with what the labels of one series add to it.
type place struct {
	address
	labels   labels.Labels
	owner    string  // the name of the pod, or of the pool
	instance string  // the target it was read from
	target   string  // that and the worker behind it
	joint    string  // the part of the replica as all series tell it, unique over its targets
	part     string  // the part as this series tells it; it begins with joint
	within   string  // the summand inside the part
	le       float64 // the upper bound of a histogram's bucket
	factor   float64 // what samples of a gauge are multiplied by
}

// places is where one series belongs: mostly in one place. They are kept with the series, so that
// labels are read once and not at every tick.
type places []*place

func (p Params) placesOf(s *window.Series) places {
	if ps, ok := s.Tag.(places); ok {
		return ps
	}
	ps := places{}
	name := s.Labels.Get(model.MetricNameLabel)
	if name == upName {
		_, pod, _ := p.ownerOf(s.Labels, nil)
		ps = append(ps, &place{owner: pod, instance: s.Labels.Get("instance")})
	}
	for _, a := range addresses[name] {
		if pl := p.newPlace(a, s.Labels); pl != nil {
			ps = append(ps, pl)
		}
	}
	s.Tag = ps
	return ps
}

// newPlace returns nil when the series is not that of the address, or cannot be read.
func (params Params) newPlace(a address, ls labels.Labels) *place {
	m := a.mapping
	if !m.matches(ls) {
		return nil
	}
	p := &place{address: a, labels: ls, instance: ls.Get("instance"), factor: 1}
	_, p.owner, _ = params.ownerOf(ls, a.engine)
	p.target = joined(p.instance, ls, a.engine.worker)
	p.joint = joined(p.target+separator+p.owner, ls, a.engine.part)
	p.part = joined(p.joint, ls, m.part)
	p.within = joined("", ls, m.within)
	if a.summand > 0 {
		p.within += separator + strconv.Itoa(a.summand)
	}
	if m.scale != 0 {
		p.factor = m.scale
	}
	if m.read != nil {
		v, ok := m.read(ls)
		if !ok {
			return nil
		}
		p.factor *= v
	}
	if m.kind == Histogram {
		le, err := strconv.ParseFloat(ls.Get(labels.BucketLabel), 64)
		if err != nil || !(le > 0) { // no time is below 0: a bound there is as bad as none
			return nil
		}
		p.le = le * p.factor
	}
	return p
}

// separator sorts before whatever can be in a label, so that keys sort as their beginnings do.
const separator = "\x00"

func joined(first string, ls labels.Labels, names []string) string {
	out := first
	for _, n := range names {
		out += separator + ls.Get(n)
	}
	return out
}

// prefixed spells each of the names with each of the prefixes, the first name first.
func prefixed(prefixes, names []string) []string {
	var out []string
	for _, n := range names {
		for _, p := range prefixes {
			out = append(out, p+n)
		}
	}
	return out
}

// declined says of canonical series that an engine has none of, each with the reason.
func declined(reasons ...map[Canonical]string) map[Canonical]string {
	out := map[Canonical]string{}
	for _, r := range reasons {
		maps.Copy(out, r)
	}
	return out
}

// because gives one reason for several canonical series.
func because(reason string, cs ...Canonical) map[Canonical]string {
	out := make(map[Canonical]string, len(cs))
	for _, c := range cs {
		out[c] = reason
	}
	return out
}

// declinedDemand is for engines that demand_replicas has not been held against.
func declinedDemand(name string) map[Canonical]string {
	return because("what "+name+"'s work costs is not learned: demand_replicas has been held against vLLM only", demandSeries...)
}

// declinedByEngines is what no engine that serves requests exports.
func declinedByEngines(name string) map[Canonical]string {
	return declined(
		because(name+" does not read its GPU; the DCGM exporter does: ask for gpu_*", gpuSeries...),
		because(name+" does not know the pool in front of it; the gateway's endpoint picker does: ask for pool_* of the InferencePool", poolSeries...),
	)
}
