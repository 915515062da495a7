package engine

import (
	"maps"
	"slices"
	"sort"
)

// metrics is what an engine accumulates for expositions. It is what all of them need, and knows of
// none.
type metrics struct {
	// The gauges, as of the last step.
	waiting, running     int
	blocksUsed, reserved int
	kvUsage              float64
	last                 scheduled
	throughput           float64 // generated tokens per second of the last step that brought some
	hitRate              float64 // of the prompts that were last admitted
	priorities           map[int]priorityCount

	// As of the last request or token that there was one of.
	lastTTFT, lastInterToken float64
	lastPromptTokens         int

	// Counted as they happen.
	promptTokens, cachedTokens      int // at the first token, once
	generationTokens                int
	prefillTokens, prefillCached    int // as they are computed and found, again after a preemption
	decodeTokens                    int
	preemptedInput, preemptedOutput int
	aborted                         int
	steps, prefillSteps             int // prefillSteps are those that computed some prompt
	busySlots                       int // Σ of the step's requests
	prefillSeconds                  float64

	// Counted when a request finishes.
	success                                              [2]int // by FinishReason
	finishedPrompt, finishedCached, finishedGeneration   int
	decodeSeconds, inferenceSeconds, queueSeconds, total float64
	longest                                              int // tokens

	iterationTokens, interToken, timeToFirstToken     histogram
	timePerOutputToken, normalizedPerToken, e2e       histogram
	timePerLaterToken                                 histogram // of requests that have one
	queueTime, inferenceTime, prefillTime, decodeTime histogram
	inferencePerToken                                 histogram
	admissionTime                                     histogram // the queue time again, observed at admission
	prefillStep, decodeStep                           histogram
	prompt, generation, maxGeneration, paramsN        histogram
	paramsMaxTokens, prefillComputed, cached          histogram
	firstTokenPrompt                                  histogram // the prompt again, observed at the first token
	finishedTTFT                                      histogram // the time to first token again, observed at the end
}

// scheduled is what a step consists of.
type scheduled struct {
	context, generation int // requests: those with a chunk of a prompt, and those that decode
	contextTokens       int
	preempted           int
	admitted            []*request
}

func (s *scheduled) count(sl slice) {
	if sl.decodes() {
		s.generation++
		return
	}
	s.context++
	s.contextTokens += sl.n
}

// iteration is what one step brought.
type iteration struct {
	prompts   int // tokens of the prompts it completed
	generated int
	scheduled scheduled
	seconds   float64
}

type priorityCount struct{ waiting, running int }

func newMetrics(c Config) metrics {
	time := func() histogram { return newHistogram(timeEdges) }
	all := allTokenEdges(c)
	tokens := func() histogram { return newHistogram(all) }
	return metrics{
		iterationTokens:    newHistogram(iterationEdges),
		interToken:         time(),
		timeToFirstToken:   time(),
		timePerOutputToken: time(),
		timePerLaterToken:  time(),
		normalizedPerToken: time(),
		e2e:                time(),
		queueTime:          time(),
		inferenceTime:      time(),
		prefillTime:        time(),
		decodeTime:         time(),
		inferencePerToken:  time(),
		admissionTime:      time(),
		prefillStep:        time(),
		decodeStep:         time(),
		prompt:             tokens(),
		generation:         tokens(),
		maxGeneration:      tokens(),
		paramsN:            newHistogram(paramsNEdges),
		paramsMaxTokens:    tokens(),
		prefillComputed:    tokens(),
		cached:             tokens(),
		firstTokenPrompt:   tokens(),
		finishedTTFT:       time(),
	}
}

// histograms are all of them.
func (m *metrics) histograms() []*histogram {
	return []*histogram{
		&m.iterationTokens, &m.interToken, &m.timeToFirstToken, &m.timePerOutputToken, &m.timePerLaterToken,
		&m.normalizedPerToken, &m.e2e, &m.queueTime, &m.inferenceTime, &m.prefillTime, &m.decodeTime,
		&m.inferencePerToken, &m.admissionTime, &m.prefillStep, &m.decodeStep, &m.prompt, &m.generation,
		&m.maxGeneration, &m.paramsN, &m.paramsMaxTokens, &m.prefillComputed, &m.cached, &m.firstTokenPrompt,
		&m.finishedTTFT,
	}
}

// admitted accounts for requests that leave the queue for a step; one that was preempted does so
// again, and its queue time is not observed a second time.
func (m *metrics) admitted(rs []*request) {
	prompt, cached := 0, 0
	for _, r := range rs {
		prompt += r.PromptTokens
		cached += r.CachedTokens
		if r.preemptions == 0 {
			m.admissionTime.observe(r.scheduled.Sub(r.arrival).Seconds())
		}
	}
	m.prefillCached += cached
	if prompt > 0 {
		m.hitRate = float64(cached) / float64(prompt)
	}
}

