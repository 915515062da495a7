package capacity

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var model = Model{Step: 0.025, Prompt: 130e-6, Token: 50e-6, Context: 0.03, TokensPerStep: 1}

var full = Objectives{
	TTFT: 2500 * time.Millisecond, TPOT: 100 * time.Millisecond, Seats: 256, BatchTokens: 2048, Drain: 2 * time.Minute,
}

// chats is a load of one replica with r requests per second.
func chats(r float64) Load {
	n := 300 * r
	return Load{
		Arrived: map[time.Duration]float64{time.Minute: 60 * r, 5 * time.Minute: n},
		Waiting: []float64{0}, InUse: 5 * r, Running: 5 * r, KV: 0.02 * r,
		FirstTokens: n, PromptTokens: 500 * n, PromptSquares: 500_000 * n, WarmTokens: 500 * n, WarmComputed: 500 * n,
		Finished: n, OutputTokens: 250 * n,
	}
}

func mustDemand(t testing.TB, m Model, l Load, o Objectives) Demand {
	t.Helper()
	d, err := m.Demand(l, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestUnknown(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Model, *Load, *Objectives)
		want   string
	}{
		{"no replica", func(_ *Model, l *Load, _ *Objectives) { *l = Load{} }, "no replica reports"},
		{"no window", func(_ *Model, l *Load, _ *Objectives) { l.Arrived = nil }, "arrivals have not been counted"},
		{"no prompt", func(_ *Model, l *Load, _ *Objectives) { l.FirstTokens, l.PromptTokens = 0, 0 }, "no first token in 5m0s"},
		{"no output", func(_ *Model, l *Load, _ *Objectives) { l.Finished, l.OutputTokens = 0, 0 }, "no request finished in 5m0s"},
		{"only waiting", func(_ *Model, l *Load, _ *Objectives) {
			*l = Load{Arrived: map[time.Duration]float64{time.Minute: 0}, Waiting: []float64{3}}
		}, "no first token"},
		{"no number", func(_ *Model, l *Load, _ *Objectives) { l.KV = math.NaN() }, "not a number"},
		{"no model", func(m *Model, _ *Load, _ *Objectives) { *m = Model{} }, "not complete"},
		{"impossible objective", func(_ *Model, _ *Load, o *Objectives) { o.TPOT = 20 * time.Millisecond }, "no number of replicas gives output tokens every 20ms"},
		{"no limit", func(_ *Model, l *Load, o *Objectives) { *o, l.KV = Objectives{}, 0 }, "nothing limits a replica"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, l, o := model, chats(3), full
			tt.change(&m, &l, &o)
			d, err := m.Demand(l, o)
			if err == nil {
				t.Fatalf("is known: %+v", d)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("says %q, want %q in it", err, tt.want)
			}
			if d.Replicas != 0 {
				t.Errorf("an error with %g replicas", d.Replicas)
			}
		})
	}
}

func TestIdle(t *testing.T) {
	idle := Load{Arrived: map[time.Duration]float64{5 * time.Minute: 0}, Waiting: []float64{0, 0}}
	if d := mustDemand(t, model, idle, full); d.Replicas != 0 {
		t.Errorf("idle asks for %+v", d)
	}
	// One long answer is under way: nothing has come in the window, and it is not idle.
	busy := idle
	busy.InUse, busy.Running, busy.KV = 2, 2, 0.01
	if d, err := model.Demand(busy, full); err == nil {
		t.Errorf("with requests running and no idea of them: %+v", d)
	}
	busy.FirstTokens, busy.PromptTokens, busy.Finished, busy.OutputTokens = 1, 500, 1, 250
	if d := mustDemand(t, model, busy, full); d.Replicas <= 0 || d.Held != d.Replicas {
		t.Errorf("with requests running: %+v", d)
	}
}

