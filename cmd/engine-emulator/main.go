// Command engine-emulator stands in for LLM engines where there is no GPU: it serves /metrics as
// vLLM servers and a DCGM exporter would, driven by a model of a continuous-batching engine and by
// a generated load. It is for demos and tests. No model runs in it, and it says so wherever it is
// asked.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "engine-emulator:", err)
		os.Exit(1)
	}
}

// options are the flags of both modes.
type options struct {
	engine    engine.Config
	ranks     int
	modelName string
	release   string
	seed      uint64
	speed     float64
	tick      time.Duration

	load    string
	routing string

	controlAddress string
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

func newCommand() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "engine-emulator",
		Short: "Serve /metrics as vLLM servers and a DCGM exporter would, without a model or a GPU",
		Long: `engine-emulator emulates LLM engines, for demos and tests. There is no model and no GPU:
a small model of continuous batching (queue, token budget, KV-cache blocks, preemption) is driven by a
generated load, and /metrics shows what a vLLM V1 server would show. It listens on loopback only.

A load is one line, such as
  none
  constant:rate=2
  poisson:rate=5,prompt=lognormal(1000,0.8,16000),output=lognormal(130,0.9)
  burst:low=1,high=30,period=60s,duty=0.5
  trace:file=requests.csv,speed=10

The control API (--control-address) changes things at run time:
  GET  /state                              replicas, loads and totals, in JSON
  PUT  /load?selector=app=vllm             a load's line; or JSON: {"spec": …, "namespace": …,
                                           "selector": …, "deployment": …, "routing": …}
  POST /replicas/NAMESPACE/NAME/ACTION     restart[?downtime=5s], freeze, unfreeze, down, up,
                                           spelling?to=new|old|0.10[&underscores=true]`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}

	standalone := &cobra.Command{
		Use:   "standalone",
		Short: "Emulate a number of servers, one per port",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(o.validate(), o.validateStandalone()); err != nil {
				return err
			}
			return run(cmd.Context(), o, func(f *fleet) error { return f.standalone(o) })
		},
	}
	fs := standalone.Flags()
	fs.IntVar(&o.replicas, "replicas", 3, "how many servers")
	fs.StringVar(&o.baseAddress, "base-address", "127.0.0.1", "loopback address of the servers")
	fs.IntVar(&o.basePort, "base-port", 18001, "port of the first server; the others follow. 0: any free ports (see /state)")
	fs.StringVar(&o.name, "name", "vllm", "servers are called default/NAME-0, default/NAME-1, … and have the label app=NAME")

	cluster := &cobra.Command{
		Use:   "cluster",
		Short: "Emulate a server in each Ready pod that matches a selector, on the pod's own loopback address",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(o.validate(), o.validateCluster()); err != nil {
				return err
			}
			config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
			if err != nil {
				return fmt.Errorf("read --kubeconfig: %w", err)
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("make a client from --kubeconfig: %w", err)
			}
			return run(cmd.Context(), o, func(f *fleet) error { return f.watchPods(cmd.Context(), client, o) })
		},
	}
	fs = cluster.Flags()
	fs.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the cluster")
	fs.StringVar(&o.selector, "selector", "app=vllm", "label selector of the pods")
	fs.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the pods (empty: all)")
	fs.IntVar(&o.port, "port", 8000, "port to listen on at each pod's address. 0: any free port (see /state)")
	fs.BoolVar(&o.serveBeforeReady, "serve-before-ready", false, "serve from the time a pod is Running, Ready or not; requests are routed to Ready ones only")

	for _, cmd := range []*cobra.Command{standalone, cluster} {
		o.addFlags(cmd)
		root.AddCommand(cmd)
	}
	return root
}

