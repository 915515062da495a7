package signals

import "time"

// SGLang, with --enable-metrics. Two processes tell of it. The schedulers' series have the ranks: one
// scheduler for each dp_rank, which add up, and the same again for each tp_rank, pp_rank and moe_ep_rank
// where all of them report, which count once. The tokenizer's have no rank, and is_streaming instead:
// no label but the model's is in both.
//
// Every series is there from its first sample on. The schedulers set their gauges as they begin to
// prefill a batch, then every 40th step of decoding, and every 30 s while there is nothing to do. So
// after its last request an engine says for up to 30 s that requests run, and as it begins to prefill
// the first one it says that there is none.
var sglang = &Engine{
	Name:   "SGLang",
	Prefix: "sglang_",
	series: map[Canonical]mapping{
		// What waits for its grammar, and what waits for a transfer between prefill and decode, is in
		// queues of its own, before it gets into that of the scheduler: vLLM counts all of them as
		// waiting, and SGLang's own figure of its load does. What is prefilled and waits for decode to
		// fetch it (num_prefill_inflight_queue_reqs) waits for no scheduler any more.
		Queue: schedulers(mapping{kind: Gauge, spellings: sglangNames("num_queue_reqs"), also: [][]string{
			sglangNames("num_grammar_queue_reqs"),
			sglangNames("num_prefill_bootstrap_queue_reqs", "num_prefill_prealloc_queue_reqs"), // from about 0.5.10, and before
			sglangNames("num_decode_prealloc_queue_reqs"),
			sglangNames("num_decode_transfer_queue_reqs"),
		}}),
		Running: schedulers(mapping{kind: Gauge, spellings: sglangNames("num_running_reqs")}),
		// Of the pool that is fullest; what only the radix cache holds is free. The schedulers of a pod
		// have equally many tokens, so the fraction of the pod is their mean.
		KVUsed:     schedulers(mapping{kind: Gauge, spellings: sglangNames("token_usage"), fold: Mean}),
		KVCapacity: schedulers(mapping{kind: Gauge, spellings: sglangNames("max_total_num_tokens")}),

		// Clients that do not stream see their first token with the 50th or the last: is_streaming=true
		// leaves them out.
		TTFT: tokenizer(mapping{kind: Histogram, spellings: sglangNames("time_to_first_token_seconds")}),
		// The mean of what an output brought, once for each token in it. The older
		// time_per_output_token_seconds is neither this nor TPOT: with every output it observes the mean
		// of the request so far.
		ITL: tokenizer(mapping{kind: Histogram, spellings: sglangNames("inter_token_latency_seconds")}),
		E2E: tokenizer(mapping{kind: Histogram, spellings: sglangNames("e2e_request_latency_seconds")}),
		// Observed by every tp_rank. In a prefill or decode engine it begins after the transfer's queues.
		QueueTime: schedulers(mapping{kind: Histogram, spellings: sglangNames("queue_time_seconds"), lazy: true}),

		Finished: tokenizer(mapping{kind: Counter, spellings: sglangNames("num_requests_total")}),
		// Live since about 0.5.7. Before there is what finished requests had.
		Prompt:         sglangTokens("prompt_tokens_total", "prefill_compute", "prefill_cache", ""),
		PromptComputed: sglangTokens("", "prefill_compute"),
		PrefixQueries:  sglangTokens("prompt_tokens_total", "prefill_compute", "prefill_cache", ""),
		PrefixHits:     sglangTokens("cached_tokens_total", "prefill_cache", ""), // from the first hit on
		// The first token of a request comes of its prefill, and not of decoding. generation_tokens_total
		// counts a request's tokens as it finishes: in place of this one it would show a stall
		// wherever requests are long.
		Generated: schedulers(mapping{
			kind: Counter, spellings: sglangNames("realtime_tokens_total"), among: map[string][]string{"mode": {"decode", ""}},
			also: [][]string{sglangNames("time_to_first_token_seconds_count")}, within: []string{"is_streaming"}, lazy: true,
			hint: " with mode=decode: older releases have none",
		}),
		Preemptions: schedulers(mapping{kind: Counter, spellings: sglangNames("num_retracted_requests_total"), lazy: true}),
		Steps:       schedulers(mapping{kind: Counter, spellings: sglangNames("cuda_graph_passes_total"), within: []string{"mode"}, lazy: true}),
	},
	unsupported: declined(
		declinedByEngines("SGLang"),
		declinedDemand("SGLang"),
		because("SGLang observes the time between tokens once for each token, and not once for each request: ask for itl", TPOT),
		because("SGLang does not say what the requests in its queue wait for", QueueByReason),
		because("SGLang counts requests when they finish, and not when they arrive", Arrived),
		because("SGLang counts the requests that it turns away together with those that their clients gave up", Rejected),
	),
	part:    []string{"model_name"},
	model:   "model_name",
	own:     true,
	owners:  ownPod,
	refresh: 30 * time.Second,
}

// schedulers completes a mapping of the schedulers' series. With priority scheduling there is one for
// each priority, and one with none that has their sum.
func schedulers(m mapping) mapping {
	m.part = []string{"dp_rank"}
	m.match = map[string]string{"priority": ""}
	return m
}

// tokenizer completes a mapping of the tokenizer's series.
func tokenizer(m mapping) mapping {
	m.within = append(m.within, "is_streaming")
	m.lazy = true
	return m
}

// sglangTokens maps a count of tokens: those of some modes of the schedulers' counter, or where there
// is none the tokenizer's of that name, which has no mode.
func sglangTokens(finished string, modes ...string) mapping {
	m := schedulers(mapping{
		kind: Counter, spellings: sglangNames("realtime_tokens_total"), among: map[string][]string{"mode": modes},
		within: []string{"mode", "is_streaming", "cache_source"}, lazy: true,
	})
	if modes[0] != "" {
		m.hint = " with mode=" + modes[0]
	}
	if finished != "" {
		m.spellings = sglangNames("realtime_tokens_total", finished)
	}
	return m
}

// sglangNames spells the given names as SGLang's series are stored: as it exports them; and with the
// colon replaced, by content negotiation or by its router.
func sglangNames(names ...string) []string {
	return prefixed([]string{"sglang:", "sglang_"}, names)
}
