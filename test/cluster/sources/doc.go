// Package sources has the adapter's sources read the same engines at the same time, through the stores
// that people run, and holds what they bring to what the engines served and to each other: the embedded
// scrape, Prometheus 3 (built from its module), Prometheus 2 and VictoriaMetrics (Debian's packages),
// and Thanos (built from its module).
//
// Engines are emulated; stores are the real programs. There is no control plane, so it is quick. All
// scrapes go through a front that remembers what it served to whom. So a store's samples are compared
// with what that very store was served, exactly, and only then stores with each other.
package sources
