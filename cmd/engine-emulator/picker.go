package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/inference-metrics/adapter/internal/engine"
)

// pickerHandler serves what the endpoint picker of one InferencePool of all replicas would.
func (f *fleet) pickerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		f.pool.Held = len(f.gateway.held)
		text := engine.AppendPicker(append(make([]byte, 0, 64<<10), notice...), &f.pool, f.poolMembers())
		f.mu.Unlock()
		writeText(w, text)
	})
	return mux
}

// poolMembers are the ready replicas. The picker reads their metrics itself, so one that does not
// answer is stale.
func (f *fleet) poolMembers() []engine.PoolMember {
	var all []engine.PoolMember
	for _, r := range f.replicas {
		if r.ready {
			all = append(all, engine.PoolMember{Pod: r.id.Name, Engines: r.engines, Stale: r.server == nil})
		}
	}
	return all
}

// startPicker has the picker's metrics listen, where they do not yet.
func (f *fleet) startPicker() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gateway.picker != nil {
		return nil
	}
	s, err := listen(f.opts.pickerAddress, f.pickerHandler())
	if err != nil {
		return fmt.Errorf("endpoint picker: %w", err)
	}
	f.gateway.picker = s
	return nil
}

func (f *fleet) stopPicker() {
	if f.gateway.picker != nil {
		f.gateway.picker.Close()
		f.gateway.picker = nil
	}
}

// postPicker makes the picker's metrics listen, or not. What it holds stays held.
func (f *fleet) postPicker(w http.ResponseWriter, req *http.Request) {
	if f.opts.pickerAddress == "" {
		writeError(w, http.StatusNotFound, errors.New("there is no endpoint picker: start with --picker-address"))
		return
	}
	switch action := req.PathValue("action"); action {
	case "up":
		if err := f.startPicker(); err != nil {
			writeError(w, http.StatusInternalServerError, err)
			return
		}
	case "down":
		f.mu.Lock()
		f.stopPicker()
		f.mu.Unlock()
	default:
		writeError(w, http.StatusNotFound, fmt.Errorf("unknown action %q: want down or up", action))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
