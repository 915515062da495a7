package signals

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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

// learnWindow is what one observation of a replica is of.
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
		Idle:    "0: nothing came in five minutes, and nothing waits or runs",
		Stalled: "no value: an engine that makes no progress shows no load",
		Unknown: "no value: not enough has been seen of the variant to trust its model, which the message names; or no fresh sample, or less than five minutes of them after an outage",
	},
	eval:     evalDemand,
	merge:    merger{"the demand of all their load together, scaled up for replicas without a value; each variant by its own model", demandOfAll},
	roles:    oneRole,
	overload: "rises with the load, and not further",
	target:   "Object, AverageValue 850m; pair it with inflight_requests, for as long as the model is not known",
}

func evalDemand(r *Replica, a args) Measure {
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
	case a.Capacity == nil:
		out = unknown("what the pod runs is not known, so that nothing can be learned of it")
	case a.Capacity.Missing != "":
		out = unknown("what a replica can do is not known yet: " + a.Capacity.Missing)
	default:
		out = demandOf(load, *a.Capacity, a.SLO)
		out.Time, out.Window = readAt(used...), LoadWindow
		out.load, out.capacity, out.slo = &load, a.Capacity, a.SLO
	}
	out.observation = r.observe()
	return out
}

// demandOf is the demand of a load on replicas of one variant.
func demandOf(load capacity.Load, c Capacity, slo SLO) Measure {
	d, err := c.Model.Demand(load, capacity.Objectives{
		Role: c.Role, TTFT: slo.TTFT, TPOT: slo.TPOT, Seats: c.Seats, BatchTokens: c.BatchTokens, Drain: c.Drain,
	})
	if err != nil {
		return unknown(err.Error())
	}
	out := Measure{Result: Result{State: Value, HasValue: true, Value: d.Replicas}}
	out.Reason = fmt.Sprintf("%.3g requests/s arrive, and the %s is what fills a replica first", d.Rate, d.Bound)
	if len(d.Without) > 0 {
		out.Reason += fmt.Sprintf("; not looked at: %v", d.Without)
	}
	if d.Replicas == 0 {
		out.State = Idle
	}
	return out
}

// demandOfAll adds the loads of each variant, and the demands of all variants.
func demandOfAll(known []Member, expected int, a args) Result {
	byVariant := map[string][]Member{}
	for _, m := range known {
		byVariant[m.capacity.Variant] = append(byVariant[m.capacity.Variant], m)
	}
	out := Result{State: Value, HasValue: true}
	for _, variant := range sortedKeysOf(byVariant) {
		members := byVariant[variant]
		load := *members[0].load
		for _, m := range members[1:] {
			load = load.Add(*m.load)
		}
		d := demandOf(load, *members[0].capacity, members[0].slo)
		if !d.HasValue {
			return d.Result
		}
		out.Value += d.Value
		out.Reason = d.Reason
	}
	out.Value *= float64(expected) / float64(len(known))
	return out
}

