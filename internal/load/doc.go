// Package load makes request arrivals: when each request comes, how long its prompt is and how long
// its output would be. It is pure, but for reading a trace's file: time is counted from the start
// of the load, and equal specs and seeds give equal arrivals.
//
// A load is written in one line:
//
//	none
//	constant:rate=2
//	poisson:rate=5,prompt=lognormal(1000,0.8,16000),output=lognormal(130,0.9)
//	burst:low=1,high=30,period=60s,duty=0.5
//	trace:file=requests.csv,speed=10
//
// constant has equal gaps, poisson exponential ones. burst is poisson with two rates: every period
// begins with the high one, for the fraction duty of it, and ends with the low one. trace replays a
// CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens (the format of the Azure
// LLM inference traces), speed times as fast.
//
// Rates are requests per second. Lengths (prompt and output, except of a trace) are in tokens: a
// number, or lognormal(median,sigma) or lognormal(median,sigma,max). max_tokens=N cuts outputs as a
// client's parameter does.
package load
