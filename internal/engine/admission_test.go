package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCachedPromptIsNotComputed(t *testing.T) {
	var got Outcome
	cfg := round()
	cfg.OnFinish = func(o Outcome) { got = o }
	e := mustNew(t, cfg)
	mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 50, CachedTokens: 32, OutputTokens: 2})
	e.Advance(sec(0.001))
	if s := e.Stats(); s.BlocksUsed != 4 {
		t.Errorf("%d blocks are held, want those of the whole prompt, 4", s.BlocksUsed)
	}
	e.Advance(sec(1))
	if want := sec(0.010 + 0.018); !got.FirstToken.Equal(want) || got.CachedTokens != 32 {
		t.Errorf("first token at %v with %d tokens cached, want 28ms with 32", got.FirstToken.Sub(t0), got.CachedTokens)
	}
	for _, cached := range []int{-1, 10, 11} {
		if err := e.Submit(sec(1), Request{ID: 2, PromptTokens: 10, CachedTokens: cached, OutputTokens: 1}); err == nil {
			t.Errorf("%d of 10 tokens cached was taken", cached)
		}
	}
}

func TestPriorityScheduling(t *testing.T) {
	for _, tt := range []struct {
		by   bool
		want []uint64
	}{{false, []uint64{1, 2, 3, 4, 5}}, {true, []uint64{1, 3, 5, 4, 2}}} {
		var got []uint64
		cfg := round()
		cfg.MaxNumSeqs, cfg.PriorityScheduling = 1, tt.by
		cfg.OnFinish = func(o Outcome) { got = append(got, o.ID) }
		e := mustNew(t, cfg)
		mustSubmit(t, e, t0, Request{ID: 1, PromptTokens: 5, OutputTokens: 3})
		e.Advance(sec(0.001))
		for _, r := range []Request{{ID: 2, Priority: -1}, {ID: 3, Priority: 2}, {ID: 4}, {ID: 5, Priority: 2}} {
			r.PromptTokens, r.OutputTokens = 5, 3
			mustSubmit(t, e, sec(0.001), r)
		}
		e.Advance(sec(10))
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("by priority %v (-want +got):\n%s", tt.by, d)
		}
	}
}

func TestFullQueue(t *testing.T) {
	cfg := round()
	cfg.MaxNumSeqs, cfg.MaxWaiting = 1, 2
	e := mustNew(t, cfg)
	for id := range uint64(3) {
		mustSubmit(t, e, sec(0.001*float64(id)), Request{ID: id, PromptTokens: 5, OutputTokens: 100})
	}
	if err := e.Submit(sec(0.003), Request{ID: 3, PromptTokens: 5, OutputTokens: 1}); !errors.Is(err, ErrQueueFull) {
		t.Fatalf("error %v, want ErrQueueFull", err)
	}
	if s := e.Stats(); s.Rejected != 1 || s.Submitted != 3 || s.Running != 1 || s.Waiting != 2 {
		t.Errorf("%+v", s)
	}
	e.Advance(sec(60))
	mustSubmit(t, e, sec(60), Request{ID: 3, PromptTokens: 5, OutputTokens: 1})
}

// TestFrozenEngine: an engine that hangs goes on telling what was, and a router in front of it what is.
func TestFrozenEngine(t *testing.T) {
	cfg := round()
	cfg.MaxNumSeqs = 1
	e := mustNew(t, cfg)
	for id := range uint64(2) {
		mustSubmit(t, e, t0, Request{ID: id, PromptTokens: 5, OutputTokens: 100})
	}
	e.Advance(sec(0.1))
	e.Freeze(sec(0.1))
	for id := uint64(2); id < 9; id++ {
		mustSubmit(t, e, sec(1), Request{ID: id, PromptTokens: 5, OutputTokens: 1})
	}
	all := shown([]*Engine{e})
	if got := sumOf(t, all["vllm"], "vllm:num_requests_waiting"); got != 1 {
		t.Errorf("vLLM tells of %g waiting, want 1 as of its last step", got)
	}
	if got := sumOf(t, all["tgi"], "tgi_queue_size"); got != 8 {
		t.Errorf("TGI's router tells of %g waiting, want 8", got)
	}
	if got := sumOf(t, all["dynamo-frontend"], "dynamo_frontend_queued_requests"); got != 8 {
		t.Errorf("Dynamo's frontend tells of %g without a token, want 8", got)
	}
}

func TestOutcomeOfOneToken(t *testing.T) {
	o := Outcome{OutputTokens: 1, Arrival: t0, Scheduled: sec(1), FirstToken: sec(3), Finished: sec(3)}
	if o.TPOT() != 0 || o.TTFT() != 3*time.Second || o.QueueTime() != time.Second || o.E2E() != 3*time.Second {
		t.Errorf("TPOT %v, TTFT %v, queue time %v, E2E %v", o.TPOT(), o.TTFT(), o.QueueTime(), o.E2E())
	}
}
