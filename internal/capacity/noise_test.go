package capacity_test

import (
	"math"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/load"
)

// TestFlaps counts how often an HPA turns round in 24 hours of constant load, for loads from one to
// four replicas. No engine is emulated: what flaps is the number of requests that come by chance, and how
// long they are, and it is worst when few and heavy ones come.
func TestFlaps(t *testing.T) {
	heavy := mix{load.Length{Median: 8000, Sigma: 1, Max: 64000}, load.Length{Median: 1000, Sigma: 1, Max: 8000}}
	for _, tt := range []struct {
		name        string
		mix         mix
		step        float64 // replicas between one day and the next
		worst, mean float64
	}{
		{"chat", chat, 0.9, 0, 0},
		{"a request every few seconds", heavy, 0.27, 24, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			held, free := []float64{}, []float64{}
			for want := 1.0; want < 4; want += tt.step {
				held = append(held, float64(constantDay(t, tt.mix, want, true)))
				if tt.worst > 0 {
					free = append(free, float64(constantDay(t, tt.mix, want, false)))
				}
			}
			worst, mean := worstAndMean(held)
			t.Logf("flaps a day: %v; with nothing held: %v", held, free)
			if worst > tt.worst || mean > tt.mean {
				t.Errorf("turns round up to %.0f times a day, %.1f on average, want %.0f and %.1f: %v", worst, mean, tt.worst, tt.mean, held)
			}
			if _, freeMean := worstAndMean(free); mean > freeMean/3 {
				t.Errorf("what is held saves too little: %.1f times a day instead of %.1f", mean, freeMean)
			}
		})
	}
}

func worstAndMean(v []float64) (worst, mean float64) {
	for _, n := range v {
		worst = max(worst, n)
		mean += n / float64(len(v))
	}
	return worst, mean
}

// constantDay counts the flaps in a day whose load asks for the given number of replicas.
func constantDay(t testing.TB, m mix, want float64, hold bool) int {
	t.Helper()
	const minute, long = time.Minute, 5 * time.Minute
	model := capacity.Model{Step: 0.025, Prompt: 130e-6, Token: 100e-6, TokensPerStep: 1}
	o := capacity.Objectives{TTFT: 20 * time.Second, TPOT: 100 * time.Millisecond}
	mean := func(l load.Length) float64 { return l.Median * math.Exp(l.Sigma*l.Sigma/2) }
	one, err := model.Demand(capacity.Load{
		Arrived: map[time.Duration]float64{long: long.Seconds()}, Waiting: []float64{0},
		FirstTokens: 1, PromptTokens: mean(m.prompt), PromptSquares: math.Pow(mean(m.prompt), 2) * math.Exp(m.prompt.Sigma*m.prompt.Sigma),
		Finished: 1, OutputTokens: mean(m.output),
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	rate := want / one.Offered
	rs := newRequests(t, m, rate, func(time.Duration) float64 { return rate }, uint64(100*want))
	type request struct {
		at             time.Duration
		prompt, output float64
	}
	var inWindow []request
	var l capacity.Load
	h := usual(2 * time.Minute)
	start := oracle(want, 1)
	n := start
	var writes []round
	at, r := rs.next(t)
	for now := 15 * time.Second; now < 24*time.Hour; now += 15 * time.Second {
		for ; at < now; at, r = rs.next(t) {
			q := request{at, float64(r.PromptTokens), float64(r.OutputTokens)}
			inWindow = append(inWindow, q)
			l.PromptTokens, l.PromptSquares, l.OutputTokens = l.PromptTokens+q.prompt, l.PromptSquares+q.prompt*q.prompt, l.OutputTokens+q.output
		}
		for len(inWindow) > 0 && inWindow[0].at < now-long {
			q := inWindow[0]
			inWindow = inWindow[1:]
			l.PromptTokens, l.PromptSquares, l.OutputTokens = l.PromptTokens-q.prompt, l.PromptSquares-q.prompt*q.prompt, l.OutputTokens-q.output
		}
		if now < long {
			continue
		}
		newest := 0.0
		for i := len(inWindow) - 1; i >= 0 && inWindow[i].at > now-minute; i-- {
			newest++
		}
		l.Arrived = map[time.Duration]float64{minute: newest, long: float64(len(inWindow))}
		l.FirstTokens, l.Finished = l.Arrived[long], l.Arrived[long]
		l.Waiting = make([]float64, n)
		d, err := model.Demand(l, o)
		value := d.Replicas
		if !hold {
			value -= d.Held
		}
		to := h.step(now, n, value, err)
		h.wanted = h.wanted[max(0, len(h.wanted)-100):]
		if to != n {
			writes = append(writes, round{at: now, n: to})
			n = to
		}
	}
	return flaps(start, writes)
}
