package signals

// vLLM, its V1 engine (0.8 and later). Series carry model_name, and engine for each data-parallel
// engine of the pod; a pod with several API servers adds pid to some gauges, one series per
// process, of which all but one are left over.
var vllm = &Engine{
	Name:   "vLLM",
	Prefix: "vllm_",
	series: map[Canonical]mapping{
		Queue:   {kind: Gauge, spellings: vllmNames("num_requests_waiting"), part: vllmPart},
		Running: {kind: Gauge, spellings: vllmNames("num_requests_running"), part: vllmPart},
		// gpu_cache_usage_perc until 0.9.2, both until 0.11. The engines of a pod have equally many
		// blocks, so the fraction of the pod is their mean.
		KVUsed: {kind: Gauge, spellings: vllmNames("kv_cache_usage_perc", "gpu_cache_usage_perc"), part: vllmPart, fold: Mean},
		TTFT: {kind: Histogram, spellings: vllmNames("time_to_first_token_seconds"), part: vllmPart,
			edges: []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}},
		// Per request, since about 0.11. The older time_per_output_token_seconds is per engine output,
		// which is another population: requests cannot be counted with it.
		TPOT: {kind: Histogram, spellings: vllmNames("request_time_per_output_token_seconds"), part: vllmPart,
			edges: []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}},
		E2E: {kind: Histogram, spellings: vllmNames("e2e_request_latency_seconds"), part: vllmPart,
			edges: []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}},
		Finished:  {kind: Counter, spellings: vllmNames("request_success_total"), part: vllmPart, within: []string{"finished_reason"}},
		Generated: {kind: Counter, spellings: vllmNames("generation_tokens_total"), part: vllmPart},
	},
	unsupported: map[Canonical]string{
		GPUBusy: "vLLM does not read its GPU's duty cycle; the DCGM exporter does",
	},
	own:       true,
	podLabels: []podLabel{{"namespace", "pod"}},
}

var vllmPart = []string{"engine", "model_name"}

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
