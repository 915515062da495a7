package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sec(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// round is a configuration whose steps take round times: 10 ms, and 1 ms per prompt token.
func round() Config {
	return Config{
		MaxNumSeqs: 4, MaxNumBatchedTokens: 64, MaxModelLen: 256, NumGPUBlocks: 65, BlockSize: 16,
		StepTime: StepTime{Base: 10e-3, PrefillToken: 1e-3},
	}
}

func mustNew(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := New(cfg, t0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustSubmit(t testing.TB, e *Engine, at time.Time, r Request) {
	t.Helper()
	if err := e.Submit(at, r); err != nil {
		t.Fatal(err)
	}
}

func TestOneRequest(t *testing.T) {
	var got []Outcome
	cfg := round()
	cfg.OnFinish = func(o Outcome) { got = append(got, o) }
	e := mustNew(t, cfg)
	mustSubmit(t, e, sec(1), Request{ID: 7, PromptTokens: 20, OutputTokens: 3})

	e.Advance(sec(1.02))
	if s := e.Stats(); s.Running != 1 || s.Waiting != 0 || s.BlocksUsed != 2 || s.Busy != 20*time.Millisecond {
		t.Errorf("in the middle of the prefill: %+v", s)
	}
	e.Advance(sec(5))
	want := []Outcome{{
		ID: 7, PromptTokens: 20, OutputTokens: 3, Reason: Stop,
		Arrival: sec(1), Scheduled: sec(1), FirstToken: sec(1.03), Finished: sec(1.05),
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("outcomes (-want +got):\n%s", d)
	}
	if s := e.Stats(); s != (Stats{Submitted: 1, Finished: 1, FirstTokens: 1, Blocks: 64, Steps: 3, Busy: 50 * time.Millisecond}) {
		t.Errorf("at the end: %+v", s)
	}
}

func TestStepTime(t *testing.T) {
	cfg := round()
	cfg.StepTime = StepTime{Base: 1, PrefillToken: 0.1, PrefillPair: 0.01, Sequence: 0.5, ContextToken: 0.001}
	var got Outcome
	cfg.OnFinish = func(o Outcome) { got = o }
	e := mustNew(t, cfg)
	// Two chunks (64 and 16 tokens), then one decode step over 80 tokens of context.
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 80, OutputTokens: 2})
	e.Advance(sec(1000))
	first := (1 + 0.1*64 + 0.01*64*32) + (1 + 0.1*16 + 0.01*16*(64+8))
	last := first + 1 + 0.5 + 0.001*80
	if d := got.FirstToken.Sub(sec(first)).Abs(); d > time.Microsecond {
		t.Errorf("first token after %v, want %v s", got.FirstToken.Sub(t0), first)
	}
	if d := got.Finished.Sub(sec(last)).Abs(); d > time.Microsecond {
		t.Errorf("finished after %v, want %v s", got.Finished.Sub(t0), last)
	}
}

func TestTokenBudgetIsSharedRunningFirst(t *testing.T) {
	e := mustNew(t, round())
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 10, OutputTokens: 100})
	e.Advance(sec(0.021)) // the first step ends at 0.020; request 1 decodes from now on
	mustSubmit(t, e, sec(0.022), Request{ID: 2, PromptTokens: 100, OutputTokens: 1})
	e.Advance(sec(0.031)) // the step that starts at 0.030 has 1 decode and 63 prompt tokens
	if got, want := e.stepEnd, sec(0.030+0.010+0.063); !got.Equal(want) {
		t.Errorf("the mixed step ends at %v, want %v", got.Sub(t0), want.Sub(t0))
	}
	e.Advance(e.stepEnd)
	if got := e.metrics.promptTokens; got != 10 {
		t.Errorf("a chunk counts %d prompt tokens, want 10: they count when the prompt is complete", got)
	}
	e.Advance(e.now.Add(time.Millisecond))
	if got, want := e.stepEnd.Sub(e.stepStart), (10+37)*time.Millisecond; got != want {
		t.Errorf("the step with the rest takes %v, want %v", got, want)
	}
	e.Advance(e.stepEnd)
	if got := e.metrics.promptTokens; got != 110 {
		t.Errorf("%d prompt tokens, want 110", got)
	}
}

