package collect

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/signals"
)

func TestSourceClock(t *testing.T) {
	base := time.Now()
	ours := func(s float64) time.Time { return base.Add(time.Duration(s * float64(time.Second))) }
	source := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	shows := func(s float64) time.Time { return source.Add(time.Duration(s * float64(time.Second))) }

	for _, c := range []struct {
		name                  string
		read, asked, answered float64
		jumped                bool
		until                 float64
	}{
		{name: "it goes on", read: 10.1, asked: 10, answered: 10.2, until: 10.2},
		{name: "it is a little slow", read: 7.5, asked: 10, answered: 10.1, until: 10.1},
		{name: "set back", read: 6.5, asked: 10, answered: 10.1, jumped: true, until: 10.1},
		{name: "set forward", read: 13.5, asked: 10, answered: 10.1, jumped: true, until: 10.1},
		{name: "a slow answer that was made at its end", read: 29.9, asked: 10, answered: 30, until: 30},
		{name: "a slow answer that was made at its beginning", read: 10, asked: 10, answered: 30, until: 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			var clock sourceClock
			if _, jumped := clock.set(shows(0), ours(0), ours(0)); jumped {
				t.Fatal("the first reading is a jump")
			}
			until, jumped := clock.set(shows(c.read), ours(c.asked), ours(c.answered))
			if jumped != c.jumped || !until.Equal(shows(c.until)) {
				t.Errorf("jumped %v until %s, want %v until %s", jumped, until.Sub(source), c.jumped, shows(c.until).Sub(source))
			}
			if got, want := clock.at(ours(c.answered+5)), shows(c.read+5); !got.Equal(want) {
				t.Errorf("five seconds after the answer it shows %s, want %s", got.Sub(source), want.Sub(source))
			}
		})
	}

	t.Run("an answer that was made early and came late does not look like a jump after it", func(t *testing.T) {
		var clock sourceClock
		clock.set(shows(0), ours(0), ours(9)) // read as it was asked
		if _, jumped := clock.set(shows(10), ours(10), ours(10)); jumped {
			t.Error("the clock is said to have been set forward")
		}
	})
	t.Run("before the first reading it is ours", func(t *testing.T) {
		var clock sourceClock
		if got := clock.at(ours(3)); !got.Equal(ours(3)) || clock.offset(ours(3)) != 0 {
			t.Errorf("it shows %s, want %s", got, ours(3))
		}
	})
}

// settable is a source with a clock that can be set, which keeps what it read as it was stamped then.
type settable struct {
	mu      sync.Mutex
	skew    time.Duration
	samples []stamped
}

type stamped struct {
	ls labels.Labels
	t  time.Time
	v  float64
}

func (s *settable) read(name string, v float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = append(s.samples, stamped{labels.FromStrings("__name__", name, "namespace", "ns", "pod", "a", "instance", "a:8000"), time.Now().Add(s.skew), v})
}

func (s *settable) set(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew += by
}

func (s *settable) Fetch(_ context.Context, _ []string, lookback time.Duration, sink source.Sink) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Add(s.skew)
	for _, x := range s.samples {
		if !x.t.After(now) && x.t.After(now.Add(-lookback)) {
			sink.Append(x.ls, x.t.UnixMilli(), x.v)
		}
	}
	return now, nil
}

func (s *settable) String() string { return "a source with a clock" }

// A source that keeps what it stamped before its clock was set delivers it again, as though it were new.
func TestClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-10 * time.Minute, -time.Minute, -20 * time.Second, time.Minute, 10 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &settable{}
				pod := readyPod("a", 0)
				c, err := New(Config{Source: src, Pods: pods.NewStatic([]*pods.Pod{pod}), Settings: Settings{Params: signals.DefaultParams()}})
				if err != nil {
					t.Fatal(err)
				}
				c.SetStanding(plans("vllm_queue_depth", "vllm_running_requests"))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				defer cancel()
				time.Sleep(time.Second)
				scrape := func(prefix string, queue, running float64) signals.Measure {
					src.read(prefix+"num_requests_waiting", queue)
					src.read(prefix+"num_requests_running", running)
					time.Sleep(DefaultInterval)
					synctest.Wait()
					return c.Snapshot().Measure(query("vllm_queue_depth"), pod)
				}
				for range 24 {
					scrape("vllm:", 0, 0)
				}
				if got := scrape("vllm:", 0, 0); got.State != signals.Idle {
					t.Fatalf("before: %+v, want idle", got)
				}
				src.set(by)
				// As after any outage, there are values when a whole window is there.
				blind := max(0, -by) + signals.DefaultParams().Window + 2*DefaultInterval
				for passed := DefaultInterval; passed < blind+15*time.Minute; passed += DefaultInterval {
					// Other names, so that the series of before do not go on.
					got := scrape("vllm_", 5, 1)
					if got.HasValue && got.Value != 5 {
						t.Fatalf("%s after the clock was set: %+v, with 5 waiting", passed, got)
					}
					if !got.HasValue && passed > blind {
						t.Fatalf("%s after the clock was set there is no value: %+v", passed, got)
					}
				}
				if n := testutil.ToFloat64(c.metrics.jumps); n != 1 {
					t.Errorf("%v jumps were counted, want 1", n)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
