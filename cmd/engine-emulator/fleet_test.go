package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// defaults are the options as the command line without flags has them.
func defaults(t testing.TB) options {
	t.Helper()
	var o options
	o.addFlags(newCommand())
	return o
}

// harness is a fleet on a clock that only moves when it is told to.
type harness struct {
	*fleet
	t       testing.TB
	clock   *clocktesting.FakePassiveClock
	control *server
	dcgm    *server
}

// start makes a standalone fleet with small engines on free ports.
func start(t testing.TB, change func(*options)) *harness {
	t.Helper()
	o := defaults(t)
	o.engine.MaxNumSeqs = 4
	o.engine.StepTime = engine.StepTime{Base: 10e-3}
	o.replicas, o.baseAddress, o.basePort, o.name = 3, "127.0.0.1", 0, "vllm"
	if change != nil {
		change(&o)
	}
	h := startEmpty(t, o)
	if err := h.standalone(o); err != nil {
		t.Fatal(err)
	}
	return h
}

func startEmpty(t testing.TB, o options) *harness {
	t.Helper()
	logger, _ := ktesting.NewTestContext(t)
	h := &harness{t: t, clock: clocktesting.NewFakePassiveClock(t0)}
	h.fleet = newFleet(o, h.clock.Now, logger)
	t.Cleanup(h.close)
	for _, s := range []struct {
		into    **server
		handler http.Handler
	}{{&h.control, h.controlHandler()}, {&h.dcgm, h.dcgmHandler()}} {
		srv, err := listen("127.0.0.1:0", s.handler)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { srv.Close() })
		*s.into = srv
	}
	return h
}

// pass lets time go by in ticks.
func (h *harness) pass(d time.Duration) {
	for end := h.clock.Now().Add(d); h.clock.Now().Before(end); {
		h.clock.SetTime(h.clock.Now().Add(20 * time.Millisecond))
		h.tick()
	}
}

func (h *harness) do(method, url, contentType, body string) (int, []byte) {
	h.t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.StatusCode, text
}

func (h *harness) putLoad(query, spec string) {
	h.t.Helper()
	if code, text := h.do("PUT", "http://"+h.control.address+"/load"+query, "", spec); code != http.StatusOK {
		h.t.Fatalf("PUT /load%s %s: %d %s", query, spec, code, text)
	}
}

func (h *harness) post(path string) replicaState {
	h.t.Helper()
	code, text := h.do("POST", "http://"+h.control.address+path, "", "")
	if code != http.StatusOK {
		h.t.Fatalf("POST %s: %d %s", path, code, text)
	}
	var s replicaState
	if err := json.Unmarshal(text, &s); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *harness) getState() state {
	h.t.Helper()
	code, text := h.do("GET", "http://"+h.control.address+"/state", "", "")
	var s state
	if err := json.Unmarshal(text, &s); err != nil || code != http.StatusOK {
		h.t.Fatalf("GET /state: %d, %v", code, err)
	}
	return s
}

func (h *harness) replica(i int) replicaState {
	h.t.Helper()
	return h.getState().Replicas[i]
}

func (h *harness) scrape(address string) map[string]*dto.MetricFamily {
	h.t.Helper()
	code, text := h.do("GET", "http://"+address+"/metrics", "", "")
	if code != http.StatusOK {
		h.t.Fatalf("GET /metrics: %d", code)
	}
	if !bytes.HasPrefix(text, []byte("# EMULATED")) {
		h.t.Error("the exposition does not say that it is emulated")
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	f, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		h.t.Fatal(err)
	}
	return f
}

