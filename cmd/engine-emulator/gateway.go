package main

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/inference-metrics/adapter/internal/engine"
)

// gateway stands in front of all replicas, and has an endpoint picker choose among them.
type gateway struct {
	requests *loadRun  // what came over HTTP
	held     []pending // what the picker's flow control holds back, the oldest first
	picker   *server   // the picker's metrics; nil when they do not listen
}

// pending is a request that is on its way to a replica.
type pending struct {
	request engine.Request
	load    *loadRun
	done    chan<- engine.Outcome // nil for a generated request
}

var (
	errNoReplica = errors.New("no replica takes requests")
	errLost      = errors.New("the request was lost with its replica")
)

func newGateway() gateway {
	return gateway{requests: &loadRun{selector: labels.Everything(), routing: leastRequests}}
}

// closed reports whether a request that comes now is held back: behind others, or because the pool has no
// replica or is saturated.
func (f *fleet) closed() bool {
	return f.opts.flowControl && (len(f.gateway.held) > 0 || engine.Saturation(f.poolMembers()) >= 1)
}

// send gives a request to a replica.
func (f *fleet) send(at time.Time, p pending) error {
	r := f.choose(p.load, at)
	if r == nil {
		return errNoReplica
	}
	return r.submit(at, p.request, flight{load: p.load, done: p.done})
}

// dispatch lets go of what is held back, as long as the pool takes it.
func (f *fleet) dispatch(now time.Time) {
	for len(f.gateway.held) > 0 && engine.Saturation(f.poolMembers()) < 1 {
		p := f.gateway.held[0]
		err := f.send(now, p)
		if errors.Is(err, errNoReplica) {
			return // none of those that it is for, yet
		}
		f.gateway.held = f.gateway.held[1:]
		if err != nil {
			f.dropped(p)
		}
	}
}

// dropped counts a request that no replica has.
func (f *fleet) dropped(p pending) {
	p.load.totals.Dropped++
	f.totals.Dropped++
	if p.done != nil {
		close(p.done)
	}
}

// giveUp ends a request whose client is gone, wherever it is.
func (f *fleet) giveUp(id uint64) {
	for i, p := range f.gateway.held {
		if p.request.ID == id {
			f.gateway.held = slices.Delete(f.gateway.held, i, i+1)
			f.dropped(p)
			return
		}
	}
	for _, r := range f.replicas {
		if fl, ok := r.flights[id]; ok {
			fl.engine.Abort(f.engineTime(), id)
			r.drop(id)
			return
		}
	}
}

// gatewayHandler takes completions for all replicas.
func (f *fleet) gatewayHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, req *http.Request) {
		prompt, output, ok := readCompletion(w, req)
		if !ok {
			return
		}
		done := make(chan engine.Outcome, 1)
		f.mu.Lock()
		f.lastID++
		p := pending{f.request(prompt, output, output), f.gateway.requests, done}
		var err error
		if f.closed() {
			f.gateway.held = append(f.gateway.held, p)
		} else {
			err = f.send(f.engineTime(), p)
		}
		if err == nil {
			f.totals.Offered++
			p.load.totals.Offered++
		}
		f.mu.Unlock()
		if err != nil {
			refuse(w, err)
			return
		}
		f.answer(w, req, p.request.ID, done)
	})
	return mux
}
