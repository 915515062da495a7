package capacity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/engine"
)

// fleet is replicas behind a Service, an HPA that follows the demand, and what came of it.
type fleet struct {
	cfg         engine.Config
	model       capacity.Model
	objectives  capacity.Objectives
	windows     []time.Duration
	interval    time.Duration // of scrapes
	coldStart   time.Duration
	warm        time.Duration // until a new replica's cache holds what the others' do
	believeCold bool          // takes the caches of new replicas for those of the service
	cached      float64       // of each prompt, in a warm one
	hpa         hpa

	onFinish func(engine.Outcome)

	all            []*replica      // the drained ones too
	replicas       []*replica      // that are ready
	pending        []time.Duration // when the others become ready
	rng            *rand.Rand
	rounds         []round
	good, finished float64 // requests within both objectives, and all
}

func (f *fleet) add(t testing.TB, at time.Duration) {
	t.Helper()
	cfg := f.cfg
	cfg.Seed = uint64(len(f.all) + 1)
	cfg.OnFinish = func(o engine.Outcome) {
		f.finished++
		if o.Meets(engine.SLO{TTFT: f.objectives.TTFT, TPOT: f.objectives.TPOT}) {
			f.good++
		}
		if f.onFinish != nil {
			f.onFinish(o)
		}
	}
	e, err := engine.New(cfg, t0.Add(max(at, 0)))
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{Engine: e, from: at}
	f.all, f.replicas = append(f.all, r), append(f.replicas, r)
}

// arrivals yields requests in the order of time.
type arrivals interface {
	// next returns the first request before the given time that has not been returned yet.
	next(before time.Duration) (time.Duration, engine.Request, bool)
}

// open arrives whatever becomes of what came before.
type open struct {
	t    testing.TB
	rs   *requests
	at   time.Duration
	r    engine.Request
	held bool
}

func (o *open) next(before time.Duration) (time.Duration, engine.Request, bool) {
	if !o.held {
		o.at, o.r = o.rs.next(o.t)
	}
	o.held = o.at >= before
	return o.at, o.r, !o.held
}

// closed is a number of clients, each of which asks again a while after it has been answered.
type closed struct {
	t    testing.TB
	rs   *requests
	when []time.Duration
}

const think = time.Second

func (c *closed) next(before time.Duration) (time.Duration, engine.Request, bool) {
	i := -1
	for j, at := range c.when {
		if at < before && (i < 0 || at < c.when[i]) {
			i = j
		}
	}
	if i < 0 {
		return 0, engine.Request{}, false
	}
	at := c.when[i]
	c.when = slices.Delete(c.when, i, i+1)
	_, r := c.rs.next(c.t)
	return at, r, true
}

