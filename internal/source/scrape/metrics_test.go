package scrape

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Each way in which a target can fail is told apart, and none of the targets is named.
func TestMetrics(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	silent := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	pods := map[string]string{
		"ok":          serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x 1\n")) }),
		"unreachable": gone.URL,
		"timeout":     silent,
		"tls":         secure.URL,
		"status":      serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }),
		"limit":       serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x{" + manyLabels(200) + "} 1\n")) }),
		"content":     serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>\n")) }),
	}
	cfg := Config{Names: []string{"x"}, Interval: interval}
	for pod, url := range pods {
		cfg.Targets = append(cfg.Targets, Target{Namespace: "default", Pod: pod, URL: url})
	}
	s := run(t, cfg)
	var got sink
	await(t, s, &got, func() bool {
		for pod := range pods {
			if len(got.of("up", pod)) < 2 {
				return false
			}
		}
		return true
	})

	for pod := range pods {
		if n := testutil.ToFloat64(s.metrics.failures.WithLabelValues(pod)); pod != "ok" && n < 2 {
			t.Errorf("%g scrapes failed for the reason %s, want 2 or more", n, pod)
		}
	}
	if n := testutil.ToFloat64(s.metrics.failures.WithLabelValues("ok")); n != 0 {
		t.Error("a target that is up has failures")
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(s.Collectors()...)
	want := `
# HELP inference_metrics_adapter_scrape_targets Targets that are scraped, by their health at the newest scrape: up, down, or unknown before the first.
# TYPE inference_metrics_adapter_scrape_targets gauge
inference_metrics_adapter_scrape_targets{health="down"} 6
inference_metrics_adapter_scrape_targets{health="unknown"} 0
inference_metrics_adapter_scrape_targets{health="up"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "inference_metrics_adapter_scrape_targets"); err != nil {
		t.Error(err)
	}
}
