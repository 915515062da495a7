package signals

// llama.cpp's server, with --metrics. It has one model, no labels and no histograms.
var llamacpp = &Engine{
	Name:   "llama.cpp",
	Prefix: "llamacpp_",
	series: map[Canonical]mapping{
		// A request is deferred while there is no slot for it.
		Queue:   {kind: Gauge, spellings: llamacppNames("requests_deferred")},
		Running: {kind: Gauge, spellings: llamacppNames("requests_processing")},
		// prompt_tokens_total leaves out cached tokens, which are counted by themselves since August 2026.
		// Before, prompts without their cached part would be taken for whole ones.
		Prompt:         {kind: Counter, spellings: llamacppNames("prompt_tokens_cached_total"), also: [][]string{llamacppNames("prompt_tokens_total")}},
		PromptComputed: {kind: Counter, spellings: llamacppNames("prompt_tokens_total")},
		PrefixQueries:  {kind: Counter, spellings: llamacppNames("prompt_tokens_cached_total"), also: [][]string{llamacppNames("prompt_tokens_total")}},
		PrefixHits:     {kind: Counter, spellings: llamacppNames("prompt_tokens_cached_total")},
		Steps:          {kind: Counter, spellings: llamacppNames("n_decode_total")},
	},
	unsupported: declined(
		declinedByEngines("llama.cpp"),
		declinedDemand("llama.cpp"),
		because("llama.cpp exports no histograms", TTFT, TPOT, ITL, E2E, QueueTime),
		because("llama.cpp counts the output tokens of a request when it has finished, and not as they are generated", Generated),
		because("llama.cpp does not count requests", Arrived, Rejected, Finished),
		because("llama.cpp no longer exports how much of its KV cache is used", KVUsed, KVCapacity),
		because("llama.cpp does not say what deferred requests wait for", QueueByReason),
		because("llama.cpp does not put running requests back", Preemptions),
	),
	own:    true,
	owners: ownPod,
}

// llamacppNames spells the given names as llama.cpp's series are stored: as it exports them, and with
// the colon replaced on the way, as by OpenTelemetry.
func llamacppNames(names ...string) []string {
	return prefixed([]string{"llamacpp:", "llamacpp_"}, names)
}
