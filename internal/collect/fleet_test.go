package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
)

// slow is a model of which a day has few steps: some 280 billion parameters.
func slow() engine.Config {
	cfg := engine.DefaultConfig()
	cfg.MaxNumBatchedTokens = 2048
	cfg.StepTime = engine.StepTime{Base: 0.1, PrefillToken: 520e-6, PrefillPair: 12e-9, Sequence: 200e-6, ContextToken: 320e-9, Jitter: 0.02}
	return cfg
}

// What is good of it, and what is asked of it.
const (
	goodTTFT = 10 * time.Second
	goodTPOT = 400 * time.Millisecond
)

var chat = load.Spec{
	Kind: load.Poisson, Rate: 1,
	Prompt: load.Length{Median: 400, Sigma: 0.8, Max: 8000},
	Output: load.Length{Median: 200, Sigma: 0.7, Max: 2000},
}

// requests are a Poisson process with a rate that changes, thinned.
type requests struct {
	rng  *rand.Rand
	draw *load.Process
	most float64
	rate func(time.Duration) float64
	at   time.Duration
	next engine.Request
}

func newRequests(t testing.TB, most float64, seed uint64) *requests {
	t.Helper()
	p, err := chat.Start(seed)
	if err != nil {
		t.Fatal(err)
	}
	r := &requests{rng: rand.New(rand.NewPCG(seed, 7)), draw: p, most: most, rate: func(time.Duration) float64 { return most }}
	r.draws(t)
	return r
}

func (r *requests) draws(t testing.TB) {
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
	r.next = engine.Request{ID: r.next.ID + 1, PromptTokens: a.PromptTokens, OutputTokens: a.OutputTokens}
}

