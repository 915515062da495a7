package signals

// Dynamo's frontend, which takes requests and gives them to workers. The workers are read as the engines
// that they run: they pass through vllm:, sglang: and trtllm_ series. What the frontend sees is the same
// requests again, so its signals have its own prefix only, and no inference_ signal adds it to the workers.
//
// queued_requests are all that have not had their first token: those that wait, in the frontend or in a
// worker, and those in prefill. That is more than wait to be scheduled, and never less; what is the rest of
// those in flight has had its first token. router_queue_pending_requests would be less: it knows nothing
// of those that wait in a worker.
//
// Series are made with the first request of a model, and never removed.
var dynamo = &Engine{
	Name:   "Dynamo's frontend",
	Prefix: "dynamo_",
	series: map[Canonical]mapping{
		Queue: {kind: Gauge, spellings: dynamoNames("queued_requests"), hint: dynamoHint},
		Running: {
			kind: Gauge, spellings: dynamoNames("inflight_requests", "active_requests"), hint: dynamoHint,
			less: &mapping{kind: Gauge, spellings: dynamoNames("queued_requests")},
		},
		TTFT: {kind: Histogram, spellings: dynamoNames("time_to_first_token_seconds"), lazy: true},
		// Of an answer that has several tokens each is observed, with the mean.
		ITL:     {kind: Histogram, spellings: dynamoNames("inter_token_latency_seconds"), lazy: true},
		Arrived: {kind: Counter, spellings: dynamoNames("requests_started_total"), within: []string{"endpoint", "request_type"}, lazy: true},
		// For whatever reason; status="success" chooses those that were answered.
		Finished: {kind: Counter, spellings: dynamoNames("requests_total"), within: []string{"endpoint", "request_type", "status", "error_type"}, lazy: true},
		// Observed at the first token.
		Prompt:    {kind: Counter, spellings: dynamoNames("input_sequence_tokens_sum"), lazy: true},
		Generated: {kind: Counter, spellings: dynamoNames("output_tokens_total"), lazy: true},
	},
	unsupported: declined(
		declinedByEngines("Dynamo's frontend"),
		declinedDemand("Dynamo's frontend"),
		because("Dynamo's frontend does not say what requests wait for", QueueByReason),
		because("Dynamo's frontend repeats the size of one worker's KV cache, and not what is used of it: ask for the workers' own signals", KVUsed, KVCapacity),
		because("Dynamo's frontend has a histogram of the time between tokens only: ask for itl", TPOT),
		because("Dynamo's frontend observes the duration of requests that failed or were turned away with those of the others, so that it falls under overload", E2E),
		because("Dynamo's frontend does not measure how long requests wait until they are scheduled", QueueTime),
		because("Dynamo's frontend counts requests that it turns away among those that ended, with error_type=overload", Rejected),
		because("Dynamo's frontend does not know what its workers compute: ask for the workers' own signals", PromptComputed, Preemptions, PrefixQueries, PrefixHits, Steps),
	),
	part:   []string{"model"},
	model:  "model",
	own:    true,
	front:  true,
	owners: ownPod,
}

const dynamoHint = ": the frontend makes it with the first request"

func dynamoNames(names ...string) []string {
	var out []string
	for _, n := range names {
		out = append(out, "dynamo_frontend_"+n)
	}
	return out
}
