package sourcetest

import (
	"fmt"
	"strconv"
	"strings"
)

// Gauges are the names that queue depth and KV-cache use need.
var Gauges = []string{"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"}

// Everything are the names that all signals of vLLM need: about ninety series a replica.
var Everything = append([]string{
	"vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_sum",
	"vllm:request_time_per_output_token_seconds_bucket", "vllm:request_time_per_output_token_seconds_count", "vllm:request_time_per_output_token_seconds_sum",
	"vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_count", "vllm:e2e_request_latency_seconds_sum",
	"vllm:request_success_total", "vllm:generation_tokens_total", "vllm:prompt_tokens_total",
}, Gauges...)

// histograms of vLLM by the number of their finite bounds; the bounds themselves do not matter here.
var histograms = []struct {
	name   string
	bounds int
}{
	{"time_to_first_token_seconds", 22}, {"inter_token_latency_seconds", 19}, {"request_time_per_output_token_seconds", 19},
	{"e2e_request_latency_seconds", 21}, {"request_queue_time_seconds", 21}, {"request_inference_time_seconds", 21},
	{"request_prefill_time_seconds", 21}, {"request_decode_time_seconds", 21}, {"request_prompt_tokens", 16},
	{"request_generation_tokens", 16}, {"request_max_num_generation_tokens", 16}, {"request_params_max_tokens", 16},
	{"request_params_n", 5}, {"iteration_tokens_total", 13},
}

// Exposition is of the size and form of vLLM's, for measurements: some 340 series, about ninety of
// them wanted. step makes the values move.
func Exposition(step int) string {
	var b strings.Builder
	const labels = `engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"`
	family := func(name, kind string) {
		fmt.Fprintf(&b, "# HELP vllm:%s What it counts, in a sentence of some length.\n# TYPE vllm:%s %s\n", name, name, kind)
	}
	for i, name := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state"} {
		family(name, "gauge")
		fmt.Fprintf(&b, "vllm:%s{%s} %s\n", name, labels, strconv.FormatFloat(float64(step%97)/float64(i+1), 'g', -1, 64))
	}
	for _, name := range []string{"prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total"} {
		family(name, "counter")
		fmt.Fprintf(&b, "vllm:%s{%s} %d.0\n", name, labels, 1000*step)
	}
	family("request_success_total", "counter")
	for _, reason := range []string{"stop", "length", "abort", "error", "repetition"} {
		fmt.Fprintf(&b, "vllm:request_success_total{%s,finished_reason=%q} %d.0\n", labels, reason, 10*step)
	}
	for _, h := range histograms {
		family(h.name, "histogram")
		for i := range h.bounds {
			fmt.Fprintf(&b, "vllm:%s_bucket{%s,le=\"%s\"} %d.0\n", h.name, labels, strconv.FormatFloat(0.01*float64(int(1)<<i), 'g', -1, 64), step*(i+1))
		}
		fmt.Fprintf(&b, "vllm:%s_bucket{%s,le=\"+Inf\"} %d.0\n", h.name, labels, step*(h.bounds+1))
		fmt.Fprintf(&b, "vllm:%s_count{%s} %d.0\nvllm:%s_sum{%s} %d.25\n", h.name, labels, step*(h.bounds+1), h.name, labels, step*7)
	}
	for i := range 30 {
		fmt.Fprintf(&b, "# HELP python_process_metric_%d Some number.\n# TYPE python_process_metric_%d gauge\npython_process_metric_%d %d.0\n", i, i, i, step)
	}
	return b.String()
}
