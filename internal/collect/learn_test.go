package collect

import (
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// inFleet runs f with a fleet that asks for the demand in two ways, on virtual time.
func inFleet(t *testing.T, f func(*fleet, *Collector)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		asked := plans("vllm_demand_replicas", "inference_demand_replicas")
		fl := newFleet(t, signals.Names(asked))
		params := signals.DefaultParams()
		params.SLO = signals.SLO{TTFT: goodTTFT, TPOT: goodTPOT}
		c, err := New(Config{Source: fl, Pods: fl.index, Settings: Settings{Params: params}})
		if err != nil {
			t.Fatal(err)
		}
		c.SetStanding(asked)
		f(fl, c)
	})
}

// demand is that of a variant's pods, or of all.
func (f *fleet) demand(c *Collector, variants ...string) signals.Result {
	var members []*pods.Pod
	for _, s := range f.pods {
		for _, v := range variants {
			if s.Variant == v {
				members = append(members, s.Pod)
			}
		}
	}
	return c.Snapshot().Merge(plan("vllm_demand_replicas"), members, make([]string, len(members)))
}

// TestLearnsWhatReplicasCanDo watches emulated engines, through their expositions, for two hours of a load
// that comes and goes, and then compares what is said of a load with what they can really do. Variant b has
// two cores in a pod, and so can do twice as much.
func TestLearnsWhatReplicasCanDo(t *testing.T) {
	truth := serves(t, slow())
	t.Logf("a core serves %.2f requests/s", truth)
	inFleet(t, func(f *fleet, c *Collector) {
		cores := map[string]float64{"a": 2, "b": 2}
		f.add("a", 1)
		f.add("a", 1)
		f.add("b", 2)
		for i, v := range []string{"a", "b"} {
			f.loads[v] = newRequests(t, cores[v]*truth, uint64(i+1))
			f.loads[v].rate = swings(0.9 * cores[v] * truth)
		}
		f.run(c, 6*time.Minute, nil)
		if got := f.demand(c, "a"); got.State != signals.Unknown || !strings.Contains(got.Reason, "busy") {
			t.Fatalf("after six minutes: %+v, want that too little has been seen", got)
		}
		f.run(c, 2*time.Hour-6*time.Minute, nil)

		for _, part := range []float64{0.35, 0.8} {
			for v := range cores {
				f.loads[v].rate = func(time.Duration) float64 { return part * cores[v] * truth }
			}
			f.run(c, 12*time.Minute, nil)
			var sum float64
			for v, n := range map[string]float64{"a": 2, "b": 1} {
				got := f.demand(c, v)
				t.Logf("%s: %.0f %% of %g replicas: %.2f (%s)", v, 100*part, n, got.Value, got.Reason)
				// As the ADR has it, between 20 % too little capacity and 15 % too much; and up to 0.8 of
				// what is there is held where chance may have hidden some load.
				if least, most := 0.85*part*n, max(1.25*part, 0.8)*n; !got.HasValue || got.Value < least || got.Value > most {
					t.Errorf("%s at %g of what %g replicas can do: %+v, want %.2f to %.2f", v, part, n, got, least, most)
				}
				sum += got.Value
			}
			if got := f.demand(c, "a", "b"); got.Value < 0.999*sum || got.Value > 1.001*sum {
				t.Errorf("both variants: %+v, want the sum %g of what each of them needs", got, sum)
			}
		}

		// The costs of a core are those of the engine, and the same of both variants.
		for v := range cores {
			m, err := c.learning.learner.Model("/" + v)
			if err != nil {
				t.Fatal(err)
			}
			for what, of := range map[string][2]float64{"step": {m.Step, f.cfg.StepTime.Base}, "prompt token": {m.Prompt, f.cfg.StepTime.PrefillToken}} {
				if of[0] < 0.85*of[1] || of[0] > 1.25*of[1] {
					t.Errorf("%s: a %s takes %g s, and is learned to take %g", v, what, of[1], of[0])
				}
			}
			if m.TokensPerStep > 1.02 {
				t.Errorf("%s: %g tokens of a request in a step, want 1", v, m.TokensPerStep)
			}
		}

		// A replica that has just been added counts as it is, and does not make the others unknown.
		before := f.demand(c, "a").Value
		f.add("a", 1)
		f.run(c, 30*time.Second, nil)
		got := f.demand(c, "a")
		if !got.HasValue || strings.Contains(got.Reason, "no value") || got.Value < 0.8*before || got.Value > 1.3*before {
			t.Errorf("half a minute after a third replica came: %+v, before %.2f", got, before)
		}
	})
}

var windowsSeen = regexp.MustCompile(`(\d+) busy windows have been seen`)