// firstToken accounts for a prompt's completion. vLLM counts prompt tokens here, once, however
// often the request is preempted afterwards.
func (m *metrics) firstToken(r *request) {
	ttft := r.firstToken.Sub(r.arrival).Seconds()
	m.promptTokens += r.PromptTokens
	m.cachedTokens += r.CachedTokens
	m.prefillSeconds += r.firstToken.Sub(r.scheduled).Seconds()
	m.timeToFirstToken.observe(ttft)
	m.firstTokenPrompt.observe(float64(r.PromptTokens))
	m.lastTTFT, m.lastPromptTokens = ttft, r.PromptTokens
}

func (m *metrics) nextToken(seconds float64) {
	m.interToken.observe(seconds)
	m.lastInterToken = seconds
}

func (m *metrics) preempted(r *request) {
	m.preemptedInput += r.PromptTokens
	m.preemptedOutput += r.output
}

// step accounts for a step. One without an output (a chunk of a long prompt) leaves no trace in what
// vLLM tells of iterations.
func (m *metrics) step(it iteration) {
	m.steps++
	m.last = it.scheduled
	m.last.admitted = nil
	m.prefillTokens += it.scheduled.contextTokens
	m.decodeTokens += it.scheduled.generation
	m.busySlots += it.scheduled.context + it.scheduled.generation
	if it.scheduled.context > 0 {
		m.prefillSteps++
		m.prefillStep.observe(it.seconds)
	} else {
		m.decodeStep.observe(it.seconds)
	}
	if it.generated == 0 {
		return
	}
	m.generationTokens += it.generated
	m.throughput = float64(it.generated) / it.seconds
	m.iterationTokens.observe(float64(it.prompts + it.generated))
}

func (m *metrics) finished(r *request) {
	decode := r.lastToken.Sub(r.firstToken).Seconds()
	inference := r.lastToken.Sub(r.scheduled).Seconds()
	queue := r.scheduled.Sub(r.arrival).Seconds()
	e2e := r.lastToken.Sub(r.arrival).Seconds()
	perToken := 0.0 // as vLLM has it for outputs of one token
	if r.output > 1 {
		perToken = decode / float64(r.output-1)
		m.timePerLaterToken.observe(perToken)
	}
	m.success[r.reason()]++
	m.finishedPrompt += r.PromptTokens
	m.finishedCached += r.CachedTokens
	m.finishedGeneration += r.output
	m.decodeSeconds += decode
	m.inferenceSeconds += inference
	m.queueSeconds += queue
	m.total += e2e
	m.longest = max(m.longest, r.tokens())
	m.finishedTTFT.observe(r.firstToken.Sub(r.arrival).Seconds())
	m.timePerOutputToken.observe(perToken)
	m.normalizedPerToken.observe(e2e / float64(r.output))
	m.inferencePerToken.observe(inference / float64(r.output))
	m.e2e.observe(e2e)
	m.queueTime.observe(queue)
	m.inferenceTime.observe(inference)
	m.prefillTime.observe(r.firstToken.Sub(r.scheduled).Seconds())
	m.decodeTime.observe(decode)
	m.prompt.observe(float64(r.PromptTokens))
	m.generation.observe(float64(r.output))
	m.maxGeneration.observe(float64(r.output))
	m.paramsN.observe(1)
	m.paramsMaxTokens.observe(float64(r.maxTokens))
	m.prefillComputed.observe(float64(r.PromptTokens - r.CachedTokens))
	m.cached.observe(float64(r.CachedTokens))
}

// countPriorities counts anew. A priority that has been seen stays, at 0.
func (m *metrics) countPriorities(waiting, running []*request) {
	if m.priorities == nil {
		m.priorities = map[int]priorityCount{}
	}
	for p := range m.priorities {
		m.priorities[p] = priorityCount{}
	}
	for _, r := range waiting {
		c := m.priorities[r.Priority]
		c.waiting++
		m.priorities[r.Priority] = c
	}
	for _, r := range running {
		c := m.priorities[r.Priority]
		c.running++
		m.priorities[r.Priority] = c
	}
}

// knownPriorities are those that have been seen, in order.
func (m *metrics) knownPriorities() []int { return slices.Sorted(maps.Keys(m.priorities)) }

// histogram counts observations; its counts are per bucket, not cumulative.
type histogram struct {
	edges  []float64
	counts []int // one more than edges: what is above the last
	sum    float64
}

func newHistogram(edges []float64) histogram {
	return histogram{edges: edges, counts: make([]int, len(edges)+1)}
}

func (h *histogram) observe(v float64) {
	h.counts[sort.SearchFloat64s(h.edges, v)]++ // an edge belongs to its own bucket
	h.sum += v
}

// addTo adds to counts how many observations are at or below each of the edges, which must be among
// the histogram's own, and last how many there are.
func (h *histogram) addTo(counts []int, edges []float64) {
	n, i := 0, 0
	for j, c := range h.counts {
		n += c
		if i < len(edges) && j < len(h.edges) && h.edges[j] == edges[i] {
			counts[i] += n
			i++
		}
	}
	if i < len(edges) {
		panic("engine: a bucket edge that the histogram does not know") // a fault of this package
	}
	counts[len(edges)] += n
}

func (h *histogram) observed() bool {
	for _, c := range h.counts {
		if c > 0 {
			return true
		}
	}
	return false
}

// merge adds the other's observations; the two have the same edges.
func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.sum += o.sum
}
