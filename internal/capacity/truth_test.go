package capacity_test

import (
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

// TestCapacity compares what one replica is said to serve with what it serves: the emulator is
// loaded more and more, until one request of ten misses an objective.
func TestCapacity(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cfg   engine.Config
		mix   mix
		role  capacity.Role
		hours time.Duration // of watching
	}{
		{name: "chat, small", cfg: small(), mix: chat, hours: 2},
		{name: "chat, tight", cfg: tight(), mix: chat, hours: 2},
		{name: "chat, large", cfg: large(), mix: chat, hours: 2},
		{name: "generate, tight", cfg: tight(), mix: generate, hours: 2},
		{name: "summarise, small", cfg: small(), mix: summarise, hours: 4},
		{name: "agent, small", cfg: small(), mix: agent, hours: 4},
		{name: "agent, tight", cfg: tight(), mix: agent, hours: 6},
		{name: "short, large", cfg: large(), mix: short, hours: 3},
		{name: "prefill, small", cfg: small(), mix: mix{summarise.prompt, load.Length{Median: 1}}, role: capacity.Prefill, hours: 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := objectives(tt.cfg, 1)
			o.Role = tt.role
			truth := trueCapacity(t, tt.cfg, tt.mix, o)
			model, err := train(t, tt.cfg, tt.mix, 0.9*truth, tt.hours*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			// The load of a quarter of an hour, at a third of what the replica can do: an
			// estimate that needs the replica to be full would come too late.
			d, err := model.Demand(quietLoad(t, tt.cfg, tt.mix, truth/3), o)
			if err != nil {
				t.Fatal(err)
			}
			got := d.Rate / d.Offered
			t.Logf("serves %.2f requests/s, is said to serve %.2f (%+.0f %%), bound by %s; model %+v", truth, got, 100*(got/truth-1), d.Bound, model)
			// An HPA with a target of 850m leaves that much.
			if got > truth/0.85 || got < 0.7*truth {
				t.Errorf("one replica is said to serve %.2f requests/s, bound by %s; it serves %.2f", got, d.Bound, truth)
			}
		})
	}
}

// quietLoad is the load of a quarter of an hour at the rate.
func quietLoad(t testing.TB, cfg engine.Config, m mix, rate float64) capacity.Load {
	t.Helper()
	e, err := engine.New(cfg, t0)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{Engine: e}
	rs := newRequests(t, m, rate, func(time.Duration) float64 { return rate }, 21)
	at, request := rs.next(t)
	for now := time.Duration(0); now <= 16*time.Minute; now += 5 * time.Second {
		for at < now {
			if err := r.Submit(t0.Add(at), request); err != nil {
				t.Fatal(err)
			}
			at, request = rs.next(t)
		}
		r.scrape(t, now)
	}
	return r.load([]time.Duration{15 * time.Minute}, 0)
}