// sum adds up a family's gauges, counters and histogram counts.
func sum(f map[string]*dto.MetricFamily, name string) float64 {
	v := 0.0
	for _, m := range f[name].GetMetric() {
		v += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return v
}

func TestServesMetrics(t *testing.T) {
	h := start(t, nil)
	h.putLoad("", "constant:rate=6,output=10")
	h.pass(10 * time.Second)
	for _, r := range h.getState().Replicas {
		if r.Offered != 20 {
			t.Errorf("%s got %d requests, want 20 of the 60", r.Name, r.Offered)
		}
		f := h.scrape(r.Address)
		if got := sum(f, "vllm:time_to_first_token_seconds"); got < 19 {
			t.Errorf("%s shows %g first tokens, want about 20", r.Name, got)
		}
		if got := sum(f, "vllm:request_success_total"); got != float64(r.Finished) {
			t.Errorf("%s shows %g finished, the state %d", r.Name, got, r.Finished)
		}
		if code, _ := h.do("GET", "http://"+r.Address+"/health", "", ""); code != http.StatusOK {
			t.Errorf("health is %d", code)
		}
	}
}

func TestPrometheusParsesTheNotice(t *testing.T) {
	h := start(t, nil)
	for _, address := range []string{h.replica(0).Address, h.dcgm.address} {
		_, text := h.do("GET", "http://"+address+"/metrics", "", "")
		p, err := textparse.New(text, "text/plain; version=0.0.4; charset=utf-8", labels.NewSymbolTable(), textparse.ParserOptions{})
		for err == nil {
			_, err = p.Next()
		}
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

func TestDataParallel(t *testing.T) {
	h := start(t, func(o *options) { o.ranks, o.replicas = 2, 1 })
	h.putLoad("", "constant:rate=10,output=2000")
	h.pass(2 * time.Second)
	running := h.scrape(h.replica(0).Address)["vllm:num_requests_running"]
	if len(running.GetMetric()) != 2 {
		t.Fatalf("%d ranks, want 2", len(running.GetMetric()))
	}
	for _, m := range running.GetMetric() {
		if m.GetGauge().GetValue() != 4 {
			t.Errorf("%v: want the four seats taken on both ranks", m)
		}
	}
}

// TestConservation: whatever happens, every request offered is in flight, finished or dropped.
func TestConservation(t *testing.T) {
	h := start(t, func(o *options) { o.ranks = 2 })
	rng := rand.New(rand.NewPCG(1, 1))
	h.putLoad("", "poisson:rate=30,output=lognormal(100,1,2000)")
	h.putLoad("?selector=app%3Dvllm&routing=random", "poisson:rate=3,prompt=lognormal(20000,1)") // some too long
	h.putLoad("?selector=app%3Dother", "constant:rate=1")                                        // nobody there
	actions := []string{"restart", "restart?downtime=1s", "freeze", "unfreeze", "unfreeze", "down", "up", "up"}
	for range 60 {
		h.pass(200 * time.Millisecond)
		h.post(fmt.Sprintf("/replicas/default/vllm-%d/%s", rng.IntN(3), actions[rng.IntN(len(actions))]))
		s := h.getState()
		inFlight := 0
		for _, r := range s.Replicas {
			inFlight += r.Waiting + r.Running
			if r.Offered != r.Finished+r.Dropped+r.Waiting+r.Running {
				t.Fatalf("%+v: requests are not conserved", r)
			}
		}
		if s.Totals.Offered != s.Totals.Finished+s.Totals.Dropped+inFlight {
			t.Fatalf("%+v with %d in flight: requests are not conserved", s.Totals, inFlight)
		}
	}
	s := h.getState()
	if s.Totals.Finished == 0 || s.Loads[1].Dropped == 0 || s.Loads[2].Dropped != s.Loads[2].Offered || s.Loads[2].Offered == 0 {
		t.Errorf("the test tested too little: %+v", s.Loads)
	}
}

func TestRouting(t *testing.T) {
	for routing, check := range map[string]func(n []int) bool{
		roundRobin:    func(n []int) bool { return n[0] == n[1] && n[1] == n[2] },
		random:        func(n []int) bool { return min(n[0], n[1], n[2]) > 60 && n[0] != n[1] },
		leastRequests: func(n []int) bool { return n[0] <= 10 && n[1] > 100 && n[2] > 100 },
	} {
		t.Run(routing, func(t *testing.T) {
			h := start(t, func(o *options) { o.routing = routing })
			h.post("/replicas/default/vllm-0/freeze")
			h.putLoad("", "constant:rate=30,output=20")
			h.pass(10*time.Second + 20*time.Millisecond)
			var n []int
			for _, r := range h.getState().Replicas {
				n = append(n, r.Offered)
			}
			if n[0]+n[1]+n[2] != 300 || !check(n) {
				t.Errorf("with replica 0 frozen, the replicas got %v", n)
			}
		})
	}
}

func TestLoadChangesAtRunTime(t *testing.T) {
	h := start(t, nil)
	h.putLoad("", "constant:rate=10,output=1")
	h.pass(time.Second)
	h.clock.SetTime(h.clock.Now().Add(time.Second)) // no tick: the change itself must bring the load up to now
	h.putLoad("", "none")
	offered := h.getState().Totals.Offered
	if offered < 19 || offered > 21 {
		t.Errorf("%d offered in two seconds, want 20", offered)
	}
	h.pass(5 * time.Second)
	if got := h.getState().Totals.Offered; got != offered {
		t.Errorf("%d more were offered under no load", got-offered)
	}
	code, text := h.do("PUT", "http://"+h.control.address+"/load", "application/json; charset=utf-8",
		`{"spec": "constant:rate=5,output=1", "selector": "app=vllm", "namespace": "default", "routing": "least-requests"}`)
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	h.pass(2 * time.Second)
	s := h.getState()
	if len(s.Loads) != 2 || s.Loads[1].Routing != leastRequests || s.Loads[1].Selector != "app=vllm" || s.Loads[1].Finished < 8 {
		t.Errorf("loads: %+v", s.Loads)
	}
}

func TestTraceThatBreaks(t *testing.T) {
	h := start(t, nil)
	path := t.TempDir() + "/trace.csv"
	writeFile(t, path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,1\n2023-11-16 18:15:47,10,1\nbad,10,1\n")
	h.putLoad("", "trace:file="+path)
	h.pass(3 * time.Second)
	l := h.getState().Loads[0]
	if !l.Ended || !strings.Contains(l.Problem, "line 4") || l.Finished != 2 {
		t.Errorf("%+v: want two requests and the fault's line", l)
	}
}

func TestControlRefuses(t *testing.T) {
	h := start(t, nil)
	for _, tt := range []struct {
		method, path, contentType, body string
		code                            int
		want                            string
	}{
		{"PUT", "/load", "", "constant:rate=-1", 400, "rate must be above 0"},
		{"PUT", "/load?routing=nearest", "", "none", 400, "routing must be one of"},
		{"PUT", "/load?selector=%3D%3D", "", "none", 400, "selector"},
		{"PUT", "/load", "application/json", "{", 400, "JSON"},
		{"PUT", "/load", "", "trace:file=/does/not/exist", 400, "open the trace"},
		{"PUT", "/load", "", strings.Repeat("x", 2<<20), 413, "too large"},
		{"POST", "/replicas/default/vllm-9/down", "", "", 404, "no replica default/vllm-9"},
		{"POST", "/replicas/default/vllm-0/explode", "", "", 404, "want restart"},
		{"POST", "/replicas/default/vllm-0/restart?downtime=-1s", "", "", 400, "not a duration"},
		{"POST", "/replicas/default/vllm-0/spelling?to=ancient", "", "", 400, "want new, old"},
		{"POST", "/replicas/default/vllm-0/spelling?to=old&underscores=maybe", "", "", 400, "want true or false"},
		{"DELETE", "/load", "", "", 405, ""},
	} {
		code, text := h.do(tt.method, "http://"+h.control.address+tt.path, tt.contentType, tt.body)
		if code != tt.code || !strings.Contains(string(text), tt.want) {
			t.Errorf("%s %s: %d %s, want %d and %q", tt.method, tt.path, code, text, tt.code, tt.want)
		}
	}
	if n := len(h.getState().Loads); n != 0 {
		t.Errorf("%d loads were started", n)
	}
}

func TestFreeze(t *testing.T) {
	h := start(t, nil)
	h.putLoad("", "constant:rate=30,output=50")
	h.pass(3 * time.Second)
	address := h.replica(0).Address
	if s := h.post("/replicas/default/vllm-0/freeze"); !s.Frozen {
		t.Error("it does not say that it is frozen")
	}
	before := h.scrape(address)
	h.pass(3 * time.Second)
	after := h.scrape(address)
	for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total", "vllm:iteration_tokens_total"} {
		if b, a := sum(before, name), sum(after, name); a != b || b == 0 {
			t.Errorf("%s went from %g to %g while frozen", name, b, a)
		}
	}
	h.post("/replicas/default/vllm-0/unfreeze")
	h.pass(time.Second)
	if a, b := sum(after, "vllm:generation_tokens_total"), sum(h.scrape(address), "vllm:generation_tokens_total"); b <= a {
		t.Error("it did not go on")
	}
}

func TestDownAndUp(t *testing.T) {
	h := start(t, nil)
	h.putLoad("", "constant:rate=30,output=1")
	h.pass(time.Second)
	address := h.replica(0).Address
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if s := h.post("/replicas/default/vllm-0/down"); s.Address != "" {
		t.Errorf("it says that it listens on %s", s.Address)
	}
	conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection that was open: %v, want it closed", err)
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("it accepts connections")
	}
	offered := h.replica(0).Offered
	h.pass(time.Second)
	if got := h.replica(0).Offered; got != offered {
		t.Errorf("%d requests were routed to a server that is down", got-offered)
	}
	s := h.post("/replicas/default/vllm-0/up")
	if got := sum(h.scrape(s.Address), "vllm:request_success_total"); got != float64(offered) {
		t.Errorf("%g requests in its counters after coming back, want %d as before", got, offered)
	}
}

func TestRestart(t *testing.T) {
	h := start(t, nil)
	h.putLoad("", "constant:rate=30,output=1000")
	h.pass(3 * time.Second)
	h.putLoad("", "none")
	before := h.replica(0)
	if before.Waiting == 0 || before.Running == 0 {
		t.Fatalf("%+v: the test needs requests in flight", before)
	}
	s := h.post("/replicas/default/vllm-0/restart")
	if s.Dropped != before.Waiting+before.Running || s.Waiting+s.Running != 0 {
		t.Errorf("%+v: want what was in flight dropped", s)
	}
	f := h.scrape(s.Address)
	if got := sum(f, "vllm:generation_tokens_total"); got != 0 {
		t.Errorf("the counter is at %g after a restart", got)
	}
	if got := sum(f, "vllm:generation_tokens_created"); got != float64(h.clock.Now().UnixMilli())/1e3 {
		t.Errorf("created at %v, want now", got)
	}
	if s := h.post("/replicas/default/vllm-0/restart?downtime=2s"); s.Address != "" {
		t.Error("it listens during the downtime")
	}
	h.pass(1900 * time.Millisecond)
	if s := h.replica(0); s.Address != "" {
		t.Error("it listens before the downtime is over")
	}
	h.pass(200 * time.Millisecond)
	h.scrape(h.replica(0).Address)
}

func TestSpelling(t *testing.T) {
	h := start(t, nil)
	address := h.replica(0).Address
	for _, tt := range []struct{ query, has, lacks string }{
		{"to=old", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"},
		{"to=0.10", "vllm:gpu_cache_usage_perc", "vllm:inter_token_latency_seconds"},
		{"to=new", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
		{"to=new&underscores=true", "vllm_kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
	} {
		h.post("/replicas/default/vllm-0/spelling?" + tt.query)
		f := h.scrape(address)
		if f[tt.has] == nil || f[tt.lacks] != nil {
			t.Errorf("%s: want %s and no %s", tt.query, tt.has, tt.lacks)
		}
	}
}

func TestDCGM(t *testing.T) {
	h := start(t, func(o *options) { o.dcgmInterval = 5 * time.Second })
	h.pass(4 * time.Second)
	if n := len(h.scrape(h.dcgm.address)["DCGM_FI_DEV_GPU_UTIL"].GetMetric()); n != 0 {
		t.Errorf("%d GPUs before the first poll: whatever is said of them is made up", n)
	}
	util := func() map[string]float64 {
		got := map[string]float64{}
		for _, m := range h.scrape(h.dcgm.address)["DCGM_FI_DEV_GPU_UTIL"].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "pod" {
					got[l.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		return got
	}
	// vllm-0 always has a request, vllm-1 has 5 steps of 10 ms ten times a second, vllm-2 nothing.
	h.post("/replicas/default/vllm-2/down")
	h.post("/replicas/default/vllm-1/down")
	h.putLoad("", "constant:rate=100,output=1000")
	h.pass(100 * time.Millisecond)
	h.post("/replicas/default/vllm-0/down")
	h.post("/replicas/default/vllm-1/up")
	h.putLoad("", "constant:rate=10,output=5")
	h.pass(time.Second)
	h.pass(6 * time.Second)
	if got, want := util(), map[string]float64{"vllm-0": 100, "vllm-1": 50, "vllm-2": 0}; !maps.Equal(got, want) {
		t.Errorf("GPU_UTIL is %v, want %v", got, want)
	}
	if used := sum(h.scrape(h.dcgm.address), "DCGM_FI_DEV_FB_USED"); used != 3*reservedMiB {
		t.Errorf("FB_USED adds up to %g: an engine reserves its memory up front", used)
	}
}

func TestGPUsAreFreedAndTakenAgain(t *testing.T) {
	h := start(t, func(o *options) { o.ranks = 2 })
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := h.freeGPUs("other-node"); got[0].index != 0 {
		t.Errorf("the first free GPU of an empty node is %d", got[0].index)
	}
	if got := h.freeGPUs("localhost"); got[0].index != 6 {
		t.Errorf("the first free GPU is %d, want 6: three replicas hold two each", got[0].index)
	}
	h.removeLocked(h.fleet.replicas[1])
	if got := h.freeGPUs("localhost"); got[0].index != 2 || got[1].index != 3 {
		t.Errorf("free GPUs are %d and %d, want those of the replica that went", got[0].index, got[1].index)
	}
}

func TestSpeed(t *testing.T) {
	h := start(t, func(o *options) { o.speed = 10 })
	h.putLoad("", "constant:rate=3,output=1")
	h.pass(2 * time.Second)
	if got := h.getState().Totals.Offered; got != 60 {
		t.Errorf("%d requests, want 60: 20 seconds of the engines' time at 3 per second", got)
	}
}

func TestCompletions(t *testing.T) {
	h := start(t, nil)
	address := h.replica(0).Address
	type answer struct {
		code int
		text []byte
	}
	got := make(chan answer)
	go func() {
		code, text := h.do("POST", "http://"+address+"/v1/completions", "application/json", `{"prompt": "three short words", "max_tokens": 7}`)
		got <- answer{code, text}
	}()
	eventually(t, "the request is in flight", func() bool { return h.replica(0).Offered == 1 })
	h.pass(time.Second)
	a := <-got
	var body struct {
		Choices []struct {
			Text         string
			FinishReason string `json:"finish_reason"`
		}
		Usage map[string]int
	}
	if err := json.Unmarshal(a.text, &body); err != nil || a.code != http.StatusOK {
		t.Fatalf("%d %s: %v", a.code, a.text, err)
	}
	if !strings.Contains(body.Choices[0].Text, "emulated") || body.Choices[0].FinishReason != "length" ||
		body.Usage["prompt_tokens"] != 3 || body.Usage["completion_tokens"] != 7 {
		t.Errorf("%s", a.text)
	}

	for _, bad := range []string{"{", `{"prompt": "a", "stream": true}`, `{"prompt": "a", "max_tokens": 0}`} {
		if code, _ := h.do("POST", "http://"+address+"/v1/completions", "", bad); code != http.StatusBadRequest {
			t.Errorf("%s: %d, want 400", bad, code)
		}
	}

	// A client that goes away takes its request with it.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+address+"/v1/completions", strings.NewReader(`{"prompt": "a", "max_tokens": 9999}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
		close(got)
	}()
	eventually(t, "the request is in flight", func() bool { return h.replica(0).Offered == 2 })
	cancel()
	<-got
	eventually(t, "the request is dropped", func() bool {
		r := h.replica(0)
		return r.Dropped == 1 && r.Waiting+r.Running == 0
	})
}

func TestCompletionIsLostWithItsServer(t *testing.T) {
	h := start(t, nil)
	address := h.replica(0).Address
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"prompt": "a", "max_tokens": 9999}`))
		if err != nil {
			return // the connection was closed, as it should be
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("a request was answered by a server that had gone")
		}
	}()
	eventually(t, "the request is in flight", func() bool { return h.replica(0).Offered == 1 })
	h.post("/replicas/default/vllm-0/restart")
	<-done
	if s := h.getState(); s.Totals != (totals{Offered: 1, Dropped: 1}) {
		t.Errorf("%+v", s.Totals)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// BenchmarkTick is what the emulator costs, 100 times a second: 20 replicas that get 15 requests a
// second each.
func BenchmarkTick(b *testing.B) {
	h := start(b, func(o *options) {
		o.engine = engine.DefaultConfig()
		o.replicas = 20
	})
	spec, err := load.Parse("poisson:rate=300,prompt=lognormal(1000,0.8,16000),output=lognormal(130,0.9)")
	if err != nil {
		b.Fatal(err)
	}
	if err := h.setLoad(target{}, spec, roundRobin); err != nil {
		b.Fatal(err)
	}
	h.pass(20 * time.Second)
	for b.Loop() {
		h.clock.SetTime(h.clock.Now().Add(10 * time.Millisecond))
		h.tick()
	}
}
