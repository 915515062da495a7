package collect

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/pkg/signals"
)

const namespace = "inference_metrics_adapter"

// metrics are the collector's own.
type metrics struct {
	// ticks tells an operator how long a collection takes, against the interval.
	ticks    prometheus.Histogram
	interval prometheus.Gauge
	// failures and up tell when the source cannot be read.
	failures prometheus.Counter
	up       prometheus.Gauge
	// jumps tells of a source whose clock is set, or that is several servers with clocks of their own.
	jumps prometheus.Counter
	// queries tells what is asked for, by HPAs and by others.
	queries *prometheus.GaugeVec
	// series and samples tell what the windows hold.
	series, samples prometheus.Gauge
	// refused tells that a replica exports more series than one is given room for.
	refused prometheus.Counter
	// replicas tells, per signal, how many replicas are in which state: stalled and unknown ones
	// are what alerts watch.
	replicas *prometheus.GaugeVec
}

func newMetrics(interval time.Duration) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	}
	m := &metrics{
		ticks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "collection_duration_seconds",
			Help:    "Time that one collection took, fetching and computing.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "source_failures_total",
			Help: "Collections in which the source could not be read, in whole or in part.",
		}),
		up: gauge("source_up", "1 when the newest collection could read the source, 0 when not."),
		jumps: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "source_clock_jumps_total",
			Help: "Times that the source's clock was set, upon which the windows begin anew.",
		}),
		interval: gauge("collection_interval_seconds", "Time from one collection to the next, as configured."),
		queries: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "queries",
			Help: "Different queries that are collected: standing ones, which HPAs name, and those that somebody asked in the last ten minutes.",
		}, []string{"demand"}),
		series:  gauge("window_series", "Raw series in the windows."),
		samples: gauge("window_samples", "Raw samples in the windows."),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "window_refused_samples_total",
			Help: "Samples of series beyond the number that one replica may have.",
		}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "replicas",
			Help: "Replicas that export, or have exported, series of an engine, by signal and by the state the signal is in: value, idle, stalled or unknown.",
		}, []string{"signal", "state"}),
	}
	m.interval.Set(interval.Seconds())
	m.demand(0, 0)
	return m
}

// demand takes how many different queries are collected.
func (m *metrics) demand(standing, asked int) {
	m.queries.WithLabelValues("standing").Set(float64(standing))
	m.queries.WithLabelValues("asked").Set(float64(asked))
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.ticks, m.interval, m.failures, m.up, m.jumps, m.queries, m.series, m.samples, m.refused, m.replicas}
}

// observe takes one tick; refused is how many samples it refused.
func (m *metrics) observe(snap *Snapshot, plans []*signals.Plan, took time.Duration, series, samples int, refused uint64) {
	m.ticks.Observe(took.Seconds())
	m.refused.Add(float64(refused))
	if snap.Err != nil {
		m.failures.Inc()
		m.up.Set(0)
	} else {
		m.up.Set(1)
	}
	m.series.Set(float64(series))
	m.samples.Set(float64(samples))

	counts := make([][signals.Stalled + 1]int, len(plans))
	for _, of := range []struct {
		pools    bool
		measured map[types.NamespacedName]measured
	}{{false, snap.results}, {true, snap.pools}} {
		for _, r := range of.measured {
			for i, v := range r.values {
				if plans[i].Signal().OfPool() != of.pools {
					continue // nobody expects the signal of a pool in a pod, nor the other way round
				}
				if r.serves && !v.Foreign() || v.State != signals.Unknown {
					counts[i][v.State]++
				}
			}
		}
	}
	m.replicas.Reset()
	for i, p := range plans {
		if i > 0 && plans[i-1].Query.Signal == p.Query.Signal {
			continue // the same signal with parameters
		}
		for state, n := range counts[i] {
			m.replicas.WithLabelValues(p.Query.Signal, signals.State(state).String()).Set(float64(n))
		}
	}
}
