package main

import (
	"errors"
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/inference-metrics/adapter/internal/kube"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/provider"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// exposed are the signals that are shown on /metrics.
type exposed []string

func (e *exposed) addFlag(fs *pflag.FlagSet) {
	fs.StringSliceVar((*[]string)(e), "expose-signals", nil, "Signals to show as series of Prometheus on /metrics too, such as inference_queue_depth,inference_ttft_p99_seconds, for dashboards and for KEDA; docs/observability.md describes them. They are collected for as long as somebody reads /metrics.")
}

// plans returns the plans of the signals, each once, or what is wrong with their names.
func (e *exposed) plans() ([]*signals.Plan, error) {
	var plans []*signals.Plan
	var errs []error
	seen := map[string]bool{}
	for _, name := range *e {
		plan, err := signals.Prepare(signals.Query{Signal: name})
		switch {
		case errors.Is(err, signals.ErrNoSignal):
			errs = append(errs, fmt.Errorf("--expose-signals: there is no signal %q: docs/signals.md lists those there are", name))
		case err != nil:
			errs = append(errs, fmt.Errorf("--expose-signals: %w", err))
		case !seen[name]:
			seen[name] = true
			plans = append(plans, plan)
		}
	}
	return plans, errors.Join(errs...)
}

// watch adds the metrics of what was wired to those of the adapter.
func (a *adapter) watch(src source.Source, served *provider.Provider, mirrors []mirror, show exposed) error {
	if s, ok := src.(interface{ Collectors() []prom.Collector }); ok {
		a.metrics = append(a.metrics, s.Collectors()...)
	}
	a.metrics = append(a.metrics, served.Collectors()...)
	var observed []kube.Observed
	for _, m := range mirrors {
		if o, ok := m.(kube.Observed); ok {
			observed = append(observed, o)
		}
	}
	if len(observed) > 0 {
		a.metrics = append(a.metrics, kube.NewMetrics(observed...))
	}
	plans, err := show.plans()
	if err != nil {
		return err
	}
	if len(plans) > 0 {
		a.metrics = append(a.metrics, provider.NewExposition(served, plans))
	}
	return nil
}
