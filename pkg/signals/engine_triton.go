package signals

// Triton Inference Server with its TensorRT-LLM backend, on :8002. The backend's gauges are a few names that
// hold many series, told apart by a label. Of old backends request_type="waiting" is not there: how many
// wait is then not known.
//
// The fraction of KV blocks that it exports does not agree with its own counts (its documentation has
// 0.4875 beside 1 of 6239 blocks), so it is computed from them.
//
// The core's series are there for each model. An LLM is mostly an ensemble of a tokenizer, the model itself
// and a detokenizer, each of which counts the same request, and so does the ensemble: only those of the
// model by the name that the backend's templates give it are read.
var triton = &Engine{
	Name:   "Triton",
	Prefix: "triton_",
	series: map[Canonical]mapping{
		Queue: {kind: Gauge, spellings: []string{"nv_trt_llm_request_metrics"}, match: map[string]string{"request_type": "waiting"}, hint: ": old backends do not write that of request_type=\"waiting\""},
		// Those in the batch. Those that are active wait for a place in it, too.
		Running: {kind: Gauge, spellings: []string{"nv_trt_llm_request_metrics"}, match: map[string]string{"request_type": "scheduled"}},
		KVUsed: {
			kind: Gauge, spellings: []string{"nv_trt_llm_kv_cache_block_metrics"}, match: map[string]string{"kv_cache_block_type": "used"},
			over: &mapping{kind: Gauge, spellings: []string{"nv_trt_llm_kv_cache_block_metrics"}, match: map[string]string{"kv_cache_block_type": "max"}},
			fold: Mean,
		},
		KVCapacity: {
			kind: Gauge, spellings: []string{"nv_trt_llm_kv_cache_block_metrics"}, match: map[string]string{"kv_cache_block_type": "max"},
			times: &mapping{kind: Gauge, spellings: []string{"nv_trt_llm_kv_cache_block_metrics"}, match: map[string]string{"kv_cache_block_type": "tokens_per"}},
		},
		// Only with histograms switched on, and for a model that streams.
		TTFT: {
			kind: Histogram, spellings: []string{"nv_inference_first_response_histogram_ms"}, match: map[string]string{"model": tritonModel}, scale: 0.001,
			hint: ": it is opt-in, for models that stream, and read of the model " + tritonModel + " only",
		},
		Rejected: {kind: Counter, spellings: []string{"nv_inference_request_failure"}, match: map[string]string{"model": tritonModel, "reason": "REJECTED"}, hint: tritonHint},
		Finished: {kind: Counter, spellings: []string{"nv_inference_request_success"}, match: map[string]string{"model": tritonModel}, hint: tritonHint},
	},
	unsupported: declined(
		declinedByEngines("Triton"),
		declinedDemand("Triton"),
		because("Triton's TensorRT-LLM backend does not say what its requests wait for", QueueByReason),
		because("Triton adds up the durations of requests, and has no histogram of them", E2E, QueueTime),
		because("Triton does not measure the time between tokens", TPOT, ITL),
		because("Triton counts requests when they finish, and not when they arrive", Arrived),
		because("Triton does not count tokens", Prompt, PromptComputed, Generated, PrefixQueries, PrefixHits),
		because("Triton's TensorRT-LLM backend says how many requests are paused, and does not count how often that happens", Preemptions),
		because("Triton counts executions of requests, and not steps", Steps),
	),
	part:   []string{"model", "version"},
	model:  "model",
	own:    true,
	owners: ownPod,
}

// tritonModel is the model that the backend's templates make.
const tritonModel = "tensorrt_llm"

const tritonHint = ": it is read of the model " + tritonModel + " only, as each model of an ensemble counts the same request"