func (o *options) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	d := engine.DefaultConfig()
	fs.IntVar(&o.engine.MaxNumSeqs, "max-num-seqs", d.MaxNumSeqs, "requests that run at once, per engine")
	fs.IntVar(&o.engine.MaxNumBatchedTokens, "max-num-batched-tokens", d.MaxNumBatchedTokens, "token budget of a step")
	fs.IntVar(&o.engine.MaxModelLen, "max-model-len", d.MaxModelLen, "most tokens of a request")
	fs.IntVar(&o.engine.NumGPUBlocks, "num-gpu-blocks", d.NumGPUBlocks, "KV-cache blocks, per engine")
	fs.IntVar(&o.engine.BlockSize, "block-size", d.BlockSize, "tokens in a KV-cache block")
	s := &o.engine.StepTime
	fs.Float64Var(&s.Base, "step-base-seconds", d.StepTime.Base, "what a step takes at least")
	fs.Float64Var(&s.PrefillToken, "step-prefill-token-seconds", d.StepTime.PrefillToken, "what a step takes more per prompt token")
	fs.Float64Var(&s.PrefillPair, "step-prefill-pair-seconds", d.StepTime.PrefillPair, "what a step takes more per prompt token and token before it")
	fs.Float64Var(&s.Sequence, "step-sequence-seconds", d.StepTime.Sequence, "what a step takes more per decoding request")
	fs.Float64Var(&s.ContextToken, "step-context-token-seconds", d.StepTime.ContextToken, "what a step takes more per token of the decoding requests' contexts")
	fs.Float64Var(&s.Jitter, "step-jitter", d.StepTime.Jitter, "spread of step times, as a fraction")
	fs.IntVar(&o.ranks, "data-parallel-size", 1, "engines per server")
	fs.StringVar(&o.modelName, "model-name", "Qwen/Qwen3-8B", "the label model_name")
	fs.StringVar(&o.release, "release", engine.V0_20.String(), "vLLM release whose spelling is served: 0.20, 0.10 or 0.9.1")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of loads, routing and step times")
	fs.Float64Var(&o.speed, "speed", 1, "how fast the engines' time runs; their latencies and loads are in their own time")
	fs.DurationVar(&o.tick, "tick", 10*time.Millisecond, "how often the engines are advanced")
	fs.StringVar(&o.load, "load", "none", "load on all replicas together, see engine-emulator --help")
	fs.StringVar(&o.routing, "routing", roundRobin, "which replica gets a request: "+strings.Join(routings, ", "))
	fs.StringVar(&o.controlAddress, "control-address", "127.0.0.1:18000", "loopback address of the control API")
	fs.StringVar(&o.dcgmAddress, "dcgm-address", "127.0.0.1:9400", "loopback address of the DCGM exporter for all GPUs (empty: none)")
	fs.DurationVar(&o.dcgmInterval, "dcgm-interval", 30*time.Second, "how often the DCGM exporter polls (its own default is 30s)")
}

// validate returns every fault of the flags that both modes have.
func (o *options) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	errs = append(errs, o.engine.Validate())
	_, ok := engine.ParseRelease(o.release)
	check(ok, "--release must be 0.20, 0.10 or 0.9.1, is %q", o.release)
	check(o.ranks >= 1, "--data-parallel-size must be at least 1, is %d", o.ranks)
	check(o.modelName != "", "--model-name must not be empty")
	check(o.speed > 0, "--speed must be above 0, is %g", o.speed)
	check(o.tick >= time.Millisecond, "--tick must be at least 1ms, is %v", o.tick)
	check(o.dcgmInterval >= 100*time.Millisecond, "--dcgm-interval must be at least 100ms, is %v", o.dcgmInterval)
	if _, err := load.Parse(o.load); err != nil {
		errs = append(errs, fmt.Errorf("--load: %w", err))
	}
	check(validRouting(o.routing), "--routing must be one of %s, is %q", strings.Join(routings, ", "), o.routing)
	check(loopbackAddress(o.controlAddress), "--control-address must be a loopback address with a port, is %q", o.controlAddress)
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

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func loopbackAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && loopbackHost(host)
}

// run serves until the context ends. populate gives the fleet its replicas.
func run(ctx context.Context, o options, populate func(*fleet) error) error {
	logger := klog.FromContext(ctx)
	f := newFleet(o, time.Now, logger)
	defer f.close()
	spec, err := load.Parse(o.load)
	if err != nil {
		return fmt.Errorf("--load: %w", err)
	}
	control, err := listen(o.controlAddress, f.controlHandler())
	if err != nil {
		return fmt.Errorf("control API: %w", err)
	}
	defer control.Close()
	logger.Info("Emulating engines: there is no model and no GPU here", "control", control.address, "load", spec.String(), "speed", o.speed)
	if o.dcgmAddress != "" {
		dcgm, err := listen(o.dcgmAddress, f.dcgmHandler())
		if err != nil {
			return fmt.Errorf("DCGM exporter: %w", err)
		}
		defer dcgm.Close()
		logger.Info("Serving as a DCGM exporter", "address", dcgm.address)
	}
	if err := populate(f); err != nil {
		return err
	}
	if err := f.setLoad(target{}, spec, o.routing); err != nil {
		return err
	}
	ticker := time.NewTicker(o.tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.tick()
		}
	}
}

// standalone adds the replicas of the standalone mode.
func (f *fleet) standalone(o options) error {
	for i := range o.replicas {
		port := o.basePort
		if port != 0 {
			port += i
		}
		id := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("%s-%d", o.name, i)}
		r, err := f.add(member{
			id: id, labels: labels.Set{"app": o.name}, node: "localhost", container: "vllm",
			address: net.JoinHostPort(o.baseAddress, fmt.Sprint(port)), serve: true, ready: true,
		})
		if err != nil {
			return fmt.Errorf("replica %s: %w", id, err)
		}
		if r.problem != "" {
			return fmt.Errorf("replica %s: %s", id, r.problem)
		}
	}
	return nil
}
