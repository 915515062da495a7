// Package zero takes a Deployment to no replica and back on a real control plane, with the manifest that
// docs/scale-to-zero.md shows. See the README beside package cluster.
package zero
