package certs

import "github.com/prometheus/client_golang/prometheus"

// metrics are the keeper's own.
type metrics struct {
	// expiry is what an alert watches: a rotation leaves a third of the lifetime.
	expiry prometheus.Gauge
	// leader tells who writes, and owned which APIServices are written; only the leader knows.
	leader prometheus.Gauge
	owned  *prometheus.GaugeVec
}

func newMetrics() *metrics {
	const namespace = "inference_metrics_adapter"
	return &metrics{
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "serving_certificate_expiry_timestamp_seconds",
			Help: "Unix time at which the certificate that is served expires; 0 before there is one.",
		}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "certificates_leader",
			Help: "1 on the replica that makes certificates and writes them into the APIServices, 0 on the others.",
		}),
		owned: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "apiservice_owned",
			Help: "1 where the APIService leads to this server, 0 where it leads to another and is left alone, or does not exist. Of the leader only.",
		}, []string{"apiservice"}),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.expiry, m.leader, m.owned}
}

// notLeader forgets what only the leader knows.
func (m *metrics) notLeader() {
	m.leader.Set(0)
	m.owned.Reset()
}
