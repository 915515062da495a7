// Package rules serves metrics by the rules of a configuration file of prometheus-adapter.
//
// A rule names series of a server with Prometheus's query API, says which labels stand for which objects of
// Kubernetes, and has a template of the query that gives the values. The queries run in the background, for as
// long as somebody asks, each for as many objects at once as give the same values so; requests read what the
// last ones gave. What has no value says why, and is never a zero.
package rules
