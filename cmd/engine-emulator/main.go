// Command engine-emulator stands in for LLM engines where there is no GPU: it serves /metrics as
// vLLM servers, or those of another engine, the endpoint picker in front of them and a DCGM exporter
// would, driven by a model of a continuous-batching engine and by a generated load. It is for demos and tests. No model runs in it, and it says so wherever it is
// asked.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

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

func newCommand() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "engine-emulator",
		Short: "Serve /metrics as LLM servers and a DCGM exporter would, without a model or a GPU",
		Long: `engine-emulator emulates LLM engines, for demos and tests. There is no model and no GPU:
a small model of continuous batching (queue, token budget, KV-cache blocks, preemption) is driven by a
generated load, and /metrics shows what a vLLM V1 server would show. It listens on loopback only.

With --engine the same model is shown as another engine shows itself, with its names, labels, buckets
and moments of counting, at its own path: trtllm at /prometheus/metrics, nim at /v1/metrics, the others at
/metrics. There are
  ` + kindNames() + `
--picker-address serves what the endpoint picker of an InferencePool of all replicas shows. With
--picker-flow-control requests wait in front of the pool while it has no replica or is saturated, those of
loads and those that come to --gateway-address.

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
                                           spelling?to=new|old|0.10[&underscores=true]
                                           (the release is of vLLM V1 only)
  POST /picker/ACTION                      down, up: whether the endpoint picker's metrics can be read`,
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
	if o.pickerAddress != "" {
		if err := f.startPicker(); err != nil {
			return err
		}
		logger.Info("Serving as an endpoint picker", "address", o.pickerAddress, "pool", o.pickerPool)
	}
	if o.gatewayAddress != "" {
		gateway, err := listen(o.gatewayAddress, f.gatewayHandler())
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		defer gateway.Close()
		logger.Info("Serving as a gateway", "address", gateway.address, "flowControl", o.flowControl)
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
