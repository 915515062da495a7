package signals

// Canonical names a canonical series: what signals are computed from, whatever engine exported it.
type Canonical string

// Kind says how the samples of a canonical series are to be read.
type Kind int

const (
	// Gauge is a level: the newest sample counts.
	Gauge Kind = iota
	// Counter only grows, but for a reset when the engine restarts.
	Counter
	// Histogram is a classic histogram: cumulative counters by upper bound.
	Histogram
)