func TestChunkWithoutOutputLeavesNoTrace(t *testing.T) {
	e := mustNew(t, round())
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 200, OutputTokens: 2}) // four chunks
	e.Advance(sec(10))
	if got := e.Stats().Steps; got != 5 {
		t.Fatalf("%d steps, want 5", got)
	}
	h, count := e.metrics.iterationTokens, 0
	for _, c := range h.counts {
		count += c
	}
	if count != 2 || h.sum != 200+1+1 {
		t.Errorf("iteration_tokens_total counts %d steps with %g tokens, want the 2 that had an output, with 202", count, h.sum)
	}
}

func TestSeats(t *testing.T) {
	e := mustNew(t, round())
	for i := range uint64(6) {
		mustSubmit(t, e, t0, Request{ID: i, PromptTokens: 4, OutputTokens: 2})
	}
	e.Advance(sec(0.001))
	if s := e.Stats(); s.Running != 4 || s.Waiting != 2 {
		t.Errorf("running %d, waiting %d; want the 4 seats taken and 2 waiting", s.Running, s.Waiting)
	}
}

func TestAdmissionNeedsBlocksForTheWholePrompt(t *testing.T) {
	cfg := round()
	cfg.NumGPUBlocks = 17 // 16 blocks of 16: one request of max-model-len
	e := mustNew(t, cfg)
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 200, OutputTokens: 5}) // 13 blocks, in 4 chunks
	mustSubmit(t, e, t0, Request{ID: 2, PromptTokens: 60, OutputTokens: 5})  // 4 blocks
	mustSubmit(t, e, t0, Request{ID: 3, PromptTokens: 2, OutputTokens: 5})   // would fit, but does not overtake
	for e.Stats().Finished == 0 {
		if s := e.Stats(); s.Running > 1 {
			t.Fatalf("running %d after %v: request 2 was let in without room", s.Running, e.now.Sub(t0))
		}
		e.Advance(e.now.Add(time.Millisecond))
	}
	e.Advance(sec(10))
	if s := e.Stats(); s.Finished != 3 || s.Preemptions != 0 {
		t.Errorf("%+v, want all finished and none preempted", s)
	}
}

func TestPreemption(t *testing.T) {
	cfg := round()
	cfg.NumGPUBlocks = 17
	got := map[uint64]Outcome{}
	cfg.OnFinish = func(o Outcome) { got[o.ID] = o }
	e := mustNew(t, cfg)
	// Each fits (8 blocks), both grow to 14.
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 120, OutputTokens: 100})
	mustSubmit(t, e, t0, Request{ID: 2, PromptTokens: 120, OutputTokens: 100})
	for e.Stats().Preemptions == 0 {
		// Whoever waits already does not overtake the preempted request.
		mustSubmit(t, e, e.now, Request{ID: 3, PromptTokens: 250, OutputTokens: 1})
		e.Advance(e.now.Add(10 * time.Millisecond))
		if e.waiting.front().ID == 3 && e.Stats().Preemptions > 0 {
			t.Fatal("the preempted request lost its place")
		}
		e.Abort(e.now, 3)
	}
	e.Advance(sec(60))
	if s := e.Stats(); s.Finished != 2 || s.Preemptions != 1 || s.BlocksUsed != 0 {
		t.Fatalf("%+v, want both finished, one preemption and no block held", s)
	}
	if got[1].Preemptions != 0 || got[2].Preemptions != 1 {
		t.Errorf("preempted: request 1 %d times, request 2 %d times; want the later one, once", got[1].Preemptions, got[2].Preemptions)
	}
	if !got[2].Finished.After(got[1].Finished) {
		t.Errorf("the preempted request finished at %v, before the other at %v", got[2].Finished, got[1].Finished)
	}
	if n := e.metrics.promptTokens; n != 240 {
		t.Errorf("%d prompt tokens, want 240: a recomputed prompt is not counted again", n)
	}
	if n := e.metrics.generationTokens; n != 200 {
		t.Errorf("%d generated tokens, want 200", n)
	}
}

