package capacity_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

var t0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

var (
	chat      = mix{load.Length{Median: 400, Sigma: 0.8, Max: 8000}, load.Length{Median: 200, Sigma: 0.7, Max: 2000}}
	summarise = mix{load.Length{Median: 4000, Sigma: 0.5, Max: 16000}, load.Length{Median: 60, Sigma: 0.6, Max: 500}}
	generate  = mix{load.Length{Median: 100, Sigma: 0.5, Max: 1000}, load.Length{Median: 800, Sigma: 0.6, Max: 4000}}
	agent     = mix{load.Length{Median: 6000, Sigma: 0.7, Max: 24000}, load.Length{Median: 400, Sigma: 0.8, Max: 3000}}
	rag       = mix{load.Length{Median: 3000, Sigma: 0.5, Max: 12000}, load.Length{Median: 150, Sigma: 0.6, Max: 1000}}
	short     = mix{load.Length{Median: 200}, load.Length{Median: 20}}
)

// small is an 8-billion-parameter model on one GPU, and tight the same with a quarter of the KV cache.
func small() engine.Config { return engine.DefaultConfig() }

func tight() engine.Config {
	cfg := small()
	cfg.NumGPUBlocks = 6000
	return cfg
}

// large is a model of about 70 billion parameters, and slow one that takes four times as long for
// everything: its day has a quarter of the steps.
func large() engine.Config {
	cfg := small()
	cfg.MaxNumBatchedTokens = 2048
	cfg.StepTime = engine.StepTime{
		Base: 25e-3, PrefillToken: 130e-6, PrefillPair: 3e-9, Sequence: 50e-6, ContextToken: 80e-9, Jitter: 0.02,
	}
	return cfg
}

func slow() engine.Config {
	cfg := large()
	s := &cfg.StepTime
	for _, term := range []*float64{&s.Base, &s.PrefillToken, &s.PrefillPair, &s.Sequence, &s.ContextToken} {
		*term *= 4
	}
	return cfg
}

func objectives(cfg engine.Config, times float64) capacity.Objectives {
	return capacity.Objectives{
		TTFT:  time.Duration(times * float64(2500*time.Millisecond)),
		TPOT:  time.Duration(times * float64(100*time.Millisecond)),
		Seats: float64(cfg.MaxNumSeqs), BatchTokens: float64(cfg.MaxNumBatchedTokens),
	}
}

// mix is what requests are made of.
type mix struct {
	prompt, output load.Length
}

// requests draws requests of a mix with a rate that changes over time: a Poisson process, thinned.
type requests struct {
	rng    *rand.Rand
	draw   *load.Process
	rate   func(at time.Duration) float64
	most   float64 // the highest rate
	at     time.Duration
	number uint64
}

func newRequests(t testing.TB, m mix, most float64, rate func(time.Duration) float64, seed uint64) *requests {
	t.Helper()
	// The lengths are those of a load, the times are ours.
	p, err := load.Spec{Kind: load.Poisson, Rate: 1, Prompt: m.prompt, Output: m.output}.Start(seed)
	if err != nil {
		t.Fatal(err)
	}
	return &requests{rng: rand.New(rand.NewPCG(seed, 7)), draw: p, rate: rate, most: most}
}

func (r *requests) next(t testing.TB) (time.Duration, engine.Request) {
	t.Helper()
	for {
		r.at += time.Duration(r.rng.ExpFloat64() / r.most * float64(time.Second))
		if r.rng.Float64()*r.most < r.rate(r.at) {
			break
		}
	}
	a, err := r.draw.Next()
	if err != nil {
		t.Fatal(err)
	}
	r.number++
	return r.at, engine.Request{ID: r.number, PromptTokens: a.PromptTokens, OutputTokens: a.OutputTokens}
}

// scrape is what one replica's /metrics said at one time.
type scrape struct {
	at                                               time.Duration
	steps, prompts, first, output, preempted         float64
	finished, finishedTokens, promptSum, running, kv float64
	waiting, promptSquares, served, cached           float64
}