func sortedKeysOf(of map[string][]Member) []string {
	var out []string
	for k := range of {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// load is what was asked of the replica, or why that is not known.
func (r *Replica) load(a args) (capacity.Load, string) {
	get := func(c Canonical) *stat {
		st, reason := r.get(c)
		if reason != "" {
			return nil
		}
		return st
	}
	ttft, queue, running := get(TTFT), get(Queue), get(Running)
	l := capacity.Load{
		Arrived: map[time.Duration]float64{},
		Waiting: []float64{r.level(Queue, queue)},
		InUse:   r.level(Running, running),
		Running: r.mean(Running, running, LoadWindow),
	}
	if kv := get(KVUsed); kv != nil {
		l.KV = r.mean(KVUsed, kv, LoadWindow)
	}
	for _, w := range demandWindows {
		if w < LoadWindow && w < windowReads*ttft.interval {
			continue
		}
		came, ok := r.grown(ttft, w)
		if !ok {
			if w == LoadWindow && !r.young(ttft) {
				return l, fmt.Sprintf("%s is not covered by samples for %s since the last gap", ttft.name, LoadWindow)
			}
			continue
		}
		n := came + r.level(Queue, queue) - r.before(queue, w)
		if rejected := get(Rejected); rejected != nil {
			d, _ := r.grown(rejected, w)
			n += d
		}
		l.Arrived[w] = max(0, n)
	}
	sum := func(c Canonical) float64 {
		d, _ := r.grown(get(c), LoadWindow)
		return d
	}
	l.FirstTokens, l.PromptTokens = sum(TTFT), sum(Prompt)
	l.Finished, l.OutputTokens = sum(OutputCount), sum(OutputSum)
	if lengths := get(PromptLengths); lengths != nil {
		l.PromptSquares = lengths.squares(l.FirstTokens)
	}
	if a.Capacity != nil && !r.at.Start.IsZero() && r.at.Now.Sub(r.at.Start) > a.Capacity.Drain+LoadWindow {
		l.WarmTokens, l.WarmComputed = l.PromptTokens, l.PromptTokens
		if computed := get(PromptComputed); computed != nil {
			l.WarmComputed, _ = r.grown(computed, LoadWindow)
		}
	}
	return l, ""
}

// young reports whether the pod is so new that a window of the load began before it.
func (r *Replica) young(st *stat) bool {
	return !r.at.Start.IsZero() && r.at.Start.UnixMilli() > st.newest-LoadWindow.Milliseconds()
}

// grown is how much counters grew in a window; those of a pod that started in it count from 0. ok is
// false when the samples do not reach back so far.
func (r *Replica) grown(st *stat, w time.Duration) (delta float64, ok bool) {
	if st == nil {
		return 0, false
	}
	if st.absent {
		return 0, true
	}
	for _, p := range st.parts {
		for _, samples := range p.counters() {
			from := p.newest - w.Milliseconds()
			in := window.Since(samples, from)
			d, grew := window.Increase(in)
			switch {
			case len(in) < len(samples) || len(in) > 0 && in[0].T <= from+st.interval.Milliseconds():
			case !r.at.Start.IsZero() && r.at.Start.UnixMilli() > from:
				if len(in) == 1 {
					d, grew = 0, true
				}
				d += in[0].V
			default:
				return 0, false
			}
			if !grew {
				return 0, false
			}
			delta += d
		}
	}
	return delta, true
}

// counters are the samples of what a part counts.
func (p *part) counters() [][]window.Sample {
	if len(p.buckets) > 0 {
		return [][]window.Sample{countOf(p.buckets)}
	}
	return p.series
}

// before is the level of a gauge when a window began; 0 for a pod that was not there.
func (r *Replica) before(st *stat, w time.Duration) float64 {
	var sum float64
	for _, p := range st.parts {
		for _, samples := range p.series {
			from := p.newest - w.Milliseconds()
			if r.at.Start.IsZero() || r.at.Start.UnixMilli() <= from {
				sum += valueAt(samples, from)
			}
		}
	}
	return sum
}

// mean is the mean of a gauge's samples in a window, folded.
func (r *Replica) mean(c Canonical, st *stat, w time.Duration) float64 {
	return r.fold(c, st, func(samples []window.Sample) float64 {
		in := window.Since(samples, samples[len(samples)-1].T-w.Milliseconds())
		var sum float64
		for _, s := range in {
			sum += s.V
		}
		return sum / float64(len(in))
	})
}

// least is the lowest of a gauge's samples in a window, folded.
func (r *Replica) least(c Canonical, st *stat, w time.Duration) float64 {
	return r.fold(c, st, func(samples []window.Sample) float64 {
		in := window.Since(samples, samples[len(samples)-1].T-w.Milliseconds())
		return slices.MinFunc(in, func(a, b window.Sample) int { return cmp.Compare(a.V, b.V) }).V
	})
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

// observe is what the replica did in the last minute, to be learned from; nil when the minute is not
// whole, has a restart in it, or says nothing.
func (r *Replica) observe() *capacity.Observation {
	o := capacity.Observation{Span: learnWindow}
	whole := true
	delta := func(c Canonical, optional bool) float64 {
		st, reason := r.get(c)
		if reason != "" {
			whole = whole && optional
			return 0
		}
		for _, p := range st.parts {
			for _, samples := range p.counters() {
				if len(samples) == 0 || !steady(samples, p.newest-learnWindow.Milliseconds(), st.interval) {
					whole = false
				}
			}
		}
		d, ok := r.grown(st, learnWindow)
		whole = whole && ok
		o.At = time.UnixMilli(st.newest)
		return d
	}
	o.Steps, o.OutputTokens, o.FirstTokens = delta(Steps, false), delta(Generated, false), delta(TTFT, false)
	o.PromptTokens = delta(Prompt, false)
	if _, reason := r.get(PromptComputed); reason == "" {
		o.PromptTokens = delta(PromptComputed, false)
	}
	o.Preemptions, o.ServedSeconds = delta(Preemptions, true), delta(ServedTime, true)
	running, reason := r.get(Running)
	queue, other := r.get(Queue)
	if reason != "" || other != "" || !whole {
		return nil
	}
	o.Running, o.LeastRunning = r.mean(Running, running, learnWindow), r.least(Running, running, learnWindow)
	o.LeastWaiting = r.least(Queue, queue, learnWindow)
	if kv, reason := r.get(KVUsed); reason == "" {
		o.KV = r.mean(KVUsed, kv, learnWindow)
	}
	return &o
}

// steady reports whether a counter was read regularly since a time, and did not restart.
func steady(samples []window.Sample, from int64, interval time.Duration) bool {
	in := window.Since(samples, from-interval.Milliseconds())
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
