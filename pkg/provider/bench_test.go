package provider

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/inference-metrics/adapter/internal/pods"
)

// podMetricRequest returns a handler over n pods and what an HPA asks it every 15 seconds. Half as
// many other pods are in the same namespace.
func podMetricRequest(tb testing.TB, n int) (http.Handler, func(accept string) *http.Request) {
	src := &gauges{values: map[string]map[string]float64{}}
	var list []*pods.Pod
	for i := range n + n/2 {
		p := pod(podName(i), func(p *pods.Pod) {
			p.Labels = map[string]string{"app": "vllm", "pod-template-hash": "5d4f8c7b9", "role": "decode"}
			if i >= n {
				p.Labels["app"] = "other"
			}
		})
		list = append(list, p)
		src.values[p.Name] = queue(float64(i) * 1.37)
	}
	lister := pods.NewStatic(list)
	h := newHandler(tb, ofPods(snapshotOf(tb, src, lister, queueDepth), lister))
	return h, func(accept string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, root+"/v1beta2"+podsPath+"%2A/vllm_queue_depth?labelSelector=app%3Dvllm%2Crole%3Ddecode", nil)
		r.Header.Set("Accept", accept)
		return r
	}
}

// sink takes an answer without keeping it, so that what is measured is ours.
type sink struct {
	header http.Header
	code   int
	n      int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(code int)        { s.code = code }
func (s *sink) Write(b []byte) (int, error) { s.n += len(b); return len(b), nil }

// accepts are how requests are asked: by a person, and by the HPA controller.
var accepts = []struct{ name, accept string }{
	{"json", applicationJSON},
	{"protobuf", protobuf + "," + applicationJSON},
}

func BenchmarkPodMetricRequest(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, a := range accepts {
			b.Run(fmt.Sprintf("pods=%d/%s", n, a.name), func(b *testing.B) {
				h, request := podMetricRequest(b, n)
				r := request(a.accept)
				b.ReportAllocs()
				for b.Loop() {
					w := &sink{header: http.Header{}}
					h.ServeHTTP(w, r)
					if w.code != http.StatusOK {
						b.Fatalf("got a %d", w.code)
					}
				}
			})
		}
	}
}

// The budget of one request for 100 pods. Bytes are what a garbage collection is paid for.
func TestRequestAllocations(t *testing.T) {
	const maxBytes, maxAllocs = 250_000, 1_000
	h, request := podMetricRequest(t, 100)
	for _, a := range accepts {
		r := request(a.accept)
		ask := func() {
			w := &sink{header: http.Header{}}
			h.ServeHTTP(w, r)
			if w.code != http.StatusOK {
				t.Fatalf("got a %d", w.code)
			}
		}
		ask() // what is made once
		var before, after runtime.MemStats
		const runs = 50
		runtime.ReadMemStats(&before)
		for range runs {
			ask()
		}
		runtime.ReadMemStats(&after)
		bytes, allocs := (after.TotalAlloc-before.TotalAlloc)/runs, (after.Mallocs-before.Mallocs)/runs
		t.Logf("%s: %d bytes in %d allocations", a.name, bytes, allocs)
		if bytes > maxBytes || allocs > maxAllocs {
			t.Errorf("%s: a request allocates %d bytes in %d allocations; the budget is %d in %d", a.name, bytes, allocs, maxBytes, maxAllocs)
		}
	}
}