func TestLimits(t *testing.T) {
	tests := []struct {
		req    Request
		output int
		reason FinishReason
	}{
		{Request{PromptTokens: 10, OutputTokens: 5}, 5, Stop},
		{Request{PromptTokens: 10, OutputTokens: 5, MaxTokens: 9}, 5, Stop},
		{Request{PromptTokens: 10, OutputTokens: 5, MaxTokens: 5}, 5, Length},
		{Request{PromptTokens: 10, OutputTokens: 50, MaxTokens: 5}, 5, Length},
		{Request{PromptTokens: 250, OutputTokens: 50}, 6, Length},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%+v", tt.req), func(t *testing.T) {
			var got Outcome
			cfg := round()
			cfg.OnFinish = func(o Outcome) { got = o }
			e := mustNew(t, cfg)
			mustSubmit(t, e, t0, tt.req)
			e.Advance(sec(10))
			if got.OutputTokens != tt.output || got.Reason != tt.reason {
				t.Errorf("output %d, reason %v; want %d, %v", got.OutputTokens, got.Reason, tt.output, tt.reason)
			}
			if e.metrics.success[tt.reason] != 1 {
				t.Errorf("request_success by reason is %v", e.metrics.success)
			}
		})
	}
}

func TestSubmitRefuses(t *testing.T) {
	e := mustNew(t, round())
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 1, OutputTokens: 1})
	for _, r := range []Request{
		{ID: 2, PromptTokens: 0, OutputTokens: 1},
		{ID: 2, PromptTokens: 1, OutputTokens: 0},
		{ID: 2, PromptTokens: 1, OutputTokens: 1, MaxTokens: -1},
		{ID: 1, PromptTokens: 1, OutputTokens: 1},
	} {
		if err := e.Submit(t0, r); err == nil {
			t.Errorf("%+v was accepted", r)
		}
	}
	if err := e.Submit(t0, Request{ID: 2, PromptTokens: 256, OutputTokens: 1}); !errors.Is(err, ErrTooLong) {
		t.Errorf("a prompt of max-model-len: %v, want ErrTooLong", err)
	}
	if s := e.Stats(); s.Submitted != 1 {
		t.Errorf("submitted %d, want 1: refused requests are not submitted", s.Submitted)
	}
}

func TestValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for name, breakIt := range map[string]func(*Config){
		"max-num-seqs":           func(c *Config) { c.MaxNumSeqs = 0 },
		"max-num-batched-tokens": func(c *Config) { c.MaxNumBatchedTokens = 0 },
		"max-model-len":          func(c *Config) { c.MaxModelLen = 1 },
		"block-size":             func(c *Config) { c.BlockSize = 0 },
		"num-gpu-blocks":         func(c *Config) { c.NumGPUBlocks = c.MaxModelLen / c.BlockSize },
		"base":                   func(c *Config) { c.StepTime.Base = 0 },
		"negative":               func(c *Config) { c.StepTime.Sequence = -1 },
		"jitter":                 func(c *Config) { c.StepTime.Jitter = 1 },
		"finite":                 func(c *Config) { c.StepTime.PrefillPair = math.Inf(1) },
	} {
		cfg := DefaultConfig()
		breakIt(&cfg)
		if _, err := New(cfg, t0); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

func TestAbort(t *testing.T) {
	cfg := round()
	cfg.MaxNumSeqs = 1
	e := mustNew(t, cfg)
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 10, OutputTokens: 100})
	mustSubmit(t, e, t0, Request{ID: 2, PromptTokens: 10, OutputTokens: 100})
	e.Advance(sec(0.045))
	if !e.Abort(sec(0.046), 2) || !e.Abort(sec(0.047), 1) {
		t.Fatal("requests in flight were not found")
	}
	if e.Abort(sec(0.048), 1) {
		t.Error("a request was aborted twice")
	}
	e.Advance(sec(1))
	s := e.Stats()
	if s.Waiting != 0 || s.Running != 0 || s.BlocksUsed != 0 || s.Aborted != 2 || s.Finished != 0 {
		t.Errorf("%+v", s)
	}
	m := e.metrics
	if m.running != 0 || m.waiting != 0 || m.kvUsage != 0 {
		t.Errorf("reported gauges: running %d, waiting %d, kv %g", m.running, m.waiting, m.kvUsage)
	}
	// Request 1's first token came at 0.020, and two more at 0.030 and 0.040: counted, they stay so.
	if m.generationTokens != 3 || m.e2e.sum != 0 || m.success != [2]int{} {
		t.Errorf("generated %d, e2e sum %g, success %v; want 3 and nothing of the requests", m.generationTokens, m.e2e.sum, m.success)
	}
}

