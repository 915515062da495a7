package engine

// appendLMDeploy writes what LMDeploy's api_server serves. The front end and the engine each have a
// queue: the front end's fills when all of the engine's handles are taken, which the model's never
// are. time_per_output_token_seconds is observed with every output, as is iter_token_latency.
func appendLMDeploy(b []byte, x Exposition, engines []*Engine) []byte {
	w := x.writer(b, python.withoutCreated(), "lmdeploy:")
	w.write(ranks(engines, "engine", "model_name", x.ModelName),
		gauge("num_requests_succeeded", "Number of current succeeded requests.", succeeded),
		gauge("num_requests_failed", "Number of current failed requests.", rejected),
		gauge("num_api_requests_routed", "Number of requests routed to request handles.",
			func(v view) float64 { return running(v) + waiting(v) }),
		gauge("num_api_requests_waiting", "Number of requests waiting for free request handles.", none),
		gauge("num_requests_running", "Number of requests in model execution batches.", running),
		gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting),
		gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", kvUsage),
		gauge("prefix_cache_hit_rate", "Prefix cache hit rate.", func(v view) float64 { // HELP's wording is not known
			if promptTokens(v) == 0 {
				return 0
			}
			return cachedTokens(v) / promptTokens(v)
		}),
		counter("prompt_tokens_total", "Number of prefill tokens processed.", promptTokens),
		counter("generation_tokens_total", "Number of generation tokens processed.", generationTokens),
		// All values of its enumeration are there from the start, spelled as Python prints them; that
		// list may not be complete. A request ends with FINISH, whatever the reason.
		counter("request_success_total", "Count of successfully processed requests.", nil).by("finished_reason", []string{
			"ResponseType.FINISH", "ResponseType.SUCCESS", "ResponseType.ENGINE_STOP_ERROR", "ResponseType.SESSION_REPEAT",
			"ResponseType.SESSION_NOT_EXIST", "ResponseType.HANDLER_NOT_EXIST", "ResponseType.INPUT_LENGTH_ERROR",
			"ResponseType.INTERNAL_ENGINE_ERROR", "ResponseType.CANCEL",
		}, first(succeeded)),
		tokensHist("request_prompt_tokens", "Number of prefill tokens processed.", promptOf),
		tokensHist("request_generation_tokens", "Number of generation tokens processed.", generationOf),
		hist("iteration_tokens_total", "Histogram of number of tokens per engine_step.", iterationEdges, iterationOf),
		hist("time_to_first_token_seconds", "Histogram of time to first token in seconds.", firstTokenEdges, ttftOf),
		hist("time_per_output_token_seconds", "Histogram of time per output token in seconds.", lmdeployTokenTimeEdges, itlOf),
		hist("iter_token_latency", "Histogram of inter-token latency", lmdeployTokenTimeEdges, itlOf),
		hist("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", requestTimeEdges, e2eOf),
		hist("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", requestTimeEdges, queueOf),
		hist("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", requestTimeEdges, inferenceOf),
		hist("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", requestTimeEdges, prefillOf),
		hist("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", requestTimeEdges, decodeOf))
	return w.b
}
