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

	next  time.Duration // until the tick after it
	valid time.Duration // for which its values may be answered

	// demanded finds the signals that were evaluated, by their place in podResults.values.
	demanded map[string]int
	results  map[types.NamespacedName]podResults
}

type podResults struct {
	uid    types.UID
	values []signals.Result
}

// Collected reports whether the snapshot holds the signal. If it does not, nobody wanted it before;
// once asked for it will be there in about the time that Next says.
func (s *Snapshot) Collected(signal string) bool {
	_, ok := s.demanded[signal]
	return ok
}

// Next is the time from one snapshot to the next.
func (s *Snapshot) Next() time.Duration { return s.next }

// Result returns a signal of a pod. It never invents a value: a pod that the tick did not see, or
// that was replaced under the same name since, is unknown, and so is everything once the snapshot
// has outlived the one that should have followed it.
func (s *Snapshot) Result(signal string, pod *pods.Pod) signals.Result {
	i, ok := s.demanded[signal]
	if !ok {
		return unknown("it is not collected yet")
	}
	if age := time.Since(s.Taken); age > s.valid {
		return unknown(fmt.Sprintf("the last collection was %s ago", age.Round(time.Second)))
	}
	r, ok := s.results[pod.NamespacedName]
	if !ok || r.uid != pod.UID {
		return unknown("the pod was not there yet at the last collection")
	}
	return r.values[i]
}

func unknown(reason string) signals.Result { return signals.Result{Reason: reason} }
