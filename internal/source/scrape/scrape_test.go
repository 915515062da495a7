package scrape

import (
	"compress/gzip"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"k8s.io/klog/v2"
)

const interval = 100 * time.Millisecond

// A sink keeps everything, in order.
type sink []sample

func (s *sink) Append(ls labels.Labels, t int64, v float64) { *s = append(*s, sample{ls, t, v}) }

// of returns the samples of a name and a pod.
func (s sink) of(name, pod string) []sample {
	return slices.DeleteFunc(slices.Clone(s), func(x sample) bool {
		return x.ls.Get("__name__") != name || x.ls.Get("pod") != pod
	})
}

// await fetches until the samples satisfy ok.
func await(t *testing.T, s *Source, into *sink, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(interval / 2) {
		if _, err := s.Fetch(t.Context(), nil, 0, into); err != nil {
			t.Fatal(err)
		}
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited for a minute; got %v", *into)
		}
	}
}

func serve(t *testing.T, handler http.HandlerFunc) (url string) {
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestHandling puts expositions and answers of many kinds before the scraper.
func TestHandling(t *testing.T) {
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			fmt.Fprint(w, body)
		}
	}
	var elsewhere sync.Map
	other := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Store("asked", true)
		fmt.Fprint(w, "x 1\n")
	})
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		up      float64
		want    []float64 // of x, by series
	}{
		{"plain", text("x 1\ny 2\n"), 1, []float64{1}},
		{"its own timestamps", text("x 1 1000\n"), 1, []float64{1}},
		{"no content type", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			fmt.Fprint(w, "x 1\n")
		}, 1, []float64{1}},
		{"gzip, if we say that we take it", func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, "x 1\n")
			z.Close()
		}, 1, []float64{1}},
		{"OpenMetrics, though not asked for", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
			fmt.Fprint(w, "# TYPE x gauge\nx 1.0 12345.678\n# EOF\n")
		}, 1, []float64{1}},
		{"a series up of its own", text("up 0\nx 1\n"), 1, []float64{1}},
		{"path and query", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "x{path=%q,model=%q} 1\n", r.URL.Path, r.URL.Query().Get("model"))
		}, 1, []float64{1}},
		{"no credentials", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization")+r.Header.Get("Cookie") == "" {
				fmt.Fprint(w, "x 1\n")
			}
		}, 1, []float64{1}},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, http.StatusFound) }, 0, nil},
		{"500", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x 1", 500) }, 0, nil},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "x 1\n")
			line := []byte("# " + strings.Repeat("-", 1<<20) + "\n")
			for range 17 {
				_, _ = w.Write(line)
			}
		}, 0, nil},
		{"too large once unzipped", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, "x 1\n")
			line := []byte("# " + strings.Repeat("-", 1<<20) + "\n")
			for range 17 {
				_, _ = z.Write(line)
			}
			z.Close()
		}, 0, nil},
		{"too many series", func(w http.ResponseWriter, _ *http.Request) {
			for i := range sampleLimit + 1 {
				fmt.Fprintf(w, "x{n=\"%d\"} 1\n", i)
			}
		}, 0, nil},
		{"too many labels", text("x{" + manyLabels(labelLimit+1) + "} 1\n"), 0, nil},
		{"too long a label", text(`x{a="` + strings.Repeat("b", labelValueLengthLimit+1) + "\"} 1\n"), 0, nil},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := fmt.Fprintf(w, "x{n=\"%0500d\"} 1\n", 1); err != nil {
					return
				}
			}
		}, 0, nil},
		{"endless once unzipped", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			zeros := make([]byte, 1<<20)
			for r.Context().Err() == nil {
				if _, err := z.Write(zeros); err != nil {
					return
				}
			}
		}, 0, nil},
		{"ten thousand series that nobody asked for", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 10_000 {
				fmt.Fprintf(w, "junk{n=\"%d\"} 1\n", i)
			}
			fmt.Fprint(w, "x 1\n")
		}, 1, []float64{1}},
		{"too slow", func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Second):
			}
		}, 0, nil},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			// Generous: what is large takes its time, on a busy machine more so.
			cfg := Config{Names: []string{"x", "up"}, Interval: 3 * time.Second}
			cfg.Targets = []Target{{"default", "a", serve(t, c.handler) + "/some/path?model=m%2F1", ""}}
			s := run(t, cfg)
			var got sink
			began := time.Now()
			await(t, s, &got, func() bool { return len(got.of("up", "a")) > 0 })
			if up := got.of("up", "a")[0].v; up != c.up {
				t.Errorf("up is %v, want %v", up, c.up)
			}
			var values []float64
			for _, x := range got.of("x", "a") {
				values = append(values, x.v)
				if at := time.UnixMilli(x.t); at.Before(began.Add(-time.Second)) || at.After(time.Now()) {
					t.Errorf("a sample of %s: not when it was scraped", at)
				}
				if path := x.ls.Get("path"); path != "" && (path != "/some/path" || x.ls.Get("model") != "m/1") {
					t.Errorf("the target was asked for %s", x.ls)
				}
			}
			if diff := cmp.Diff(c.want, values); diff != "" {
				t.Errorf("x (-want +got):\n%s", diff)
			}
			for _, x := range got {
				if name := x.ls.Get("__name__"); name != "x" && name != "up" {
					t.Errorf("%s was not wanted", x.ls)
				}
			}
			if _, asked := elsewhere.Load("asked"); asked {
				t.Error("a redirect was followed")
			}
		})
	}
}

