package signals

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/window"
)

// Measure is what was measured of one replica: its own result, and what a group's result is merged from.
type Measure struct {
	Result

	// sum and weight are numerator and denominator of a ratio.
	sum, weight float64
	// hist is the growth of a histogram in the window.
	hist []window.Bucket
	// stuck is how many requests a stalled replica's bound stands for. slowed says that all of the
	// replica has become as slow, so that its bound is that of every quantile.
	stuck  float64
	slowed bool
	// none says that fresh samples show nothing of what a ratio divides, or of how long requests are: it
	// has no value by itself, and a group's is made of it and the others.
	none bool
	// load and capacity are what was asked of the replica, and what it can do; for demand_replicas, as are
	// the objectives and what there is to learn of the minute before.
	load        *demandLoad
	capacity    *Capacity
	slo         SLO
	observation *capacity.Observation
	// foreign says that the pod runs another engine, or another model than was asked for: it has nothing
	// of the signal to report.
	foreign bool
}

// Foreign reports whether the pod has nothing of the signal to report: it runs another engine, or another
// model than was asked for. Then it being unknown is no fault.
func (m Measure) Foreign() bool { return m.foreign }

// unknown is a Measure without a value.
func unknown(reason string) Measure { return Measure{Result: Result{Reason: reason}} }

// Member is one replica of a group.
type Member struct {
	// Name is the name of its pod.
	Name string
	// Role is "prefill" or "decode" where these are apart, and "" where one replica does both.
	Role string
	Measure
}

// The roles that replicas are split into.
const (
	Prefill = "prefill"
	Decode  = "decode"
)

// merger makes one result of the measures of those replicas that have a value.
type merger struct {
	words string // what it does, for people
	// of merges; expected is how many replicas there are.
	of func(known []Member, expected int, p args) Result
}

var (
	added     = merger{"the sum, scaled up for replicas without a value", sumScaled}
	addedOnly = merger{"the sum of the replicas that have a value", sumKnown}
	averaged  = merger{"the mean, weighted by size where that is known", mean}
	quantiled = merger{"the quantile of all their observations together", quantileOfAll}
)

// divided merges a ratio; idle is what it is while there is nothing to divide.
func divided(idle float64) merger {
	return merger{"the ratio of the sums", func(known []Member, _ int, _ args) Result { return ratio(known, idle) }}
}

// Merge makes one result of the members of a group: all that should report, with or without a value.
// p are the configured parameters, of which those that the query sets are replaced.
//
// With less than half of the members known the group is unknown. It is never 0 unless every member is
// known: a 0 that stands for some of them scales down the others.
func (pl *Plan) Merge(members []Member, p Params) Result {
	d := pl.signal.definition
	if len(members) == 0 {
		return unknown("there is no replica that has been Ready").Result
	}
	all := members
	members = slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.foreign })
	if len(members) == 0 {
		return unknown("no replica has it: " + reasons(all)).Result
	}
	members, why := d.roles.choose(members)
	if why != "" {
		return unknown(why).Result
	}
	var known, missing []Member
	for _, m := range members {
		if m.HasValue || m.none {
			known = append(known, m)
		} else {
			missing = append(missing, m)
		}
	}
	if 2*len(known) < len(members) || len(known) == 0 {
		return unknown(fmt.Sprintf("%d of %d replicas have a value: %s", len(known), len(members), reasons(missing))).Result
	}
	if !slices.ContainsFunc(known, func(m Member) bool { return m.HasValue }) {
		return known[0].Result
	}
	out := d.merge.of(known, len(members), pl.args(p))
	out.Time, out.Window = known[0].Time, known[0].Window
	idle := len(missing) == 0
	for _, m := range known {
		idle = idle && m.State == Idle
		if m.Time.Before(out.Time) {
			out.Time = m.Time
		}
		out.Window = max(out.Window, m.Window)
	}
	if !out.HasValue {
		return out
	}
	if idle {
		out.State = Idle
	}
	if len(missing) > 0 {
		if out.Value == 0 {
			return unknown(fmt.Sprintf("the %d replicas that have a value make 0, and %d have none: %s", len(known), len(missing), reasons(missing))).Result
		}
		out.Reason = strings.TrimPrefix(out.Reason+"; ", "; ") + fmt.Sprintf("%d of %d replicas have no value: %s", len(missing), len(members), reasons(missing))
	}
	return out
}

