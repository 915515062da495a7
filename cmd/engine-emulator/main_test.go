package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2/ktesting"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHelpSaysWhatItIs(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"standalone", "--help"}, {"cluster", "--help"}} {
		var out bytes.Buffer
		cmd := newCommand()
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.ToLower(out.String()), "emulate") {
			t.Errorf("%v does not say that it emulates:\n%s", args, out.String())
		}
	}
}

func TestOptions(t *testing.T) {
	o := defaults(t)
	o.replicas, o.baseAddress, o.basePort, o.name = 3, "127.0.0.1", 18001, "vllm"
	o.kubeconfig, o.selector, o.port = "kubeconfig", "app=vllm", 8000
	if err := errors.Join(o.validate(), o.validateStandalone(), o.validateCluster()); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for want, breakIt := range map[string]func(*options){
		"max-num-seqs": func(o *options) { o.engine.MaxNumSeqs = 0 },
		"--engine: there is no engine \"ollama\": there are vllm": func(o *options) { o.kind = "ollama" },
		"--tensor-parallel-size":                                  func(o *options) { o.tensor = 0 },
		"--api-server-count":                                      func(o *options) { o.processes = 0 },
		"--prefix-cache-hits":                                     func(o *options) { o.cached = 1 },
		"--priorities":                                            func(o *options) { o.priority = -1 },
		"max-waiting":                                             func(o *options) { o.engine.MaxWaiting = -1 },
		"--picker-address":                                        func(o *options) { o.pickerAddress = "0.0.0.0:9090" },
		"--gateway-address":                                       func(o *options) { o.gatewayAddress = "0.0.0.0:8080" },
		"--picker-pool":                                           func(o *options) { o.pickerPool = "" },
		"--release":                                               func(o *options) { o.release = "0.1" },
		"--data-parallel-size":                                    func(o *options) { o.ranks = 0 },
		"--model-name":                                            func(o *options) { o.modelName = "" },
		"--speed":                                                 func(o *options) { o.speed = 0 },
		"at most 1000":                                            func(o *options) { o.speed = math.Inf(1) },
		"is NaN":                                                  func(o *options) { o.speed = math.NaN() },
		"one is NaN":                                              func(o *options) { o.engine.StepTime.Base = math.NaN() },
		"one is +Inf":                                             func(o *options) { o.engine.StepTime.Jitter = math.Inf(1) },
		"--tick":                                                  func(o *options) { o.tick = 0 },
		"--dcgm-interval":                                         func(o *options) { o.dcgmInterval = 0 },
		"--load":                                                  func(o *options) { o.load = "storm" },
		"--routing":                                               func(o *options) { o.routing = "nearest" },
		"--control-address":                                       func(o *options) { o.controlAddress = "0.0.0.0:18000" },
		"--dcgm-address":                                          func(o *options) { o.dcgmAddress = "10.0.0.1:9400" },
		"--replicas":                                              func(o *options) { o.replicas = 0 },
		"--base-address":                                          func(o *options) { o.baseAddress = "0.0.0.0" },
		"--base-port":                                             func(o *options) { o.basePort = 65535 },
		"--name":                                                  func(o *options) { o.name = "" },
		"--kubeconfig":                                            func(o *options) { o.kubeconfig = "" },
		"--selector":                                              func(o *options) { o.selector = "==" },
		"--port":                                                  func(o *options) { o.port = -1 },
	} {
		broken := o
		breakIt(&broken)
		err := errors.Join(broken.validate(), broken.validateStandalone(), broken.validateCluster())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v", want, err)
		}
	}
}

func TestListensOnLoopbackOnly(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "10.1.2.3:80", "[::]:0", "example.com:80", "127.0.0.1"} {
		if s, err := listen(address, http.NotFoundHandler()); err == nil {
			s.Close()
			t.Errorf("listens on %s", address)
		}
	}
}

// TestRun goes through the process as it is started, on the real clock.
func TestRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	control := l.Addr().String()
	l.Close()

	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := newCommand()
	cmd.SetArgs([]string{"standalone", "--replicas=2", "--base-port=0", "--control-address=" + control,
		"--dcgm-address=127.0.0.1:0", "--load=constant:rate=50,output=2", "--routing=least-requests"})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()

	eventually(t, "requests finish on both replicas", func() bool {
		resp, err := http.Get("http://" + control + "/state")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var s state
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			return false
		}
		return s.Emulated && len(s.Replicas) == 2 && s.Replicas[0].Finished > 2 && s.Replicas[1].Finished > 2
	})
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it did not end when told to")
	}
	if _, err := net.Dial("tcp", control); err == nil {
		t.Error("the control API still listens")
	}
}
