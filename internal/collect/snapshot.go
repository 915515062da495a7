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
	// Taken is when the tick ended, on our clock.
	Taken time.Time
	// Source names the source in messages.
	Source string
	// Err says why the source could not be read in this tick; nil when it could.
	Err error

	// demanded holds the signals that this tick evaluated, and results their values in the order
	// of demanded.
	demanded map[string]int
	results  map[types.NamespacedName]podResults
}

type podResults struct {
	uid    types.UID
	values []signals.Result
}

// Collected reports whether the snapshot evaluated the signal: false means that nobody demanded it
// before this tick, so that asking again soon will find it.
func (s *Snapshot) Collected(signal string) bool {
	_, ok := s.demanded[signal]
	return ok
}

// Result returns the signal of a pod. It never invents a value: a pod that the tick did not see, or
// that has been replaced since under the same name, is Unknown.
func (s *Snapshot) Result(signal string, pod *pods.Pod) signals.Result {
	i, ok := s.demanded[signal]
	if !ok {
		return unknown("not collected yet")
	}
	r, ok := s.results[pod.NamespacedName]
	if !ok || r.uid != pod.UID {
		return unknown(fmt.Sprintf("the pod was not there yet at the last collection (%s)", s.Taken.UTC().Format(time.RFC3339)))
	}
	return r.values[i]
}

func unknown(reason string) signals.Result {
	return signals.Result{State: signals.Unknown, Reason: reason}
}
