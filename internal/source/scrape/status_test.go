package scrape

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// nowhere is a sink that keeps nothing.
type nowhere struct{}

func (nowhere) Append(labels.Labels, int64, float64) {}

// A target that is down says why, and neither there nor in the log are the parameters of its address.
func TestStatus(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("x 1\n"))
	}))
	defer up.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	s, err := New(Config{Names: []string{"x"}, Interval: 50 * time.Millisecond, Targets: []Target{
		{Namespace: "b", Pod: "a", URL: refusing.URL + "/metrics?token=s3cret"},
		{Namespace: "a", Pod: "b", URL: gone.URL + "/metrics?token=s3cret"},
		{Namespace: "a", Pod: "a", URL: up.URL + "/metrics?token=s3cret"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	var all []TargetStatus
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := s.Fetch(ctx, nil, time.Minute, nowhere{}); err != nil {
			t.Fatal(err)
		}
		all = s.Status()
		if len(all) == 3 && all[0].Up && !all[1].Scraped.IsZero() && !all[2].Scraped.IsZero() && strings.Contains(log.String(), "b/a: ") && strings.Contains(log.String(), "a/b: ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: %+v, log %s", all, log.String())
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if all[0].Reason != "" || all[0].URL != up.URL+"/metrics" || all[0].Scraped.IsZero() {
		t.Errorf("a target that is up: %+v", all[0])
	}
	if all[1].Up || !strings.Contains(all[1].Reason, "connection refused") {
		t.Errorf("a target that is gone: %+v", all[1])
	}
	if all[2].Up || !strings.Contains(all[2].Reason, "404") || all[2].Namespace != "b" {
		t.Errorf("a target that refuses: %+v", all[2])
	}
	for _, st := range all {
		if strings.Contains(st.URL+st.Reason, "s3cret") {
			t.Errorf("the status has a secret: %+v", st)
		}
	}
	if strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log has a secret: %s", log.String())
	}
}
