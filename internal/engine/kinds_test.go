package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"pgregory.net/rapid"
)

// busy are two ranks of which the second has done everything that an exposition can tell of: it has
// finished, aborted, rejected and preempted requests, some are waiting, and prompts were cached.
func busy(t testing.TB) []*Engine {
	cfg := DefaultConfig()
	cfg.MaxNumSeqs, cfg.MaxWaiting = 3, 4
	cfg.MaxModelLen, cfg.NumGPUBlocks = 4096, 300
	cfg.PriorityScheduling = true
	cfg.StepTime.Jitter = 0
	engines := []*Engine{mustNew(t, cfg), mustNew(t, cfg)}
	e := engines[1]
	mustSubmit(t, e, sec(1), Request{ID: 1, PromptTokens: 1500, OutputTokens: 40, MaxTokens: 40, CachedTokens: 512})
	mustSubmit(t, e, sec(1.1), Request{ID: 2, PromptTokens: 900, OutputTokens: 1})
	e.Advance(sec(1.9))
	mustSubmit(t, e, sec(2), Request{ID: 3, PromptTokens: 2300, OutputTokens: 900})
	mustSubmit(t, e, sec(2.01), Request{ID: 4, PromptTokens: 2300, OutputTokens: 900, Priority: 1})
	for id := uint64(5); id < 8; id++ {
		mustSubmit(t, e, sec(2.5), Request{ID: id, PromptTokens: 700, OutputTokens: 200, Priority: int(id % 2)})
	}
	for e.Stats().Preemptions == 0 {
		e.Advance(e.now.Add(10 * time.Millisecond))
	}
	e.Abort(e.now, 5)
	for id := uint64(8); e.Stats().Rejected == 0; id++ {
		e.Submit(e.now, Request{ID: id, PromptTokens: 100, OutputTokens: 10, CachedTokens: 16, Priority: 2})
	}
	e.Advance(e.stepEnd) // what is reported is then what is
	engines[0].Advance(e.now)
	s := e.Stats()
	if s.Waiting == 0 || s.Running == 0 || s.Finished == 0 || s.Preemptions == 0 || s.Aborted == 0 || s.Rejected == 0 {
		t.Fatalf("the fixture is meant to have done everything: %+v", s)
	}
	return engines
}

// shown is every exposition there is, by the name of its file in testdata.
func shown(engines []*Engine) map[string][]byte {
	all := map[string][]byte{}
	for _, k := range Kinds() {
		all[k.String()] = Append(nil, Exposition{Kind: k, ModelName: "m", Created: t0}, engines)
	}
	for r := range releaseNames {
		all["vllm-"+releaseNames[r]] = Append(nil, Exposition{ModelName: "m", Created: t0, Release: Release(r)}, engines)
	}
	all["vllm-multiprocess"] = Append(nil, Exposition{ModelName: "m", Created: t0, Multiprocess: true}, engines)
	k, _ := ParseKind("sglang")
	all["sglang-tp2_underscores"] = Append(nil, Exposition{Kind: k, ModelName: "m", TensorParallel: 2, Underscores: true}, engines)
	all["picker"] = AppendPicker(nil, &Pool{Name: "pool", ModelName: "m"}, members(engines))
	return all
}

func members(engines []*Engine) []PoolMember {
	var all []PoolMember
	for i, e := range engines {
		all = append(all, PoolMember{Pod: fmt.Sprintf("vllm-%d", i), Engines: []*Engine{e}})
	}
	return all
}

// Files for what no other file has already: three prefixes of TensorRT-LLM differ in nothing else.
var goldenKinds = []string{"vllm-0.32", "vllm-0.8", "vllm-v0", "sglang", "tgi", "trtllm", "triton", "nim", "llamacpp",
	"lmdeploy", "dynamo-frontend", "picker"}

