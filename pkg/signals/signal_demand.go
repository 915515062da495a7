package signals

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/window"
)

// Capacity is what is known of how much a replica can do.
type Capacity struct {
	// Variant names what the replica has in common with those that serve equally fast.
	Variant string
	// Model is what the variant's work costs; Missing says why that is not known, and is "" when it is.
	Model   capacity.Model
	Missing string
	// Seats and BatchTokens are the engine's limits on running requests and on the tokens of a step; 0
	// when they are not known.
	Seats, BatchTokens float64
	// Drain is the time in which what waits is to be served, no shorter than a cold start.
	Drain time.Duration
	// Role is which part of the requests' work the replica does.
	Role capacity.Role
}

// demandWindows are those that arrivals are counted over; the longest is what everything else of the
// load is of.
var demandWindows = []time.Duration{30 * time.Second, time.Minute, LoadWindow}

// LoadWindow is how far demand_replicas looks back.
const LoadWindow = 5 * time.Minute

// learnWindow is what one observation of a replica is of, where it is scraped often enough.
const learnWindow = time.Minute

var demandNeeds = []Canonical{TTFT, Queue, Running, Prompt, Generated, Steps, OutputCount, OutputSum}

var demandReplicas = definition{
	name: "demand_replicas",
	unit: "replicas",
	help: "The load that is offered, in replicas of this variant: how many of them it would fill. It does not change because it is followed.",
	formula: "arrivals per second ÷ what one replica serves within the objectives, with the costs of a step, a prompt token and an output token that were learned in busy windows; " +
		"and the work that waits, and what is not known to be too much. docs/adr/0004-demand-replicas.md",
	needs: demandNeeds,
	reads: []Canonical{KVUsed, PromptComputed, PromptLengths, Rejected, Preemptions, ServedTime},
	slo:   true,
	says: map[State]string{
		Value:   "fresh samples, and a model of the variant that has been learned and held against windows that were left out",
		Idle:    "0: nothing came in five minutes, and nothing waits or runs; that needs no model",
		Stalled: "no value: an engine that makes no progress shows no load",
		Unknown: "no value: not enough has been seen of the variant to trust its model, which the message names; or no fresh sample, or less than five minutes of them after an outage",
	},
	eval:     evalDemand,
	merge:    merger{"the demand of all their load together, scaled up for replicas without a value; each variant by its own model", demandOfAll},
	roles:    oneRole,
	overload: "rises with the load, and not further",
	target:   "Object, AverageValue 850m; pair it with inflight_requests, for as long as the model is not known",
}

func evalDemand(r *replica, a args) Measure {
	var used []*stat
	for _, c := range demandNeeds {
		st, reason := r.get(c)
		if reason != "" {
			return unknown(reason)
		}
		used = append(used, st)
	}
	ttft := used[0]
	if out, stuck := r.stuck(ttft); stuck {
		return out
	}
	load, fault := r.load(a)
	var out Measure
	switch {
	case fault != "":
		out = unknown(fault)
	case load.none():
		// Nothing is nothing, whatever a replica can do.
		out = Measure{Result: Result{State: Idle, HasValue: true}}
	case a.Capacity == nil:
		out = unknown("what the pod runs is not known, so that nothing can be learned of it")
	case a.Capacity.Missing != "":
		out = unknown("what a replica can do is not known yet: " + a.Capacity.Missing)
	default:
		out = demandOf(load, *a.Capacity, a.SLO)
		// What a new replica has not seen yet, as how long outputs are, others of its group have. It is
		// not one of which the load is not known.
		out.none = !out.HasValue
	}
	if out.HasValue || out.none {
		out.Time, out.Window = readAt(used...), LoadWindow
		out.load, out.capacity, out.slo = &load, a.Capacity, a.SLO
	}
	out.observation = r.observe()
	return out
}

// demandOf is the demand of a load on replicas of one variant.
func demandOf(l demandLoad, c Capacity, slo SLO) Measure {
	if l.none() {
		return Measure{Result: Result{State: Idle, HasValue: true}}
	}
	if l.WarmTokens == 0 {
		// None is old enough: what the caches of new ones hold is a better guess than nothing.
		l.WarmTokens, l.WarmComputed = l.PromptTokens, l.computed
	}
	d, err := c.Model.Demand(l.Load, capacity.Objectives{
		Role: c.Role, TTFT: slo.TTFT, TPOT: slo.TPOT, Seats: c.Seats, BatchTokens: c.BatchTokens, Drain: c.Drain,
	})
	if err != nil {
		return unknown(err.Error())
	}
	out := Measure{Result: Result{State: Value, HasValue: true, Value: d.Replicas * l.replicas / l.cores}}
	out.Reason = fmt.Sprintf("%.3g requests/s arrive, and the %s is what fills a replica first", d.Rate, d.Bound)
	if len(d.Without) > 0 {
		out.Reason += fmt.Sprintf("; not looked at: %v", d.Without)
	}
	return out
}