// run drives the fleet until the end.
func (f *fleet) run(t testing.TB, start int, load arrivals, end time.Duration) {
	t.Helper()
	f.rng = rand.New(rand.NewPCG(5, 5))
	for range start {
		f.add(t, -f.warm-slices.Max(f.windows))
	}
	const slice = time.Second // no longer than clients think
	for now := slice; now <= end; now += slice {
		for {
			at, r, ok := load.next(now)
			if !ok {
				break
			}
			// A Service picks at random.
			to := f.replicas[f.rng.IntN(len(f.replicas))]
			if at-to.from >= f.warm {
				r.CachedTokens = min(int(f.cached*float64(r.PromptTokens)), r.PromptTokens-1)
			}
			if err := to.Submit(t0.Add(at), r); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range f.all {
			r.Advance(t0.Add(now))
		}
		for len(f.pending) > 0 && f.pending[0] <= now {
			f.add(t, f.pending[0])
			f.pending = f.pending[1:]
		}
		if now%f.interval == 0 {
			for _, r := range f.replicas {
				r.scrape(t, now)
			}
		}
		if now%(15*time.Second) == 0 {
			f.sync(now)
		}
	}
}

// sync is one round of the HPA.
func (f *fleet) sync(now time.Duration) {
	var l capacity.Load
	warm := f.warm + slices.Max(f.windows)
	if f.believeCold {
		warm = 0
	}
	for _, r := range f.replicas {
		l = l.Add(r.load(f.windows, warm))
	}
	d, err := f.model.Demand(l, f.objectives)
	n := len(f.replicas) + len(f.pending)
	to := f.hpa.step(now, n, d.Replicas, err)
	f.rounds = append(f.rounds, round{now, to, d, err})
	for ; n < to; n++ {
		f.pending = append(f.pending, now+f.coldStart)
	}
	for ; n > to; n-- {
		if len(f.pending) > 0 {
			f.pending = f.pending[:len(f.pending)-1]
			continue
		}
		// It drains: no request is lost, and nothing is reported of it.
		f.replicas = f.replicas[:len(f.replicas)-1]
	}
}

// round is what one sync of the HPA saw and did.
type round struct {
	at  time.Duration
	n   int // replicas from then on
	d   capacity.Demand
	err error
}

// writes are the rounds after from that changed the number of replicas.
func (f *fleet) writes(from time.Duration) []round {
	var out []round
	for i := 1; i < len(f.rounds); i++ {
		if r := f.rounds[i]; r.at > from && r.n != f.rounds[i-1].n {
			out = append(out, r)
		}
	}
	return out
}

// flaps counts how often the number of replicas turned round.
func flaps(start int, writes []round) int {
	n, direction, previous := 0, 0, start
	for _, w := range writes {
		d := 1
		if w.n < previous {
			d = -1
		}
		if direction != 0 && d != direction {
			n++
		}
		direction, previous = d, w.n
	}
	return n
}

// known keeps what is the same for several tests: what one replica can do, and what is learned of it.
var known = map[string]func() (capacity.Model, float64){}

// service is a fleet that serves chats with the model that has been learned of one replica, and
// what one replica can do in truth.
func service(t testing.TB, cfg engine.Config, times float64, coldStart time.Duration) (*fleet, float64) {
	t.Helper()
	o := objectives(cfg, times)
	key := fmt.Sprint(cfg.StepTime, times)
	if known[key] == nil {
		truth := trueCapacity(t, cfg, chat, o)
		model, err := train(t, cfg, chat, 0.9*truth, 2*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		known[key] = func() (capacity.Model, float64) { return model, truth }
	}
	model, truth := known[key]()
	o.Drain = max(coldStart, 2*time.Minute)
	return &fleet{
		cfg: cfg, model: model, objectives: o, coldStart: coldStart, interval: 5 * time.Second,
		windows: []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute},
		hpa:     usual(coldStart),
	}, truth
}

// usual is an HPA with Kubernetes' defaults, and the target and the window that demand_replicas is meant for.
func usual(coldStart time.Duration) hpa {
	return hpa{
		target: 0.85, tolerance: 0.1, least: 1, most: 100,
		upPercent: 100, upPods: 4, upPeriod: 15 * time.Second, downWindow: max(5*time.Minute, 2*coldStart),
	}
}

// oracle is how many replicas the HPA would ask for if it knew.
func oracle(rate, truth float64) int { return int(math.Ceil(rate / truth / 0.85)) }

// allowed is how many writes the policy needs at least to go up.
func (h *hpa) allowed(from, to int) int {
	free := hpa{target: 1, least: 1, most: h.most, upPercent: h.upPercent, upPods: h.upPods, upPeriod: h.upPeriod}
	n := 0
	for at := time.Duration(0); from < to; at += 15 * time.Second {
		from = free.step(at, from, float64(to), nil)
		n++
	}
	return n
}

func sizes(writes []round) string {
	var b strings.Builder
	for _, w := range writes {
		fmt.Fprintf(&b, " %v:%d", w.at, w.n)
	}
	return b.String()
}

// TestStep has four times the load at once. What it may take is the writes that the policy needs, and
// one for each further round until the shortest window is full of the new load. What waits may ask for one replica more for each that
// was there when the load came, because that is where it waits.
func TestStep(t *testing.T) {
	for _, tt := range []struct {
		name      string
		rate      float64 // before, in what one replica can do
		coldStart time.Duration
		upPercent float64
		shortest  time.Duration // window
		interval  time.Duration // of scrapes
	}{
		{"one pod", 0.8, time.Minute, 100, 30 * time.Second, 5 * time.Second},
		{"one pod, slow scrapes", 0.8, time.Minute, 100, time.Minute, 15 * time.Second},
		{"some pods", 3, 3 * time.Minute, 100, 30 * time.Second, 5 * time.Second},
		{"some pods, free to go up", 3, 3 * time.Minute, 900, 30 * time.Second, 5 * time.Second},
		{"long cold start", 1.5, 10 * time.Minute, 100, 30 * time.Second, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, truth := service(t, large(), 1, tt.coldStart)
			f.hpa.upPercent = tt.upPercent
			f.windows, f.interval = []time.Duration{tt.shortest, time.Minute, 5 * time.Minute}, tt.interval
			const step = 10 * time.Minute
			low := tt.rate * truth
			rs := newRequests(t, chat, 4*low, func(at time.Duration) float64 {
				if at < step {
					return low
				}
				return 4 * low
			}, 11)
			start, want := oracle(low, truth), oracle(4*low, truth)
			f.run(t, start, &open{t: t, rs: rs}, step+tt.coldStart+15*time.Minute)
			before := f.at(step)
			writes := f.writes(step)
			t.Logf("from %d, %d are right:%s; %.1f %% of the requests were good", before, want, sizes(writes), 100*f.good/f.finished)

			reached := slices.IndexFunc(writes, func(w round) bool { return w.n >= want-1 })
			if reached < 0 {
				t.Fatalf("never came to within one replica of %d:%s", want, sizes(writes))
			}
			if most := f.hpa.allowed(before, want-1) - 1 + int(tt.shortest/(15*time.Second)); reached+1 > most {
				t.Errorf("took %d writes to come to within one replica of %d, want at most %d:%s", reached+1, want, most, sizes(writes))
			}
			if took := writes[reached].at - step; took > tt.shortest+15*time.Second {
				t.Errorf("took %v to come to within one replica of %d:%s", took, want, sizes(writes))
			}
			most := want + 1 + int(math.Ceil(float64(before)/0.85))
			for _, w := range writes {
				if w.n > most {
					t.Errorf("asked for %d replicas, where %d are right and %d more can take over what comes to those with a queue:%s",
						w.n, want, most-want, sizes(writes))
				}
			}
			if n := flaps(before, writes); n > 1 {
				t.Errorf("turned round %d times, want once at most:%s", n, sizes(writes))
			}
		})
	}
}

