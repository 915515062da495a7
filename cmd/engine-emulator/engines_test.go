package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/engine"
)

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestEveryEngine(t *testing.T) {
	waiting := map[string]string{ // of 6 requests, on 4 seats
		"vllm":            `vllm:num_requests_waiting{engine="0",model_name="m"} 2.0`,
		"vllm-v0":         `vllm:num_requests_waiting{model_name="m"} 2.0`,
		"sglang":          `sglang:num_queue_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 2.0`,
		"tgi":             `tgi_queue_size 2`,
		"trtllm":          `trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 2.0`,
		"trtllm-colon":    `trtllm:num_requests_waiting{engine_type="trtllm",model_name="m"} 2.0`,
		"trtllm-bare":     `num_requests_waiting{engine_type="trtllm",model_name="m"} 2.0`,
		"triton":          `nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2`,
		"nim":             `num_requests_waiting{model_name="m"} 2.0`,
		"llamacpp":        `llamacpp:requests_deferred 2`,
		"lmdeploy":        `lmdeploy:num_requests_waiting{engine="0",model_name="m"} 2.0`,
		"dynamo-frontend": `dynamo_frontend_inflight_requests{model="m"} 6`,
	}
	for _, k := range engine.Kinds() {
		t.Run(k.String(), func(t *testing.T) {
			h := start(t, func(o *options) { o.kind, o.modelName, o.replicas = k.String(), "m", 1 })
			h.putLoad("", "constant:rate=2,output=4000")
			h.pass(3*time.Second + 10*time.Millisecond)
			r := h.replica(0)
			if r.Engine != k.String() {
				t.Errorf("the state tells of engine %q", r.Engine)
			}
			status, text := get(t, "http://"+r.Address+k.Path())
			if status != http.StatusOK || !strings.HasPrefix(text, notice) {
				t.Fatalf("%d %.100s", status, text)
			}
			if want := waiting[k.String()]; want == "" || !strings.Contains(text, "\n"+want+"\n") {
				t.Errorf("no line %q among\n%.4000s", want, text)
			}
			if k.Path() != "/metrics" {
				if status, _ := get(t, "http://"+r.Address+"/metrics"); status != http.StatusNotFound {
					t.Errorf("/metrics answers %d: this engine has it at %s alone", status, k.Path())
				}
			}
		})
	}
}

func TestPicker(t *testing.T) {
	h := start(t, func(o *options) { o.replicas, o.modelName = 2, "m" })
	picker, err := listen("127.0.0.1:0", h.pickerHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer picker.Close()
	h.putLoad("", "constant:rate=20,output=10")
	h.pass(2 * time.Second)
	total := func() float64 { return sum(h.scrape(picker.address), "llm_d_epp_request_total") }
	before := total()
	if before == 0 {
		t.Fatal("the picker saw no request")
	}
	h.post("/replicas/default/vllm-0/restart")
	if got := total(); got < before {
		t.Errorf("the picker's count fell from %g to %g with a server's restart", before, got)
	}
	h.post("/replicas/default/vllm-1/down")
	f := h.scrape(picker.address)
	if got := sum(f, "llm_d_epp_stale_endpoints"); got != 1 {
		t.Errorf("%g stale endpoints, want the one that is down", got)
	}
	if got := sum(f, "inference_pool_ready_pods"); got != 2 {
		t.Errorf("%g ready pods, want 2: a pod is ready until Kubernetes says otherwise", got)
	}
}

func TestWhatRequestsHaveByFlags(t *testing.T) {
	h := start(t, func(o *options) {
		o.kind, o.replicas, o.tensor = "sglang", 1, 2
		o.cached, o.priority, o.engine.MaxWaiting = 0.5, 2, 3
	})
	h.putLoad("", "constant:rate=20,prompt=100,output=100")
	h.pass(3 * time.Second)
	r := h.replica(0)
	f := h.scrape(r.Address)
	if hits, all := sum(f, "sglang:cached_tokens_total"), sum(f, "sglang:prompt_tokens_total"); all == 0 || hits != all/2 {
		t.Errorf("%g of %g prompt tokens were cached, want half", hits, all)
	}
	if got := len(f["sglang:num_queue_reqs"].GetMetric()); got != 3 {
		t.Errorf("%d series of the queue, want the sum and two priorities", got)
	}
	if got := len(f["sglang:queue_time_seconds"].GetMetric()); got != 2 {
		t.Errorf("%d series of the queue time, want one for each rank", got)
	}
	if r.Rejected == 0 || r.Waiting > 3 {
		t.Errorf("%d rejected, %d waiting: want no more than 3 to wait", r.Rejected, r.Waiting)
	}
}