func TestGoldenOfEveryKind(t *testing.T) {
	all := shown(busy(t))
	for _, name := range goldenKinds {
		t.Run(name, func(t *testing.T) { golden(t, "kinds/"+name+".prom", all[name]) })
	}
	for _, other := range []struct{ kind, prefix string }{{"trtllm-colon", "trtllm:"}, {"trtllm-bare", ""}} {
		want := strings.ReplaceAll(string(all["trtllm"]), "trtllm_", other.prefix)
		if d := cmp.Diff(want, string(all[other.kind])); d != "" {
			t.Errorf("%s differs by more than its prefix:\n%s", other.kind, d)
		}
	}
	if !bytes.Equal(all["vllm"], all["vllm-0.20"]) {
		t.Error("vllm is not 0.20 by default")
	}
}

// Of an engine that has done nothing, what is not known must not be there as a 0.
func TestGoldenOfFreshEngines(t *testing.T) {
	all := shown([]*Engine{mustNew(t, DefaultConfig())})
	for _, name := range []string{"vllm-v0", "sglang", "tgi", "trtllm", "triton", "nim", "dynamo-frontend", "picker"} {
		t.Run(name, func(t *testing.T) { golden(t, "kinds/"+name+"_fresh.prom", all[name]) })
	}
	for series := range flatten(t, all["vllm-multiprocess"]) {
		if strings.HasPrefix(series, "vllm:num_requests") || strings.Contains(series, "cache_usage_perc") {
			t.Errorf("several processes have %s before the first step", series)
		}
	}
}

// flatten returns the samples by their names and labels, as text.
func flatten(t testing.TB, text []byte) map[string]float64 {
	t.Helper()
	got := map[string]float64{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		var v float64
		if _, err := fmt.Sscan(line[at+1:], &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if _, twice := got[line[:at]]; twice {
			t.Errorf("series twice: %s", line[:at])
		}
		got[line[:at]] = v
	}
	return got
}

// sumOf adds up the series of a name that have all the labels.
func sumOf(t testing.TB, text []byte, name string, labels ...string) float64 {
	t.Helper()
	found, total := false, 0.0
	for s, v := range flatten(t, text) {
		n, ls, _ := strings.Cut(s, "{")
		if n == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(ls, l) }) {
			found, total = true, total+v
		}
	}
	if !found {
		t.Errorf("no %s%v", name, labels)
	}
	return total
}

// TestPrometheusReadsEveryKind: Prometheus's own parser finds the same samples as the lines say.
func TestPrometheusReadsEveryKind(t *testing.T) {
	for kind, text := range shown(busy(t)) {
		p, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			entry, err := p.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			if entry == textparse.EntrySeries {
				n++
			}
		}
		if want := len(flatten(t, text)); n != want {
			t.Errorf("%s: %d samples, want %d", kind, n, want)
		}
	}
}

