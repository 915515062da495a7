package collect

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Snapshot is the outcome of one tick. It is immutable: requests read it without a lock, and
// without a query or a LIST.
type Snapshot struct {
	// Taken is when it was evaluated, on our clock; zero before the first tick.
	Taken time.Time
	// Err says why the source, which it names, could not be read in this tick; nil when it could.
	Err error

	settings *Settings
	next     time.Duration // until the tick after it
	valid    time.Duration // for which its values may be answered

	source SourceStatus
	plans  []*signals.Plan
	// demanded finds the queries that were evaluated, by their place in measured.values.
	demanded map[signals.Query]int
	results  map[types.NamespacedName]measured
	// pools are the results of InferencePools.
	pools map[types.NamespacedName]measured
	// exporters are the pods that have had series of an engine, and what owns them.
	exporters map[types.UID]bool
	// unsurveyed are the queries of which the source has not been read in full yet.
	unsurveyed map[signals.Query]bool
}

// measured is what was measured of one pod or pool.
type measured struct {
	uid    types.UID
	serves bool // it serves requests, and is not a pod that has a GPU only
	values []signals.Measure
}

// Collected reports whether the snapshot holds the query. If it does not, nobody asked it before; once
// asked it will be there in about the time that Next says.
func (s *Snapshot) Collected(q signals.Query) bool {
	_, ok := s.demanded[q]
	return ok
}

// Next is the time from one snapshot to the next.
func (s *Snapshot) Next() time.Duration { return s.next }

// Settings are what the snapshot was made under. A request is to be read by them too, so that what it means
// by a window is what was measured.
func (s *Snapshot) Settings() *Settings { return s.settings }

// Measure returns what a query measured of a pod. It never invents a value: a pod that the tick did not
// see, or that was replaced under the same name since, is unknown, and so is everything once the
// snapshot has outlived the one that should have followed it.
func (s *Snapshot) Measure(q signals.Query, pod *pods.Pod) signals.Measure {
	i, old := s.at(q)
	if old.Reason != "" {
		return old
	}
	r, ok := s.results[pod.NamespacedName]
	switch {
	case !ok:
		return unknown("the source has no sample of an engine in this pod")
	case r.uid != pod.UID:
		return unknown("the pod was not there yet at the last collection")
	}
	return r.values[i]
}

// Pool returns what a query measured of an InferencePool, as the gateway in front of it tells.
func (s *Snapshot) Pool(q signals.Query, pool types.NamespacedName) signals.Measure {
	i, old := s.at(q)
	if old.Reason != "" {
		return old
	}
	r, ok := s.pools[pool]
	if !ok {
		return unknown("the source has no series of an endpoint picker of this pool")
	}
	return r.values[i]
}

// Merge makes one result of what a query measured of the pods of a group; roles are theirs, in the
// same order.
func (s *Snapshot) Merge(plan *signals.Plan, members []*pods.Pod, roles []string) signals.Result {
	list := make([]signals.Member, len(members))
	for i, pod := range members {
		list[i] = signals.Member{Name: pod.Name, Role: roles[i], Measure: s.Measure(plan.Query, pod)}
	}
	return plan.Merge(list, s.settings.Params)
}

// Exports reports whether a pod, or another one of the same owner, has had series of an engine.
func (s *Snapshot) Exports(pod *pods.Pod) bool {
	return s.exporters[pod.UID] || pod.Owner != "" && s.exporters[pod.Owner]
}

// Surveyed reports whether a pod of which Exports is false has none of what a query reads. Where the source
// has answered in part only since the collector started, it may be in what was not read.
func (s *Snapshot) Surveyed(q signals.Query) bool { return !s.unsurveyed[q] }

// at finds a query; what is returned with a reason is to be answered in the place of a value.
func (s *Snapshot) at(q signals.Query) (int, signals.Measure) {
	i, ok := s.demanded[q]
	if !ok {
		return 0, unknown("it is not collected yet")
	}
	if age := time.Since(s.Taken); age > s.valid {
		return 0, unknown(fmt.Sprintf("the last collection was %s ago", age.Round(time.Second)))
	}
	return i, signals.Measure{}
}

func unknown(reason string) signals.Measure {
	return signals.Measure{Result: signals.Result{Reason: reason}}
}
