// Package engine models a continuous-batching LLM engine the way vLLM V1 schedules: requests wait
// in arrival order, share a token budget per model step (running requests first, prompts in
// chunks), hold KV-cache blocks, are preempted and recomputed when blocks run out, and finish.
//
// The model is pure. It has no clock, no goroutine and no I/O: time is an argument, and equal
// configurations, seeds and calls give equal results, however finely Advance is called. The
// emulator drives it with the wall clock, a simulator with a virtual one. A restart of the engine's
// process is a new Engine.
//
// Append writes what a server would show of it on /metrics: vLLM's, or that of another Kind of engine.
// The model is the same behind all of them, so that what their series are taken to mean can be
// compared with one truth: Stats, and an Outcome for each request. AppendPicker writes what the
// endpoint picker in front of several servers shows, AppendDCGM what the exporter of their GPUs does.
//
// Every histogram is kept between the edges of all kinds at once, from which each kind's own buckets
// follow exactly; what an engine keeps does not grow with the requests that it has served.
//
// What it leaves out: a prefix cache (requests say how much of their prompt is cached, and hold
// blocks of their own for it), speculative decoding, LoRA, more than one sequence per request, and
// the host's gaps between steps (the step's base time holds them).
package engine