// TestEveryKindTellsTheTruth compares what each kind says of waiting, running and finished requests
// and of tokens with what the model knows.
func TestEveryKindTellsTheTruth(t *testing.T) {
	engines := busy(t)
	all := shown(engines)
	s, m := engines[1].Stats(), &engines[1].metrics
	inFlight := float64(s.Waiting + s.Running)
	n := func(v int) float64 { return float64(v) }
	for _, tt := range []struct {
		kind, name string
		labels     []string
		want       float64
	}{
		{"vllm", "vllm:num_requests_waiting", nil, n(s.Waiting)},
		{"vllm", "vllm:prefix_cache_hits_total", nil, n(m.cachedTokens)},
		{"vllm", "vllm:prompt_tokens_by_source_total", nil, n(m.promptTokens)},
		{"vllm-0.32", "vllm:admission_rejections_total", nil, n(s.Rejected)},
		{"vllm-0.10", "vllm:gpu_cache_usage_perc", nil, s.KVUsage()},
		{"vllm-0.10", "vllm:kv_cache_usage_perc", nil, s.KVUsage()},
		{"vllm-multiprocess", "vllm:num_requests_running", nil, n(s.Running)},
		{"vllm-v0", "vllm:num_requests_waiting", nil, n(s.Waiting)},
		{"vllm-v0", "vllm:num_requests_running", nil, n(s.Running)},
		{"vllm-v0", "vllm:request_success_total", []string{`finished_reason="abort"`}, n(s.Aborted)},
		{"vllm-v0", "vllm:time_to_first_token_seconds_count", nil, n(s.FirstTokens)},
		{"sglang", "sglang:num_queue_reqs", []string{`priority=""`}, n(s.Waiting)},
		{"sglang", "sglang:num_running_reqs", []string{`priority=""`}, n(s.Running)},
		{"sglang", "sglang:num_queue_reqs", nil, n(2 * s.Waiting)}, // the sum, and its parts
		{"sglang", "sglang:token_usage", nil, s.KVUsage()},
		{"sglang", "sglang:num_used_tokens", nil, n(16 * s.BlocksUsed)},
		{"sglang", "sglang:generation_tokens_total", nil, n(m.finishedGeneration)},
		{"sglang", "sglang:num_retracted_requests_total", nil, n(s.Preemptions)},
		{"sglang", "sglang:num_aborted_requests_total", nil, n(s.Aborted)},
		{"sglang", "sglang:realtime_tokens_total", []string{`mode="prefill_compute"`}, n(m.prefillTokens)},
		{"sglang", "sglang:time_to_first_token_seconds_count", nil, n(s.FirstTokens)},
		{"sglang-tp2_underscores", "sglang_queue_time_seconds_count", nil, 2 * sumOf(t, all["sglang"], "sglang:queue_time_seconds_count")},
		{"tgi", "tgi_queue_size", nil, n(s.Waiting)},
		{"tgi", "tgi_batch_current_size", nil, n(s.Running)},
		{"tgi", "tgi_request_count", nil, n(s.Submitted + s.Rejected)},
		{"tgi", "tgi_request_success", nil, n(s.Finished)},
		{"tgi", "tgi_request_failure", nil, n(s.Rejected)},
		{"tgi", "tgi_request_mean_time_per_token_duration_count", nil, n(s.Finished)},
		{"tgi", "tgi_batch_inference_duration_count", nil, n(s.Steps)},
		{"trtllm", "trtllm_num_requests_waiting", nil, n(s.Waiting)},
		{"trtllm", "trtllm_num_requests_running", nil, n(s.Running)},
		{"trtllm", "trtllm_kv_cache_used_blocks", nil, n(s.BlocksUsed)},
		{"trtllm", "trtllm_time_to_first_token_seconds_count", nil, n(s.Finished)},
		{"trtllm-colon", "trtllm:num_requests_waiting", nil, n(s.Waiting)},
		{"trtllm-bare", "num_requests_waiting", nil, n(s.Waiting)},
		{"triton", "nv_trt_llm_request_metrics", []string{`request_type="waiting"`}, n(s.Waiting)},
		{"triton", "nv_trt_llm_request_metrics", []string{`request_type="active"`}, n(s.Running)},
		{"triton", "nv_trt_llm_kv_cache_block_metrics", []string{`kv_cache_block_type="used"`}, n(s.BlocksUsed)},
		{"triton", "nv_inference_request_success", nil, n(s.Finished)},
		{"triton", "nv_inference_first_response_histogram_ms_count", nil, n(s.FirstTokens)},
		{"nim", "num_requests_waiting", nil, n(s.Waiting)},
		{"nim", "request_finish_total", nil, n(s.Finished + s.Aborted)},
		{"nim", "request_success_total", nil, n(s.Finished)},
		{"llamacpp", "llamacpp:requests_deferred", nil, n(s.Waiting)},
		{"llamacpp", "llamacpp:requests_processing", nil, n(s.Running)},
		{"llamacpp", "llamacpp:tokens_predicted_total", nil, n(m.finishedGeneration)},
		{"llamacpp", "llamacpp:prompt_tokens_total", nil, n(m.promptTokens - m.cachedTokens)},
		{"lmdeploy", "lmdeploy:num_requests_waiting", nil, n(s.Waiting)},
		{"lmdeploy", "lmdeploy:num_api_requests_routed", nil, inFlight},
		{"lmdeploy", "lmdeploy:request_success_total", nil, n(s.Finished)},
		{"dynamo-frontend", "dynamo_frontend_inflight_requests", nil, inFlight},
		{"dynamo-frontend", "dynamo_frontend_queued_requests", nil, n(engines[1].untouched())},
		{"dynamo-frontend", "dynamo_frontend_requests_total", nil, n(s.Finished)},
		{"dynamo-frontend", "dynamo_frontend_model_rejection_total", nil, n(s.Rejected)},
		{"picker", "llm_d_epp_average_queue_size", nil, n(s.Waiting) / 2},
		{"picker", "inference_pool_average_queue_size", nil, n(s.Waiting) / 2},
		{"picker", "inference_pool_per_pod_queue_size", []string{`model_server_pod="vllm-1"`}, n(s.Waiting)},
		{"picker", "llm_d_epp_average_kv_cache_utilization", nil, s.KVUsage() / 2},
		{"picker", "llm_d_epp_ready_endpoints", nil, 2},
		{"picker", "inference_objective_running_requests", nil, inFlight},
		{"picker", "llm_d_epp_flow_control_pool_saturation", nil, max(n(s.Waiting)/5, s.KVUsage()/0.8) / 2},
		{"picker", "llm_d_epp_request_ttft_seconds_count", nil, n(s.FirstTokens)},
		{"picker", "llm_d_epp_request_streaming_tpot_seconds_count", nil, n(s.Finished - 1)}, // one has a single token
	} {
		if got := sumOf(t, all[tt.kind], tt.name, tt.labels...); math.Abs(got-tt.want) > 1e-6*math.Abs(tt.want) {
			t.Errorf("%s: %s%v is %g, want %g", tt.kind, tt.name, tt.labels, got, tt.want)
		}
	}
}

