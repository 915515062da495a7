package signals

import (
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
)

// vLLM, both its engines: V1 (the default from 0.8) and V0. Series carry model_name, and in V1 engine
// for each data-parallel engine of the pod. A pod with several API servers adds pid to some gauges, one
// series per process, of which all but one are left over.
var vllm = &Engine{
	Name:   "vLLM",
	Prefix: "vllm_",
	series: map[Canonical]mapping{
		// With several API servers a gauge has no sample until the engine has made its first step.
		// V0 counts apart who was swapped out of the batch, and waits for room in the cache.
		Queue:         {kind: Gauge, spellings: vllmNames("num_requests_waiting"), also: [][]string{vllmNames("num_requests_swapped")}, match: notOfRouter, zeroWith: []Canonical{Running, KVUsed}},
		QueueByReason: {kind: Gauge, spellings: vllmNames("num_requests_waiting_by_reason"), within: []string{"reason"}},
		Running:       {kind: Gauge, spellings: vllmNames("num_requests_running"), match: notOfRouter, zeroWith: []Canonical{Queue, KVUsed}},
		// gpu_cache_usage_perc until 0.9.2, both until 0.11. The engines of a pod have equally many
		// blocks, so the fraction of the pod is their mean.
		KVUsed:     {kind: Gauge, spellings: vllmNames("kv_cache_usage_perc", "gpu_cache_usage_perc"), fold: Mean, valid: fraction},
		KVCapacity: {kind: Gauge, spellings: vllmNames("cache_config_info"), read: vllmCacheTokens, fold: MaxOfTarget, ofAll: true},
		TTFT:       {kind: Histogram, spellings: vllmNames("time_to_first_token_seconds"), edges: vllmTTFTEdges},
		// Per request, since about 0.11. The older time_per_output_token_seconds is per engine output,
		// which is another population: requests cannot be counted with it.
		TPOT:      {kind: Histogram, spellings: vllmNames("request_time_per_output_token_seconds"), edges: vllmTPOTEdges},
		ITL:       {kind: Histogram, spellings: vllmNames("inter_token_latency_seconds", "time_per_output_token_seconds"), edges: vllmTPOTEdges},
		E2E:       {kind: Histogram, spellings: vllmNames("e2e_request_latency_seconds"), edges: vllmE2EEdges},
		QueueTime: {kind: Histogram, spellings: vllmNames("request_queue_time_seconds", "time_in_queue_requests"), edges: vllmE2EEdges},
		Rejected:  {kind: Counter, spellings: vllmNames("admission_rejections_total"), within: []string{"reason"}},
		// V0 makes the series of a reason with the first request that finishes so.
		Finished:       {kind: Counter, spellings: vllmNames("request_success_total"), within: []string{"finished_reason"}, lazy: true},
		Prompt:         {kind: Counter, spellings: vllmNames("prompt_tokens_total")},
		PromptComputed: {kind: Counter, spellings: vllmNames("prompt_tokens_by_source_total"), match: map[string]string{"source": "local_compute"}},
		Generated:      {kind: Counter, spellings: vllmNames("generation_tokens_total")},
		Preemptions:    {kind: Counter, spellings: vllmNames("num_preemptions_total")},
		// In blocks until May 2025, in tokens after; their ratio is the same.
		PrefixQueries: {kind: Counter, spellings: vllmNames("prefix_cache_queries_total", "gpu_prefix_cache_queries_total")},
		PrefixHits:    {kind: Counter, spellings: vllmNames("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")},
		// A histogram in spite of its name: the tokens of each step.
		Steps: {kind: Counter, spellings: vllmNames("iteration_tokens_total_count")},
		// Its bounds are 1, 2 and 5 times the powers of ten, up to the longest that the model takes.
		PromptLengths: {kind: Histogram, spellings: vllmNames("request_prompt_tokens")},
		OutputSum:     {kind: Counter, spellings: vllmNames("request_generation_tokens_sum")},
		OutputCount:   {kind: Counter, spellings: vllmNames("request_generation_tokens_count")},
		ServedTime:    {kind: Counter, spellings: vllmNames("request_inference_time_seconds_sum")},
	},
	unsupported: declined(
		declinedByEngines("vLLM"),
		because("vLLM counts requests when they finish, and not when they arrive", Arrived),
	),
	// Ray writes all workers of a node on one target; engines of different workers have the same number.
	worker: []string{"WorkerId"},
	part:   []string{"engine", "model_name"},
	model:  "model_name",
	own:    true,
	owners: ownPod,
}

// notOfRouter leaves out what the router of vLLM's production stack repeats of each engine behind it, under
// the engine's own names: in a namespace the requests would count twice.
var notOfRouter = map[string]string{"server": ""}

var (
	vllmTTFTEdges = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	vllmTPOTEdges = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	vllmE2EEdges  = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// vllmNames spells the given names as vLLM's series are stored: as vLLM exports them; with the
// colon replaced on the way (content negotiation, OpenTelemetry); by KServe; and by Ray, before and
// after it dropped the colon.
func vllmNames(names ...string) []string {
	var out []string
	for _, n := range names {
		for _, prefix := range []string{"vllm:", "vllm_", "kserve_vllm:", "ray_vllm:", "ray_vllm_"} {
			out = append(out, prefix+n)
		}
	}
	return out
}

// vllmCacheTokens reads the size of the KV cache from the labels of cache_config_info, whose other
// labels change with every release. Blocks times their size is more than fits where a model has
// attention windows; newer releases say the tokens themselves.
func vllmCacheTokens(ls labels.Labels) (tokens float64, ok bool) {
	if tokens, ok = positive(ls.Get("kv_cache_size_tokens")); ok {
		return tokens, true
	}
	blocks, ok := positive(ls.Get("num_gpu_blocks")) // "None" until the engine has told its front end
	size, sized := positive(ls.Get("block_size"))
	return blocks * size, ok && sized
}

// fraction refuses what is more than a whole: with several processes V0 could add up what is a mean.
func fraction(v float64) bool { return v <= 1.001 }

func positive(text string) (v float64, ok bool) {
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil && v > 0 && v < 1e15
}
