// Package capacity tells how many replicas of an engine the offered load needs.
//
// A Learner fits, for each variant of an engine (a model on a GPU, from one image, with the same
// arguments), what a step, a prompt token and an output token cost in seconds, from windows in which
// a replica was busy all the time. The Model it gives turns a Load (what arrived, how long prompts and
// outputs are, what waits) into a Demand: replicas, and which limit makes it so many.
//
// Nothing that gets better with more replicas is an input: no latency, no batch size, no rate of
// finished requests. Else the answer would change because it was followed.
//
// What cannot be known is an error that says what is missing, never a low number. The derivation,
// and what it is worth against an emulated engine, is in docs/adr/0004-demand-replicas.md.
package capacity