// TestBucketsTellTheTruth compares every bucket of the times to first token, by each kind's edges,
// with the requests themselves.
func TestBucketsTellTheTruth(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxNumSeqs = 4
	var outcomes []Outcome
	cfg.OnFinish = func(o Outcome) { outcomes = append(outcomes, o) }
	e := mustNew(t, cfg)
	for i := range uint64(60) {
		mustSubmit(t, e, sec(0.05*float64(i)), Request{ID: i, PromptTokens: 100 + int(i)*90, OutputTokens: 1 + int(i)*3})
	}
	e.Advance(sec(600))
	if len(outcomes) != 60 {
		t.Fatalf("%d finished", len(outcomes))
	}
	ttft, tpot := Outcome.TTFT, Outcome.TPOT
	e2e, queue := Outcome.E2E, Outcome.QueueTime
	all := shown([]*Engine{e})
	for _, tt := range []struct {
		kind, name string
		of         func(Outcome) time.Duration
		edges      int // besides +Inf
		least      float64
		most       float64
	}{
		{"vllm", "vllm:time_to_first_token_seconds", ttft, 22, 0.001, 2560},
		{"vllm", "vllm:request_time_per_output_token_seconds", tpot, 19, 0.01, 80},
		{"vllm", "vllm:request_queue_time_seconds", queue, 21, 0.3, 7680},
		{"vllm-0.8", "vllm:time_to_first_token_seconds", ttft, 16, 0.001, 10},
		{"vllm-v0", "vllm:time_to_first_token_seconds", ttft, 16, 0.001, 10},
		{"vllm-v0", "vllm:e2e_request_latency_seconds", e2e, 15, 0.3, 60},
		{"sglang", "sglang:time_to_first_token_seconds", ttft, 18, 0.1, 400},
		{"sglang", "sglang:e2e_request_latency_seconds", e2e, 22, 0.1, 2400},
		{"sglang", "sglang:queue_time_seconds", queue, 40, 0, 3000},
		{"tgi", "tgi_request_duration", e2e, 35, 0.00015000000000000001, 145.61096060497135},
		{"tgi", "tgi_request_queue_duration", queue, 35, 0.00015000000000000001, 145.61096060497135},
		{"trtllm", "trtllm_time_per_output_token_seconds", tpot, 19, 0.01, 80},
		{"nim", "time_to_first_token_seconds", ttft, 16, 0.001, 10},
		{"lmdeploy", "lmdeploy:time_to_first_token_seconds", ttft, 22, 0.001, 2560},
		{"dynamo-frontend", "dynamo_frontend_time_to_first_token_seconds", ttft, 18, 0, 480},
		{"dynamo-frontend", "dynamo_frontend_request_duration_seconds", e2e, 10, 0, 510}, // 512 in two digits
		{"picker", "llm_d_epp_request_ttft_seconds", ttft, 24, 0.005, 120},
		{"picker", "llm_d_epp_request_duration_seconds", e2e, 35, 0.005, 3600},
	} {
		f := families(t, all[tt.kind])[tt.name]
		if len(f.GetMetric()) != 1 {
			t.Errorf("%s: %d series of %s", tt.kind, len(f.GetMetric()), tt.name)
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		buckets := h.GetBucket()
		if got := len(buckets) - 1; got != tt.edges || buckets[0].GetUpperBound() != tt.least || buckets[got-1].GetUpperBound() != tt.most {
			t.Errorf("%s: %s has %d edges from %v to %v, want %d from %v to %v", tt.kind, tt.name,
				got, buckets[0].GetUpperBound(), buckets[got-1].GetUpperBound(), tt.edges, tt.least, tt.most)
		}
		for _, b := range buckets {
			want := uint64(0)
			for _, o := range outcomes {
				if tt.of(o).Seconds() <= b.GetUpperBound() {
					want++
				}
			}
			if b.GetCumulativeCount() != want {
				t.Errorf("%s: %s has %d up to %v, want %d", tt.kind, tt.name, b.GetCumulativeCount(), b.GetUpperBound(), want)
			}
		}
	}
	good := 0
	slo := SLO{TTFT: time.Second, TPOT: 20 * time.Millisecond}
	for _, o := range outcomes {
		if o.Meets(slo) != (o.TTFT() <= time.Second && o.TPOT() <= 20*time.Millisecond) {
			t.Errorf("%+v: good is %v", o, o.Meets(slo))
		}
		if o.Meets(slo) {
			good++
		}
	}
	if good == 0 || good == len(outcomes) {
		t.Errorf("%d of %d are good: the objective tells nothing", good, len(outcomes))
	}
}

// TestSpellings pins what a client library makes of one number or one family.
func TestSpellings(t *testing.T) {
	all := shown(busy(t))
	for _, text := range all {
		flatten(t, text) // no series twice
		checkExposition(t, families(t, text))
	}
	for _, tt := range []struct{ kind, line string }{
		{"vllm", `vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="m"} 0.0`},
		{"sglang", `sglang:queue_time_seconds_bucket{dp_rank="1",engine_type="unified",le="0.0",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="1"} `},
		{"sglang-tp2_underscores", "# TYPE sglang:queue_time_seconds histogram\n"},
		{"sglang", `sglang:num_queue_reqs{dp_rank="1",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="2",tp_rank="1"} `},
		{"sglang", `sglang:prompt_tokens_histogram_bucket{engine_type="unified",le="1e+06",model_name="m"} `},
		{"tgi", `tgi_request_duration_bucket{le="0.00015000000000000001"} `},
		{"tgi", `tgi_request_input_length_bucket{le="4096"} `},
		{"tgi", `tgi_request_input_length_bucket{le="40.96"} `},
		{"tgi", `tgi_batch_inference_duration_bucket{method="decode",le="+Inf"} `},
		{"dynamo-frontend", `dynamo_frontend_inter_token_latency_seconds_bucket{model="m",le="0.0019"} `},
		{"dynamo-frontend", `dynamo_frontend_requests_total{endpoint="completions",error_type="",model="m",request_type="stream",status="success"} 2`},
		{"picker", `llm_d_epp_request_ttft_seconds_bucket{fairness_id="default-flow",model_name="m",priority="0",streaming="true",target_model_name="m",le="1"} `},
		{"picker", `inference_objective_input_tokens_bucket{model_name="m",target_model_name="m",le="1.048576e+06"} `},
		{"triton", `nv_inference_first_response_histogram_ms_bucket{model="tensorrt_llm",version="1",le="100"} `},
		{"lmdeploy", `lmdeploy:request_success_total{engine="1",finished_reason="ResponseType.FINISH",model_name="m"} 2.0`},
	} {
		if !strings.Contains(string(all[tt.kind]), "\n"+tt.line) && !strings.HasPrefix(string(all[tt.kind]), tt.line) {
			t.Errorf("%s has no line %s", tt.kind, tt.line)
		}
	}
	for kind, text := range all {
		single := strings.HasPrefix(kind, "vllm") && kind != "vllm-v0" && kind != "vllm-multiprocess"
		if got := bytes.Contains(text, []byte("_created")); got != single {
			t.Errorf("%s: _created is there: %v", kind, got)
		}
		if kind != "tgi" && bytes.Contains(text, []byte("\n\n")) {
			t.Errorf("%s has an empty line", kind)
		}
	}
}

// checkExposition holds an exposition to what every reader may rely on.
func checkExposition(t testing.TB, fs map[string]*dto.MetricFamily) {
	t.Helper()
	for name, f := range fs {
		if f.GetHelp() == "" && !strings.HasPrefix(name, "sglang_") { // whose HELP is that of sglang:
			t.Errorf("%s has no HELP", name)
		}
		for _, m := range f.GetMetric() {
			if c := m.GetCounter(); c != nil && c.GetValue() < 0 {
				t.Errorf("%s is %g", name, c.GetValue())
			}
			h := m.GetHistogram()
			if h == nil {
				continue
			}
			last := h.GetBucket()[0]
			for _, b := range h.GetBucket()[1:] {
				if b.GetUpperBound() <= last.GetUpperBound() || b.GetCumulativeCount() < last.GetCumulativeCount() {
					t.Errorf("%s: %d up to %g after %d up to %g", name, b.GetCumulativeCount(), b.GetUpperBound(),
						last.GetCumulativeCount(), last.GetUpperBound())
				}
				last = b
			}
			if !math.IsInf(last.GetUpperBound(), 1) || last.GetCumulativeCount() != h.GetSampleCount() {
				t.Errorf("%s: %d up to %g, and %d in all", name, last.GetCumulativeCount(), last.GetUpperBound(), h.GetSampleCount())
			}
		}
	}
}

// TestCountersNeverFall drives engines at random and holds each exposition to the one before.
func TestCountersNeverFall(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := round()
		cfg.MaxWaiting = 6
		cfg.PriorityScheduling = rapid.Bool().Draw(rt, "priorities")
		engines := []*Engine{mustNew(t, cfg), mustNew(t, cfg)}
		pool := &Pool{Name: "pool", ModelName: "m"}
		before := map[string]map[string]float64{}
		now, id := 0.0, uint64(0)
		for range rapid.IntRange(2, 5).Draw(rt, "rounds") {
			e := engines[rapid.IntRange(0, 1).Draw(rt, "engine")]
			for range rapid.IntRange(0, 6).Draw(rt, "arrivals") {
				id++
				prompt := rapid.IntRange(1, 200).Draw(rt, "prompt")
				e.Submit(sec(now), Request{ID: id, PromptTokens: prompt, OutputTokens: rapid.IntRange(1, 40).Draw(rt, "output"),
					CachedTokens: rapid.IntRange(0, prompt-1).Draw(rt, "cached"), Priority: rapid.IntRange(0, 2).Draw(rt, "priority")})
			}
			if id > 0 && rapid.Bool().Draw(rt, "abort") {
				e.Abort(sec(now), rapid.Uint64Range(1, id).Draw(rt, "aborted"))
			}
			now += rapid.Float64Range(0, 1).Draw(rt, "pass")
			for _, e := range engines {
				e.Advance(sec(now))
			}
			restarted := rapid.IntRange(0, 5).Draw(rt, "restart") == 0
			if restarted {
				pool.Lose(engines[:1])
				engines[0] = mustNew(t, cfg)
			}
			all := shown(engines)
			all["picker"] = AppendPicker(nil, pool, members(engines))
			for _, kind := range goldenKinds {
				fs := families(t, all[kind])
				checkExposition(t, fs)
				after := map[string]float64{}
				for name, f := range fs {
					for _, m := range f.GetMetric() {
						key := name + fmt.Sprint(m.GetLabel())
						switch {
						case m.Counter != nil:
							after[key] = m.Counter.GetValue()
						case m.Histogram != nil:
							after[key] = float64(m.Histogram.GetSampleCount())
						}
					}
				}
				for key, was := range before[kind] {
					if is, there := after[key]; (!restarted || kind == "picker") && (!there || is < was) {
						rt.Fatalf("%s: %s fell from %g to %g (there: %v)", kind, key, was, is, there)
					}
				}
				before[kind] = after
			}
			if t.Failed() {
				rt.FailNow()
			}
		}
	})
}

