package rules

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "inference_metrics_adapter"

// metrics are those of the rules themselves. Their label rule is its place in the file.
type metrics struct {
	// rules tell whether all of the file is served.
	rules *prometheus.GaugeVec
	// listed tells how many metrics discovery has, which costs whoever reads it.
	listed prometheus.Gauge
	// tasks are the queries of a tick.
	tasks prometheus.Gauge
	// took and failures tell which rule is slow, or fails; failed says that it does now.
	took     *prometheus.SummaryVec
	failures *prometheus.CounterVec
	failed   *prometheus.GaugeVec
	// refused says that the file as it is now does not hold.
	refused prometheus.Gauge
}

func newMetrics() *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Subsystem: "rules", Name: name, Help: help}
	}
	return &metrics{
		rules:  prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("loaded", "Rules of prometheus-adapter's kind in the file of --rules, by whether they are served or have a fault.")), []string{"state"}),
		listed: prometheus.NewGauge(prometheus.GaugeOpts(opts("metrics", "Metrics that rules serve, each kind of object counted."))),
		tasks:  prometheus.NewGauge(prometheus.GaugeOpts(opts("queries", "Queries of rules that are made at each interval, for as long as somebody asks."))),
		took: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Namespace: namespace, Subsystem: "rules", Name: "query_duration_seconds", Help: "Time that queries of a rule took.",
		}, []string{"rule"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts(opts("failures_total", "Queries of a rule that failed, by what was asked: query for values, discovery for which series there are.")), []string{"rule", "asked"}),
		failed:   prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("failing", "1 while the newest query of a rule failed.")), []string{"rule"}),
		refused:  prometheus.NewGauge(prometheus.GaugeOpts(opts("file_refused", "1 while the file of --rules cannot be read as it is, and what it was before holds."))),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.rules, m.listed, m.tasks, m.took, m.failures, m.failed, m.refused}
}

// served takes how many rules are good, those that have a fault, and how many metrics there are.
func (m *metrics) served(good int, faulty, listed int) {
	m.rules.WithLabelValues("served").Set(float64(good))
	m.rules.WithLabelValues("faulty").Set(float64(faulty))
	m.listed.Set(float64(listed))
}

func (m *metrics) queried(r *Rule, took time.Duration, err error) {
	m.took.WithLabelValues(r.Path).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(r.Path, "query").Inc()
	}
}

func (m *metrics) looked(r *Rule, err error) {
	if err != nil {
		m.failures.WithLabelValues(r.Path, "discovery").Inc()
	}
}

func (m *metrics) failing(r *Rule, now bool) {
	v := 0.0
	if now {
		v = 1
	}
	m.failed.WithLabelValues(r.Path).Set(v)
}