// demandOfAll adds the loads of each variant, and the demands of all variants.
func demandOfAll(known []Member, expected int, a args) Result {
	byVariant := map[string][]Member{}
	for _, m := range known {
		if m.capacity != nil && m.capacity.Missing == "" {
			byVariant[m.capacity.Variant] = append(byVariant[m.capacity.Variant], m)
		} // else it is idle, or it would have no value
	}
	out := Result{State: Value, HasValue: true}
	var said []string
	for _, variant := range slices.Sorted(maps.Keys(byVariant)) {
		members := byVariant[variant]
		load := *members[0].load
		for _, m := range members[1:] {
			load = load.add(*m.load)
		}
		d := demandOf(load, *members[0].capacity, members[0].slo)
		if !d.HasValue {
			return d.Result
		}
		out.Value += d.Value
		if d.Reason != "" {
			said = append(said, d.Reason)
		}
	}
	out.Reason = strings.Join(said, "; and of another variant ")
	out.Value *= float64(expected) / float64(len(known))
	return out
}

// demandLoad is what is asked of some replicas. The model is one of engine cores, of which a replica
// with data parallelism has several: each has its own steps, seats and KV cache.
type demandLoad struct {
	capacity.Load
	// computed is how many of the prompt tokens no cache held, in new replicas too.
	computed        float64
	cores, replicas float64
}

func (l demandLoad) add(o demandLoad) demandLoad {
	return demandLoad{l.Load.Add(o.Load), l.computed + o.computed, l.cores + o.cores, l.replicas + o.replicas}
}

// none reports whether nothing came in the longest window, and nothing is there now.
func (l demandLoad) none() bool {
	sum := l.InUse + l.FirstTokens
	for _, n := range l.Waiting {
		sum += n
	}
	for _, n := range l.Arrived {
		sum += n
	}
	return sum == 0
}

// load is what was asked of the replica, or why that is not known.
func (r *replica) load(a args) (demandLoad, string) {
	get := func(c Canonical) *stat {
		st, reason := r.get(c)
		if reason != "" {
			return nil
		}
		return st
	}
	ttft, queue, running := get(TTFT), get(Queue), get(Running)
	l := demandLoad{replicas: 1, cores: float64(len(ttft.joints()))}
	l.Arrived = map[time.Duration]float64{}
	l.InUse, l.Running = r.level(Running, running), r.mean(Running, running, LoadWindow)
	if kv := get(KVUsed); kv != nil {
		l.KV = r.mean(KVUsed, kv, LoadWindow) * l.cores
	}
	for _, joint := range ttft.joints() {
		if len(queue.joint(joint)) == 0 && !queue.absent {
			return l, fmt.Sprintf("%s is missing for a part of the replica", queue.name)
		}
		waiting := 0.0
		for _, p := range queue.joint(joint) {
			for _, samples := range p.series {
				waiting += samples[len(samples)-1].V
			}
		}
		l.Waiting = append(l.Waiting, waiting)
	}
	for _, w := range demandWindows {
		if w < LoadWindow && w < windowReads*ttft.interval {
			continue
		}
		n, ok := r.arrivedIn(ttft, queue, w)
		switch {
		case ok:
			l.Arrived[w] = max(0, n+r.rejectedIn(get(Rejected), ttft, w))
		case w == LoadWindow:
			return l, fmt.Sprintf("%s is not covered by samples for %s since the last gap", ttft.name, LoadWindow)
		}
	}
	sum := func(c Canonical) float64 {
		d, _ := r.grown(get(c), LoadWindow)
		return d
	}
	l.FirstTokens, l.PromptTokens = sum(TTFT), sum(Prompt)
	l.Finished, l.OutputTokens = sum(OutputCount), sum(OutputSum)
	if l.FirstTokens > 0 {
		l.PromptSquares = 4 * l.PromptTokens * l.PromptTokens / l.FirstTokens // a long tail, until it is known
		if lengths := get(PromptLengths); lengths != nil {
			l.PromptSquares = cmp.Or(lengths.squares(l.FirstTokens), l.PromptSquares)
		}
	}
	l.computed = l.PromptTokens
	if computed := get(PromptComputed); computed != nil {
		l.computed, _ = r.grown(computed, LoadWindow)
	}
	// It took a cold start to begin, and takes another for its caches, and the window is to be after that.
	if a.Capacity != nil && !r.at.Start.IsZero() && r.at.Now.Sub(r.at.Start) > 2*a.Capacity.Drain+LoadWindow {
		l.WarmTokens, l.WarmComputed = l.PromptTokens, l.computed
	}
	return l, ""
}

