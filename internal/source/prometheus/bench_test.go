package prometheus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/source/sourcetest"
	"github.com/inference-metrics/adapter/internal/window"
)

// TestMeasure measures what this source and a window cost at some size, for the figures in
// docs/adr/0001:
//
//	MEASURE_REPLICAS=1000 go test ./internal/source/prometheus -run TestMeasure -v -timeout 30m
//
// The server is a process of its own that writes answers as Prometheus does, of series as a usual
// installation labels them, scraped every fifteen seconds; so only the adapter's side is counted.
// With MEASURE_NAMES=gauges, only three gauges are asked for; with MEASURE_GZIP=off, the server
// does not compress. With MEASURE_URL, a real server is read instead.
func TestMeasure(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("MEASURE_REPLICAS"))
	if n == 0 {
		t.Skip("MEASURE_REPLICAS is not set")
	}
	names := sourcetest.Everything
	if os.Getenv("MEASURE_NAMES") == "gauges" {
		names = sourcetest.Gauges
	}
	url := os.Getenv("MEASURE_URL")
	if url == "" {
		url = serveAnswers(t, n)
	}
	s := open(t, Config{URL: url, Timeout: 5 * time.Minute})
	wire := &counting{next: s.client.Transport, plain: os.Getenv("MEASURE_GZIP") == "off"}
	s.client.Transport = wire
	store := window.New(5*time.Minute, func(ls labels.Labels) (string, bool) { return ls.Get("namespace") + "/" + ls.Get("pod"), true })

	fetch := func(lookback time.Duration) (string, error) {
		wire.bytes.Store(0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began, cpuBegan := time.Now(), cpu()
		now, err := s.Fetch(t.Context(), names, lookback, store)
		store.Advance(now.UnixMilli())
		took, spent := time.Since(began), cpu()-cpuBegan
		runtime.ReadMemStats(&after)
		return fmt.Sprintf("%.1f MB on the wire, CPU %d ms, %d ms in all, %.1f MB allocated", float64(wire.bytes.Load())/1e6, spent.Milliseconds(), took.Milliseconds(), float64(after.TotalAlloc-before.TotalAlloc)/1e6), err
	}
	t.Logf("%d replicas, %d names", n, len(names))
	for { // the first may be too much at once
		line, err := fetch(5 * time.Minute)
		t.Logf("first fetch, 5 min:  %s", line)
		if err == nil {
			break
		}
		t.Log(err)
	}
	for range 3 {
		time.Sleep(5 * time.Second)
		line, err := fetch(30 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("later fetch, 30 s:   %s", line)
	}
	series, samples := store.Stats()
	t.Logf("%d series, %d samples in the window; RSS %d MB, live heap %d MB", series, samples, rss(t), liveHeap())
	runtime.KeepAlive(store)
	runtime.KeepAlive(s)
}

// counting counts the bytes of bodies as they come over the wire.
type counting struct {
	next  http.RoundTripper
	plain bool
	bytes atomic.Int64
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.plain {
		r = r.Clone(r.Context())
		r.Header.Del("Accept-Encoding")
	}
	resp, err := c.next.RoundTrip(r)
	if err == nil {
		resp.Body = countingBody{resp.Body, &c.bytes}
	}
	return resp, err
}

type countingBody struct {
	io.ReadCloser
	bytes *atomic.Int64
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}

// BenchmarkFetch fetches thirty seconds of everything that the signals of vLLM need.
func BenchmarkFetch(b *testing.B) {
	for _, replicas := range []int{100, 1000} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			var body bytes.Buffer
			writeAnswer(&body, sourcetest.Everything, replicas, 30)
			srv := newFake(b, func(w http.ResponseWriter, query string) string {
				if strings.Contains(query, "=~") {
					_, _ = w.Write(body.Bytes())
					return ""
				}
				return matrix(0)
			})
			s := open(b, Config{URL: srv.URL})
			fetch := func() {
				clear(s.idle) // so that all comes in one answer
				if _, err := s.Fetch(b.Context(), sourcetest.Everything, 30*time.Second, nothing{}); err != nil {
					b.Fatal(err)
				}
			}
			fetch() // the series are known from here on
			b.ReportAllocs()
			b.SetBytes(int64(body.Len()))
			for b.Loop() {
				fetch()
			}
		})
	}
}

// TestMain turns into the server of TestMeasure when it is asked to.
func TestMain(m *testing.M) {
	if address := os.Getenv("SERVE_ANSWERS"); address != "" {
		replicas, _ := strconv.Atoi(os.Getenv("MEASURE_REPLICAS"))
		err := http.ListenAndServe(address, answers(replicas))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serveAnswers(t *testing.T, replicas int) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SERVE_ANSWERS="+address, fmt.Sprintf("MEASURE_REPLICAS=%d", replicas))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for range 100 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "http://" + address
}

var selector = regexp.MustCompile(`^\{__name__=~?"([^"]*)"\}\[(\d+)s\]$`)

func answers(replicas int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := selector.FindStringSubmatch(r.FormValue("query"))
		seconds, _ := strconv.Atoi(m[2])
		w.Header().Set("Content-Type", "application/json")
		out := io.Writer(w)
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			out = z
		}
		writeAnswer(out, strings.Split(m[1], "|"), replicas, seconds)
	})
}

// writeAnswer writes what Prometheus would about the series of sourcetest.Exposition.
func writeAnswer(w io.Writer, names []string, replicas, seconds int) {
	out := bufio.NewWriterSize(w, 64<<10)
	defer out.Flush()
	const interval = 15
	now := time.Now()
	step := int(now.Unix() / interval)
	fmt.Fprint(out, `{"status":"success","data":{"resultType":"matrix","result":[`)
	first := true
	for line := range strings.Lines(sourcetest.Exposition(1)) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), "{")
		if !ok || !slices.Contains(names, name) {
			continue
		}
		own, _, _ := strings.Cut(rest, "}")
		own = strings.NewReplacer(`="`, `":"`, `",`, `","`).Replace(own)
		for i := range replicas {
			if !first {
				out.WriteByte(',')
			}
			first = false
			fmt.Fprintf(out, `{"metric":{"__name__":%q,"container":"vllm","endpoint":"metrics","instance":"10.%d.%d.7:8000","job":"inference/llama-3-1-8b","namespace":"inference","pod":"llama-3-1-8b-7d9c6b5f4d-%05d","service":"llama-3-1-8b","%s},"values":[`, name, i/250, i%250, i, own)
			for at := step - seconds/interval + 1; at <= step; at++ {
				if at > step-seconds/interval+1 {
					out.WriteByte(',')
				}
				fmt.Fprintf(out, `[%d.%03d,"%d"]`, at*interval, i%1000, at*(i%7))
			}
			out.WriteString("]}")
		}
	}
	out.WriteString("]}}")
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func rss(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, _ := strconv.Atoi(string(bytes.Fields(text)[1]))
	return pages * os.Getpagesize() >> 20
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc >> 20
}
