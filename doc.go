// Package adapter holds no code: it is where the rules of the whole repository are tested.
//
// Inference Metrics Adapter turns the raw series of LLM engines into signals that a plain
// HorizontalPodAutoscaler can scale on, and serves them as custom.metrics.k8s.io. From the edge
// to the core:
//
//	cmd/adapter           flags, options, wiring
//	pkg/provider          the metrics API over a snapshot
//	internal/collect      demand, ticks, immutable snapshots
//	pkg/signals           the catalogue: engines, canonical series, signals; pure
//	internal/window       the last minutes of samples; resets, rates, quantiles; pure
//	internal/status       the status page
//	internal/source/...   where samples come from: a Prometheus server, or our own scrape
//	internal/pods         what is known of a pod
//	internal/kube         pods and HPAs from informers
//	internal/certs        the certificate that the adapter serves with
//	cmd/engine-emulator   emulated engines for demos and tests
//	internal/engine       the model behind them; pure
//	internal/load         the load on them; pure
//
// Imports only go down this list; arch_test.go says which ones and why.
package adapter
