package engine

import (
	"slices"
	"strconv"
	"strings"
)

// appendDynamoFrontend writes what a Dynamo frontend serves whose workers are the engines. It sees
// requests, not engines: as they are now rather than as of the last step, and queued_requests are
// those without a first token, whether they wait or are in their prefill. A family appears when it
// is first used; families are sorted by name.
func appendDynamoFrontend(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, rust, "dynamo_frontend_")
	all := together(engines, "model", x.ModelName)
	used := func(v view) bool {
		return count(func(e *Engine) int { return e.stats.Submitted + e.stats.Rejected })(v) > 0
	}
	request := func(m metric) metric { return m.with("endpoint", "completions", "request_type", "stream") }
	inFlight := count(func(e *Engine) int { return len(e.inFlight) })

	var workers, answered []series
	for i, e := range engines {
		labels := []string{"dp_rank", "0", "worker_id", strconv.Itoa(i + 1), "worker_type", "decode"}
		workers = append(workers, series{labels: labels, view: view{e}})
	}
	for _, s := range workers {
		if s.view[0].stats.FirstTokens > 0 {
			answered = append(answered, s)
		}
	}
	type family struct {
		metric
		on []series
	}
	fs := []family{
		{gauge("active_requests", "Number of requests currently being handled by the frontend, from HTTP handler entry to response completion",
			inFlight).after(used), all},
		{gauge("disconnected_clients", "Number of disconnected clients", aborted), together(engines)},
		{gauge("inflight_requests", "Number of inflight requests", inFlight).after(used), all},
		{gauge("queued_requests", "Number of requests in HTTP processing queue", count((*Engine).untouched)).after(used), all},
		{gauge("model_context_length", "Maximum context length in tokens for a worker serving the model",
			constant(float64(engines[0].cfg.MaxModelLen))), all},
		{gauge("model_kv_cache_block_size", "KV cache block size in tokens for a worker serving the model",
			constant(float64(engines[0].cfg.BlockSize))), all},
		{gauge("model_max_num_batched_tokens", "Maximum number of batched tokens for a worker serving the model",
			constant(float64(engines[0].cfg.MaxNumBatchedTokens))), all},
		{gauge("model_max_num_seqs", "Maximum number of sequences for a worker serving the model",
			constant(float64(engines[0].cfg.MaxNumSeqs))), all},
		{gauge("model_total_kv_blocks", "Total KV cache blocks available for a worker serving the model",
			constant(float64(engines[0].cfg.NumGPUBlocks-1))), all},
		{counter("model_rejection_total", "Total number of requests rejected due to resource exhaustion", rejected).
			with("endpoint", "completions").afterFirst(), all},
		{counter("output_tokens_total", "Total number of output tokens generated (updates in real-time)", generationTokens).afterFirst(), all},
		{request(counter("requests_started_total", "Total number of LLM requests accepted by the frontend handler",
			count(func(e *Engine) int { return e.stats.Submitted + e.stats.Rejected }))).afterFirst(), all},
		// Only success is told of here: the values of error_type that others have are not known.
		{request(counter("requests_total", "Total number of LLM requests processed", succeeded)).
			with("error_type", "", "status", "success").afterFirst(), all},
		// Requests are put on a worker at once here.
		{gauge("router_queue_pending_requests", "Requests pending in the router scheduler queue", none),
			together(engines, "worker_type", "decode")},
		{gauge("worker_active_decode_blocks", "Active KV cache decode blocks per worker", blocksUsed).after(used), workers}, // HELP's wording is not known
		{gauge("worker_last_time_to_first_token_seconds", "Last observed time to first token per worker (seconds)",
			sum(func(e *Engine) float64 { return e.metrics.lastTTFT })), answered},
		{gauge("worker_last_input_sequence_tokens", "Last observed input sequence tokens per worker",
			count(func(e *Engine) int { return e.metrics.lastPromptTokens })), answered},
		{gauge("worker_last_inter_token_latency_seconds", "Last observed inter-token latency per worker (seconds)",
			sum(func(e *Engine) float64 { return e.metrics.lastInterToken })), answered},
		{hist("request_duration_seconds", "Duration of LLM requests", dynamoRequestEdges, e2eOf).afterFirst(), all},
		{hist("input_sequence_tokens", "Input sequence length in tokens", dynamoInputEdges,
			func(m *metrics) *histogram { return &m.firstTokenPrompt }).afterFirst(), all},
		{hist("output_sequence_tokens", "Output sequence length in tokens", dynamoOutputEdges, generationOf).afterFirst(), all},
		{hist("cached_tokens", "Number of cached tokens (prefix cache hits) per request", dynamoInputEdges,
			func(m *metrics) *histogram { return &m.cached }).afterFirst(), all},
		{hist("time_to_first_token_seconds", "Time to first token in seconds", dynamoFirstTokenEdges, ttftOf).afterFirst(), all},
		{hist("inter_token_latency_seconds", "Inter-token latency in seconds", dynamoTokenTimeEdges, itlOf).afterFirst(), all},
	}
	slices.SortFunc(fs, func(a, b family) int { return strings.Compare(a.name, b.name) })
	for _, f := range fs {
		w.write(f.on, f.metric)
	}
	return w.b
}