// TestLimits works each limit out by hand.
func TestLimits(t *testing.T) {
	m := Model{Step: 0.02, Prompt: 100e-6, Token: 100e-6, TokensPerStep: 1}
	// 101 output tokens and 100 prompt tokens: 0.02 s of work and 101 steps. With n requests, a
	// step takes 0.02 s + n·0.02/101 s.
	l := Load{
		Arrived: map[time.Duration]float64{5 * time.Minute: 30_000}, Waiting: []float64{0},
		FirstTokens: 100, PromptTokens: 10_000, PromptSquares: 1_000_000, Finished: 100, OutputTokens: 10_100,
	}
	perStep := 0.02 / 101
	for _, tt := range []struct {
		name      string
		o         Objectives
		m         func(*Model)
		l         func(*Load)
		bound     Bound
		want      float64 // requests/s of one replica
		tolerance float64
	}{
		{"step time", Objectives{TPOT: 100 * time.Millisecond}, nil, nil, Time,
			// 1 = 0.02/0.08 + r·0.02; prompts of 10 ms among outputs of seconds hardly disturb.
			0.75 / 0.02, 0.06},
		{"seats", Objectives{TPOT: 100 * time.Millisecond, Seats: 101}, nil, nil, Seats,
			101 / (101 * (0.02 + 101*perStep)), 1e-6},
		{"KV cache", Objectives{TPOT: 100 * time.Millisecond}, nil, func(l *Load) { l.Running, l.KV = 10, 0.18 }, KVCache,
			50 / (101 * (0.02 + 50*perStep)), 1e-6},
		{"experience", Objectives{TPOT: 100 * time.Millisecond}, func(m *Model) { m.MostRunning = 5 }, nil, Seen,
			20 / (101 * (0.02 + 20*perStep)), 1e-6},
		{"seats with speculative decoding", Objectives{TPOT: 100 * time.Millisecond, Seats: 101}, func(m *Model) { m.TokensPerStep = 2 }, nil, Seats,
			101 / (50.5 * (0.02 + 101*2*perStep)), 1e-6},
		{"one seat", Objectives{TPOT: 100 * time.Millisecond, TTFT: 2040 * time.Millisecond, Seats: 1}, nil, nil, Seats,
			// M/M/1 with 2.04 s each: at u of one, u·exp(−(1−u)) is 0.1.
			0.2185 / 2.04, 1e-3},
		{"first token", Objectives{Role: Prefill, TTFT: 330 * time.Millisecond, BatchTokens: 1e9}, func(m *Model) { m.Step = 0 }, func(l *Load) { l.PromptTokens, l.PromptSquares = 100_000, 100_000_000 }, FirstToken,
			// M/D/1 with 0.1 s each: at u of one, u·exp(−2·0.23·(1−u)/0.1) is 0.1.
			5.9985 / 1, 0.02},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, l := m, l
			if tt.m != nil {
				tt.m(&m)
			}
			if tt.l != nil {
				tt.l(&l)
			}
			d := mustDemand(t, m, l, tt.o)
			if d.Bound != tt.bound {
				t.Errorf("bound by %s, want %s", d.Bound, tt.bound)
			}
			near(t, "what a replica can do", d.Rate/d.Offered, tt.want, tt.tolerance)
		})
	}
}

// Of the same work, long prompts leave less to short outputs than short prompts to long ones, and least when
// they differ: a tenth of the outputs has more than its share of them to wait for.
func TestPromptsDisturb(t *testing.T) {
	m := Model{Step: 0.02, Prompt: 100e-6, Token: 100e-6, TokensPerStep: 1}
	o := Objectives{TPOT: 100 * time.Millisecond}
	serves := func(prompt, output, squares float64) float64 {
		d := mustDemand(t, m, Load{
			Arrived: map[time.Duration]float64{5 * time.Minute: 300}, Waiting: []float64{0},
			FirstTokens: 1, PromptTokens: prompt, PromptSquares: squares * prompt * prompt, Finished: 1, OutputTokens: output,
		}, o)
		return d.Rate / d.Offered
	}
	none, long, varied := serves(1, 3001, 1), serves(2900, 101, 1), serves(2900, 101, 3)
	if !(varied < 0.9*long && long < 0.9*none) {
		t.Errorf("serves %.2f requests/s with prompts that vary, %.2f with equal ones, %.2f with next to none", varied, long, none)
	}
	// Six seconds of prompt for three of output: what no number of replicas gives does not drive them to the most.
	if got, most := serves(60_000, 101, 3), 0.75/6.01; got < 0.29*most {
		t.Errorf("serves %.3f requests/s with prompts that break the objective alone, where %.3f keep a replica busy", got, most)
	}
}

func TestErlangC(t *testing.T) {
	// From tables: two places with a load of one; ten with eight.
	near(t, "C(2, 1)", erlangC(2, 1), 1.0/3, 1e-9)
	near(t, "C(10, 8)", erlangC(10, 8), 0.4092, 1e-3)
	if erlangC(3, 3) != 1 {
		t.Error("all places are taken when the load is as many")
	}
}

// A shorter window counts only by what it is sure of, and only upwards.
func TestRate(t *testing.T) {
	l := Load{Arrived: map[time.Duration]float64{time.Minute: 100, 5 * time.Minute: 500}}
	for _, tt := range []struct{ lastMinute, want float64 }{
		{0, 500. / 300}, {120, 500. / 300}, {400, (400 - 2*math.Sqrt(800)) / 60},
	} {
		l.Arrived[time.Minute] = tt.lastMinute
		if got, _ := l.rate(); got != tt.want {
			t.Errorf("with %g in the last minute the rate is %g, want %g", tt.lastMinute, got, tt.want)
		}
	}
}

