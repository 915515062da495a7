package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/engine"
)

// member is what the outside says of a replica: the flags, or its pod.
type member struct {
	id         types.NamespacedName
	uid        types.UID
	restarts   int32 // of the pod's containers
	labels     labels.Set
	deployment string
	node       string
	container  string
	address    string
	serve      bool // whether it should listen
	ready      bool // whether requests are routed to it
}

// replica is one emulated server: engines, and a port that shows them. The fleet's lock guards it.
type replica struct {
	member
	fleet *fleet

	engines    []*engine.Engine
	exposition engine.Exposition
	gpus       []gpu
	flights    map[uint64]flight
	totals     totals

	server  *server   // nil when it does not listen
	problem string    // why it does not, when it should
	down    bool      // made not to listen by the control API
	upAt    time.Time // does not listen before
}

// flight is a request on its way.
type flight struct {
	engine *engine.Engine
	load   *loadRun              // nil for a request over HTTP to the replica itself
	done   chan<- engine.Outcome // nil for a generated request; closed when the request is lost
}

// boot starts the server's process afresh: its counters begin at 0.
func (r *replica) boot() error {
	f := r.fleet
	r.exposition.Created = f.now()
	r.flights = map[uint64]flight{}
	r.engines = nil
	for i := range f.opts.ranks {
		cfg := f.opts.engine
		f.lastID++
		cfg.Seed = f.opts.seed + f.lastID
		cfg.OnFinish = r.finished
		e, err := engine.New(cfg, f.engineTime())
		if err != nil {
			return err
		}
		r.engines = append(r.engines, e)
		r.gpus[i].busy = 0
		r.gpus[i].since = f.engineTime()
	}
	return nil
}

// takesRequests reports whether a request routed to the replica would reach it.
func (r *replica) takesRequests() bool { return r.ready && r.server != nil }

func (r *replica) advance(to time.Time) {
	for _, e := range r.engines {
		e.Advance(to)
	}
}

// submit gives the request to the rank with the least to do, as vLLM's own balancer does: a waiting
// request weighs as much as four that run.
func (r *replica) submit(at time.Time, req engine.Request, fl flight) error {
	best, least := r.engines[0], 0
	for i, e := range r.engines {
		s := e.Stats()
		if score := 4*s.Waiting + s.Running; i == 0 || score < least {
			best, least = e, score
		}
	}
	if err := best.Submit(at, req); err != nil {
		return err
	}
	fl.engine = best
	r.flights[req.ID] = fl
	r.totals.Offered++
	return nil
}

func (r *replica) finished(o engine.Outcome) {
	fl := r.flights[o.ID]
	delete(r.flights, o.ID)
	r.totals.Finished++
	r.fleet.totals.Finished++
	if fl.load != nil {
		fl.load.totals.Finished++
	}
	if fl.done != nil {
		fl.done <- o
	}
}

func (r *replica) drop(id uint64) {
	fl := r.flights[id]
	delete(r.flights, id)
	r.totals.Dropped++
	r.fleet.totals.Dropped++
	if fl.load != nil {
		fl.load.totals.Dropped++
	}
	if fl.done != nil {
		close(fl.done)
	}
}

// dropAll loses everything in flight and returns how much that was.
func (r *replica) dropAll() int {
	n := len(r.flights)
	for id := range r.flights {
		r.drop(id)
	}
	return n
}

// restart is the death and new start of the server's process.
func (r *replica) restart(downtime time.Duration) error {
	r.stopListening()
	lost := r.dropAll()
	r.fleet.pool.Lose(r.engines)
	r.upAt = r.fleet.now().Add(downtime)
	if err := r.boot(); err != nil {
		return err
	}
	r.fleet.logger.Info("Replica restarted", "replica", r.id, "dropped", lost, "downtime", downtime)
	r.fleet.reconcile(r)
	return nil
}

func (r *replica) setFrozen(frozen bool) {
	now := r.fleet.engineTime()
	for _, e := range r.engines {
		if frozen {
			e.Freeze(now)
		} else {
			e.Unfreeze(now)
		}
	}
}

func (r *replica) stopListening() {
	if r.server != nil {
		r.server.Close()
		r.server = nil
	}
}

// notice is the first line of every exposition: a comment, which parsers skip.
const notice = "# EMULATED by engine-emulator: there is no model and no GPU behind these series.\n"

func (r *replica) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+r.exposition.Kind.Path(), func(w http.ResponseWriter, _ *http.Request) {
		r.fleet.mu.Lock()
		text := engine.Append(append(make([]byte, 0, 64<<10), notice...), r.exposition, r.engines)
		r.fleet.mu.Unlock()
		writeText(w, text)
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/completions", r.complete)
	return mux
}

func writeText(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(text) // an error is the client's, who is gone
}

// complete answers a completion when the modelled request finishes.
func (r *replica) complete(w http.ResponseWriter, req *http.Request) {
	prompt, output, ok := readCompletion(w, req)
	if !ok {
		return
	}
	f := r.fleet
	f.mu.Lock()
	f.lastID++
	er := f.request(prompt, output, output)
	done := make(chan engine.Outcome, 1)
	err := r.submit(f.engineTime(), er, flight{done: done})
	if err == nil {
		f.totals.Offered++
	}
	f.mu.Unlock()
	if err != nil {
		refuse(w, err)
		return
	}
	f.answer(w, req, er.ID, done)
}

// readCompletion reads a request, in which words count as tokens, or answers what is wrong with it.
func readCompletion(w http.ResponseWriter, req *http.Request) (prompt, output int, ok bool) {
	var body struct {
		Prompt    string `json:"prompt"`
		MaxTokens *int   `json:"max_tokens"`
		Stream    bool   `json:"stream"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 16<<20)).Decode(&body); err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("read the request: %w", err))
		return 0, 0, false
	}
	if body.Stream {
		writeError(w, http.StatusBadRequest, errors.New("the emulator does not stream: leave stream out"))
		return 0, 0, false
	}
	output = 16 // the API's default
	if body.MaxTokens != nil {
		output = *body.MaxTokens
	}
	return max(len(strings.Fields(body.Prompt)), 1), output, true
}

// refuse answers that no replica took the request.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, engine.ErrQueueFull):
		writeError(w, http.StatusTooManyRequests, err)
	case errors.Is(err, errNoReplica):
		writeError(w, http.StatusServiceUnavailable, err)
	default:
		writeError(w, http.StatusBadRequest, err)
	}
}

// answer waits for the request to finish, and answers it.
func (f *fleet) answer(w http.ResponseWriter, req *http.Request, id uint64, done <-chan engine.Outcome) {
	select {
	case o, ok := <-done:
		if !ok {
			writeError(w, http.StatusServiceUnavailable, errLost)
			return
		}
		reason := "stop"
		if o.Reason == engine.Length {
			reason = "length"
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"id":     fmt.Sprintf("cmpl-emulated-%d", o.ID),
			"object": "text_completion",
			"model":  f.opts.modelName,
			"choices": []map[string]any{{
				"index": 0, "text": "(emulated: there is no model here)", "finish_reason": reason,
			}},
			"usage": map[string]int{
				"prompt_tokens": o.PromptTokens, "completion_tokens": o.OutputTokens, "total_tokens": o.PromptTokens + o.OutputTokens,
			},
		})
	case <-req.Context().Done(): // the client went away, or the server with all its connections
		f.mu.Lock()
		f.giveUp(id)
		f.mu.Unlock()
	}
}
