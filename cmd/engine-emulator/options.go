package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

// options are the flags of both modes.
type options struct {
	engine    engine.Config
	kind      string
	ranks     int
	tensor    int
	modelName string
	release   string
	processes int
	cached    float64
	priority  int
	seed      uint64
	speed     float64
	tick      time.Duration

	load    string
	routing string

	controlAddress string
	pickerAddress  string
	pickerPool     string
	flowControl    bool
	gatewayAddress string
	dcgmAddress    string
	dcgmInterval   time.Duration

	// Standalone.
	replicas    int
	baseAddress string
	basePort    int
	name        string

	// Cluster.
	kubeconfig       string
	selector         string
	namespace        string
	port             int
	serveBeforeReady bool
}

func (o *options) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	d := engine.DefaultConfig()
	fs.IntVar(&o.engine.MaxNumSeqs, "max-num-seqs", d.MaxNumSeqs, "requests that run at once, per engine")
	fs.IntVar(&o.engine.MaxNumBatchedTokens, "max-num-batched-tokens", d.MaxNumBatchedTokens, "token budget of a step")
	fs.IntVar(&o.engine.MaxModelLen, "max-model-len", d.MaxModelLen, "most tokens of a request")
	fs.IntVar(&o.engine.NumGPUBlocks, "num-gpu-blocks", d.NumGPUBlocks, "KV-cache blocks, per engine")
	fs.IntVar(&o.engine.BlockSize, "block-size", d.BlockSize, "tokens in a KV-cache block")
	fs.IntVar(&o.engine.MaxWaiting, "max-waiting", 0, "requests that wait at most, per engine; whoever comes then is rejected. 0: no limit")
	s := &o.engine.StepTime
	fs.Float64Var(&s.Base, "step-base-seconds", d.StepTime.Base, "what a step takes at least")
	fs.Float64Var(&s.PrefillToken, "step-prefill-token-seconds", d.StepTime.PrefillToken, "what a step takes more per prompt token")
	fs.Float64Var(&s.PrefillPair, "step-prefill-pair-seconds", d.StepTime.PrefillPair, "what a step takes more per prompt token and token before it")
	fs.Float64Var(&s.Sequence, "step-sequence-seconds", d.StepTime.Sequence, "what a step takes more per decoding request")
	fs.Float64Var(&s.ContextToken, "step-context-token-seconds", d.StepTime.ContextToken, "what a step takes more per token of the decoding requests' contexts")
	fs.Float64Var(&s.Jitter, "step-jitter", d.StepTime.Jitter, "spread of step times, as a fraction")
	fs.StringVar(&o.kind, "engine", engine.VLLM.String(), "engine whose exposition is served: "+kindNames()+". The model behind it is the same")
	fs.IntVar(&o.ranks, "data-parallel-size", 1, "engines per server")
	fs.IntVar(&o.tensor, "tensor-parallel-size", 1, "ranks of an engine; SGLang tells of each")
	fs.StringVar(&o.modelName, "model-name", "Qwen/Qwen3-8B", "the label model_name")
	fs.StringVar(&o.release, "release", engine.V0_20.String(), "vLLM release whose spelling is served: "+releaseNames())
	fs.IntVar(&o.processes, "api-server-count", 1, "processes of vLLM's API server; with more than one, gauges have no series before the first step")
	fs.Float64Var(&o.cached, "prefix-cache-hits", 0, "part of each prompt that the prefix cache holds, from 0 up to but not 1")
	fs.IntVar(&o.priority, "priorities", 0, "priorities that requests have in turn, the highest of which goes first. 0: no priority scheduling")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of loads, routing and step times")
	fs.Float64Var(&o.speed, "speed", 1, "how fast the engines' time runs; their latencies and loads are in their own time")
	fs.DurationVar(&o.tick, "tick", 10*time.Millisecond, "how often the engines are advanced")
	fs.StringVar(&o.load, "load", "none", "load on all replicas together, see engine-emulator --help")
	fs.StringVar(&o.routing, "routing", roundRobin, "which replica gets a request: "+strings.Join(routings, ", "))
	fs.StringVar(&o.controlAddress, "control-address", "127.0.0.1:18000", "loopback address of the control API")
	fs.StringVar(&o.pickerAddress, "picker-address", "", "loopback address of the endpoint picker in front of all replicas (empty: none)")
	fs.StringVar(&o.pickerPool, "picker-pool", "pool", "name of the endpoint picker's InferencePool")
	fs.BoolVar(&o.flowControl, "picker-flow-control", false, "have the picker hold requests back while the pool has no replica or is saturated")
	fs.StringVar(&o.gatewayAddress, "gateway-address", "", "loopback address of a gateway that gives each completion to the replica with the fewest requests (empty: none)")
	fs.StringVar(&o.dcgmAddress, "dcgm-address", "127.0.0.1:9400", "loopback address of the DCGM exporter for all GPUs (empty: none)")
	fs.DurationVar(&o.dcgmInterval, "dcgm-interval", 30*time.Second, "how often the DCGM exporter polls (its own default is 30s)")
}

