// Package statetable tests what a HorizontalPodAutoscaler does with the adapter's answers, state by
// state: every state of a signal, every kind of metric, and the ways in which things go wrong.
//
// Each row of its table is a small cluster on virtual time. Real are the adapter (its mirrors of the
// cluster, its collector, its provider), Kubernetes' HPA controller and the client that the
// controller asks metrics with. Scripted are the engines, as the raw samples that a Prometheus
// server would hold of them, and the kubelet and Deployment, which start and stop pods as the
// controller says.
//
// The tables in docs/states.md are what was seen here; -rewrite writes them.
package statetable