// reasons names what is missing and why, the first few of them.
func reasons(missing []Member) string {
	const most = 3
	var out []string
	for i, m := range missing {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(missing)-most))
			break
		}
		out = append(out, m.Name+": "+m.Reason)
	}
	return strings.Join(out, "; ")
}

// choose returns the members that count, or why they cannot be told.
func (r roles) choose(members []Member) ([]Member, string) {
	of := map[string]bool{}
	for _, m := range members {
		of[m.Role] = true
	}
	if !of[Prefill] || !of[Decode] {
		return members, ""
	}
	drop := ""
	switch r {
	case bothRoles:
		return members, ""
	case oneRole:
		return nil, "the group has prefill and decode replicas, and each of them sees a part of a request: choose role=prefill or role=decode"
	case prefillRole:
		drop = Decode
	case decodeRole:
		drop = Prefill
	}
	return slices.DeleteFunc(members, func(m Member) bool { return m.Role == drop }), ""
}

// sumScaled sums the values, for those that are missing too: they are taken to be like the others.
func sumScaled(known []Member, expected int, p args) Result {
	out := sumKnown(known, expected, p)
	out.Value *= float64(expected) / float64(len(known))
	return out
}

// sumKnown sums the values of those that are known, and no more: a guarantee does not extend to others.
func sumKnown(known []Member, _ int, _ args) Result {
	out := Result{State: Value, HasValue: true}
	for _, m := range known {
		out.Value += m.Value
		out.LowerBound = out.LowerBound || m.LowerBound
		out.stalledBy(m)
	}
	return out
}

// mean divides the sum of the numerators by that of the denominators. Where a member has no
// denominator, as its size is not known, all count alike.
func mean(known []Member, _ int, _ args) Result {
	out := Result{State: Value, HasValue: true}
	var sum, weight, plain float64
	alike := false
	for _, m := range known {
		sum, weight, plain = sum+m.sum, weight+m.weight, plain+m.Value
		alike = alike || m.weight == 0
		out.LowerBound = out.LowerBound || m.LowerBound
		out.stalledBy(m)
	}
	out.Value = sum / weight
	if alike {
		out.Value = plain / float64(len(known))
	}
	return out
}

// ratio divides the sum of the numerators by that of the denominators; members without a denominator
// have seen nothing of what is divided. With nothing seen it is idle.
func ratio(known []Member, idle float64) Result {
	out := Result{State: Value, HasValue: true, Value: idle}
	var sum, weight float64
	for _, m := range known {
		sum, weight = sum+m.sum, weight+m.weight
		out.stalledBy(m)
	}
	if weight > 0 {
		out.Value = sum / weight
	}
	return out
}

// stalledBy makes the result of a group stalled when one of its members is.
func (r *Result) stalledBy(m Member) {
	if m.State == Stalled && r.State != Stalled {
		r.State = Stalled
		r.Reason = m.Name + ": " + m.Reason
	}
}