// TestWhatTeaches keeps one replica busy for twenty minutes, and counts what has been learned of it.
func TestWhatTeaches(t *testing.T) {
	for _, tt := range []struct {
		name string
		rate float64 // requests per second
		do   func(f *fleet, s *served, at time.Duration)
		want string // windows that have been seen; "" for none
	}{
		// The first one is not whole. Two queries measure the same.
		{"every minute, once", 1.2, func(*fleet, *served, time.Duration) {}, "1[6-9]|20"},
		// Then they hardly meet, and for how long they ran is known of those that finished.
		{"a request now and then", 0.01, func(*fleet, *served, time.Duration) {}, "[3-9]|1[0-9]"},
		{"a restart in each", 1.2, func(f *fleet, s *served, at time.Duration) {
			if at%(50*time.Second) == 0 {
				// It has as much to do again by the time it is read.
				before := time.Now().Add(-4 * time.Second)
				f.restart(s, before)
				for id := range uint64(40) {
					if err := s.cores[0].Submit(before, engine.Request{ID: 1<<40 + id, PromptTokens: 100, OutputTokens: 300}); err != nil {
						f.t.Fatal(err)
					}
				}
				s.cores[0].Advance(time.Now())
			}
		}, ""},
		{"a hang in each", 1.2, func(f *fleet, s *served, at time.Duration) {
			switch at % (50 * time.Second) {
			case 0:
				s.cores[0].Freeze(time.Now())
			case 15 * time.Second:
				s.cores[0].Unfreeze(time.Now())
			}
		}, ""},
		{"a gap in each", 1.2, func(f *fleet, s *served, at time.Duration) {
			s.silent = at%(50*time.Second) < 10*time.Second
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inFleet(t, func(f *fleet, c *Collector) {
				s := f.add("a", 1)
				f.loads["a"] = newRequests(t, tt.rate, 1)
				f.run(c, 20*time.Minute, func(at time.Duration) { tt.do(f, s, at) })
				_, err := c.learning.learner.Model("/a")
				if err == nil {
					t.Fatal("trusts what it saw in 20 minutes")
				}
				got := ""
				if m := windowsSeen.FindStringSubmatch(err.Error()); m != nil {
					got = m[1]
				}
				if !regexp.MustCompile("^(" + tt.want + ")$").MatchString(got) {
					t.Errorf("%s windows taught (%v), want %s", got, err, tt.want)
				}
			})
		})
	}
}

// TestLearningIsForgotten has pods come and go: of those that have gone nothing is kept, and what their
// variant can do is.
func TestLearningIsForgotten(t *testing.T) {
	inFleet(t, func(f *fleet, c *Collector) {
		f.loads["a"] = newRequests(t, 1.2, 1)
		s := f.add("a", 1)
		for range 12 {
			f.run(c, 3*time.Minute, nil)
			if n := len(c.learning.pods); n == 0 || n > 2 {
				t.Fatalf("keeps %d pods, of which one is there", n)
			}
			next := f.add("a", 1)
			f.remove(s)
			s = next
		}
		_, before := c.learning.learner.Model("/a")
		f.remove(s)
		delete(f.loads, "a")
		f.run(c, 30*time.Second, nil)
		if n := len(c.learning.pods) + len(c.learning.known); n > 0 {
			t.Errorf("keeps %d things of pods that have gone", n)
		}
		if _, after := c.learning.learner.Model("/a"); before == nil || after == nil || before.Error() != after.Error() || strings.Contains(after.Error(), "no replica") {
			t.Errorf("of the variant it knew %q, and knows %q", before, after)
		}
	})
}

// TestDrain: what waits is to be served in a cold start, of the pod that took longest, and of that as it took
// at first.
func TestDrain(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	pod := func(uid types.UID, took time.Duration) *pods.Pod {
		return &pods.Pod{UID: uid, Variant: "a", Start: began, Ready: true, ReadySince: began.Add(took)}
	}
	l := newLearning()
	for _, tick := range []struct {
		pods []*pods.Pod
		want time.Duration
	}{
		{[]*pods.Pod{pod("p", 30*time.Second)}, 2 * time.Minute},
		{[]*pods.Pod{pod("q", 5*time.Minute), pod("p", 30*time.Second)}, 5 * time.Minute},
		{[]*pods.Pod{pod("p", 30*time.Second), pod("q", 9*time.Minute)}, 5 * time.Minute}, // Ready again
		{[]*pods.Pod{pod("r", time.Hour), pod("p", 30*time.Second)}, 2 * time.Minute},     // nor is that a start
	} {
		l.begin(func(*pods.Pod) string { return "" }, func(uid types.UID) bool { return true })
		var got *signals.Capacity
		for _, p := range tick.pods {
			got = l.of(p)
		}
		if got.Drain != tick.want {
			t.Errorf("drains in %s, want %s", got.Drain, tick.want)
		}
	}
	if got := l.of(&pods.Pod{UID: "x"}); got != nil {
		t.Errorf("a pod of which it is not known what it runs can do %+v", got)
	}
}
