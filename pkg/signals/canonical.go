package signals

// Canonical names a canonical series: what signals are computed from, whatever engine exported it.
type Canonical string

// The canonical series. Every engine maps each of them or says why it cannot.
const (
	// Queue is how many requests wait to be scheduled.
	Queue Canonical = "queue"
	// Running is how many requests are in the running batch.
	Running Canonical = "running"
	// KVUsed is the fraction, 0..1, of KV-cache blocks that are allocated.
	KVUsed Canonical = "kv_used"
	// TTFT is the histogram of the time to first token, observed at the first token.
	TTFT Canonical = "ttft"
	// TPOT is the histogram of the mean time per output token of a request, observed at its finish.
	TPOT Canonical = "tpot"
	// E2E is the histogram of the end-to-end latency, observed at the finish.
	E2E Canonical = "e2e"
	// Finished counts finished requests.
	Finished Canonical = "finished"
	// Generated counts output tokens, as they are generated.
	Generated Canonical = "generated"
	// GPUBusy is the duty cycle of a GPU, 0..1: the part of the time in which some kernel ran.
	GPUBusy Canonical = "gpu_busy"
)

// Canonicals lists every canonical series.
func Canonicals() []Canonical {
	return []Canonical{Queue, Running, KVUsed, TTFT, TPOT, E2E, Finished, Generated, GPUBusy}
}

// Kind says how the samples of a canonical series are to be read.
type Kind int

const (
	// Gauge is a level: the newest sample counts.
	Gauge Kind = iota
	// Counter only grows, but for a reset when the engine restarts.
	Counter
	// Histogram is a classic histogram: counters by upper bound, cumulative in the bound.
	Histogram
)

// Fold says how the parts of one replica (its data-parallel engines, its GPUs) make one value.
type Fold int

const (
	// Sum adds the parts: requests, tokens.
	Sum Fold = iota
	// Mean averages the parts: fractions of parts of equal size.
	Mean
)
