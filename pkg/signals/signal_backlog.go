package signals

import (
	"fmt"

	"github.com/inference-metrics/adapter/internal/window"
)

// How long the waiting requests will keep prefill busy is what the engine does not say: it counts
// requests that wait, and not their tokens. So it is estimated of what it did with those before.
//
// Seconds per token are learned of all samples that are kept, and only of the stretches in which
// requests waited at every sample: then the engine prefilled as fast as it could beside its decodes.
// At a low load the rate of tokens is the demand, and taken for the capacity it would make every queue
// look long. A stretch ends with the last prompt that was completed in it, as prompts are counted when
// they are complete; so the time of a stall is not in it either.

var prefillBacklogSeconds = definition{
	name: "prefill_backlog_seconds",
	unit: "seconds",
	help: "Time that the pod needs to prefill the requests that wait, at the rate at which it did while there was a queue.",
	formula: "queue · (Δ prompt_computed / Δ first tokens, over the window) · seconds per token; those are learned from all samples kept in which requests waited without a break, as seconds / Δ prompt_computed. " +
		"All prompt tokens stand for the computed ones in both where these are not told apart. Mean over the engines of a pod, sum over pods. " +
		"A lower bound: what is left of the prompts that are being prefilled is not in it. Unknown while requests wait and a queue has not been seen for four scrapes",
	needs: []Canonical{Queue, PromptComputed, TTFT},
	or:    [][]Canonical{{Queue, Prompt, TTFT}},
	reads: []Canonical{Prompt, Running, KVUsed, Generated},
	by:    map[string]Canonical{"reason": QueueByReason},
	says: map[State]string{
		Idle:    "0: no request waits",
		Stalled: "what the queue takes at the rate before, as a lower bound; no value where none is known",
	},
	eval:     evalPrefillBacklog,
	merge:    added,
	roles:    prefillRole, // what waits in decode waits for a transfer, or for room
	overload: "rises without limit: it adds up what arrives too much",
	target:   "Object, AverageValue: the time to first token that is left for waiting; pair it with in-flight, as it is 0 at just enough replicas",
}

func evalPrefillBacklog(r *replica, _ args) Measure {
	levels, out := r.levels(Queue)
	if !out.HasValue || levels[0] == 0 {
		return out.with(0)
	}
	ttft, reason := r.get(TTFT)
	if reason != "" {
		return unknown(reason)
	}
	prompt, reason := r.get(PromptComputed)
	if reason != "" {
		if prompt, reason = r.get(Prompt); reason != "" {
			return unknown(reason)
		}
	}
	queue, reason := r.get(Queue)
	if reason != "" {
		return unknown(reason)
	}
	tokens, _, _, ok := prompt.increase()
	if !ok {
		return unknown(prompt.tooFew())
	}
	firsts, ok := ttft.growthOfAll()
	if !ok {
		return unknown(ttft.tooFew())
	}
	if tokens == 0 || count(firsts) == 0 {
		return r.unlearned(out, fmt.Sprintf("no prompt was completed in the window of %s: how long those are that wait is not known", prompt.window))
	}
	busy, reads, done := learned(prompt, queue)
	if reads < windowReads || done == 0 {
		return r.unlearned(out, fmt.Sprintf("how fast prompts are computed is not known: a queue has been seen for %d scrapes without a break, and it takes %d", reads, windowReads))
	}
	out.LowerBound = true
	out.Time = readAt(ttft, prompt, queue)
	out.Window = prompt.window
	return out.with(levels[0] / float64(len(prompt.joints())) * tokens / count(firsts) * busy / done)
}

// unlearned answers what cannot be estimated of a replica in which requests wait.
func (r *replica) unlearned(out Measure, reason string) Measure {
	if out.State == Stalled {
		out.HasValue, out.LowerBound = false, false
		return out
	}
	return unknown(reason)
}

// learned is how many seconds the parts of a replica were busy with a queue, over how many scrapes the
// longest such stretch went, and how many tokens were prefilled in them.
func learned(prompt, queue *stat) (busy float64, reads int, tokens float64) {
	for _, joint := range prompt.joints() {
		var counters [][]window.Sample
		for _, p := range prompt.joint(joint) {
			counters = append(counters, p.series...)
		}
		for _, stretch := range stretches(counters[0], queue.joint(joint)) {
			from, last := stretch[0].T, int64(0)
			for _, c := range counters {
				last = max(last, lastGrowth(between(c, from, stretch[len(stretch)-1].T)))
			}
			if stretch = between(stretch, from, last); len(stretch) < 2 {
				continue
			}
			busy += seconds(stretch)
			reads = max(reads, len(stretch)-1)
			for _, c := range counters {
				if d, ok := window.Increase(between(c, from, last)); ok {
					tokens += d
				}
			}
		}
	}
	return busy, reads, tokens
}

// stretches cuts a counter into those runs of samples at each of which requests waited. A restart ends
// one: what was computed before it, and not counted any more, is not known.
func stretches(counter []window.Sample, queue []*part) [][]window.Sample {
	var out [][]window.Sample
	begin := 0
	cut := func(end int) {
		if end-begin > 1 {
			out = append(out, counter[begin:end])
		}
	}
	for i, s := range counter {
		switch {
		case !waited(queue, s.T):
			cut(i)
			begin = i + 1
		case i > begin && s.V < counter[i-1].V:
			cut(i)
			begin = i
		}
	}
	cut(len(counter))
	return out
}

// waited reports whether requests were queued in parts at a time.
func waited(queue []*part, t int64) bool {
	for _, p := range queue {
		for _, samples := range p.series {
			if samples[0].T <= t && valueAt(samples, t) > 0 {
				return true
			}
		}
	}
	return false
}
