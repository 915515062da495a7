// Package cluster runs a real Kubernetes control plane on loopback, for tests and for people.
//
// Real are: etcd, kube-apiserver (TLS, RBAC, the aggregation layer), kube-controller-manager (the
// HPA controller among its controllers, each with its own service account), kube-scheduler, kubectl
// and Prometheus, built from the Go modules that go.mod pins. Stood in for are the nodes and their
// kubelets (kwok moves pods through their life, and gives every pod an address of its own on
// loopback), kube-proxy (Balancer) and the GPUs (cmd/engine-emulator of the main module, which says
// so itself).
//
// Everything binds loopback addresses only, on free ports, so that several clusters can run on one
// machine. Linux only: it needs all of 127.0.0.0/8 to be local, and processes that die with their
// parent.
package cluster
