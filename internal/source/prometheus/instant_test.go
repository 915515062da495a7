package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuery(t *testing.T) {
	answers := map[string]string{
		"vector":  `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"a"},"value":[100.5,"1.5"]},{"metric":{"pod":"b"},"value":[100.5,"NaN"]},{"metric":{"pod":"c"},"histogram":[100.5,{"count":"1","sum":"2","buckets":[]}]}]}}`,
		"none":    `{"status":"success","data":{"resultType":"vector","result":[]}}`,
		"scalar":  `{"status":"success","data":{"resultType":"scalar","result":[100.5,"+Inf"]}}`,
		"matrix":  `{"status":"success","data":{"resultType":"matrix","result":[]}}`,
		"part":    `{"status":"success","warnings":["store down"],"data":{"resultType":"vector","result":[]}}`,
		"partvm":  `{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]}}`,
		"remark":  `{"status":"success","warnings":["PromQL warning: x"],"data":{"resultType":"vector","result":[]}}`,
		"refused": `{"status":"error","errorType":"execution","error":"found duplicate series"}`,
		"page":    `<html>`,
		"cut":     `{"status":"success","data":{"resultType":"vector","result":[`,
		"other":   `{"status":"success","data":[]}`,
	}
	f := newFake(t, func(_ http.ResponseWriter, query string) string { return answers[query] })
	s := open(t, Config{URL: f.URL})
	for query, want := range map[string]string{
		"vector":  "{pod=\"a\"} => 1.5 @[100.5] {pod=\"b\"} => NaN @[100.5] histogram",
		"none":    "",
		"scalar":  "{} => +Inf @[100.5]",
		"matrix":  "error: it is a \"matrix\", not a vector",
		"part":    "error: the answer is partial",
		"partvm":  "error: the answer is partial",
		"remark":  "",
		"refused": "error: the server answered execution: found duplicate series",
		"page":    "error: the answer is not JSON",
		"cut":     "error: the answer is not JSON",
		"other":   "error: the answer is malformed",
	} {
		v, err := s.Query(t.Context(), query)
		var got []string
		for _, sample := range v {
			if sample.Histogram != nil {
				got = append(got, "histogram")
				continue
			}
			got = append(got, sample.String())
		}
		if text, wrong := strings.CutPrefix(want, "error: "); wrong {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %v, want %q", query, err, text)
			}
		} else if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v; want %q", query, got, err, want)
		}
	}
}

func TestNames(t *testing.T) {
	count := 2
	f := newFake(t, func(w http.ResponseWriter, _ string) string {
		names := make([]string, count)
		for i := range names {
			names[i] = fmt.Sprintf("%q", fmt.Sprint("n", i))
		}
		return `{"status":"success","data":[` + strings.Join(names, ",") + `]}`
	})
	s := open(t, Config{URL: f.URL + "/prefix"})
	got, err := s.LabelValues(t.Context(), "__name__", `{a="b"}`)
	if diff := cmp.Diff([]string{"n0", "n1"}, got); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
	if _, err = s.LabelNames(t.Context(), `{a="b"}`); err != nil {
		t.Error(err)
	}
	for i, path := range []string{"/prefix/api/v1/label/__name__/values", "/prefix/api/v1/labels"} {
		r := f.requests[i]
		if r.Method != http.MethodGet || r.URL.Path != path || r.Form.Get("match[]") != `{a="b"}` || r.Form.Get("limit") != "10001" || r.Form.Get("start") == "" {
			t.Errorf("asked with %s %s %v", r.Method, r.URL.Path, r.Form)
		}
	}
	if _, err := s.Query(t.Context(), "x"); err == nil || f.requests[2].Method != http.MethodPost {
		t.Errorf("after a GET, a query is sent with %s", f.requests[2].Method)
	}
	count = 10_001
	if _, err := s.LabelNames(t.Context(), `{a="b"}`); err == nil || !strings.Contains(err.Error(), `{a="b"} chooses series of more than 10000 names: narrow it`) {
		t.Errorf("a list that is cut off: %v", err)
	}
}

// TestQueryTimeout: a server that hangs does not hold up whoever asks, and is told how long it may take.
func TestQueryTimeout(t *testing.T) {
	release := make(chan struct{})
	f := newFake(t, func(http.ResponseWriter, string) string { <-release; return "" })
	defer close(release)
	s := open(t, Config{URL: f.URL, Timeout: 50 * time.Millisecond})
	if _, err := s.Query(t.Context(), "x"); !errors.Is(err, errTimeout) && (err == nil || !strings.Contains(err.Error(), "no complete answer within 50ms")) {
		t.Errorf("a server that hangs: %v", err)
	}
	if got := f.requests[0].Form.Get("timeout"); got != "0.05s" {
		t.Errorf("it was given a timeout of %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.LabelNames(ctx, "{}"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the asker's own time is over: %v", err)
	}
}