func TestEmptyPool(t *testing.T) {
	text := AppendPicker(nil, &Pool{Name: "pool", ModelName: "m"}, nil)
	checkExposition(t, families(t, text))
	if got := sumOf(t, text, "llm_d_epp_flow_control_pool_saturation"); got != 1 {
		t.Errorf("an empty pool's saturation is %g, want 1", got)
	}
	if bytes.Contains(text, []byte("average_queue_size")) {
		t.Error("a pool without members has an average")
	}
	stale := members([]*Engine{mustNew(t, round())})
	stale[0].Stale = true
	text = AppendPicker(nil, &Pool{Name: "pool"}, stale)
	if sumOf(t, text, "llm_d_epp_flow_control_pool_saturation") != 1 || sumOf(t, text, "llm_d_epp_stale_endpoints") != 1 {
		t.Errorf("a stale member does not count as saturated:\n%s", text)
	}
}

func TestParseKind(t *testing.T) {
	for _, k := range Kinds() {
		if got, err := ParseKind(k.String()); err != nil || got.String() != k.String() || k.Path() == "" {
			t.Errorf("%v: %v, %v, path %q", k, got, err, k.Path())
		}
	}
	if _, err := ParseKind("ollama"); err == nil || !strings.Contains(err.Error(), "sglang, tgi") {
		t.Errorf("error %v does not list what there is", err)
	}
}

// Every edge of every kind is among those by which observations are kept.
func TestEdgesAreKept(t *testing.T) {
	for _, maxModelLen := range []int{2, 100, 4096, 32768, 131072, 1000000, 1234567} {
		cfg := DefaultConfig()
		cfg.MaxModelLen, cfg.NumGPUBlocks = maxModelLen, maxModelLen/16+2
		e := mustNew(t, cfg)
		mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 1, OutputTokens: 1})
		e.Advance(sec(1))
		shown([]*Engine{e}) // panics on an edge that it does not know
	}
}
