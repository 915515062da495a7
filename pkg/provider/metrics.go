package provider

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inference-metrics/adapter/pkg/signals"
)

const namespace = "inference_metrics_adapter"

// metrics are the provider's own. How old the samples behind its answers are is told by the library, in
// metrics_apiserver_metric_freshness_seconds.
type metrics struct {
	// answers tell in which state what was asked for was found.
	answers *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "answers_total",
			Help: "Pods and objects of which a signal was asked for, by the signal and by the state it was in: value, idle, stalled or unknown.",
		}, []string{"signal", "state"}),
	}
}

// Collectors returns the provider's own metrics, to be registered by the caller.
func (p *Provider) Collectors() []prometheus.Collector {
	return []prometheus.Collector{p.metrics.answers}
}

// answered takes one pod or object. Only signals of the catalogue come this far.
func (m *metrics) answered(signal string, state signals.State) {
	m.answers.WithLabelValues(signal, state.String()).Inc()
}