// reach is how far samples go back in a window.
type reach struct {
	samples []window.Sample // of the window, from the one that is nearest to its beginning
	// scale makes of what the samples show what the window has, as they do not begin exactly with it.
	scale float64
	// served says that what is counted began within the window, because the replica did; and fresh
	// that its process did, so that the first sample is a count from 0.
	served, fresh bool
}

// back returns the samples of a window; ok is false when they do not go back so far, although the replica
// does.
func (r *replica) back(samples []window.Sample, newest int64, w, interval time.Duration) (out reach, ok bool) {
	from, half := newest-w.Milliseconds(), interval.Milliseconds()/2
	out = reach{samples: window.Since(samples, from-half), scale: 1}
	if len(out.samples) == 0 {
		return out, false // it has fallen silent
	}
	first, last := out.samples[0].T, out.samples[len(out.samples)-1].T
	switch {
	case !r.at.Start.IsZero() && r.at.Start.UnixMilli() > from:
		out.served, out.fresh = true, true
	case first <= from+3*half && last > first: // one scrape may have failed
		out.scale = float64(w.Milliseconds()) / float64(last-first)
	case !r.at.Ready.IsZero() && r.at.Ready.UnixMilli() > from:
		out.served = true // it loaded its model until then, and had no request
	default:
		return out, false
	}
	return out, true
}

// growth is how much a counter grew in the window; ok is false when it is no number.
func (in reach) growth() (delta float64, ok bool) {
	if len(in.samples) > 1 {
		if delta, ok = window.Increase(in.samples); !ok {
			return 0, false
		}
	}
	if in.fresh && len(in.samples) > 0 {
		delta += in.samples[0].V
	}
	return delta * in.scale, true
}

// grown is how much counters grew in a window; those of a pod that started in it count from 0. ok is
// false when the samples do not reach back so far.
func (r *replica) grown(st *stat, w time.Duration) (delta float64, ok bool) {
	if st == nil {
		return 0, false
	}
	for _, p := range st.parts {
		for _, samples := range p.counters() {
			in, ok := r.back(samples, p.newest, w, st.interval)
			if !ok {
				return 0, false
			}
			d, ok := in.growth()
			if !ok {
				return 0, false
			}
			delta += d
		}
	}
	return delta, true
}

// arrivedIn is how many requests had their first token in a window, or joined the queue.
func (r *replica) arrivedIn(ttft, queue *stat, w time.Duration) (n float64, ok bool) {
	for _, p := range ttft.parts {
		in, ok := r.back(countOf(p.buckets), p.newest, w, ttft.interval)
		if !ok {
			return 0, false
		}
		came, ok := in.growth()
		if !ok {
			return 0, false
		}
		queued := queue.risenBy(p.joint, in.samples)
		if in.served {
			for _, q := range queue.joint(p.joint) {
				for _, samples := range q.series {
					queued += valueAt(samples, in.samples[0].T)
				}
			}
		}
		n += came + queued*in.scale
	}
	return n, true
}

// rejectedIn is how many requests were turned away in a window. The series of a reason may begin with the
// first of them: then it counts from 0, if that of the first tokens is older.
func (r *replica) rejectedIn(rejected, ttft *stat, w time.Duration) (n float64) {
	if rejected == nil {
		return 0
	}
	oldest := int64(math.MaxInt64)
	for _, p := range ttft.parts {
		oldest = min(oldest, countOf(p.buckets)[0].T)
	}
	for _, p := range rejected.parts {
		for _, samples := range p.series {
			in, ok := r.back(samples, p.newest, w, ttft.interval)
			if !ok && samples[0].T > oldest+2*ttft.interval.Milliseconds() {
				in.fresh = true
			}
			d, _ := in.growth()
			n += d
		}
	}
	return n
}

// counters are the samples of what a part counts.
func (p *part) counters() [][]window.Sample {
	if len(p.buckets) > 0 {
		return [][]window.Sample{countOf(p.buckets)}
	}
	return p.series
}

// mean is the mean of a gauge's samples in a window, folded.
func (r *replica) mean(c Canonical, st *stat, w time.Duration) float64 {
	return r.fold(c, st, func(samples []window.Sample) float64 {
		in := window.Since(samples, samples[len(samples)-1].T-w.Milliseconds())
		var sum float64
		for _, s := range in {
			sum += s.V
		}
		return sum / float64(len(in))
	})
}

