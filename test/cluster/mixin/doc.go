// Package mixin holds deploy/mixin to what runs: its alerts by promtool, both ways, and every expression of
// its dashboards on a Prometheus that scrapes running adapters and a running kube-apiserver.
package mixin