// quantileOfAll takes the quantile of all observations together, and of those that are still to come of
// stalled members, at their bounds. Where half of the members are stalled, and all of each has become as
// slow, what they counted before says nothing any more, and counts at their bounds too. With fewer it
// stands: what hangs is a fault of these, and more replicas do not mend it.
func quantileOfAll(known []Member, _ int, p args) Result {
	var hists [][]window.Bucket
	var stuck []Member
	var waiting float64
	for _, m := range known {
		if m.State == Stalled {
			stuck = append(stuck, m)
		}
	}
	half := 2*len(stuck) >= len(known)
	for i := range stuck {
		if half && stuck[i].slowed {
			stuck[i].stuck += count(stuck[i].hist)
		}
		waiting += stuck[i].stuck
	}
	for _, m := range known {
		if m.State == Stalled && half && m.slowed {
			continue
		}
		if count(m.hist) > 0 {
			hists = append(hists, m.hist)
		}
	}
	out := Result{State: Value, HasValue: true}
	var events float64
	for _, h := range hists {
		events += count(h)
	}
	// The stalled ones are above all others where they are at all: of the (1-q) at the top they take
	// their share, and the others the rest.
	if events > 0 {
		rank := p.quantile * (events + waiting) / events
		if rank >= 1 {
			rank = 1
		}
		out = quantileOf(rank, hists)
		if out.Value == 0 && out.LowerBound {
			out = unknown("the histograms of the replicas share no bounds: nothing can be told of all of them").Result
		}
	}
	slices.SortFunc(stuck, func(a, b Member) int {
		switch {
		case a.Value > b.Value:
			return -1
		case a.Value < b.Value:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	above := 0.0
	for _, m := range stuck {
		above += m.stuck
		if above >= (1-p.quantile)*(events+waiting) {
			if m.Value >= out.Value || !out.HasValue {
				out = Result{State: Stalled, HasValue: true, Value: m.Value, LowerBound: true, Reason: m.Name + ": " + m.Reason}
			}
			break
		}
	}
	return out
}

// quantileOf takes a quantile of the observations of several histograms.
func quantileOf(q float64, hists [][]window.Bucket) Result {
	hists = byLayout(hists)
	all := together(hists)
	out := Result{State: Value, HasValue: true}
	res := &Resolution{Events: count(all), High: math.Inf(1)}
	if len(all) < 2 { // no finite bound in common
		out.LowerBound = true
	} else {
		out.Value = quantile(q, all)
		out.LowerBound = above(q, all)
		res.Low, res.High = bucketOf(q, all)
	}
	// A bound at which not all of them can be counted proves something all the same: the quantile is above
	// it where too few observations can be within it, and not above it where enough of them must be.
	for _, h := range hists {
		for _, b := range h {
			least, most := within(hists, b.LE)
			if most < rank(q, res.Events) {
				res.Low = max(res.Low, b.LE)
			} else if least >= rank(q, res.Events) {
				res.High = min(res.High, b.LE)
			}
		}
	}
	out.Value = min(max(out.Value, res.Low), res.High)
	out.Resolution = res
	return out
}

// byLayout adds up the histograms that have the same bounds, as those of one version of an engine have.
func byLayout(hists [][]window.Bucket) [][]window.Bucket {
	var out [][]window.Bucket
	for _, h := range hists {
		i := slices.IndexFunc(out, func(o []window.Bucket) bool {
			return slices.EqualFunc(o, h, func(a, b window.Bucket) bool { return a.LE == b.LE })
		})
		if i < 0 {
			out = append(out, slices.Clone(h))
			continue
		}
		for j := range h {
			out[i][j].Count += h[j].Count
		}
	}
	return out
}

// together is the histogram of all observations, with those bounds at which each of the histograms can
// tell how many of its own are within them.
func together(hists [][]window.Bucket) []window.Bucket {
	if len(hists) == 1 {
		return hists[0]
	}
	var bounds []float64
	for _, h := range hists {
		for _, b := range h {
			bounds = append(bounds, b.LE)
		}
	}
	slices.Sort(bounds)
	var out []window.Bucket
	for _, le := range slices.Compact(bounds) {
		if least, most := within(hists, le); least == most {
			out = append(out, window.Bucket{LE: le, Count: least})
		}
	}
	return out
}

// within is how many observations are at most x, at the least and at the most.
func within(hists [][]window.Bucket, x float64) (least, most float64) {
	for _, h := range hists {
		lower, upper := window.AtMost(h, x)
		least, most = least+lower, most+upper
	}
	return least, most
}

// bucketOf returns the bounds of the bucket that holds a quantile.
func bucketOf(q float64, hist []window.Bucket) (low, high float64) {
	at := rank(q, count(hist))
	for _, b := range hist {
		if b.Count >= at {
			return low, b.LE
		}
		low = b.LE
	}
	return low, math.Inf(1)
}

// rank is which of n observations the quantile is. Where less than one of them is expected above it,
// it is the greatest.
func rank(q, n float64) float64 {
	if n*(1-q) >= 1 {
		return q * n
	}
	return n
}