func manyLabels(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("l%d=\"\\\"\"", i))
	}
	return strings.Join(all, ",")
}

// TestStaleMarkers passes on where a series ends, at the scrape at which it was gone.
func TestStaleMarkers(t *testing.T) {
	var mu sync.Mutex
	text := "x{n=\"1\"} 1\nx{n=\"2\"} 2\n"
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, text)
	})
	s := run(t, Config{Names: []string{"x"}, Interval: interval, Targets: []Target{{"default", "a", url, ""}}})
	var got sink
	await(t, s, &got, func() bool { return len(got.of("x", "a")) >= 4 })
	mu.Lock()
	text = "x{n=\"2\"} 2\n"
	mu.Unlock()
	ended := func(n string) []sample {
		return slices.DeleteFunc(got.of("x", "a"), func(x sample) bool { return x.ls.Get("n") != n || !value.IsStaleNaN(x.v) })
	}
	await(t, s, &got, func() bool { return len(ended("1")) > 0 })
	if len(ended("2")) > 0 {
		t.Errorf("a series that goes on was said to end: %v", ended("2"))
	}
	marker := ended("1")[0].t
	if !slices.ContainsFunc(got.of("x", "a"), func(x sample) bool { return x.t == marker && x.ls.Get("n") == "2" && x.v == 2 }) {
		t.Error("the marker's time is not that of the scrape")
	}

	// A target that is removed ends too, after a while.
	if err := s.SetTargets(nil); err != nil {
		t.Fatal(err)
	}
	await(t, s, &got, func() bool { return len(ended("2")) > 0 })
	if last := got.of("up", "a"); !value.IsStaleNaN(last[len(last)-1].v) {
		t.Errorf("up ended with %v", last[len(last)-1].v)
	}
}

// TestLabelOrder: an engine may write the labels of a series in another order. It is one series.
func TestLabelOrder(t *testing.T) {
	var mu sync.Mutex
	scrapes := 0
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if scrapes++; scrapes%2 == 0 {
			fmt.Fprintln(w, `x{a="1",b="2"} 1`)
		} else {
			fmt.Fprintln(w, `x{b="2",a="1"} 1`)
		}
	})
	s := run(t, Config{Names: []string{"x"}, Interval: interval, Targets: []Target{{"default", "a", url, ""}}})
	var got sink
	await(t, s, &got, func() bool { return len(got.of("x", "a")) >= 6 })
	for _, x := range got.of("x", "a") {
		if value.IsStaleNaN(x.v) {
			t.Fatal("a series that goes on was said to end")
		}
	}
}

