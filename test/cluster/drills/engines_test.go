package drills

import (
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An engineDrill does something to one engine of a fleet, all of which the adapter scrapes by itself.
type engineDrill struct {
	name, done string
	// fault is what its exporter does.
	fault fault
	// act is what the emulator has the engine do at first, again after every so often, and at the end.
	act, end string
	again    time.Duration
	// observed is what is answered for the pod meanwhile, of which check sees to.
	observed string
}

const (
	leftOut = "the pod is left out; the others keep the right values"
	kept    = "the right values"
	bound   = "its queue, as a lower bound; the others keep the right values"
	// either is of an engine that comes and goes: its queue may truly be anything.
	either = "what it has while it runs, or left out; the others keep the right values"
)

func engineDrills() []engineDrill {
	return []engineDrill{
		{name: "exposition garbage", done: "an exporter answers random bytes", observed: leftOut,
			fault: func(w http.ResponseWriter, _ *http.Request, _ http.Handler, _ <-chan struct{}) {
				w.Header().Set("Content-Type", "text/plain; version=0.0.4")
				bytes := make([]byte, 64<<10)
				for i := range bytes {
					bytes[i] = byte(rand.N(256))
				}
				_, _ = w.Write(bytes)
			}},
		{name: "gzip bomb", done: "an exporter answers 4 GiB, packed into 4 MB", observed: leftOut, fault: bomb},
		{name: "never-ending body", done: "an exporter's answer goes on for ever", observed: leftOut,
			fault: func(w http.ResponseWriter, r *http.Request, _ http.Handler, lifted <-chan struct{}) {
				for i := 0; ; i++ {
					select {
					case <-lifted:
						return
					default:
					}
					if _, err := fmt.Fprintf(w, "vllm:num_requests_waiting{engine=\"%d\",model_name=\"m\"} 0\n", i); err != nil {
						return
					}
				}
			}},
		{name: "exporter hangs", done: "an exporter takes connections, and never answers", observed: leftOut, fault: hangs},
		{name: "10,000 extra series", done: "an exporter has 10,000 series more", observed: kept,
			fault: func(w http.ResponseWriter, r *http.Request, next http.Handler, _ <-chan struct{}) {
				body := behind(r, next).Body.String()
				w.Header().Set("Content-Type", "text/plain; version=0.0.4")
				_, _ = io.WriteString(w, body)
				for i := range 10_000 {
					fmt.Fprintf(w, "http_requests_total{path=\"/%d\"} 0\n", i)
				}
			}},
		{name: "engine hangs", done: "an engine stands still; its exporter goes on with frozen gauges",
			observed: bound, act: "freeze", end: "unfreeze"},
		{name: "engine restarts", done: "an engine restarts at once, and its counters begin anew",
			observed: either, act: "restart", end: "up"},
		{name: "crash loop", done: "an engine restarts every four seconds, and is away for three",
			observed: either, act: "restart?downtime=3s", again: 4 * time.Second, end: "up"},
	}
}

// bomb answers 4 GiB of one line, and 4 MB of compressed text.
func bomb(w http.ResponseWriter, _ *http.Request, _ http.Handler, lifted <-chan struct{}) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	line := []byte("vllm:num_requests_waiting{model_name=\"m\"} 0\n" + strings.Repeat("#", 64<<10) + "\n")
	for n := 0; n < 4<<30; n += len(line) {
		select {
		case <-lifted:
			return
		default:
		}
		if _, err := z.Write(line); err != nil {
			return
		}
	}
	_ = z.Close()
}

// TestEngines drills the engines on an adapter that scrapes them. In a soak this goes through the HPA, in
// TestCluster.
func TestEngines(t *testing.T) {
	if soak {
		t.Skip("in a soak it goes through the HPA")
	}
	t.Parallel()
	testEngines(t, false)
}

// testEngines drills all engines of a fleet but one at the same time.
func testEngines(t *testing.T, hpa bool) {
	drills := engineDrills()
	f := startFleet(t, "engines", len(drills)+1)
	args := []string{"--scrape-interval=1s"}
	fronts := make([]*front, len(f.pods))
	var hurt []string
	for i := range f.pods {
		pod := &f.pods[i]
		fronts[i] = newFront(t, fmt.Sprintf("http://%s:8000", pod.Status.PodIP), false)
		args = append(args, fmt.Sprintf("--target=%s/%s=%s/metrics", f.namespace, pod.Name, fronts[i].url))
		if i < len(drills) && drills[i].act != "" {
			hurt = append(hurt, pod.Name)
		}
	}
	a := startAdapter(t, args...)
	if hpa {
		// It wants more than it may have, so that it moves on an average of half of what is true: those
		// engines that restart have truly less.
		f.autoscale(t, len(f.pods), "5")
		serve(t, a)
	}
	j := newJudge(t, f, a, hpa, hurt...)
	j.awaitRight(t, time.Minute)
	before := residentMiB(t, a.Pid)

	act := func(i int, action string) {
		if action == "" {
			return
		}
		if err := f.engines.Act(t.Context(), f.pods[i].Name, action); err != nil {
			t.Error(err)
		}
	}
	began := time.Now()
	for i, d := range drills {
		if d.fault != nil {
			fronts[i].set(d.fault)
		}
		act(i, d.act)
	}
	value := func(i int) (float64, bool) {
		j.mu.Lock()
		defer j.mu.Unlock()
		v, ok := j.last[0].values[f.pods[i].Name]
		return v, ok
	}
	acted := make([]time.Time, len(drills))
	for deadline := began.Add(fresh + hold); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		for i, d := range drills {
			if d.again > 0 && time.Since(began) > d.again && time.Since(acted[i]) > d.again {
				act(i, d.act)
				acted[i] = time.Now()
			}
			if v, ok := value(i); (d.observed == kept || d.observed == bound) && (!ok || v < waiting-2) {
				t.Errorf("%s: the pod has the value %g, %t", d.name, v, ok)
			}
		}
	}
	for i, d := range drills {
		if v, ok := value(i); ok && d.observed == leftOut {
			t.Errorf("%s: the pod still has the value %g", d.name, v)
		}
	}
	if err := j.is(part); err != nil {
		t.Error(err)
	}
	if after := residentMiB(t, a.Pid); after > before+200 {
		t.Errorf("the adapter grew from %d to %d MiB", before, after)
	}

	for i, d := range drills {
		fronts[i].lift()
		act(i, d.end)
	}
	ended := time.Now()
	j.awaitRight(t, time.Minute)
	again := time.Since(ended)
	j.awaitWindow(t)
	eventually(t, time.Minute, "the queues are full again, and answered", func() error {
		for i := range f.pods {
			if v, ok := value(i); !ok || v < waiting-2 {
				return fmt.Errorf("%s has %g, %t", f.pods[i].Name, v, ok)
			}
		}
		return nil
	})
	j.verdict(t)
	for _, d := range drills {
		took := again
		if d.observed == kept {
			took = 0
		}
		record(t, row{Part: "Engines", Drill: d.name, Done: d.done, Observed: d.observed, Again: took, HPA: hpa, Test: "test/cluster/drills/engines_test.go"})
	}
}
