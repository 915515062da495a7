package prometheus

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Times and failures are told by the name that was asked for, and all names without data share one.
func TestMetrics(t *testing.T) {
	down := false
	srv := newFake(t, func(w http.ResponseWriter, query string) string {
		switch {
		case down && strings.Contains(query, "slow"):
			time.Sleep(time.Second) // longer than is waited for
			return ""
		case down:
			w.WriteHeader(http.StatusInternalServerError)
			return ""
		}
		return matrix(3, "vllm:live", "vllm:slow")
	})
	s := open(t, Config{URL: srv.URL, Timeout: 200 * time.Millisecond})
	names := []string{"vllm:live", "vllm:none", "sglang:none", "vllm:slow"}
	fetch(t, s, names...) // one query for all
	fetch(t, s, names...) // one for each that has data, and one for the others
	down = true
	if _, err := s.Fetch(t.Context(), names, time.Minute, sink{}); err == nil {
		t.Fatal("a server that answers 500 is no error")
	}
	srv.Close()
	if _, err := s.Fetch(t.Context(), []string{"vllm:none"}, time.Minute, sink{}); err == nil {
		t.Fatal("a server that is gone is no error")
	}

	reg := prometheus.NewRegistry()
	reg.MustRegister(s.Collectors()...)
	want := `
# HELP inference_metrics_adapter_source_query_failures_total Queries to the source that failed, by the series asked for and by the reason: unreachable, timeout, too_much, partial or refused.
# TYPE inference_metrics_adapter_source_query_failures_total counter
inference_metrics_adapter_source_query_failures_total{reason="refused",series="others"} 1
inference_metrics_adapter_source_query_failures_total{reason="refused",series="vllm:live"} 1
inference_metrics_adapter_source_query_failures_total{reason="timeout",series="vllm:slow"} 1
inference_metrics_adapter_source_query_failures_total{reason="unreachable",series="others"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "inference_metrics_adapter_source_query_failures_total"); err != nil {
		t.Error(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "inference_metrics_adapter_source_query_duration_seconds" {
				counts[m.GetLabel()[0].GetValue()] = m.GetSummary().GetSampleCount()
			}
		}
	}
	if len(counts) != 3 || counts["others"] != 4 || counts["vllm:live"] != 2 || counts["vllm:slow"] != 2 {
		t.Errorf("queries by series are %v, want 4 of the others and 2 of each that has data", counts)
	}
}
