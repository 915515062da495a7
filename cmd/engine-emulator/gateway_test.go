package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// startGateway makes a fleet of one replica with a gateway in front of it.
func startGateway(t *testing.T, flowControl bool) (h *harness, gateway string) {
	t.Helper()
	picker, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	picker.Close() // its address is free, for the picker to take
	h = start(t, func(o *options) {
		o.replicas, o.modelName, o.flowControl, o.pickerAddress = 1, "m", flowControl, picker.Addr().String()
	})
	if err := h.startPicker(); err != nil {
		t.Fatal(err)
	}
	s, err := listen("127.0.0.1:0", h.gatewayHandler())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return h, "http://" + s.address + "/v1/completions"
}

// held is how many requests the picker says that it holds back.
func (h *harness) held() int {
	return int(sum(h.scrape(h.opts.pickerAddress), "llm_d_epp_flow_control_queue_size"))
}

func TestFlowControlHoldsForAnEmptyPool(t *testing.T) {
	h, _ := startGateway(t, true)
	h.post("/replicas/default/vllm-0/down")
	h.putLoad("", "constant:rate=2,output=10")
	h.pass(2*time.Second + 10*time.Millisecond)
	s := h.getState()
	if s.Held < 4 || s.Totals.Offered != s.Held || h.held() != s.Held {
		t.Fatalf("the picker says that it holds %d; the state: %+v", h.held(), s)
	}
	h.putLoad("", "none")
	h.post("/replicas/default/vllm-0/up")
	h.pass(2 * time.Second)
	if s := h.getState(); s.Held != 0 || h.held() != 0 || s.Totals.Finished != s.Totals.Offered {
		t.Errorf("with a replica the picker says that it holds %d; the state: %+v", h.held(), s)
	}
}

func TestFlowControlHoldsForASaturatedPool(t *testing.T) {
	h, _ := startGateway(t, true)
	h.putLoad("", "constant:rate=20,output=4000")
	h.pass(2 * time.Second)
	// Four run, and the fifth that waits makes the pool full.
	if r := h.replica(0); r.Running != 4 || r.Waiting != 5 || h.held() != r.Offered+h.getState().Held-9 || h.held() == 0 {
		t.Errorf("%d held in front of %+v", h.held(), r)
	}
}

func TestGatewayHoldsACompletion(t *testing.T) {
	h, url := startGateway(t, true)
	h.post("/replicas/default/vllm-0/down")
	ctx, giveUp := context.WithCancel(t.Context())
	impatient, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"prompt": "a", "max_tokens": 9}`))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := http.DefaultClient.Do(impatient); err == nil {
			resp.Body.Close()
			t.Errorf("answered %s while nothing can", resp.Status)
		}
	}()
	eventually(t, "the first is held", func() bool { return h.held() == 1 })
	code := make(chan int)
	go func() {
		c, _ := h.do(http.MethodPost, url, "", `{"prompt": "a", "max_tokens": 9}`)
		code <- c
	}()
	eventually(t, "both are held", func() bool { return h.held() == 2 })
	giveUp()
	<-gone
	eventually(t, "who gave up is held no more", func() bool { return h.held() == 1 })
	h.post("/replicas/default/vllm-0/up")
	h.pass(time.Second)
	if c := <-code; c != http.StatusOK {
		t.Errorf("the request that was held was answered %d", c)
	}
	if s := h.getState(); s.Totals != (totals{Offered: 2, Finished: 1, Dropped: 1}) {
		t.Errorf("%+v", s.Totals)
	}
}

func TestGatewayWithoutFlowControl(t *testing.T) {
	h, url := startGateway(t, false)
	h.post("/replicas/default/vllm-0/down")
	if code, text := h.do(http.MethodPost, url, "", `{"prompt": "a"}`); code != http.StatusServiceUnavailable {
		t.Errorf("%d %s: want 503, as there is nobody to answer it", code, text)
	}
	if h.held() != 0 {
		t.Errorf("%d held", h.held())
	}
}

func TestGatewayLosesARequestWithItsReplica(t *testing.T) {
	h, url := startGateway(t, true)
	code := make(chan int)
	go func() {
		c, _ := h.do(http.MethodPost, url, "", `{"prompt": "a", "max_tokens": 4000}`)
		code <- c
	}()
	eventually(t, "the request is in flight", func() bool { return h.replica(0).Offered == 1 })
	h.post("/replicas/default/vllm-0/restart")
	if c := <-code; c != http.StatusServiceUnavailable {
		t.Errorf("the request was answered %d, want 503", c)
	}
}

func TestPickerDownAndUp(t *testing.T) {
	h, _ := startGateway(t, true)
	h.post("/replicas/default/vllm-0/down")
	h.putLoad("", "constant:rate=2,output=10")
	h.pass(2 * time.Second)
	before := h.held()
	picker := func(action string) int {
		code, _ := h.do(http.MethodPost, "http://"+h.control.address+"/picker/"+action, "", "")
		return code
	}
	if code := picker("down"); code != http.StatusNoContent {
		t.Fatalf("down answers %d", code)
	}
	if resp, err := http.Get("http://" + h.opts.pickerAddress + "/metrics"); err == nil {
		resp.Body.Close()
		t.Fatal("its metrics are still there")
	}
	if code := picker("up"); code != http.StatusNoContent {
		t.Fatalf("up answers %d", code)
	}
	if got := h.held(); got != before || got == 0 {
		t.Errorf("it holds %d, and %d before", got, before)
	}
	if code := picker("sideways"); code != http.StatusNotFound {
		t.Errorf("an unknown action answers %d", code)
	}
}
