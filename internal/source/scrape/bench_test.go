package scrape

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
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
//	MEASURE_TARGETS=1000 go test ./internal/source/scrape -run TestMeasure -v -timeout 30m
//
// The targets live in a process of their own, so that only the adapter's side is counted. With
// MEASURE_NAMES=gauges, only three gauges are kept.
func TestMeasure(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("MEASURE_TARGETS"))
	if n == 0 {
		t.Skip("MEASURE_TARGETS is not set")
	}
	names := sourcetest.Everything
	if os.Getenv("MEASURE_NAMES") == "gauges" {
		names = sourcetest.Gauges
	}
	address := serveExpositions(t)
	cfg := Config{Names: names}
	for i := range n {
		cfg.Targets = append(cfg.Targets, Target{"default", fmt.Sprintf("vllm-%d", i), "http://" + address + "/metrics", ""})
	}
	s := run(t, cfg)
	store := window.New(5*time.Minute, func(ls labels.Labels) (string, bool) { return ls.Get("namespace") + "/" + ls.Get("pod"), true })

	const tick = 5 * time.Second
	var fetching time.Duration
	ticks := func(n int) {
		for range n {
			time.Sleep(tick)
			began := cpu()
			now, err := s.Fetch(t.Context(), nil, 0, store)
			if err != nil {
				t.Fatal(err)
			}
			store.Advance(now.UnixMilli())
			fetching += cpu() - began // of both goroutines that scrape and this one; an upper bound
		}
	}
	ticks(3)
	const measured = 12
	fetching = 0
	began, cpuBegan := time.Now(), cpu()
	ticks(measured)
	spent, wall := cpu()-cpuBegan, time.Since(began)
	series, samples := store.Stats()
	t.Logf("%d targets, %d names: %d series, %d samples in the window", n, len(names), series, samples)
	t.Logf("exposition %d bytes; %.1f MB/s on the wire", len(sourcetest.Exposition(1)), float64(n*len(sourcetest.Exposition(1)))/tick.Seconds()/1e6)
	t.Logf("CPU %.3f cores; %.0f ms a tick, of which fetching at most %.0f ms", spent.Seconds()/wall.Seconds(), spent.Seconds()*1000/measured, fetching.Seconds()*1000/measured)
	t.Logf("RSS %d MB, live heap %d MB", rss(t), liveHeap())
	runtime.KeepAlive(store)
}

// TestMain turns into the targets of TestMeasure when it is asked to.
func TestMain(m *testing.M) {
	if address := os.Getenv("SERVE_EXPOSITIONS"); address != "" {
		var texts [16][]byte
		for i := range texts {
			texts[i] = []byte(sourcetest.Exposition(i + 1))
		}
		err := http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = w.Write(texts[time.Now().Unix()/5%int64(len(texts))])
		}))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serveExpositions(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	listener.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SERVE_EXPOSITIONS="+address)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return address
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
