package drills

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// A sourceDrill does something to the server that samples come from.
type sourceDrill struct {
	name, done string
	// hpa says that the drill goes through the HPA also in CI.
	hpa bool
	// secure has the server speak TLS, and want a token.
	secure bool
	// begin does it, and end undoes it.
	begin func(*testing.T, *server)
	end   func(*testing.T, *server)
	// want is what is answered while it lasts.
	want string
}

// server is the source of a drill, as the adapter sees it.
type server struct {
	*front
	fleet       *fleet
	shift       atomic.Int64
	caFile      string
	token       atomic.Pointer[string]
	tokenFile   string
	certificate []byte
}

func injects(f fault) func(*testing.T, *server) {
	return func(_ *testing.T, s *server) { s.set(f) }
}

func lifts(_ *testing.T, s *server) { s.lift() }

// moves sets the server's clock.
func moves(by time.Duration) func(*testing.T, *server) {
	return func(_ *testing.T, s *server) { s.shift.Add(int64(by)) }
}

func nothing(*testing.T, *server) {}

// back is how far a clock is set back: no value is believed until it is where it was.
func back() time.Duration {
	if soak {
		return 5 * time.Minute
	}
	return 10 * time.Second
}

func sourceDrills() []sourceDrill {
	return []sourceDrill{
		{name: "refuses connections", done: "the server's port is closed, and its connections cut", hpa: true,
			begin: func(_ *testing.T, s *server) { s.close() },
			end:   func(_ *testing.T, s *server) { s.open() }, want: unknown},
		{name: "500", done: "every query is answered 500", hpa: true,
			begin: injects(answers(http.StatusInternalServerError, "text/plain", "out of order")), end: lifts, want: unknown},
		{name: "hangs", done: "connections are taken, queries never answered", hpa: true,
			begin: injects(hangs), end: lifts, want: unknown},
		{name: "clock set forward", done: "the server's clock is set forward by ten minutes", hpa: true,
			begin: moves(10 * time.Minute), end: nothing},
		{name: "clock set back", done: fmt.Sprintf("the server's clock is set back by %s", back()), hpa: true,
			begin: moves(-back()), end: nothing},
		{name: "429", done: "every query is answered 429 with `Retry-After: 60`",
			begin: injects(answers(http.StatusTooManyRequests, "text/plain", "slow down", "Retry-After", "60")), end: lifts, want: unknown},
		{name: "slow body", done: "answers come at ten bytes a second",
			begin: injects(trickles), end: lifts, want: unknown},
		{name: "truncated JSON", done: "answers end in the middle of their first series",
			begin: injects(cuts), end: lifts, want: unknown},
		{name: "wrong content type", done: "a login page is answered, with 200",
			begin: injects(answers(http.StatusOK, "text/html", "<html><body>Log in</body></html>")), end: lifts, want: unknown},
		{name: "50 MB answer", done: "50 MB of series of pods that do not exist are added to each answer",
			begin: injects(swells), end: lifts, want: whole},
		{name: "NaN, ±Inf", done: "queues are NaN, +Inf and −Inf in turn",
			begin: injects(valued(math.NaN(), math.Inf(1), math.Inf(-1))), end: lifts, want: notFound},
		{name: "2^63", done: "queues are 2^63",
			begin: injects(valued(math.Exp2(63))), end: lifts, want: notFound},
		{name: "half of the shards", done: "the series of one pod of three are gone, and the server warns that the answer is partial",
			begin: func(_ *testing.T, s *server) {
				lost := s.fleet.pods[0].Name
				s.set(changed(func(m *matrix) {
					m.Warnings = []string{"No StoreAPIs matched for this query"}
					kept := m.Data.Result[:0]
					for _, x := range m.Data.Result {
						if x.Metric["pod"] != lost {
							kept = append(kept, x)
						}
					}
					m.Data.Result = kept
				}))
			}, end: lifts, want: part},
		{name: "token expired", done: "the server wants another token; then the file is replaced", secure: true,
			begin: func(_ *testing.T, s *server) { other := "two"; s.token.Store(&other) },
			end:   func(t *testing.T, s *server) { replace(t, s.tokenFile, []byte("two")) }, want: unknown},
		{name: "CA rotated", done: "the server has a certificate of another CA; then the file is replaced", secure: true,
			begin: func(t *testing.T, s *server) { s.certificate = s.identify(); s.close(); s.open() },
			end:   func(t *testing.T, s *server) { replace(t, s.caFile, s.certificate) }, want: unknown},
	}
}