func TestFrozenEngineKeepsItsGauges(t *testing.T) {
	e := mustNew(t, round())
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 10, OutputTokens: 4})
	e.Advance(sec(0.025))
	e.Freeze(sec(0.026))
	before := e.Stats()
	mustSubmit(t, e, sec(5), Request{ID: 2, PromptTokens: 10, OutputTokens: 4})
	e.Advance(sec(10))
	mustSubmit(t, e, sec(10), Request{ID: 3, PromptTokens: 10, OutputTokens: 4})
	e.Abort(sec(10), 3)
	if e.metrics.running != 1 || e.metrics.waiting != 0 {
		t.Errorf("reported running %d, waiting %d; want 1, 0 as before the freeze", e.metrics.running, e.metrics.waiting)
	}
	s := e.Stats()
	if s.Steps != before.Steps || s.Waiting != 1 {
		t.Errorf("%+v; want no step, and the new request waiting", s)
	}
	if got, want := s.Busy-before.Busy, 10*time.Second-26*time.Millisecond; got != want {
		t.Errorf("busy for %v while frozen, want %v: the hung kernel occupies the GPU", got, want)
	}
	e.Unfreeze(sec(10))
	e.Advance(sec(10.0041)) // what was left of the step
	if s := e.Stats(); s.Steps != before.Steps+1 {
		t.Errorf("the step under way did not end where it would have: %+v", s)
	}
	e.Advance(sec(11))
	if s := e.Stats(); s.Finished != 2 {
		t.Errorf("%+v, want both finished", s)
	}
}

func TestIdleEngineIsNotBusy(t *testing.T) {
	e := mustNew(t, round())
	e.Advance(sec(100))
	if s := e.Stats(); s.Busy != 0 || s.Steps != 0 {
		t.Errorf("%+v", s)
	}
}

func TestClosedLoop(t *testing.T) {
	cfg := round()
	var e *Engine
	cfg.OnFinish = func(o Outcome) {
		if o.ID < 10 {
			mustSubmit(t, e, o.Finished, Request{ID: o.ID + 1, PromptTokens: 10, OutputTokens: 1})
		}
	}
	e = mustNew(t, cfg)
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 10, OutputTokens: 1})
	e.Advance(sec(0.2))
	if s := e.Stats(); s.Finished != 10 || s.Busy != 200*time.Millisecond {
		t.Errorf("%+v, want ten steps of 20 ms back to back", s)
	}
}

// op is a call on an engine at a time.
type op struct {
	At    time.Duration
	Kind  int // 0 submit, 1 abort, 2 freeze, 3 unfreeze
	Req   Request
	Abort uint64
}