// at is the number of replicas at a time.
func (f *fleet) at(at time.Duration) int {
	n := 0
	for _, r := range f.rounds {
		if r.at <= at {
			n = r.n
		}
	}
	return n
}

// TestDay runs a fleet for 24 hours.
func TestDay(t *testing.T) {
	if testing.Short() {
		t.Skip("emulates two days")
	}
	const begun = 15 * time.Minute
	for _, tt := range []struct {
		name            string
		rate, amplitude float64 // in what one replica can do
		flaps, writes   int
	}{
		// 0.935 of two replicas is where the HPA goes up.
		{"constant, where it goes up", 1.85, 0, 0, 1},
		// Five is the most; each number may come once on either slope.
		{"day and night", 2.3, 0.7, 1, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, truth := service(t, slow(), 4, 2*time.Minute)
			f.interval = 15 * time.Second
			f.windows = []time.Duration{time.Minute, 5 * time.Minute}
			mean := tt.rate * truth
			rs := newRequests(t, chat, 2*mean, func(at time.Duration) float64 {
				return mean * (1 - tt.amplitude*math.Cos(2*math.Pi*at.Hours()/24))
			}, 11)
			f.run(t, oracle(mean*(1-tt.amplitude), truth), &open{t: t, rs: rs}, 24*time.Hour)
			writes := f.writes(begun)
			good := f.good / f.finished
			t.Logf("from %d:%s; %.2f %% of the requests were good", f.at(begun), sizes(writes), 100*good)
			if n := flaps(f.at(begun), writes); n > tt.flaps {
				t.Errorf("turned round %d times in a day, want %d at most:%s", n, tt.flaps, sizes(writes))
			}
			if len(writes) > tt.writes {
				t.Errorf("wrote %d times in a day, want %d at most:%s", len(writes), tt.writes, sizes(writes))
			}
			if good < 0.98 {
				t.Errorf("%.2f %% of the requests were good, want 98 %%", 100*good)
			}
			for _, r := range f.rounds {
				if r.err != nil && r.at > begun {
					t.Fatalf("at %v: %v", r.at, r.err)
				}
			}
		})
	}
}