// replace replaces a file as a whole, as the kubelet does in a volume.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// newServer returns Prometheus behind a front.
func newServer(t *testing.T, f *fleet, secure bool) (*server, []string) {
	t.Helper()
	s := &server{fleet: f, front: newFront(t, shared.Prometheus.URL, secure)}
	args := []string{"--prometheus-url=" + s.url}
	if !secure {
		return s, args
	}
	dir := t.TempDir()
	s.caFile, s.tokenFile = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	replace(t, s.caFile, s.identify())
	replace(t, s.tokenFile, []byte("one"))
	one := "one"
	s.token.Store(&one)
	next := s.forward
	s.forward = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*s.token.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
	file := filepath.Join(dir, "client.yaml")
	replace(t, file, fmt.Appendf(nil, "authorization: {credentials_file: %s}\ntls_config: {ca_file: %s}\n", s.tokenFile, s.caFile))
	return s, append(args, "--prometheus-client-config="+file)
}

// TestSource drills what has to do with the server that samples come from, each on an adapter of its own.
// In a soak they go through the HPA, in TestCluster.
func TestSource(t *testing.T) {
	if soak {
		t.Skip("in a soak they go through the HPA")
	}
	t.Parallel()
	f := startFleet(t, "source", 3)
	for _, d := range sourceDrills() {
		if d.hpa {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s, args := newServer(t, f, d.secure)
			d.run(t, newJudge(t, f, startAdapter(t, args...), false), s)
		})
	}
	for _, skew := range skews {
		t.Run(fmt.Sprintf("clock off by %s", skew), func(t *testing.T) {
			t.Parallel()
			testSkew(t, f, skew, false)
		})
	}
}

var skews = []time.Duration{10 * time.Minute, -10 * time.Minute}

// testSkew drills a server whose clock is off by as much from the start.
func testSkew(t *testing.T, f *fleet, skew time.Duration, hpa bool) {
	s, args := newServer(t, f, false)
	s.shift.Store(int64(skew))
	s.set(shifted(&s.shift))
	a := startAdapter(t, args...)
	if hpa {
		serve(t, a)
	}
	j := newJudge(t, f, a, hpa)
	j.awaitRight(t, time.Minute)
	j.mark()
	time.Sleep(fresh + hold)
	if err := j.only(whole); err != nil {
		t.Error(err)
	}
	j.awaitWindow(t)
	j.verdict(t)
	record(t, row{Part: "Source", Drill: fmt.Sprintf("clock off by %+.0f min", skew.Minutes()),
		Done: "the server's clock is off, from before the adapter starts", Observed: whole, HPA: j.hpa, Test: "test/cluster/drills/source_test.go"})
}

// memoryLimit is that of deploy/manifests, in MiB.
const memoryLimit = 1024

// run does the drill under a judge.
func (d sourceDrill) run(t *testing.T, j *judge, s *server) {
	t.Helper()
	defer j.verdict(t)
	j.awaitRight(t, time.Minute)
	before := residentMiB(t, j.adapter.Pid)
	j.mark()
	d.begin(t, s)
	observed := d.want
	switch d.want {
	case "": // a clock was set: how long it is unknown is told by how long until it is right again
		eventually(t, time.Minute, "the jump is noticed", func() error {
			if j.is(whole) == nil {
				return fmt.Errorf("all values are there")
			}
			return nil
		})
		observed = "unknown, until there are samples by the new clock"
	case whole:
		time.Sleep(fresh + hold)
		if err := j.only(whole); err != nil {
			t.Error(err)
		}
	default:
		eventually(t, time.Minute, "the fault has its effect", func() error { return j.is(d.want) })
		if said := j.said(); d.want != part && said != "" {
			observed += ": " + said
		}
		j.mark()
		time.Sleep(hold)
		if err := j.only(d.want); err != nil {
			t.Error(err)
		}
		if c := j.condition(t); j.hpa && d.want == unknown && c.Reason != "FailedGetPodsMetric" {
			t.Errorf("the HPA says %s: %s", c.Reason, c.Message)
		}
	}
	if err := shared.Available(t.Context()); j.hpa && err != nil {
		t.Error(err)
	}
	if after := residentMiB(t, j.adapter.Pid); after > memoryLimit*8/10 {
		t.Errorf("the adapter grew from %d to %d MiB", before, after)
	} else if d.want == whole {
		observed += fmt.Sprintf(": memory went from %d to %d MiB", before, after)
	}
	d.end(t, s)
	ended := time.Now()
	j.awaitRight(t, time.Minute+back())
	again := time.Since(ended)
	j.verdict(t)
	record(t, row{Part: "Source", Drill: d.name, Done: d.done, Observed: observed, Again: again, HPA: j.hpa, Test: "test/cluster/drills/source_test.go"})
}