func drawConfig(t *rapid.T) Config {
	cfg := Config{
		MaxNumSeqs:          rapid.IntRange(1, 8).Draw(t, "seqs"),
		MaxNumBatchedTokens: rapid.IntRange(1, 100).Draw(t, "budget"),
		MaxModelLen:         rapid.IntRange(2, 200).Draw(t, "len"),
		BlockSize:           rapid.IntRange(1, 16).Draw(t, "block"),
		StepTime:            StepTime{Base: 5e-3, PrefillToken: 1e-4, PrefillPair: 1e-6, Sequence: 1e-3, ContextToken: 1e-5, Jitter: 0.5},
		Seed:                rapid.Uint64().Draw(t, "seed"),
	}
	cfg.NumGPUBlocks = 1 + blocksFor(cfg.MaxModelLen, cfg.BlockSize) + rapid.IntRange(0, 20).Draw(t, "spare")
	return cfg
}

func drawOps(t *rapid.T, maxModelLen int) []op {
	n := rapid.IntRange(1, 40).Draw(t, "n")
	ops := make([]op, n)
	at := time.Duration(0)
	for i := range ops {
		at += time.Duration(rapid.IntRange(0, 50_000).Draw(t, "gap")) * time.Microsecond
		ops[i] = op{
			At:   at,
			Kind: rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2, 3, 3}).Draw(t, "kind"),
			Req: Request{
				ID:           uint64(i),
				PromptTokens: rapid.IntRange(1, maxModelLen-1).Draw(t, "prompt"),
				OutputTokens: rapid.IntRange(1, 60).Draw(t, "output"),
			},
			Abort: uint64(rapid.IntRange(0, n-1).Draw(t, "abort")),
		}
	}
	return ops
}

func (o op) apply(t *rapid.T, e *Engine) {
	at := t0.Add(o.At)
	switch o.Kind {
	case 0:
		if err := e.Submit(at, o.Req); err != nil {
			t.Fatal(err)
		}
	case 1:
		e.Abort(at, o.Abort)
	case 2:
		e.Freeze(at)
	case 3:
		e.Unfreeze(at)
	}
}

// TestInvariants holds whatever is submitted, aborted and frozen.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		var outcomes []Outcome
		cfg.OnFinish = func(o Outcome) { outcomes = append(outcomes, o) }
		e, err := New(cfg, t0)
		if err != nil {
			t.Fatal(err)
		}
		var last Stats
		var lastMetrics metrics
		check := func() {
			s := e.Stats()
			if s.Submitted != s.Waiting+s.Running+s.Finished+s.Aborted {
				t.Fatalf("requests are not conserved: %+v", s)
			}
			if s.BlocksUsed < 0 || s.BlocksUsed > s.Blocks {
				t.Fatalf("blocks out of range: %+v", s)
			}
			held := 0
			for _, r := range e.running {
				held += r.blocks
				if need := blocksFor(r.computed, cfg.BlockSize); r.blocks < need {
					t.Fatalf("request %d holds %d blocks for %d computed tokens", r.ID, r.blocks, r.computed)
				}
			}
			if held != s.BlocksUsed {
				t.Fatalf("running requests hold %d blocks, %d are in use", held, s.BlocksUsed)
			}
			if s.Running > cfg.MaxNumSeqs {
				t.Fatalf("running %d of %d seats", s.Running, cfg.MaxNumSeqs)
			}
			tokens := 0
			for _, p := range e.step {
				tokens += p.n
			}
			if tokens > cfg.MaxNumBatchedTokens {
				t.Fatalf("a step of %d tokens, the budget is %d", tokens, cfg.MaxNumBatchedTokens)
			}
			if s.Busy > e.now.Sub(t0) || s.Busy < last.Busy || s.Steps < last.Steps || s.Finished < last.Finished ||
				s.Preemptions < last.Preemptions || e.metrics.generationTokens < lastMetrics.generationTokens ||
				e.metrics.promptTokens < lastMetrics.promptTokens {
				t.Fatalf("a counter fell, or the GPU was busy for longer than there was time: %+v after %+v", s, last)
			}
			last, lastMetrics = s, e.metrics
		}
		ops := drawOps(t, cfg.MaxModelLen)
		for _, o := range ops {
			o.apply(t, e)
			check()
			e.Advance(t0.Add(o.At + 7*time.Millisecond))
			check()
		}
		e.Unfreeze(t0.Add(time.Minute))
		e.Advance(t0.Add(time.Hour))
		check()
		if last.Waiting != 0 || last.Running != 0 || last.BlocksUsed != 0 {
			t.Fatalf("work is left after an hour: %+v", last)
		}
		generated := 0
		for _, o := range outcomes {
			generated += o.OutputTokens
			if o.Scheduled.Before(o.Arrival) || !o.FirstToken.After(o.Scheduled) || o.Finished.Before(o.FirstToken) {
				t.Fatalf("times out of order: %+v", o)
			}
		}
		if generated > e.metrics.generationTokens {
			t.Fatalf("finished requests have %d output tokens, %d were counted", generated, e.metrics.generationTokens)
		}
		// First come, first served: the first scheduling is in the order of arrival (IDs).
		slices.SortFunc(outcomes, func(a, b Outcome) int { return int(a.ID) - int(b.ID) })
		for i := 1; i < len(outcomes); i++ {
			if outcomes[i].Scheduled.Before(outcomes[i-1].Scheduled) {
				t.Fatalf("request %d overtook request %d", outcomes[i].ID, outcomes[i-1].ID)
			}
		}
	})
}

