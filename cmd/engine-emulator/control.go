package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

// state is what GET /state answers.
type state struct {
	// Emulated is always true: whoever reads this should know.
	Emulated bool   `json:"emulated"`
	Totals   totals `json:"totals"`
	// Held is how many requests the endpoint picker's flow control holds back.
	Held     int            `json:"held"`
	Loads    []loadState    `json:"loads"`
	Replicas []replicaState `json:"replicas"`
}

type loadState struct {
	target
	Spec    string `json:"spec"`
	Routing string `json:"routing"`
	Ended   bool   `json:"ended"`
	Problem string `json:"problem,omitempty"`
	totals
}

type replicaState struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Deployment string `json:"deployment,omitempty"`
	// Address is where it listens; empty when it does not.
	Address string `json:"address,omitempty"`
	Problem string `json:"problem,omitempty"`
	Ready   bool   `json:"ready"`
	Frozen  bool   `json:"frozen"`
	Engine  string `json:"engine"`
	Release string `json:"release"`

	Created     time.Time `json:"created"`
	Waiting     int       `json:"waiting"`
	Running     int       `json:"running"`
	KVUsage     float64   `json:"kv_usage"` // mean over its engines
	Preemptions int       `json:"preemptions"`
	Rejected    int       `json:"rejected"` // for a full queue
	// The replica's requests since it was added; a restart does not reset them.
	totals
}

func (f *fleet) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		s := f.state()
		f.mu.Unlock()
		writeJSON(w, http.StatusOK, s)
	})
	mux.HandleFunc("PUT /load", f.putLoad)
	mux.HandleFunc("POST /replicas/{namespace}/{name}/{action}", f.postAction)
	mux.HandleFunc("POST /picker/{action}", f.postPicker)
	return mux
}

func (f *fleet) state() state {
	s := state{Emulated: true, Totals: f.totals, Held: len(f.gateway.held), Loads: []loadState{}, Replicas: []replicaState{}}
	for _, l := range f.loads {
		s.Loads = append(s.Loads, loadState{
			target: l.target, Spec: l.spec.String(), Routing: l.routing, Ended: l.ended, Problem: l.problem, totals: l.totals,
		})
	}
	for _, r := range f.replicas {
		s.Replicas = append(s.Replicas, r.state())
	}
	return s
}

func (r *replica) state() replicaState {
	s := replicaState{
		Namespace: r.id.Namespace, Name: r.id.Name, Deployment: r.deployment, Problem: r.problem, Ready: r.ready,
		Frozen: r.engines[0].Frozen(), Engine: r.exposition.Kind.String(), Release: r.exposition.Release.String(), Created: r.exposition.Created, totals: r.totals,
	}
	if r.server != nil {
		s.Address = r.server.address
	}
	for _, e := range r.engines {
		es := e.Stats()
		s.Waiting += es.Waiting
		s.Running += es.Running
		s.KVUsage += es.KVUsage() / float64(len(r.engines))
		s.Preemptions += es.Preemptions
		s.Rejected += es.Rejected
	}
	return s
}

// putLoad takes a load's line and a target in the query, or both in JSON.
func (f *fleet) putLoad(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	in := struct {
		target
		Spec    string `json:"spec"`
		Routing string `json:"routing"`
	}{
		target:  target{Namespace: q.Get("namespace"), Selector: q.Get("selector"), Deployment: q.Get("deployment")},
		Routing: q.Get("routing"),
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20))
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("read the load: %w", err))
		return
	}
	if mediaType, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); mediaType == "application/json" {
		if err := json.Unmarshal(body, &in); err != nil {
			writeError(w, http.StatusBadRequest, fmt.Errorf("read the load as JSON: %w", err))
			return
		}
	} else {
		in.Spec = string(body)
	}
	if in.Routing == "" {
		in.Routing = f.opts.routing
	}
	spec, err := load.Parse(in.Spec)
	if err == nil {
		err = f.setLoad(in.target, spec, in.Routing)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	f.mu.Lock()
	loads := f.state().Loads
	f.mu.Unlock()
	writeJSON(w, http.StatusOK, loads)
}

var (
	errUnknownReplica = errors.New("no replica")
	errUnknownAction  = errors.New("unknown action: want restart, freeze, unfreeze, down, up or spelling")
)

func (f *fleet) postAction(w http.ResponseWriter, req *http.Request) {
	id := types.NamespacedName{Namespace: req.PathValue("namespace"), Name: req.PathValue("name")}
	action := req.PathValue("action")
	st, err := f.act(id, action, req.URL.Query())
	switch {
	case errors.Is(err, errUnknownReplica), errors.Is(err, errUnknownAction):
		writeError(w, http.StatusNotFound, err)
	case err != nil:
		writeError(w, http.StatusBadRequest, err)
	default:
		writeJSON(w, http.StatusOK, st)
	}
}

// act does what was asked of a replica, and returns its state after it.
func (f *fleet) act(id types.NamespacedName, action string, q url.Values) (replicaState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.findLocked(id)
	if r == nil {
		return replicaState{}, fmt.Errorf("%w %s", errUnknownReplica, id)
	}
	if err := r.act(action, q); err != nil {
		return replicaState{}, fmt.Errorf("%s: %w", action, err)
	}
	f.logger.Info("Replica acted on", "replica", id, "action", action)
	return r.state(), nil
}

func (r *replica) act(action string, q url.Values) error {
	switch action {
	case "restart":
		downtime := time.Duration(0)
		if s := q.Get("downtime"); s != "" {
			var err error
			if downtime, err = time.ParseDuration(s); err != nil || downtime < 0 {
				return fmt.Errorf("downtime %q is not a duration such as 5s", s)
			}
		}
		return r.restart(downtime)
	case "freeze", "unfreeze":
		r.setFrozen(action == "freeze")
	case "down", "up":
		r.down = action == "down"
		r.fleet.reconcile(r)
	case "spelling":
		release, ok := map[string]engine.Release{"new": engine.V0_20, "old": engine.V0_9_1}[q.Get("to")]
		if !ok {
			release, ok = engine.ParseRelease(q.Get("to"))
		}
		if !ok {
			return fmt.Errorf("to=%q: want new, old, %s", q.Get("to"), releaseNames())
		}
		underscores := false
		if s := q.Get("underscores"); s != "" {
			var err error
			if underscores, err = strconv.ParseBool(s); err != nil {
				return fmt.Errorf("underscores=%q: want true or false", s)
			}
		}
		r.exposition.Release, r.exposition.Underscores = release, underscores
	default:
		return errUnknownAction
	}
	return nil
}
