// Package engine models a continuous-batching LLM engine the way vLLM V1 schedules: requests wait
// in arrival order, share a token budget per model step (running requests first, prompts in
// chunks), hold KV-cache blocks, are preempted and recomputed when blocks run out, and finish.
//
// The model is pure. It has no clock, no goroutine and no I/O: time is an argument, and equal
// configurations, seeds and calls give equal results, however finely Advance is called. The
// emulator drives it with the wall clock, a simulator with a virtual one. A restart of the engine's
// process is a new Engine.
//
// AppendVLLM and AppendDCGM write what a vLLM server and a DCGM exporter would serve on /metrics.
//
// What it leaves out: prefix caching (every prompt is distinct: queries are counted, hits are 0),
// speculative decoding, LoRA, more than one sequence per request, and the host's gaps between
// steps (the step's base time holds them).
package engine