// least is the lowest of a gauge's samples in a window, of the part that has the least.
func (st *stat) least(w time.Duration) float64 {
	least := math.Inf(1)
	for _, p := range st.parts {
		for _, samples := range p.series {
			for _, s := range window.Since(samples, samples[len(samples)-1].T-w.Milliseconds()) {
				least = min(least, s.V*p.factor)
			}
		}
	}
	if st.absent {
		return 0
	}
	return least
}

// squares estimates the sum of the squares of what a histogram observed in the window of the load, for n
// observations: those of a bucket are taken to be spread as their logarithm is.
func (st *stat) squares(n float64) float64 {
	var sum, seen float64
	for _, p := range st.parts {
		hist, _, ok := window.Increases(p.buckets, p.newest-LoadWindow.Milliseconds())
		if !ok {
			continue
		}
		low, below := 0.0, 0.0
		for _, b := range hist {
			square := low * b.LE
			switch {
			case math.IsInf(b.LE, 1):
				square = low * low
			case low == 0:
				square = b.LE * b.LE / 3
			}
			sum += square * (b.Count - below)
			low, below = b.LE, b.Count
		}
		seen += count(hist)
	}
	if seen == 0 {
		return 0
	}
	return sum * n / seen
}

// observe is what a core of the replica did in the last minute, on average, to be learned from; nil when
// the minute is not whole, or has a restart or a stall in it, and where the query chooses a part of what
// the replica does.
func (r *replica) observe() *capacity.Observation {
	steps, reason := r.get(Steps)
	if reason != "" || steps.absent || len(r.unlike) > 0 {
		return nil
	}
	w := max(learnWindow, windowReads*steps.interval)
	cores := float64(len(steps.joints()))
	o := capacity.Observation{At: time.UnixMilli(steps.newest)}
	whole := true
	delta := func(c Canonical, optional bool) (sum float64) {
		st, reason := r.get(c)
		if reason != "" {
			whole = whole && optional
			return 0
		}
		for _, p := range st.parts {
			for _, samples := range p.counters() {
				from := p.newest - w.Milliseconds()
				in := window.Since(samples, from-st.interval.Milliseconds()/2)
				if !steady(in, from, st.interval) {
					whole = false
					return 0
				}
				o.Span = max(o.Span, time.Duration(in[len(in)-1].T-in[0].T)*time.Millisecond)
				d, ok := window.Increase(in)
				whole = whole && ok
				sum += d / cores
			}
		}
		return sum
	}
	o.Steps, o.OutputTokens, o.FirstTokens = delta(Steps, false), delta(Generated, false), delta(TTFT, false)
	o.PromptTokens = delta(Prompt, false)
	if _, reason := r.get(PromptComputed); reason == "" {
		o.PromptTokens = delta(PromptComputed, false)
	}
	o.Preemptions, o.ServedSeconds = delta(Preemptions, true), delta(ServedTime, true)
	running, reason := r.get(Running)
	queue, other := r.get(Queue)
	if reason != "" || other != "" || !whole || r.halted(running, w) {
		return nil
	}
	o.Running, o.LeastRunning, o.LeastWaiting = r.mean(Running, running, w)/cores, running.least(w), queue.least(w)
	if kv, reason := r.get(KVUsed); reason == "" {
		o.KV = r.mean(KVUsed, kv, w)
	}
	return &o
}

// steady reports whether a counter was read regularly since a time, and did not restart.
func steady(in []window.Sample, from int64, interval time.Duration) bool {
	if len(in) < 2 || in[0].T > from+interval.Milliseconds() {
		return false
	}
	for i := 1; i < len(in); i++ {
		if in[i].V < in[i-1].V || in[i].T-in[i-1].T > 2*interval.Milliseconds() {
			return false
		}
	}
	return true
}

// halted reports whether for some time of a window no token came in some part while requests ran.
func (r *replica) halted(running *stat, w time.Duration) bool {
	generated, _ := r.get(Generated)
	for _, p := range generated.parts {
		for _, samples := range p.series {
			in := window.Since(samples, p.newest-w.Milliseconds())
			var since int64 // it has stood still, with requests
			busy := false
			for i, s := range in {
				was := busy
				busy = waited(running.joint(p.joint), s.T)
				if !busy || !was || s.V > in[i-1].V {
					since = s.T
				}
				if s.T-since >= generated.freshFor().Milliseconds() {
					return true
				}
			}
		}
	}
	return false
}

// Observation returns what the replica did in the minute before, to be learned from; ok is false when the
// query does not learn, or there is nothing to learn.
func (m Measure) Observation() (o capacity.Observation, ok bool) {
	if m.observation == nil {
		return o, false
	}
	return *m.observation, true
}

// Learns reports whether the signal needs to know what a replica can do.
func (s *Signal) Learns() bool { return s.definition.name == demandReplicas.name }