// TestAdvanceInAnySteps: equal seeds and calls give equal results, however finely time advances.
func TestAdvanceInAnySteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		ops := drawOps(t, cfg.MaxModelLen)
		grain := time.Duration(rapid.IntRange(500, 20_000).Draw(t, "grain")) * time.Microsecond
		end := t0.Add(ops[len(ops)-1].At + 300*time.Millisecond)

		run := func(advance func(e *Engine, to time.Time)) (string, []Outcome, Stats) {
			var outcomes []Outcome
			cfg.OnFinish = func(o Outcome) { outcomes = append(outcomes, o) }
			e, err := New(cfg, t0)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range ops {
				advance(e, t0.Add(o.At))
				o.apply(t, e)
			}
			advance(e, end)
			return string(Append(nil, Exposition{ModelName: "m", Created: t0}, []*Engine{e})), outcomes, e.Stats()
		}
		text1, outcomes1, stats1 := run(func(e *Engine, to time.Time) { e.Advance(to) })
		text2, outcomes2, stats2 := run(func(e *Engine, to time.Time) {
			for at := e.now.Add(grain); at.Before(to); at = at.Add(grain) {
				e.Advance(at)
			}
			e.Advance(to)
			e.Advance(to)
		})
		if d := cmp.Diff(outcomes1, outcomes2); d != "" {
			t.Fatalf("outcomes differ (-one big step +small steps):\n%s", d)
		}
		if stats1 != stats2 {
			t.Fatalf("one big step %+v, small steps %+v", stats1, stats2)
		}
		if text1 != text2 {
			t.Fatalf("expositions differ:\n%s", cmp.Diff(text1, text2))
		}
	})
}

func BenchmarkAdvance(b *testing.B) {
	for _, running := range []int{1, 256} {
		b.Run(fmt.Sprintf("running=%d", running), func(b *testing.B) {
			cfg := DefaultConfig()
			var e *Engine
			cfg.OnFinish = func(o Outcome) {
				mustSubmit(b, e, o.Finished, Request{ID: o.ID, PromptTokens: 16, OutputTokens: 1000})
			}
			e = mustNew(b, cfg)
			for i := range uint64(running) {
				mustSubmit(b, e, t0, Request{ID: i, PromptTokens: 16, OutputTokens: 500 + int(i)})
			}
			e.Advance(sec(1))
			b.ReportAllocs()
			for b.Loop() {
				e.Advance(e.stepEnd.Add(1))
			}
		})
	}
}
