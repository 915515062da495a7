package prometheus

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "inference_metrics_adapter"

// metrics are the source's own. Their label series is a name of the catalogue, or that of the query which
// asks for all names without data: never what a server or a pod chooses.
type metrics struct {
	// took tells which of the queries is slow. It has no quantiles, which would be a dozen series for
	// each name.
	took *prometheus.SummaryVec
	// failures tell which query fails, and how.
	failures *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		took: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Namespace: namespace, Name: "source_query_duration_seconds",
			Help: "Time that the queries to the source took, by the series asked for; \"others\" are all those that had no data lately.",
		}, []string{"series"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "source_query_failures_total",
			Help: "Queries to the source that failed, by the series asked for and by the reason: unreachable, timeout, too_much, partial or refused.",
		}, []string{"series", "reason"}),
	}
}

// Collectors returns the source's own metrics, to be registered by the caller.
func (s *Source) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.metrics.took, s.metrics.failures}
}

// observe takes a query that took some time, and why it failed, or nil.
func (m *metrics) observe(q query, took time.Duration, err error) {
	series := q.series()
	m.took.WithLabelValues(series).Observe(took.Seconds())
	if err != nil && !errors.Is(err, context.Canceled) { // which is us, stopping
		m.failures.WithLabelValues(series, reason(err)).Inc()
	}
}

// series names the query in metrics.
func (q query) series() string {
	if q.shared {
		return "others"
	}
	return q.names[0]
}

func reason(err error) string {
	switch {
	case errors.Is(err, errUnreachable):
		return "unreachable"
	case errors.Is(err, errTimeout), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, errTooMuch):
		return "too_much"
	case errors.Is(err, errPartial):
		return "partial"
	}
	return "refused"
}
