package collect

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// askedFor is how long a signal is collected after somebody asked for it.
const askedFor = 10 * time.Minute

// demand knows which signals are wanted. Asking is on the path of every request: it takes no lock.
type demand struct {
	asked    map[string]*atomic.Int64 // Unix seconds of the newest request; every signal has one
	standing atomic.Pointer[[]string]
	wake     chan struct{}
}

func newDemand() *demand {
	d := &demand{asked: map[string]*atomic.Int64{}, wake: make(chan struct{}, 1)}
	for _, s := range signals.Catalogue() {
		d.asked[s.Name] = new(atomic.Int64)
	}
	d.standing.Store(new([]string))
	return d
}

func (d *demand) ask(signal string, now time.Time) {
	if at, ok := d.asked[signal]; ok {
		if s := now.Unix(); at.Load() != s {
			at.Store(s)
		}
	}
}

// setStanding reports whether the standing demand changed.
func (d *demand) setStanding(names []string) bool {
	var known []string
	for _, n := range names {
		if _, ok := d.asked[n]; ok {
			known = append(known, n)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	old := d.standing.Swap(&known)
	return !slices.Equal(*old, known)
}

// signals returns what is wanted now, in the order of the catalogue.
func (d *demand) signals(now time.Time) []*signals.Signal {
	standing := *d.standing.Load()
	var out []*signals.Signal
	for _, s := range signals.Catalogue() {
		_, stands := slices.BinarySearch(standing, s.Name)
		asked := d.asked[s.Name].Load()
		if stands || (asked > 0 && now.Sub(time.Unix(asked, 0)) < askedFor) {
			out = append(out, s)
		}
	}
	return out
}

// hurry asks for a tick soon.
func (d *demand) hurry() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}
