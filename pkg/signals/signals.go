// Package signals is the catalogue: which raw series every engine exports, and which signals they
// become.
//
// An engine (engine_*.go) maps canonical series to the spellings it stores them under. A signal
// (signal_*.go) is a pure function from the canonical series of one replica to a Measure, of which
// those of several replicas merge into one Result: a group's P99 comes from merged buckets and never
// from P99s. Nothing
// here does I/O, reads a clock or knows Kubernetes: the adapter, the back-test and the simulator
// evaluate the same code.
//
// Law one: never a made-up zero. A signal that cannot be known is Unknown and says why; zero is
// answered only when fresh samples say that nothing waits, runs or happened.
package signals

import "time"

// State says what a Result's value is worth.
type State int

const (
	// Unknown: no fresh sample, not covered by a whole window yet, or not computable on this
	// engine. There is no value.
	Unknown State = iota
	// Value: fresh samples gave the value.
	Value
	// Idle: fresh samples say that nobody waits for what the signal measures and that none of it
	// happened in the window. The value is the signal's own idle value.
	Idle
	// Stalled: somebody waits for what the signal measures and none of it has come since
	// progress was last seen. The value, where there is one, is a lower bound.
	Stalled
)

// String returns the state's name as messages and documents spell it.
func (s State) String() string {
	return [...]string{"unknown", "value", "idle", "stalled"}[s]
}

// Result is one signal of one replica at one instant.
type Result struct {
	State State
	// HasValue says whether Value may be answered. Unknown never has one. Stalled has one for
	// gauges and latency quantiles (a lower bound), and none for rates: a rate of 0 from an engine
	// that makes no progress would scale it down.
	HasValue bool
	Value    float64
	// Time is when the newest sample behind the value was read from the engine, on the source's clock.
	Time time.Time
	// Window is the stretch of time the value describes; zero for an instantaneous value.
	Window time.Duration
	// Reason says in a sentence's worth of words why there is no value, or what Stalled saw, or what
	// is missing in the value of a group.
	Reason string
	// LowerBound says that the truth is Value or more.
	LowerBound bool
	// Resolution says how sharp a quantile is; nil for what is none.
	Resolution *Resolution
}

// Resolution says how sharp a quantile of a histogram is.
type Resolution struct {
	// Low and High are the bounds of the bucket that holds the quantile; High may be +Inf.
	Low, High float64
	// Events is how many observations it is taken of.
	Events float64
}

// Signal is one signal of one engine, as served.
type Signal struct {
	// Name is the metric's name in the API: vllm_queue_depth.
	Name string
	// Unit is the unit of the value: requests, requests/s, seconds, or 0..1.
	Unit string
	// Help is one sentence for people.
	Help string

	definition *definition
	engine     *Engine // nil for whatever engine a pod runs
	missing    string  // why the engine cannot give it; "" when it can
}
