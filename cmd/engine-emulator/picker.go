package main

import (
	"net/http"

	"github.com/inference-metrics/adapter/internal/engine"
)

// pickerHandler serves what the endpoint picker of one InferencePool of all replicas would.
func (f *fleet) pickerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
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