func TestHealthIsLoggedOnChange(t *testing.T) {
	var mu sync.Mutex
	down := false
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if down {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	set := func(to bool) {
		mu.Lock()
		defer mu.Unlock()
		down = to
	}
	s := run(t, Config{Names: []string{"x"}, Interval: interval, Targets: []Target{{"default", "a", url, ""}}})
	var log []string
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}))
	var got sink
	for i, state := range []bool{false, true, false} {
		set(state)
		for end := time.Now().Add(time.Minute); ; time.Sleep(interval / 2) {
			n := len(got)
			if _, err := s.Fetch(ctx, nil, 0, &got); err != nil {
				t.Fatal(err)
			}
			ups := got.of("up", "a")
			if len(got) > n && len(ups) > 3*(i+1) && (ups[len(ups)-1].v == 0) == state && (ups[len(ups)-2].v == 0) == state {
				break
			}
			if time.Now().After(end) {
				t.Fatal("waited for a minute")
			}
		}
	}
	if len(log) != 2 || !strings.Contains(log[0], "cannot be scraped") || !strings.Contains(log[0], "default/a: server returned HTTP status 418") || !strings.Contains(log[1], "again") {
		t.Errorf("log:\n%s", strings.Join(log, "\n"))
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no namespace", Config{Targets: []Target{{"", "a", "http://h/metrics", ""}}}, "namespace"},
		{"no scheme", Config{Targets: []Target{{"n", "a", "h:8000/metrics", ""}}}, "want http://"},
		{"credentials", Config{Targets: []Target{{"n", "a", "http://user:geheim@h/metrics", ""}}}, "without credentials"},
		{"no URL", Config{Targets: []Target{{"n", "a", "http://user:geheim@h:port", ""}}}, "invalid port"},
		{"escaped slash", Config{Targets: []Target{{"n", "a", "http://h/a%2Fb", ""}}}, "escaped slash"},
		{"a parameter twice", Config{Targets: []Target{{"n", "a", "http://h/?a=1&a=2", ""}}}, "twice"},
		{"the same target twice", Config{Targets: []Target{{"n", "a", "http://h/a", ""}, {"n", "a", "http://h/b", ""}}}, "two targets on h"},
		{"timeout", Config{Interval: time.Second, Timeout: 2 * time.Second}, "timeout"},
		{"interval", Config{Interval: -time.Second}, "interval"},
	} {
		_, err := New(c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestBuffer keeps what waits bounded, by whole scrapes, the oldest first.
func TestBuffer(t *testing.T) {
	x := labels.FromStrings("__name__", "x")
	var at int64
	now := func() time.Time { return time.UnixMilli(at) }
	put := func(b *buffer, when int64, n int) {
		at = when
		a := b.AppenderV2(t.Context())
		for range n {
			_, _ = a.Append(0, x, 0, at, math.Pi, nil, nil, storage.AOptions{})
		}
		_ = a.Commit()
	}
	times := func(b *buffer) (times []int64) {
		for _, scrape := range b.drain() {
			times = append(times, scrape[0].t)
		}
		return times
	}

	b := newBuffer([]string{"x"}, time.Minute, clock{now: now, wall: now})
	for i := range int64(10) {
		put(b, i*20_000, 3)
	}
	if diff := cmp.Diff([]int64{120_000, 140_000, 160_000, 180_000}, times(b)); diff != "" {
		t.Errorf("after three minutes (-want +got):\n%s", diff)
	}
	if got := times(b); got != nil {
		t.Errorf("drained twice: %v", got)
	}

	for i := range int64(5) {
		put(b, i, maxSamples/3)
	}
	if diff := cmp.Diff([]int64{2, 3, 4}, times(b)); diff != "" {
		t.Errorf("when full (-want +got):\n%s", diff)
	}

	a := b.AppenderV2(t.Context())
	_, _ = a.Append(0, x, 0, 1, 1, nil, nil, storage.AOptions{})
	_ = a.Rollback()
	_ = a.Commit()
	if got := times(b); got != nil {
		t.Errorf("a scrape that was rolled back: %v", got)
	}
}
