package engine

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Kind is an engine, or what stands in front of some, by whose exposition the model can be shown.
// The model stays what it is: only names, labels, buckets and what is counted when differ.
type Kind struct {
	name, path string
	append     func([]byte, Exposition, []*Engine) []byte
}

// VLLM is vLLM's engine of today, V1.
var VLLM = Kind{"vllm", "/metrics", appendVLLM}

// kinds are all of them; the first is the default.
var kinds = []Kind{
	VLLM,
	{"vllm-v0", "/metrics", appendVLLMV0},
	{"sglang", "/metrics", appendSGLang},
	{"tgi", "/metrics", appendTGI},
	{"trtllm", "/prometheus/metrics", appendTRTLLM("trtllm_")},
	{"trtllm-colon", "/prometheus/metrics", appendTRTLLM("trtllm:")},
	{"trtllm-bare", "/prometheus/metrics", appendTRTLLM("")},
	{"triton", "/metrics", appendTriton},
	{"nim", "/v1/metrics", appendNIM},
	{"llamacpp", "/metrics", appendLlamaCPP},
	{"lmdeploy", "/metrics", appendLMDeploy},
	{"dynamo-frontend", "/metrics", appendDynamoFrontend},
}

// Kinds returns all there are.
func Kinds() []Kind { return append([]Kind(nil), kinds...) }

// String returns the kind's name.
func (k Kind) String() string { return k.name }

// Path is where the engine serves its exposition.
func (k Kind) Path() string { return k.path }

// ParseKind returns the kind of that name.
func ParseKind(name string) (Kind, error) {
	var names []string
	for _, k := range kinds {
		if k.name == name {
			return k, nil
		}
		names = append(names, k.name)
	}
	return Kind{}, fmt.Errorf("there is no engine %q: there are %s", name, strings.Join(names, ", "))
}

// Release picks the spelling of a vLLM V1 release, as far as names and label values differ.
type Release int

const (
	// V0_20 is 0.20 and later.
	V0_20 Release = iota
	// V0_32 is 0.32 and later: it counts the requests it turns away.
	V0_32
	// V0_10 is 0.9.2 to 0.10: the KV cache's series under their old and new names at once.
	V0_10
	// V0_9_1 is 0.8.4 to 0.9.1: gpu_cache_usage_perc, time_per_output_token_seconds.
	V0_9_1
	// V0_8 is up to 0.8.3: buckets that end sooner.
	V0_8
)

var releaseNames = []string{"0.20", "0.32", "0.10", "0.9.1", "0.8"}

// Releases returns all there are, from the latest.
func Releases() []Release { return []Release{V0_32, V0_20, V0_10, V0_9_1, V0_8} }

// String returns the release's number.
func (r Release) String() string { return releaseNames[r] }

// ParseRelease is the inverse of String.
func ParseRelease(s string) (Release, bool) {
	for i, n := range releaseNames {
		if n == s {
			return Release(i), true
		}
	}
	return 0, false
}

// Exposition says how a server shows its engines.
type Exposition struct {
	// Kind is the engine; the zero Kind is VLLM.
	Kind      Kind
	ModelName string
	// Created is when the server's process started: the value of every _created series.
	Created time.Time
	// Release matters to vLLM V1 only.
	Release Release
	// Underscores writes sample names as the Python client does for scrapers that accept
	// OpenMetrics without UTF-8 names: vllm_x, while HELP and TYPE keep vllm:x. It matters to the
	// engines whose names have a colon and whose client is Python's.
	Underscores bool
	// Multiprocess is a vLLM server with more than one API process: no _created series, and gauges
	// have none either until the first step.
	Multiprocess bool
	// TensorParallel is the number of SGLang's ranks that share a request; 0 is 1.
	TensorParallel int
}

// Append appends to b what the server serves: the series of its engines (the data-parallel ranks
// 0, 1, …) as the kind's own client library writes them.
func Append(b []byte, x Exposition, engines []*Engine) []byte {
	if x.Kind.append == nil {
		x.Kind = VLLM
	}
	return x.Kind.append(b, x, engines)
}

// ranks are the engines as series of their own, with their number in a label, after the others.
func ranks(engines []*Engine, label string, labels ...string) []series {
	all := make([]series, len(engines))
	for i, e := range engines {
		all[i] = series{labels: append(append([]string(nil), labels...), label, strconv.Itoa(i)), view: view{e}}
	}
	return all
}

// together is the engines as one series.
func together(engines []*Engine, labels ...string) []series {
	return []series{{labels: labels, view: engines}}
}

// writer returns one with names that begin with an engine's prefix, such as "vllm:".
func (x Exposition) writer(b []byte, c client, prefix string) *writer {
	w := &writer{b: b, client: c, head: prefix, prefix: prefix, created: x.Created}
	if name, colon := strings.CutSuffix(prefix, ":"); colon && x.Underscores {
		w.prefix = name + "_"
	}
	return w
}

// What many expositions tell, as of the last step.
var (
	running = count(func(e *Engine) int { return e.metrics.running })
	waiting = count(func(e *Engine) int { return e.metrics.waiting })

	promptTokens     = count(func(e *Engine) int { return e.metrics.promptTokens })
	cachedTokens     = count(func(e *Engine) int { return e.metrics.cachedTokens })
	generationTokens = count(func(e *Engine) int { return e.metrics.generationTokens })
	preemptions      = count(func(e *Engine) int { return e.stats.Preemptions })
	succeeded        = count(func(e *Engine) int { return e.stats.Finished })
	rejected         = count(func(e *Engine) int { return e.stats.Rejected })
	aborted          = count(func(e *Engine) int { return e.metrics.aborted })

	blocks     = count(func(e *Engine) int { return e.cfg.NumGPUBlocks - 1 })
	blocksUsed = count(func(e *Engine) int { return e.metrics.blocksUsed })
)

// kvUsage is the fraction of the KV cache in use, of all engines together.
func kvUsage(v view) float64 {
	if len(v) == 1 {
		return v[0].metrics.kvUsage
	}
	return blocksUsed(v) / blocks(v)
}

// finishedFor are the requests that finished for a reason; there is none of a reason that is not
// modelled.
func finishedFor(v view, reason int) float64 {
	if reason > int(Length) {
		return 0
	}
	return count(func(e *Engine) int { return e.metrics.success[reason] })(v)
}

func stepped(v view) bool {
	for _, e := range v {
		if e.metrics.steps > 0 {
			return true
		}
	}
	return false
}

// Histograms that many expositions have.
func ttftOf(m *metrics) *histogram      { return &m.timeToFirstToken }
func itlOf(m *metrics) *histogram       { return &m.interToken }
func tpotOf(m *metrics) *histogram      { return &m.timePerOutputToken }
func e2eOf(m *metrics) *histogram       { return &m.e2e }
func queueOf(m *metrics) *histogram     { return &m.queueTime }
func inferenceOf(m *metrics) *histogram { return &m.inferenceTime }
func prefillOf(m *metrics) *histogram   { return &m.prefillTime }
func decodeOf(m *metrics) *histogram    { return &m.decodeTime }
func promptOf(m *metrics) *histogram    { return &m.prompt }
func generationOf(m *metrics) *histogram {
	return &m.generation
}
func iterationOf(m *metrics) *histogram { return &m.iterationTokens }