// serves is how many requests per second one core serves until one of ten misses an objective.
func serves(t testing.TB, cfg engine.Config) float64 {
	t.Helper()
	meets := func(rate float64) bool {
		const warm, length = 5 * time.Minute, 40 * time.Minute
		began := time.Unix(0, 0)
		var slow, late, all float64
		cfg.OnFinish = func(o engine.Outcome) {
			if o.Arrival.Before(began.Add(warm)) {
				return
			}
			all++
			if o.TTFT() > goodTTFT {
				late++
			}
			if o.TPOT() > goodTPOT {
				slow++
			}
		}
		e, err := engine.New(cfg, began)
		if err != nil {
			t.Fatal(err)
		}
		for r := newRequests(t, rate, 3); r.at < length; r.draws(t) {
			if err := e.Submit(began.Add(r.at), r.next); err != nil {
				t.Fatal(err)
			}
			if e.Stats().Waiting > 500 {
				return false
			}
		}
		e.Advance(began.Add(length))
		late += float64(e.Stats().Waiting)
		return late <= 0.1*(all+late) && slow <= 0.1*all
	}
	lo, hi := 0.5, 4.0
	for hi-lo > 0.04*hi {
		if mid := (lo + hi) / 2; meets(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return (lo + hi) / 2
}

// served is a pod with emulated cores, and what scrapes of it brought.
type served struct {
	*pods.Pod
	cores  []*engine.Engine
	silent bool // scrapes fail
	series map[string]*scraped
	text   []byte
}

type scraped struct {
	ls      labels.Labels
	samples []reading
}

type reading struct {
	t time.Time
	v float64
}

// fleet is a source: what a Prometheus server holds that scrapes the pods every five seconds.
type fleet struct {
	t      *testing.T
	cfg    engine.Config
	began  time.Time
	rng    *rand.Rand
	loads  map[string]*requests // by variant
	pods   []*served
	index  *pods.Index
	wanted map[string]bool
	named  int
}

var _ source.Source = (*fleet)(nil)

func newFleet(t *testing.T, wanted [][]string) *fleet {
	f := &fleet{
		t: t, cfg: slow(), began: time.Now(), rng: rand.New(rand.NewPCG(5, 5)), loads: map[string]*requests{}, index: new(pods.Index),
		wanted: map[string]bool{},
	}
	for _, n := range slices.Concat(wanted...) {
		f.wanted[n] = true
	}
	return f
}

// add adds a pod, Ready since now.
func (f *fleet) add(variant string, cores int) *served {
	f.named++
	name := fmt.Sprintf("%s-%d", variant, f.named)
	p := readyPod(name, 0)
	p.UID = types.UID(name)
	p.Variant, p.Seats, p.BatchTokens = variant, float64(f.cfg.MaxNumSeqs), float64(f.cfg.MaxNumBatchedTokens)
	s := &served{Pod: p, series: map[string]*scraped{}, cores: make([]*engine.Engine, cores)}
	f.pods = append(f.pods, s)
	f.restart(s, time.Now())
	f.list()
	return s
}

func (f *fleet) remove(s *served) {
	f.pods = slices.DeleteFunc(f.pods, func(o *served) bool { return o == s })
	f.list()
}

func (f *fleet) list() {
	var all []*pods.Pod
	for _, s := range f.pods {
		all = append(all, s.Pod)
	}
	f.index.Replace(all)
}

// restart makes the pod's process a new one, that began at a time.
func (f *fleet) restart(s *served, at time.Time) {
	for i := range s.cores {
		cfg := f.cfg
		cfg.Seed = f.rng.Uint64()
		var err error
		if s.cores[i], err = engine.New(cfg, at); err != nil {
			f.t.Fatal(err)
		}
	}
}

// advance serves what has come until now: each core gets its part at random.
func (f *fleet) advance() {
	now := time.Now()
	for _, variant := range slices.Sorted(maps.Keys(f.loads)) {
		var cores []*engine.Engine
		for _, s := range f.pods {
			if s.Variant == variant {
				cores = append(cores, s.cores...)
			}
		}
		for r := f.loads[variant]; f.began.Add(r.at).Before(now); r.draws(f.t) {
			if err := cores[f.rng.IntN(len(cores))].Submit(f.began.Add(r.at), r.next); err != nil {
				f.t.Fatal(err)
			}
		}
	}
	for _, s := range f.pods {
		for _, e := range s.cores {
			e.Advance(now)
		}
	}
}

// scrape reads all pods.
func (f *fleet) scrape() {
	for _, s := range f.pods {
		if !s.silent {
			f.read(s)
		}
	}
}

func (f *fleet) read(s *served) {
	s.text = engine.Append(s.text[:0], engine.Exposition{ModelName: "m", Created: f.began}, s.cores)
	p, err := textparse.New(s.text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			f.t.Fatal(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		text, _, v := p.Series()
		name, _, _ := bytes.Cut(text, []byte("{"))
		if !f.wanted[string(name)] {
			continue
		}
		of := s.series[string(text)]
		if of == nil {
			of = &scraped{}
			p.Labels(&of.ls)
			of.ls = labels.NewBuilder(of.ls).Set("namespace", s.Namespace).Set("pod", s.Name).Set("instance", s.Name+":8000").Labels()
			s.series[strings.Clone(string(text))] = of
		}
		if of.samples = append(of.samples, reading{time.Now(), v}); len(of.samples) > 256 {
			of.samples = slices.Delete(of.samples, 0, 128)
		}
	}
}

func (f *fleet) String() string { return "a fleet of emulated engines" }

func (f *fleet) Fetch(_ context.Context, names []string, lookback time.Duration, sink source.Sink) (time.Time, error) {
	now := time.Now()
	for _, s := range f.pods {
		for _, of := range s.series {
			if !slices.Contains(names, of.ls.Get("__name__")) {
				continue
			}
			from, _ := slices.BinarySearchFunc(of.samples, now.Add(-lookback), func(r reading, t time.Time) int { return r.t.Compare(t) })
			for _, r := range of.samples[from:] {
				sink.Append(of.ls, r.t.UnixMilli(), r.v)
			}
		}
	}
	return now, nil
}

// run goes on for a while: a scrape every five seconds, of which the collector takes what came every
// fifteen, and something may be done before each.
func (f *fleet) run(c *Collector, lasts time.Duration, do func(at time.Duration)) {
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		time.Sleep(scrapeInterval)
		f.advance()
		if do != nil {
			do(time.Since(f.began))
		}
		f.scrape()
		if time.Since(f.began)%(3*scrapeInterval) == 0 {
			c.tick(f.t.Context())
		}
	}
}

// swings is a rate that comes and goes every hour, between a twentieth and the most.
func swings(most float64) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		return most * (0.05 + 0.95*(0.5-0.5*math.Cos(2*math.Pi*at.Hours())))
	}
}
