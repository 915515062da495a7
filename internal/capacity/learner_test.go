package capacity

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// costs make windows as an engine with those costs would.
type costs struct{ step, prompt, token, context, perStep float64 }

var usual = costs{step: 0.025, prompt: 130e-6, token: 50e-6, context: 0.03, perStep: 1}

// window is a minute in which n requests ran at every moment, with so many prompt tokens for each
// output token, and such a share of the KV cache each.
func (c costs) window(minute int, n, prompts, share float64) Observation {
	perSecond := 1 / (c.step + c.perStep*n*(c.prompt*prompts+c.token+c.context*share)) // steps
	decoded := c.perStep * n * perSecond
	return Observation{
		At: t0.Add(time.Duration(minute) * time.Minute), Span: time.Minute,
		Steps: 60 * perSecond, PromptTokens: 60 * decoded * prompts,
		FirstTokens: 60, OutputTokens: 60*decoded + 60,
		Running: n, KV: n * share, LeastRunning: n,
	}
}

// watched is a learner that has seen as many windows as are needed, and more.
func (c costs) watched(windows int) *Learner {
	l := &Learner{}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range windows {
		n := 4 * math.Exp2(4*rng.Float64())
		l.Observe("m", c.window(i, n, 1+4*rng.Float64(), 0.002+0.004*rng.Float64()))
	}
	return l
}

func near(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*want) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

func TestLearnsCosts(t *testing.T) {
	for _, c := range []costs{usual, {step: 0.007, prompt: 36e-6, token: 20e-6, context: 0.02, perStep: 2.4}} {
		m, err := c.watched(60).Model("m")
		if err != nil {
			t.Fatal(err)
		}
		near(t, "a step", m.Step, c.step, 1e-3)
		near(t, "a prompt token", m.Prompt, c.prompt, 1e-3)
		near(t, "an output token", m.Token, c.token, 1e-3)
		near(t, "its context", m.Context, c.context, 1e-3)
		near(t, "tokens per step", m.TokensPerStep, c.perStep, 1e-3)
		if m.HeldOut > 1e-3 || m.Windows != 60 || m.MostRunning < 32 {
			t.Errorf("held out %g of %d windows with up to %g requests", m.HeldOut, m.Windows, m.MostRunning)
		}
	}
}

// What no counter shows must not move the costs: a restart that was taken for none has counts missing,
// and a hang of half a minute does too.
func TestOutliers(t *testing.T) {
	l := usual.watched(60)
	for i := range 5 {
		o := usual.window(60+i, 20, 3, 0.004)
		o.Steps, o.PromptTokens, o.OutputTokens = o.Steps/2, o.PromptTokens/2, o.OutputTokens/2
		l.Observe("m", o)
	}
	m, err := l.Model("m")
	if err != nil {
		t.Fatal(err)
	}
	near(t, "a step", m.Step, usual.step, 0.01)
	near(t, "a prompt token", m.Prompt, usual.prompt, 0.01)
	if m.Windows != 60 {
		t.Errorf("learned from %d windows, want the 60 that are right", m.Windows)
	}
}

func TestNotYetTrusted(t *testing.T) {
	for _, tt := range []struct {
		name string
		l    func() *Learner
		want string
	}{
		{"nothing seen", func() *Learner { return &Learner{} }, "no replica of this variant has been seen busy"},
		{"too few", func() *Learner { return usual.watched(29) }, "29 busy windows have been seen, 30 are needed"},
		{"never saturated", func() *Learner {
			l := &Learner{}
			for i := range 100 {
				l.Observe("m", usual.window(i, 6+3*float64(i%2), 2, 0.003))
			}
			return l
		}, "with 6 to 9 requests running"},
		{"does not add up", func() *Learner {
			l := &Learner{}
			for i := range 100 {
				c := usual
				if i%4 < 2 {
					c.step *= 3 // as if another GPU were behind the same name
				}
				l.Observe("m", c.window(i, 4*math.Exp2(float64(i%4)), 2, 0.003))
			}
			return l
		}, "of windows that were held out is off by"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := tt.l().Model("m")
			if err == nil {
				t.Fatalf("is trusted: %+v", m)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("says %q, want %q in it", err, tt.want)
			}
		})
	}
}

// Windows that teach nothing or something wrong are passed over.
func TestPassedOver(t *testing.T) {
	for name, change := range map[string]func(*Observation){
		"may have paused":   func(o *Observation) { o.LeastRunning = 0 },
		"few run":           func(o *Observation) { o.Running = 2 },
		"preempted":         func(o *Observation) { o.Preemptions = 1 },
		"no step":           func(o *Observation) { o.Steps = 0 },
		"counter went back": func(o *Observation) { o.PromptTokens = -5 },
		"no number":         func(o *Observation) { o.KV = math.NaN() },
		"no time":           func(o *Observation) { o.Span = 0 },
		"they met often":    func(o *Observation) { o.LeastRunning, o.Running, o.ServedSeconds = 0, 0.5, 30 },
	} {
		t.Run(name, func(t *testing.T) {
			l := usual.watched(29)
			o := usual.window(30, 20, 2, 0.003)
			change(&o)
			l.Observe("m", o)
			if _, err := l.Model("m"); err == nil || !strings.Contains(err.Error(), "29 busy windows") {
				t.Errorf("after the window: %v", err)
			}
		})
	}
	l := usual.watched(29)
	o := usual.window(30, 2, 2, 0.003)
	o.LeastWaiting = 1 // a full engine, though little runs
	l.Observe("m", o)
	if _, err := l.Model("m"); err != nil {
		t.Errorf("a window with requests waiting all the time is a busy one: %v", err)
	}
}

func TestForgets(t *testing.T) {
	l := usual.watched(60)
	l.Observe("other", usual.window(8*24*60, 10, 2, 0.003))
	if _, err := l.Model("m"); err == nil || len(l.variants) != 1 {
		t.Errorf("a week later it knows %d variants, and of the old one: %v", len(l.variants), err)
	}
}

// TestBounded: however long it watches, what is kept does not grow, and the busy hour is not lost.
func TestBounded(t *testing.T) {
	l := usual.watched(100)
	for i := range 5000 {
		l.Observe("m", usual.window(100+i, 4.5, 2, 0.003))
	}
	m, err := l.Model("m")
	if err != nil {
		t.Fatal(err)
	}
	if m.Windows > 100+perCell || m.MostRunning < 32 {
		t.Errorf("keeps %d windows, with up to %.0f requests running", m.Windows, m.MostRunning)
	}
}

// No subset of the costs, and no cost between, is better than what fit finds, and none is negative.
func TestFitIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Float64Range(0.01, 10)
		rows := make([]row, rapid.IntRange(6, 20).Draw(t, "rows"))
		for i := range rows {
			for j := range rows[i].x {
				rows[i].x[j] = value.Draw(t, "x")
			}
			rows[i].busy = value.Draw(t, "busy")
		}
		f, ok := fit(rows)
		if !ok {
			t.Fatal("found nothing")
		}
		squares := func(c vector) float64 {
			sum := 0.0
			for _, r := range rows {
				d := r.off(c)
				sum += d * d
			}
			return sum
		}
		best := squares(f.coef)
		for i := range f.coef {
			if f.coef[i] < 0 {
				t.Fatalf("negative: %v", f.coef)
			}
			for _, by := range []float64{-1e-3, 1e-3} {
				c := f.coef
				c[i] = max(0, c[i]+by)
				if squares(c) < best-1e-9 {
					t.Fatalf("%v is better than %v: %g, %g", c, f.coef, squares(c), best)
				}
			}
		}
	})
}
