package engine

import "sort"

// metrics is what an engine accumulates for its exposition.
type metrics struct {
	// The gauges, as of the last step.
	waiting, running int
	kvUsage          float64

	promptTokens, generationTokens int
	success                        [2]int // by FinishReason

	iterationTokens, interToken, timeToFirstToken     histogram
	timePerOutputToken, e2e                           histogram
	queueTime, inferenceTime, prefillTime, decodeTime histogram
	prompt, generation, maxGeneration, paramsN        histogram
	paramsMaxTokens, prefillComputed                  histogram
}

// iteration is what one step brought.
type iteration struct {
	prompts   int // tokens of the prompts it completed
	generated int
}

func newMetrics(maxModelLen int) metrics {
	tokens := tokenEdges(maxModelLen)
	return metrics{
		iterationTokens:    newHistogram(iterationEdges),
		interToken:         newHistogram(tokenTimeEdges),
		timeToFirstToken:   newHistogram(firstTokenEdges),
		timePerOutputToken: newHistogram(tokenTimeEdges),
		e2e:                newHistogram(requestTimeEdges),
		queueTime:          newHistogram(requestTimeEdges),
		inferenceTime:      newHistogram(requestTimeEdges),
		prefillTime:        newHistogram(requestTimeEdges),
		decodeTime:         newHistogram(requestTimeEdges),
		prompt:             newHistogram(tokens),
		generation:         newHistogram(tokens),
		maxGeneration:      newHistogram(tokens),
		paramsN:            newHistogram(paramsNEdges),
		paramsMaxTokens:    newHistogram(tokens),
		prefillComputed:    newHistogram(tokens),
	}
}

// firstToken accounts for a prompt's completion. vLLM counts prompt tokens here, once, however
// often the request is preempted afterwards.
func (m *metrics) firstToken(r *request) {
	m.promptTokens += r.PromptTokens
	m.timeToFirstToken.observe(r.firstToken.Sub(r.arrival).Seconds())
}

// step accounts for a step. One without an output (a chunk of a long prompt) leaves no trace.
func (m *metrics) step(it iteration) {
	if it.generated == 0 {
		return
	}
	m.generationTokens += it.generated
	m.iterationTokens.observe(float64(it.prompts + it.generated))
}

func (m *metrics) finished(r *request) {
	decode := r.lastToken.Sub(r.firstToken).Seconds()
	perToken := 0.0 // as vLLM has it for outputs of one token
	if r.output > 1 {
		perToken = decode / float64(r.output-1)
	}
	m.success[r.reason()]++
	m.timePerOutputToken.observe(perToken)
	m.e2e.observe(r.lastToken.Sub(r.arrival).Seconds())
	m.queueTime.observe(r.scheduled.Sub(r.arrival).Seconds())
	m.inferenceTime.observe(r.lastToken.Sub(r.scheduled).Seconds())
	m.prefillTime.observe(r.firstToken.Sub(r.scheduled).Seconds())
	m.decodeTime.observe(decode)
	m.prompt.observe(float64(r.PromptTokens))
	m.generation.observe(float64(r.output))
	m.maxGeneration.observe(float64(r.output))
	m.paramsN.observe(1)
	m.paramsMaxTokens.observe(float64(r.maxTokens))
	m.prefillComputed.observe(float64(r.PromptTokens))
}

// vLLM's bucket edges.
var (
	firstTokenEdges = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
		20, 40, 80, 160, 640, 2560}
	tokenTimeEdges = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
		20, 40, 80}
	requestTimeEdges = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
		1920, 7680}
	iterationEdges = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	paramsNEdges   = []float64{1, 2, 5, 10, 20}
)

// tokenEdges are 1, 2, 5, 10, … up to and including the longest request.
func tokenEdges(maxModelLen int) []float64 {
	var edges []float64
	for decade := 1; ; decade *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*decade > maxModelLen {
				return edges
			}
			edges = append(edges, float64(m*decade))
		}
	}
}

// histogram is a classic Prometheus histogram; its counts are per bucket, not cumulative.
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