// TestClosedLoop has a fixed number of clients that ask again when they have been answered: what
// comes is what is served, however many replicas there are. It has to find its end all the same.
func TestClosedLoop(t *testing.T) {
	for _, clients := range []int{200, 1000} {
		t.Run(strconv.Itoa(clients), func(t *testing.T) {
			f, truth := service(t, large(), 1, time.Minute)
			c := &closed{t: t, rs: newRequests(t, chat, 1, func(time.Duration) float64 { return 1 }, 11)}
			for i := range clients {
				c.when = append(c.when, time.Duration(i)*10*time.Millisecond)
			}
			f.onFinish = func(o engine.Outcome) { c.when = append(c.when, o.Finished.Sub(t0)+think) }
			const end = 35 * time.Minute
			f.run(t, 1, c, end)
			last := f.rounds[len(f.rounds)-1]
			writes := f.writes(0)
			want := oracle(last.d.Rate, truth)
			t.Logf("%.1f requests/s in the end, for which %d are right:%s", last.d.Rate, want, sizes(writes))
			if last.n < want-1 || last.n > want+1 {
				t.Errorf("%d replicas in the end; for %.1f requests/s %d are right", last.n, last.d.Rate, want)
			}
			if w := writes[len(writes)-1]; w.at > end-10*time.Minute {
				t.Errorf("has not come to rest:%s", sizes(writes))
			}
		})
	}
}

// TestColdCacheLoop doubles the load of a service that finds most of each prompt in its caches. Those
// of new replicas are cold for two minutes. An answer that takes that for the service's own asks for
// more new replicas, with more cold caches, and then has too many.
func TestColdCacheLoop(t *testing.T) {
	cfg := large()
	highest, right := map[bool]int{}, 0
	for _, apart := range []bool{true, false} {
		f := &fleet{
			cfg: cfg, objectives: objectives(cfg, 1), coldStart: time.Minute, interval: 5 * time.Second,
			windows: []time.Duration{30 * time.Second, time.Minute, 5 * time.Minute}, hpa: usual(time.Minute),
			// What the emulator's steps cost, as if configured.
			model: capacity.Model{
				Step: cfg.StepTime.Base, Prompt: cfg.StepTime.PrefillToken, Token: cfg.StepTime.Sequence,
				Context: cfg.StepTime.ContextToken * float64(cfg.NumGPUBlocks*cfg.BlockSize), TokensPerStep: 1,
			},
			warm: 2 * time.Minute, cached: 0.9, believeCold: !apart,
		}
		f.objectives.Drain = 2 * time.Minute
		const step = 10 * time.Minute
		rs := newRequests(t, rag, 12, func(at time.Duration) float64 {
			if at < step {
				return 6
			}
			return 12
		}, 11)
		f.run(t, 2, &open{t: t, rs: rs}, step+20*time.Minute)
		for _, r := range f.rounds {
			highest[apart] = max(highest[apart], r.n)
		}
		// All caches are warm in the end.
		right = int(math.Ceil(f.rounds[len(f.rounds)-1].d.Offered / 0.85))
		t.Logf("told apart %v, %d are right:%s; %.1f %% of the requests were good", apart, right, sizes(f.writes(0)), 100*f.good/f.finished)
	}
	if highest[true] > right+1 {
		t.Errorf("asked for up to %d replicas, %d are right", highest[true], right)
	}
	if highest[false] <= highest[true] {
		t.Errorf("telling the new ones apart is of no use: up to %d replicas, and %d when it is not done", highest[true], highest[false])
	}
}
