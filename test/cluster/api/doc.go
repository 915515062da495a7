// Package api holds the adapter's API to its contract behind a real kube-apiserver, with its source up and
// with its source down: what clients discover, what errors say, and what hostile requests get out of it.
//
// The tests share one control plane and take turns behind its one Service. The engines of two teams stand
// still with queues of their own, so that every answer can be told by whose it is.
package api
