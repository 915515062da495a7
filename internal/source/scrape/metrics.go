package scrape

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
)

const namespace = "inference_metrics_adapter"

// metrics are the source's own. None has a label that a pod chooses, or that names one: which target is
// down, and why, is for the log and the status page.
type metrics struct {
	// failures tell what is wrong with targets.
	failures *prometheus.CounterVec
	// targets tell how many there are, and how many of them are down.
	targets *prometheus.Desc
}

func newMetrics() *metrics {
	return &metrics{
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "scrape_failures_total",
			Help: "Scrapes that failed, by the reason: unreachable, timeout, tls, status, limit, content or other.",
		}, []string{"reason"}),
		targets: prometheus.NewDesc(namespace+"_scrape_targets",
			"Targets that are scraped, by their health at the newest scrape: up, down, or unknown before the first.", []string{"health"}, nil),
	}
}

// Collectors returns the source's own metrics, to be registered by the caller.
func (s *Source) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.metrics.failures, targetCount{s}}
}

// targetCount counts targets when it is asked.
type targetCount struct{ of *Source }

func (c targetCount) Describe(ch chan<- *prometheus.Desc) { ch <- c.of.metrics.targets }

func (c targetCount) Collect(ch chan<- prometheus.Metric) {
	counts := map[scrape.TargetHealth]int{scrape.HealthGood: 0, scrape.HealthBad: 0, scrape.HealthUnknown: 0}
	for _, targets := range c.of.manager.TargetsActive() {
		for _, t := range targets {
			counts[t.Health()]++
		}
	}
	for health, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.of.metrics.targets, prometheus.GaugeValue, float64(n), string(health))
	}
}

// observe takes the series up of the scrapes that failed.
func (m *metrics) observe(manager *scrape.Manager, failed []labels.Labels) {
	if len(failed) == 0 {
		return
	}
	type key struct{ namespace, pod, instance, job string }
	why := map[key]error{}
	for _, targets := range manager.TargetsActive() {
		for _, t := range targets {
			why[key{t.GetValue("namespace"), t.GetValue("pod"), t.GetValue(model.InstanceLabel), t.GetValue(model.JobLabel)}] = t.LastError()
		}
	}
	for _, up := range failed {
		err := why[key{up.Get("namespace"), up.Get("pod"), up.Get(model.InstanceLabel), up.Get(model.JobLabel)}]
		m.failures.WithLabelValues(reason(err)).Inc()
	}
}

// reason names an error of Prometheus's scrape. Some of these have no type of their own, and are known by
// their text.
func reason(err error) string {
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var network *net.OpError
	switch {
	case err == nil: // the target has gone since, or is up again
		return "other"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.As(err, &certificate), errors.As(err, &record), strings.Contains(err.Error(), "tls: "):
		return "tls"
	case strings.HasPrefix(err.Error(), "server returned HTTP status"):
		return "status"
	case strings.Contains(err.Error(), "limit exceeded"):
		return "limit"
	case errors.As(err, &network):
		return "unreachable"
	}
	return "content"
}