func kindNames() string {
	var names []string
	for _, k := range engine.Kinds() {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}

func releaseNames() string {
	var names []string
	for _, r := range engine.Releases() {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// maxSpeed keeps the engines' time within what a time.Duration holds, for a month.
const maxSpeed = 1000

// validate returns every fault of the flags that both modes have.
func (o *options) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	errs = append(errs, o.engine.Validate())
	if _, err := engine.ParseKind(o.kind); err != nil {
		errs = append(errs, fmt.Errorf("--engine: %w", err))
	}
	_, ok := engine.ParseRelease(o.release)
	check(ok, "--release must be one of %s, is %q", releaseNames(), o.release)
	check(o.ranks >= 1, "--data-parallel-size must be at least 1, is %d", o.ranks)
	check(o.tensor >= 1, "--tensor-parallel-size must be at least 1, is %d", o.tensor)
	check(o.processes >= 1, "--api-server-count must be at least 1, is %d", o.processes)
	check(o.cached >= 0 && o.cached < 1, "--prefix-cache-hits must be at least 0 and below 1, is %g", o.cached)
	check(o.priority >= 0, "--priorities must not be negative, is %d", o.priority)
	check(o.modelName != "", "--model-name must not be empty")
	check(o.speed > 0 && o.speed <= maxSpeed, "--speed must be above 0 and at most %d, is %g", maxSpeed, o.speed)
	check(o.tick >= time.Millisecond, "--tick must be at least 1ms, is %v", o.tick)
	check(o.dcgmInterval >= 100*time.Millisecond, "--dcgm-interval must be at least 100ms, is %v", o.dcgmInterval)
	if _, err := load.Parse(o.load); err != nil {
		errs = append(errs, fmt.Errorf("--load: %w", err))
	}
	check(validRouting(o.routing), "--routing must be one of %s, is %q", strings.Join(routings, ", "), o.routing)
	check(loopbackAddress(o.controlAddress), "--control-address must be a loopback address with a port, is %q", o.controlAddress)
	check(o.pickerAddress == "" || loopbackAddress(o.pickerAddress), "--picker-address must be a loopback address with a port, is %q", o.pickerAddress)
	check(o.pickerPool != "", "--picker-pool must not be empty")
	check(o.gatewayAddress == "" || loopbackAddress(o.gatewayAddress), "--gateway-address must be a loopback address with a port, is %q", o.gatewayAddress)
	check(o.dcgmAddress == "" || loopbackAddress(o.dcgmAddress), "--dcgm-address must be a loopback address with a port, is %q", o.dcgmAddress)
	return errors.Join(errs...)
}

func (o *options) validateStandalone() error {
	var errs []error
	if o.replicas < 1 {
		errs = append(errs, fmt.Errorf("--replicas must be at least 1, is %d", o.replicas))
	}
	if !loopbackHost(o.baseAddress) {
		errs = append(errs, fmt.Errorf("--base-address must be a loopback address, is %q", o.baseAddress))
	}
	if o.basePort < 0 || o.basePort+o.replicas-1 > 65535 {
		errs = append(errs, fmt.Errorf("--base-port %d with %d replicas leaves the range of ports", o.basePort, o.replicas))
	}
	if o.name == "" {
		errs = append(errs, errors.New("--name must not be empty"))
	}
	return errors.Join(errs...)
}

func (o *options) validateCluster() error {
	var errs []error
	if o.kubeconfig == "" {
		errs = append(errs, errors.New("--kubeconfig is needed (or KUBECONFIG)"))
	}
	if _, err := labels.Parse(o.selector); err != nil {
		errs = append(errs, fmt.Errorf("--selector: %w", err))
	}
	if o.port < 0 || o.port > 65535 {
		errs = append(errs, fmt.Errorf("--port must be 0..65535, is %d", o.port))
	}
	return errors.Join(errs...)
}