// names maps the samples that are read to where they go. Buckets of the prompts' histogram become a
// sum of squares, each taken at the middle of its bucket.
var names = map[string]func(*scrape) *float64{
	`vllm:iteration_tokens_total_count{`:       func(s *scrape) *float64 { return &s.steps },
	`vllm:prefix_cache_hits_total{`:            func(s *scrape) *float64 { return &s.cached },
	`vllm:prompt_tokens_total{`:                func(s *scrape) *float64 { return &s.prompts },
	`vllm:time_to_first_token_seconds_count{`:  func(s *scrape) *float64 { return &s.first },
	`vllm:generation_tokens_total{`:            func(s *scrape) *float64 { return &s.output },
	`vllm:num_preemptions_total{`:              func(s *scrape) *float64 { return &s.preempted },
	`vllm:request_generation_tokens_count{`:    func(s *scrape) *float64 { return &s.finished },
	`vllm:request_generation_tokens_sum{`:      func(s *scrape) *float64 { return &s.finishedTokens },
	`vllm:request_inference_time_seconds_sum{`: func(s *scrape) *float64 { return &s.served },
	`vllm:request_prompt_tokens_sum{`:          func(s *scrape) *float64 { return &s.promptSum },
	`vllm:num_requests_running{`:               func(s *scrape) *float64 { return &s.running },
	`vllm:num_requests_waiting{`:               func(s *scrape) *float64 { return &s.waiting },
	`vllm:kv_cache_usage_perc{`:                func(s *scrape) *float64 { return &s.kv },
}

// replica is an emulated engine and what has been scraped of it.
type replica struct {
	*engine.Engine
	from    time.Duration // when it became ready
	scrapes []scrape
	text    []byte
}

