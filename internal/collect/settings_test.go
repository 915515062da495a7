package collect

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// tokens is a counter that grows by ten a second.
func tokens(pod string) fakeSeries {
	return fakeSeries{
		ls:    labels.FromStrings("__name__", "vllm:generation_tokens_total", "namespace", "ns", "pod", pod, "instance", pod+":8000"),
		value: func(t time.Time) float64 { return 10 * float64(t.Unix()-900_000_000) },
	}
}

const rate = "vllm_generation_tokens_rate"

// over returns the plan of the rate over a window, as it is read under settings.
func over(t *testing.T, window time.Duration, s *Settings) *signals.Plan {
	t.Helper()
	q := signals.Query{Signal: rate}
	if window != s.Params.Window {
		q.Window = window
	}
	p, err := signals.Prepare(q)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func settingsWith(window time.Duration, others ...time.Duration) Settings {
	s := Settings{Params: signals.DefaultParams(), Windows: others}
	s.Params.Window = window
	return s
}

// What was collected is kept, and what is measured over a window that is longer than what was collected is
// unknown until samples cover it. It is never another number.
func TestConfigureKeepsWhatWasCollected(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7), gauge("vllm:num_requests_running", "a", 2), tokens("a")}}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		standing := plans("vllm_queue_depth", rate)
		c.SetStanding(standing)
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		unknown := false
		for _, step := range []struct {
			window time.Duration
			others []time.Duration
			known  bool // at once
		}{
			{2 * time.Minute, nil, true}, {30 * time.Second, nil, true}, {10 * time.Minute, nil, false},
			{time.Minute, []time.Duration{10 * time.Minute}, true}, {10 * time.Minute, nil, true}, {time.Minute, nil, true},
		} {
			if err := c.Configure(settingsWith(step.window, step.others...), standing); err != nil {
				t.Fatal(err)
			}
			for second := range 20 * 60 {
				time.Sleep(time.Second)
				synctest.Wait()
				s := c.Snapshot()
				if got := s.Measure(query("vllm_queue_depth"), pod()[0]); got.HasValue && got.Value != 7 || !got.HasValue && step.known {
					t.Errorf("window %s, after %d s: the queue is %+v", step.window, second, got.Result)
					return
				}
				got := s.Measure(query(rate), pod()[0])
				switch {
				case !got.HasValue:
					unknown = true
					if step.known {
						t.Errorf("window %s, after %d s: the rate is %+v, and the samples cover it", step.window, second, got.Result)
						return
					}
				case math.Abs(got.Value-10) > 1e-6 || got.Window != s.Settings().Params.Window:
					t.Errorf("window %s, after %d s: the rate is %+v, want 10 over %s", step.window, second, got.Result, s.Settings().Params.Window)
					return
				case second == 20*60-1 && got.Window != step.window:
					t.Errorf("the rate is over %s in the end, want %s", got.Window, step.window)
				}
			}
		}
		if !unknown {
			t.Error("ten minutes were covered at once: then this test shows nothing")
		}
		if err := c.Configure(settingsWith(time.Hour), standing); err == nil {
			t.Error("a window of an hour was taken")
		}
		if got := c.Snapshot().Settings().Params.Window; got != time.Minute {
			t.Errorf("the window is %s after another was refused", got)
		}
	})
	for i, f := range src.fetched()[1:] {
		if f.lookback > time.Minute {
			t.Errorf("fetch %d looked back %s: what was there was asked for again", i+1, f.lookback)
		}
	}
}

// What an HPA names is in every snapshot, read by the settings that the snapshot was made under, however
// often these change.
func TestConfigureRaces(t *testing.T) {
	src := &fakeSource{series: []fakeSeries{tokens("a")}}
	pod := func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }
	inBubble(t, src, pod, func(c *Collector) {
		const asked = 2 * time.Minute
		settings := []Settings{settingsWith(time.Minute, asked), settingsWith(asked, time.Minute)}
		configure := func(s Settings) {
			if err := c.Configure(s, []*signals.Plan{over(t, asked, &s)}); err != nil {
				t.Error(err)
			}
		}
		configure(settings[0])
		time.Sleep(2 * minSpacing)
		synctest.Wait()
		seen := map[time.Duration]bool{}
		var running sync.WaitGroup
		running.Go(func() {
			for i := range 4000 {
				configure(settings[i%2])
				time.Sleep(17 * time.Millisecond)
			}
		})
		running.Go(func() {
			for range 4000 {
				s := c.Snapshot()
				seen[s.Settings().Params.Window] = true
				p := over(t, asked, s.Settings())
				if got := s.Measure(p.Query, pod()[0]); !s.Collected(p.Query) || got.Window != asked || math.Abs(got.Value-10) > 1e-6 {
					t.Errorf("under a window of %s: %+v", s.Settings().Params.Window, got.Result)
					return
				}
				time.Sleep(17 * time.Millisecond)
			}
		})
		running.Wait()
		if len(seen) != 2 {
			t.Errorf("snapshots were made under the windows %v only", seen)
		}
	})
}