// What waits asks for as much work as it is, over the time to drain it, and for one replica more for each
// replica that it waits at.
func TestBacklog(t *testing.T) {
	l := chats(3)
	l.Waiting = []float64{0, 60, 1e6}
	d := mustDemand(t, model, l, full)
	near(t, "the backlog", d.Backlog, 60*d.Offered/3/120+1, 1e-9)
	l.Waiting = []float64{0, 0, 0}
	near(t, "what is offered", mustDemand(t, model, l, full).Offered, d.Offered, 1e-9)
}

// What is held never has an HPA at 850m go up, and is what keeps it from going down by chance.
func TestHeld(t *testing.T) {
	l := chats(0.2) // 60 in five minutes
	for replicas := 1; replicas <= 5; replicas++ {
		l.Waiting = make([]float64, replicas)
		d := mustDemand(t, model, l, full)
		if most := max(d.Offered, 0.8*float64(replicas)); d.Replicas > most {
			t.Errorf("%d replicas: asks for %g, want %g at most", replicas, d.Replicas, most)
		}
		if sure := d.Offered * (1 + 2*math.Sqrt(2./60)); d.Replicas < min(sure, 0.8*float64(replicas)) {
			t.Errorf("%d replicas: asks for %g, where %g may be offered", replicas, d.Replicas, sure)
		}
	}
}

// The caches of new replicas are cold; that they compute all of their prompts says nothing about the service.
func TestColdCaches(t *testing.T) {
	warm := chats(3)
	warm.WarmComputed = 0.2 * warm.WarmTokens
	before := mustDemand(t, model, warm, full)
	cold := chats(3)
	cold.WarmTokens, cold.WarmComputed = 0, 0
	half := chats(1.5)
	half.WarmTokens, half.WarmComputed = 0, 0
	old := chats(1.5)
	old.WarmComputed = 0.2 * old.WarmTokens
	near(t, "half of the load on new replicas", mustDemand(t, model, old.Add(half), full).Offered, before.Offered, 0.01)
	if alone := mustDemand(t, model, cold, full); alone.Offered <= before.Offered {
		t.Errorf("no cache is known: asks for %g, with a warm one for %g", alone.Offered, before.Offered)
	}
}

// One prompt as long as the model takes is in the mean of five minutes, and not a reason to double the fleet.
func TestOneHugePrompt(t *testing.T) {
	l := chats(5)
	before := mustDemand(t, model, l, full)
	const huge = 30_000
	l.FirstTokens++
	l.PromptTokens += huge
	l.PromptSquares += huge * huge
	l.WarmTokens += huge
	l.WarmComputed += huge
	after := mustDemand(t, model, l, full)
	if after.Offered < before.Offered || after.Offered > 1.25*before.Offered {
		t.Errorf("asks for %g replicas, before it came for %g", after.Offered, before.Offered)
	}
}

// A load unlike all that has been seen is not known.
func TestFarFromSeen(t *testing.T) {
	l := Learner{}
	for i := range 60 {
		o := usual.window(i, 4*math.Exp2(4*float64(i%13)/13), 2, 0.002)
		o.Steps *= 1 + 0.01*float64(i%3)
		l.Observe("m", o)
	}
	m, err := l.Model("m")
	if err != nil {
		t.Fatal(err)
	}
	seen := chats(1) // two prompt tokens for each output token
	seen.KV = seen.Running * 0.002
	if d := mustDemand(t, m, seen, full); d.Error > 0.1 {
		t.Errorf("of a load like what has been seen the error is %g", d.Error)
	}
	long := seen
	long.PromptTokens, long.PromptSquares = 40*long.PromptTokens, 1600*long.PromptSquares
	if d, err := m.Demand(long, full); err == nil || !strings.Contains(err.Error(), "too far from what has been seen") {
		t.Errorf("prompts forty times as long: %+v, %v", d, err)
	}
}

// What an engine that only prefills has shown says nothing of what output tokens cost.
func TestNeverSeenDecoding(t *testing.T) {
	l := Learner{}
	for i := range 60 {
		perSecond := 2 + float64(i%10) // steps, each with one prompt
		l.Observe("m", Observation{
			At: t0.Add(time.Duration(i) * time.Minute), Span: time.Minute,
			Steps: 60 * perSecond, FirstTokens: 60 * perSecond, OutputTokens: 60 * perSecond,
			PromptTokens: 60 * (1 - 0.025*perSecond) / 130e-6, Running: 1, LeastRunning: 1, LeastWaiting: 1,
		})
		l.Observe("m", Observation{ // next to nothing to do
			At: t0.Add(time.Duration(i) * time.Minute), Span: time.Minute, Steps: 6, FirstTokens: 6, OutputTokens: 6,
			PromptTokens: 1000, Running: 0.1, ServedSeconds: 6*0.025 + 0.13,
		})
	}
	m, err := l.Model("m")
	if err != nil {
		t.Fatal(err)
	}
	prefill := full
	prefill.Role = Prefill
	mustDemand(t, m, chats(1), prefill)
	if d, err := m.Demand(chats(1), full); err == nil {
		t.Errorf("with decoding: %+v", d)
	}
}