func (r *replica) scrape(t testing.TB, at time.Duration) {
	t.Helper()
	r.Advance(t0.Add(at))
	r.text = engine.Append(r.text[:0], engine.Exposition{ModelName: "m", Created: t0}, []*engine.Engine{r.Engine})
	s := scrape{at: at}
	found := 0
	var below, edge float64 // of the prompts' histogram
	for line := range bytes.Lines(r.text) {
		if line[0] == '#' {
			continue
		}
		brace := bytes.IndexByte(line, '{')
		if brace < 0 {
			continue
		}
		name := string(line[:brace+1])
		value := func() float64 {
			v, err := strconv.ParseFloat(string(bytes.TrimSpace(line[bytes.LastIndexByte(line, ' '):])), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		if to, ok := names[name]; ok {
			*to(&s) = value()
			found++
		}
		if name == "vllm:request_prompt_tokens_bucket{" {
			_, rest, _ := bytes.Cut(line, []byte(`le="`))
			le, _, _ := bytes.Cut(rest, []byte(`"`))
			upper, err := strconv.ParseFloat(string(le), 64)
			if err != nil {
				t.Fatal(err)
			}
			n := value()
			if math.IsInf(upper, 1) {
				upper = 2 * edge
			}
			s.promptSquares += (n - below) * edge * upper
			below, edge = n, upper
		}
	}
	if found != len(names) {
		t.Fatalf("found %d of %d series in the exposition", found, len(names))
	}
	r.scrapes = append(r.scrapes, s)
	if len(r.scrapes) > 1024 {
		r.scrapes = slices.Delete(r.scrapes, 0, 512)
	}
}

// since returns the scrapes of a window that ends with the newest one.
func (r *replica) since(window time.Duration) []scrape {
	newest := r.scrapes[len(r.scrapes)-1].at
	i := len(r.scrapes) - 1
	for i > 0 && r.scrapes[i-1].at >= newest-window {
		i--
	}
	return r.scrapes[i:]
}

// observation is what the learner gets of the newest window.
func (r *replica) observation(window time.Duration) capacity.Observation {
	ss := r.since(window)
	a, b := ss[0], ss[len(ss)-1]
	o := capacity.Observation{
		At: t0.Add(b.at), Span: b.at - a.at,
		Steps: b.steps - a.steps, PromptTokens: b.prompts - a.prompts - (b.cached - a.cached), FirstTokens: b.first - a.first,
		OutputTokens: b.output - a.output, Preemptions: b.preempted - a.preempted, ServedSeconds: b.served - a.served,
		LeastRunning: math.Inf(1), LeastWaiting: math.Inf(1),
	}
	for _, s := range ss {
		o.Running += s.running / float64(len(ss))
		o.KV += s.kv / float64(len(ss))
		o.LeastRunning = min(o.LeastRunning, s.running)
		o.LeastWaiting = min(o.LeastWaiting, s.waiting)
	}
	return o
}

// load is what the replica contributes to the group's load. It is warm when it is as old as that.
func (r *replica) load(windows []time.Duration, warm time.Duration) capacity.Load {
	now := r.scrapes[len(r.scrapes)-1]
	l := capacity.Load{Arrived: map[time.Duration]float64{}, Waiting: []float64{now.waiting}, InUse: now.running}
	// A new replica has had no arrivals before its first scrape.
	from := func(w time.Duration) scrape {
		if now.at-w < r.from {
			return scrape{at: r.from}
		}
		return r.since(w)[0]
	}
	longest := slices.Max(windows)
	for _, w := range windows {
		a := from(w)
		l.Arrived[w] = max(0, now.first-a.first+now.waiting-a.waiting)
	}
	a := from(longest)
	if now.at-r.from >= warm {
		l.WarmTokens = now.prompts - a.prompts
		l.WarmComputed = l.WarmTokens - (now.cached - a.cached)
	}
	l.FirstTokens, l.PromptTokens = now.first-a.first, now.prompts-a.prompts
	if n := now.promptSum - a.promptSum; n > 0 {
		// The histogram is of finished requests; scaled to those that have begun.
		l.PromptSquares = (now.promptSquares - a.promptSquares) * l.PromptTokens / n
	}
	l.Finished, l.OutputTokens = now.finished-a.finished, now.finishedTokens-a.finishedTokens
	ss := r.since(longest)
	for _, s := range ss {
		l.Running += s.running / float64(len(ss))
		l.KV += s.kv / float64(len(ss))
	}
	return l
}

// train lets a learner watch one replica whose load comes and goes twice, up to the given rate.
func train(t testing.TB, cfg engine.Config, m mix, most float64, length time.Duration) (capacity.Model, error) {
	t.Helper()
	e, err := engine.New(cfg, t0)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{Engine: e}
	var l capacity.Learner
	rs := newRequests(t, m, most, func(at time.Duration) float64 {
		return most * (0.05 + 0.95*(0.5-0.5*math.Cos(4*math.Pi*at.Seconds()/length.Seconds())))
	}, 9)
	at, request := rs.next(t)
	for now := 5 * time.Second; now <= length; now += 5 * time.Second {
		for at < now {
			if err := r.Submit(t0.Add(at), request); err != nil {
				t.Fatal(err)
			}
			at, request = rs.next(t)
		}
		r.scrape(t, now)
		if now%time.Minute == 0 {
			l.Observe("m", r.observation(time.Minute))
		}
	}
	return l.Model("m")
}

// meets reports whether nine requests of ten meet each objective on one replica at the rate, and
// what the load was.
func meets(t testing.TB, cfg engine.Config, m mix, rate float64, o capacity.Objectives) bool {
	t.Helper()
	const warm, length = 2 * time.Minute, 12 * time.Minute
	var slow, late, all float64
	cfg.OnFinish = func(out engine.Outcome) {
		if out.Arrival.Before(t0.Add(warm)) {
			return
		}
		all++
		if out.TTFT() > o.TTFT {
			late++
		}
		if out.TPOT() > o.TPOT {
			slow++
		}
	}
	e, err := engine.New(cfg, t0)
	if err != nil {
		t.Fatal(err)
	}
	rs := newRequests(t, m, rate, func(time.Duration) float64 { return rate }, 3)
	for at, r := rs.next(t); at < length; at, r = rs.next(t) {
		if err := e.Submit(t0.Add(at), r); err != nil {
			t.Fatal(err)
		}
		if e.Stats().Waiting > 2000 {
			return false
		}
	}
	e.Advance(t0.Add(length))
	// What waits in the end is late, or soon will be.
	late += float64(e.Stats().Waiting)
	return all > 0 && late <= 0.1*(all+late) && slow <= 0.1*all
}

// trueCapacity is the highest rate at which one replica meets the objectives.
func trueCapacity(t testing.TB, cfg engine.Config, m mix, o capacity.Objectives) float64 {
	t.Helper()
	lo, hi := 0.0, 0.5
	for meets(t, cfg, m, hi, o) {
		lo, hi = hi, 2*hi
	}
	for hi-lo > 0.04*hi {
		if mid := (lo + hi) / 2; meets(t, cfg, m, mid, o) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return (lo + hi) / 2
}
