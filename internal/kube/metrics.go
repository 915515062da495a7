package kube

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inference-metrics/adapter/internal/pods"
)

const namespace = "inference_metrics_adapter"

// Metrics tell which objects of the cluster have been read, and which cannot be kept up to date.
type Metrics struct {
	of              []Observed
	synced, failing *prometheus.Desc
}

// Observed is what Metrics tell of: a Mirror, or Groups.
type Observed interface {
	// observe calls f for each kind of object that the cluster should have.
	observe(f func(objects string, synced bool, failing error))
}

var (
	_ prometheus.Collector = (*Metrics)(nil)
	_ Observed             = (*Mirror)(nil)
	_ Observed             = (*Groups)(nil)
)

// NewMetrics returns metrics of mirrors, to be registered by the caller.
func NewMetrics(of ...Observed) *Metrics {
	return &Metrics{
		of: of,
		synced: prometheus.NewDesc(namespace+"_kubernetes_synced",
			"1 when all objects of a kind have been read once, 0 while not. A kind that the cluster does not have is not told of.", []string{"objects"}, nil),
		failing: prometheus.NewDesc(namespace+"_kubernetes_failing",
			"1 while the Kubernetes API refuses or fails the newest request for the objects of a kind, 0 when not: what was read before stays in use.", []string{"objects"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.synced
	ch <- m.failing
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	number := map[bool]float64{true: 1}
	for _, of := range m.of {
		of.observe(func(objects string, synced bool, failing error) {
			ch <- prometheus.MustNewConstMetric(m.synced, prometheus.GaugeValue, number[synced], objects)
			ch <- prometheus.MustNewConstMetric(m.failing, prometheus.GaugeValue, number[failing != nil], objects)
		})
	}
}

func (m *Mirror) observe(f func(string, bool, error)) { f(m.kind, m.Synced(), m.failure()) }

func (g *Groups) observe(f func(string, bool, error)) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, k := range g.kinds {
		switch {
		case k.resource == pods.Namespaces: // the pods say which there are
		case k.mirror != nil:
			f(k.resource.String(), k.mirror.Synced() && k.completed(), k.mirror.failure())
		case k.absent.Why == pods.NotServed: // nothing is missed
		case k.looked:
			f(k.resource.String(), false, k.absent)
		default:
			f(k.resource.String(), false, nil)
		}
	}
}
