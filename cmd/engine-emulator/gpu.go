package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"github.com/inference-metrics/adapter/internal/engine"
)

// gpu is the GPU of one engine. It belongs to a node and outlives the pods that hold it, so a pod
// takes the first free one.
type gpu struct {
	index  int
	busy   time.Duration // at the last poll
	since  time.Time     // the last poll
	polled bool
	duty   float64
}

// The framebuffer of an 80 GB GPU on which an engine reserves 92 %.
const (
	framebufferMiB = 81559
	reservedMiB    = 75034
)

// freeGPUs takes a GPU of the node for each rank.
func (f *fleet) freeGPUs(node string) []gpu {
	taken := map[int]bool{}
	for _, r := range f.replicas {
		for _, g := range r.gpus {
			taken[g.index] = taken[g.index] || r.node == node
		}
	}
	var free []gpu
	for i := 0; len(free) < f.opts.ranks; i++ {
		if !taken[i] {
			free = append(free, gpu{index: i})
		}
	}
	return free
}

// pollGPUs measures for which part of the time since the last poll each GPU was busy.
func (f *fleet) pollGPUs(now time.Time) {
	for _, r := range f.replicas {
		for i, e := range r.engines {
			g := &r.gpus[i]
			busy := e.Stats().Busy
			if passed := now.Sub(g.since); passed > 0 {
				g.duty = min(float64(busy-g.busy)/float64(passed), 1)
				g.busy, g.since, g.polled = busy, now, true
			}
		}
	}
}

func (f *fleet) dcgmHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		gpus := f.seenGPUs()
		f.mu.Unlock()
		writeText(w, engine.AppendDCGM([]byte(notice), gpus))
	})
	return mux
}

// seenGPUs are the GPUs as of the last poll: one that has not been polled yet has no series.
func (f *fleet) seenGPUs() []engine.GPU {
	var out []engine.GPU
	for _, r := range f.replicas {
		for _, g := range r.gpus {
			if !g.polled {
				continue
			}
			out = append(out, engine.GPU{
				Index: g.index, UUID: gpuUUID(r.node, g.index), PCIBusID: fmt.Sprintf("00000000:%02X:00.0", g.index+1),
				ModelName: "NVIDIA H100 80GB HBM3", Hostname: r.node,
				Container: r.container, Namespace: r.id.Namespace, Pod: r.id.Name,
				DutyCycle: g.duty, UsedMiB: reservedMiB, FreeMiB: framebufferMiB - reservedMiB,
			})
		}
	}
	return out
}

func gpuUUID(node string, index int) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", node, index))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