func drawLoad(t *rapid.T) Load {
	r := rapid.Float64Range(0.01, 20).Draw(t, "rate")
	l := chats(r)
	prompt, output := rapid.Float64Range(0.1, 10).Draw(t, "prompt"), rapid.Float64Range(0.1, 4).Draw(t, "output")
	l.PromptTokens, l.WarmTokens, l.WarmComputed = prompt*l.PromptTokens, prompt*l.WarmTokens, prompt*l.WarmComputed
	l.PromptSquares *= prompt * prompt
	l.OutputTokens *= output
	l.Waiting[0] = rapid.Float64Range(0, 100).Draw(t, "waiting")
	l.InUse = rapid.Float64Range(0, 300).Draw(t, "running")
	return l
}

// TestNeverLowForWant takes parts of what is known away: the demand becomes unknown, says which
// limit it was made without, or does not fall.
func TestNeverLowForWant(t *testing.T) {
	parts := map[string]func(*Load, *Objectives){
		"squares":      func(l *Load, _ *Objectives) { l.PromptSquares = 0 },
		"warm":         func(l *Load, _ *Objectives) { l.WarmTokens, l.WarmComputed = 0, 0 },
		"batch tokens": func(_ *Load, o *Objectives) { o.BatchTokens = 0 },
		"minute":       func(l *Load, _ *Objectives) { delete(l.Arrived, time.Minute) },
		"windows":      func(l *Load, _ *Objectives) { l.Arrived = nil },
		"KV":           func(l *Load, _ *Objectives) { l.KV = 0 },
		"running":      func(l *Load, _ *Objectives) { l.Running = 0 },
		"seats":        func(_ *Load, o *Objectives) { o.Seats = 0 },
		"prompts":      func(l *Load, _ *Objectives) { l.FirstTokens, l.PromptTokens = 0, 0 },
		"finished":     func(l *Load, _ *Objectives) { l.Finished, l.OutputTokens = 0, 0 },
		"replicas":     func(l *Load, _ *Objectives) { l.Waiting = nil },
	}
	rapid.Check(t, func(t *rapid.T) {
		l, o := drawLoad(t), full
		whole, err := model.Demand(l, o)
		if err != nil {
			t.Skip(err)
		}
		part := rapid.SampledFrom(slices.Sorted(maps.Keys(parts))).Draw(t, "part")
		parts[part](&l, &o)
		d, err := model.Demand(l, o)
		if err == nil && d.Replicas < whole.Replicas-1e-9 && len(d.Without) == 0 {
			t.Fatalf("without %s: %+v; with it: %+v", part, d, whole)
		}
	})
}

// TestAddition: the order of replicas does not matter, twice the load is twice the demand, and more load is
// never less demand.
func TestAddition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawLoad(t), drawLoad(t)
		same := cmpopts.EquateApprox(1e-9, 1e-9)
		if d := cmp.Diff(a.Add(b), b.Add(a), same, cmpopts.SortSlices(func(x, y float64) bool { return x < y })); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(a, a.Add(Load{}), same); d != "" {
			t.Fatal(d)
		}
		one, err := model.Demand(a, full)
		if err != nil {
			t.Skip(err)
		}
		two, err := model.Demand(a.Add(a), full)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(two.Offered-2*one.Offered) > 1e-6*two.Offered || math.Abs(two.Backlog-2*one.Backlog) > 1e-6 {
			t.Fatalf("twice the load: %+v, once: %+v", two, one)
		}
		more := a
		more.Arrived = map[time.Duration]float64{time.Minute: 2 * a.Arrived[time.Minute], 5 * time.Minute: 1.2 * a.Arrived[5*time.Minute]}
		more.Waiting = []float64{a.Waiting[0] + 1}
		d, err := model.Demand(more, full)
		if err != nil || d.Replicas < one.Replicas-1e-9 {
			t.Fatalf("more load: %+v, %v; before: %+v", d, err, one)
		}
	})
}

// A window that one replica does not know is one that the group does not know.
func TestAddWindows(t *testing.T) {
	a, b := chats(1), chats(2)
	delete(b.Arrived, time.Minute)
	want := map[time.Duration]float64{5 * time.Minute: 900}
	if d := cmp.Diff(want, a.Add(b).Arrived); d != "" {
		t.Error(d)
	}
	b.Arrived = map[time.Duration]float64{}
	if _, err := model.Demand(a.Add(b), full); err == nil {
		t.Error("the demand of a group is known, of which a replica has not been counted")
	}
}
