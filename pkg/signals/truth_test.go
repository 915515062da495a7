package signals_test

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"pgregory.net/rapid"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// TestMain has the property test draw the same worlds at every run, so that a change is judged by itself:
// one in a thousand or so is still known to find it wrong. make truth draws others.
func TestMain(m *testing.M) {
	flag.Parse()
	if seed := flag.Lookup("rapid.seed"); seed.Value.String() == "0" {
		if err := seed.Value.Set("20261201"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// TestSignalsTellTheTruth lets load and faults of every kind befall modelled engines, reads their
// expositions as the adapter does, and holds what the signals say to what the models know:
//
//   - No signal is 0 or idle while requests have waited, or been in an engine, at every instant
//     between the two newest scrapes of it. (An engine that hung while it had nothing to do tells of
//     no request that comes after: nobody can know it, and that is no instant of the kind.)
//   - A gauge is what the newest scrapes of all parts said, all of those that were not silent for a
//     window; after an outage it is the most that they said in it.
//   - A quantile of the requests that were really observed between the scrapes in the window is in
//     the bucket that the answer names; a bound of a stall is a time in which really nothing came.
//   - Of the requests that finished in the window really as many were good as the bounds allow. A first
//     token is counted well before its request's finish, so the code looks for misses over the longest
//     decode before the window too, or takes all that were in the engine as it began: it is that
//     widening which must hold, for every population that the load makes.
//   - A group is the sum, or the quantile, or the mean of its members, and never 0 unless all are.
//   - What is answered is as old as its oldest part, and the same in whatever order series come.
//
// Times between tokens are held to their own bounds only: the model does not keep them.
func TestSignalsTellTheTruth(t *testing.T) {
	parsed := map[string]labels.Labels{}
	all := forms()
	if len(all) == 0 {
		t.Fatal("the catalogue reads no kind of engine")
	}
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		j := newJudge(t, all, parsed, seen)
		t.Repeat(j.actions())
		j.w.end()
		for _, f := range j.late {
			f(t)
		}
	})
	t.Logf("states seen: %v", seen)
}

// judge holds signals to the truth of a world.
type judge struct {
	w       *world
	forms   []form
	params  signals.Params
	plans   map[string][]*signals.Plan // by what the names of signals begin with
	chosen  []*signals.Plan            // of what a label chooses
	late    []func(*rapid.T)           // what can be told only when every request has finished
	seen    map[string]int
	shuffle *rand.Rand
}

func newJudge(t *rapid.T, all []form, parsed map[string]labels.Labels, seen map[string]int) *judge {
	w := &world{
		now:      epoch,
		interval: rapid.SampledFrom([]time.Duration{5, 10, 15, 30}).Draw(t, "interval") * time.Second,
		markers:  rapid.Bool().Draw(t, "markers"),
		bare:     rapid.IntRange(0, 4).Draw(t, "bare") == 0,
		rng:      rand.New(rand.NewPCG(rapid.Uint64Range(0, 1<<20).Draw(t, "seed"), 1)),
		streams:  map[string][]*stream{},
		parsed:   parsed,
	}
	// Who tells which targets are up is who scrapes them, and tells of ends too.
	w.ups = w.markers && rapid.Bool().Draw(t, "up")
	j := &judge{w: w, forms: all, params: signals.DefaultParams(), plans: map[string][]*signals.Plan{}, seen: seen, shuffle: rand.New(rand.NewPCG(1, 1))}
	j.params.Window = rapid.SampledFrom([]time.Duration{20, 30, 60}).Draw(t, "window") * time.Second
	j.params.SLO = signals.SLO{
		TTFT: rapid.SampledFrom([]time.Duration{2500, 1000, 2000, 5000}).Draw(t, "ttft") * time.Millisecond,
		TPOT: rapid.SampledFrom([]time.Duration{0, 100, 300, 170}).Draw(t, "tpot") * time.Millisecond,
		E2E:  rapid.SampledFrom([]time.Duration{0, 0, 5, 10, 12}).Draw(t, "e2e") * time.Second,
	}
	w.retention = max(5*time.Minute, 2*j.params.Window)
	w.store = window.New(w.retention, signals.GroupOf)
	quantile := rapid.SampledFrom([]float64{0.25, 0.5, 0.9, 0.97}).Draw(t, "quantile")
	for _, s := range signals.Catalogue() {
		prefix, name, _ := strings.Cut(s.Name, "_")
		if s.OfPool() || strings.HasSuffix(name, "_p50_seconds") || strings.HasSuffix(name, "_p95_seconds") {
			continue // they differ from others in a number
		}
		q := signals.Query{Signal: s.Name}
		if s.HasQuantile() {
			q.Quantile = quantile
		}
		p, err := signals.Prepare(q)
		if err != nil {
			t.Fatal(err)
		}
		j.plans[prefix+"_"] = append(j.plans[prefix+"_"], p)
		if name == "request_rate" && slices.Contains(s.Labels(), "finished_reason") {
			// Asked as somebody else, it must leave the others alone.
			q.Where = "finished_reason=length"
			if p, err = signals.Prepare(q); err != nil {
				t.Fatal(err)
			}
			j.chosen = append(j.chosen, p)
		}
	}
	first := rapid.SampledFrom(all).Draw(t, "form")
	for i := range rapid.SampledFrom([]int{1, 1, 2, 2, 3, 4}).Draw(t, "pods") {
		p := &pod{name: fmt.Sprintf("p-%d", i), form: first, start: w.now, ready: w.now, calm: w.now}
		p.cfg = engine.Config{
			MaxNumSeqs: rapid.SampledFrom([]int{1, 3, 8}).Draw(t, "seats"), MaxNumBatchedTokens: 512,
			MaxModelLen: 2048, BlockSize: 16, NumGPUBlocks: 140, MaxWaiting: 12,
			StepTime: engine.StepTime{Base: 0.06, PrefillToken: 4e-4, Sequence: 0.01, Jitter: 0.3},
		}
		if rapid.IntRange(0, 5).Draw(t, "other") == 0 {
			p.form = rapid.SampledFrom(all).Draw(t, "form")
		}
		p.underscores = rapid.IntRange(0, 4).Draw(t, "underscores") == 0
		p.rate = j.rate(t)
		ranks := 1
		if ranked[p.form.kind.String()] {
			ranks = rapid.IntRange(1, 2).Draw(t, "ranks")
		}
		w.boot(p, ranks)
		w.pods = append(w.pods, p)
	}
	return j
}

func (j *judge) rate(t *rapid.T) float64 {
	return rapid.SampledFrom([]float64{0, 0.05, 0.3, 1, 3}).Draw(t, "rate")
}

func (j *judge) pod(t *rapid.T) *pod {
	p := rapid.SampledFrom(j.w.pods).Draw(t, "pod")
	if p.gone {
		t.Skip("the pod is gone")
	}
	return p
}

// scrapes lets some intervals pass, at the end of each of which everything is scraped.
func (j *judge) scrapes(t *rapid.T, n int) {
	w := j.w
	for range n {
		d := w.interval + time.Duration(rapid.IntRange(-40, 40).Draw(t, "late"))*w.interval/1000
		w.pass(d.Round(time.Millisecond))
		w.scrape()
		if n > 1 && rapid.IntRange(0, 5).Draw(t, "look") == 0 {
			w.fetch(t)
			j.judge(t, 0)
		}
	}
	w.fetch(t)
}

// reform starts a pod's engines anew, in another form.
func (j *judge) reform(t *rapid.T, p *pod, of []form) {
	p.form = rapid.SampledFrom(of).Draw(t, "form")
	ranks := len(p.ranks)
	if !ranked[p.form.kind.String()] {
		ranks = 1
	}
	j.w.boot(p, ranks)
}

func (j *judge) disturb(pods ...*pod) {
	for _, p := range pods {
		if p.calm.Before(j.w.now) { // it is later while the source's clock is not where it was
			p.calm = j.w.now
		}
	}
}

func (j *judge) actions() map[string]func(*rapid.T) {
	w := j.w
	run := func(t *rapid.T) { j.scrapes(t, rapid.IntRange(1, 6).Draw(t, "scrapes")) }
	return map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			if after := rapid.IntRange(-1000, 3000).Draw(t, "after"); after >= 0 {
				j.judge(t, time.Duration(after)*w.interval/1000)
			}
		},
		"runs":       run,
		"goes on":    run,
		"carries on": run,
		"load": func(t *rapid.T) {
			for _, p := range w.pods {
				p.rate, p.next = j.rate(t), time.Time{}
			}
			run(t)
		},
		"empties": func(t *rapid.T) {
			for _, p := range w.pods {
				p.rate = 0
			}
			j.scrapes(t, rapid.IntRange(3, 8).Draw(t, "scrapes"))
			j.judge(t, 0)
			p := j.pod(t)
			p.rate, p.next = j.rate(t), time.Time{}
		},
		"misses": func(t *rapid.T) {
			p := j.pod(t)
			p.down = true
			j.scrapes(t, rapid.IntRange(1, 8).Draw(t, "scrapes"))
			p.down = false
			j.disturb(p)
		},
		"outage": func(t *rapid.T) {
			w.outage = true
			w.asleep = rapid.Bool().Draw(t, "asleep")
			j.scrapes(t, rapid.IntRange(1, 12).Draw(t, "scrapes"))
			j.judge(t, 0)
			w.outage, w.asleep = false, false
			j.disturb(w.pods...)
			j.scrapes(t, 1)
		},
		"restart": func(t *rapid.T) {
			p := j.pod(t)
			j.disturb(p)
			w.boot(p, len(p.ranks))
		},
		"hangs": func(t *rapid.T) {
			l := rapid.SampledFrom(j.pod(t).ranks).Draw(t, "rank")
			l.core.Freeze(w.now)
			j.scrapes(t, rapid.IntRange(1, 9).Draw(t, "scrapes"))
			if rapid.IntRange(0, 3).Draw(t, "goes on") > 0 {
				j.judge(t, 0)
				l.core.Unfreeze(w.now)
			}
		},
		"respell": func(t *rapid.T) {
			p := j.pod(t)
			j.disturb(p)
			if rapid.Bool().Draw(t, "both") {
				p.both = !p.both
			} else {
				p.underscores = !p.underscores
			}
			run(t)
		},
		"upgrade": func(t *rapid.T) {
			p := j.pod(t)
			j.disturb(p)
			j.reform(t, p, slices.DeleteFunc(slices.Clone(j.forms), func(f form) bool {
				return prefixes[f.kind.String()] != prefixes[p.form.kind.String()]
			}))
			run(t)
		},
		"twin": func(t *rapid.T) {
			p := j.pod(t)
			j.disturb(p)
			p.twin = rapid.SampledFrom([]string{"", "job", "instance"}).Draw(t, "twin")
			run(t)
		},
		"lose or regain a rank": func(t *rapid.T) {
			p := j.pod(t)
			if len(p.ranks) < 2 {
				t.Skip("it has one")
			}
			j.disturb(p)
			p.lost = 1 - p.lost
			run(t)
		},
		"replace": func(t *rapid.T) {
			p := j.pod(t)
			if w.bare {
				t.Skip("nobody knows of pods")
			}
			if w.markers {
				w.vanish(p)
			}
			p.gone = true
			j.scrapes(t, rapid.IntRange(1, 4).Draw(t, "scrapes"))
			p.gone, p.down, p.both, p.twin = false, false, false, ""
			if rapid.IntRange(0, 2).Draw(t, "by another engine") == 0 {
				j.reform(t, p, j.forms)
			} else {
				w.boot(p, len(p.ranks))
			}
			p.start, p.ready = w.now, w.now
			j.disturb(p)
			if rapid.Bool().Draw(t, "slow") {
				j.scrapes(t, rapid.IntRange(1, 3).Draw(t, "scrapes"))
				p.ready = w.now
			}
			j.disturb(p)
			run(t)
		},
		"readiness flaps": func(t *rapid.T) {
			p := j.pod(t)
			j.disturb(p)
			p.ready = w.now
		},
		"clock jumps": func(t *rapid.T) {
			jump := time.Duration(rapid.IntRange(-90, 90).Draw(t, "seconds")) * time.Second
			w.skew += jump
			j.disturb(w.pods...)
			run(t)
			j.disturb(w.pods...)
		},
	}
}

// vanish ends every series of a pod whose target is taken away.
func (w *world) vanish(p *pod) {
	b := &batch{pod: p.name}
	ends := map[uint64]labels.Labels{}
	for _, old := range w.log {
		for _, s := range old.samples {
			if old.pod != p.name {
				break
			}
			ends[s.ls.Hash()] = s.ls
			if value.IsStaleNaN(s.v) {
				delete(ends, s.ls.Hash())
			}
		}
	}
	for _, ls := range ends {
		b.samples = append(b.samples, sample{ls, w.source(w.now), math.Float64frombits(value.StaleNaN)})
	}
	w.log = append(w.log, b)
}

// judge evaluates everything a while after the newest scrape.
func (j *judge) judge(t *rapid.T, after time.Duration) {
	w := j.w
	now := w.now.Add(after)
	members := map[string][]signals.Member{}
	pops := map[string][]*population{}
	for _, p := range w.pods {
		if p.gone || now.Before(p.ready) {
			continue
		}
		prefix := prefixes[p.form.kind.String()]
		plans := slices.Concat(j.plans["inference_"], j.plans[prefix])
		at := w.at(p, now)
		series := w.store.Group(signals.GroupKey("ns", p.name))
		signals.Evaluate(j.chosen, series, at, j.params)
		got := signals.Evaluate(plans, series, at, j.params)
		again := got
		if j.shuffle.IntN(3) == 0 {
			other := slices.Clone(series)
			j.shuffle.Shuffle(len(other), func(a, b int) { other[a], other[b] = other[b], other[a] })
			again = signals.Evaluate(plans, other, at, j.params)
		}
		v := w.view(p, at, j.params)
		pure := v.pure()
		generic := map[string]signals.Measure{}
		for i, m := range got {
			if a, b := m, again[i]; !same(a.Result, b.Result) {
				t.Fatalf("%s of %s depends on the order of series: %+v or %+v", plans[i].Query.Signal, p.name, a, b)
			}
			name := plans[i].Query.Signal
			if p.form.kind.String() == "dynamo-frontend" && strings.HasPrefix(name, "inference_") {
				continue // a front end is none of the engines behind it
			}
			members[name] = append(members[name], signals.Member{Name: p.name, Measure: m})
			if suffix, ok := strings.CutPrefix(name, "inference_"); ok {
				generic[suffix] = m
				continue
			}
			suffix := strings.TrimPrefix(name, prefix)
			j.seen[m.State.String()]++
			if of, ok := generic[suffix]; ok && pure && !same(of.Result, m.Result) {
				t.Fatalf("inference_%s is %+v, but %s is %+v", suffix, of.Result, name, m.Result)
			}
			fail := func(t *rapid.T, format string, args ...any) {
				t.Fatalf("%s of %s at %s: %s\nis %s\n%s\n%s", name, p.name, now.Sub(epoch), fmt.Sprintf(format, args...), written(m.Result), v, w.describe())
			}
			j.sound(t, v, suffix, m, fail)
			j.law(t, v, suffix, m, fail)
			pops[name] = append(pops[name], j.measured(t, v, suffix, plans[i], m, fail))
		}
	}
	for prefix, plans := range j.plans {
		for _, pl := range plans {
			name := pl.Query.Signal
			if of := members[name]; len(of) > 0 {
				j.group(t, strings.TrimPrefix(name, prefix), pl, of, pops[name])
			}
		}
	}
}

// same compares what is answered, and not why there is no answer.
func same(a, b signals.Result) bool {
	a.Reason, b.Reason = "", ""
	return reflect.DeepEqual(a, b)
}

func written(r signals.Result) string {
	s := fmt.Sprintf("%s has %v %g at %g over %s (%s) bound %v", r.State, r.HasValue, r.Value, float64(r.Time.UnixMilli()-epoch.UnixMilli())/1000, r.Window, r.Reason, r.LowerBound)
	if r.Resolution != nil {
		s += fmt.Sprintf(" in %+v", *r.Resolution)
	}
	return s
}

// sound is what holds for every answer.
func (j *judge) sound(t *rapid.T, v *view, name string, m signals.Measure, fail failer) {
	switch {
	case m.HasValue && (math.IsNaN(m.Value) || math.IsInf(m.Value, 0) || m.Value < 0):
		fail(t, "no number")
	case m.State == signals.Unknown && m.HasValue, (m.State == signals.Value || m.State == signals.Idle) && !m.HasValue:
		fail(t, "state and value differ")
	case !m.HasValue && m.Reason == "":
		fail(t, "no value and no reason")
	case m.State == signals.Idle && name != "slo_attainment" && m.Value != 0:
		fail(t, "idle is not 0")
	}
	if m.HasValue {
		at := m.Time.UnixMilli()
		if at > v.newest {
			fail(t, "newer than the newest sample, %d", v.newest)
		}
		if old := v.at.Now.UnixMilli() - at; old > v.fresh.Milliseconds() {
			fail(t, "%d ms old, which is no more fresh after %s", old, v.fresh)
		}
		if r := m.Resolution; r != nil && (m.Value < r.Low || m.Value > r.High || r.Low > r.High) {
			fail(t, "not in the bucket that it names")
		}
	}
	if name == "queue_depth" && v.quiet && m.State == signals.Unknown {
		fail(t, "no value though nothing has happened for long")
	}
}

type failer func(t *rapid.T, format string, args ...any)

// law is the first one: never a made-up zero.
func (j *judge) law(t *rapid.T, v *view, name string, m signals.Measure, fail failer) {
	zero := m.HasValue && m.Value == 0
	idle := m.State == signals.Idle
	of := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return name == n || strings.HasPrefix(name, n+"_") })
	}
	switch {
	case of("queue_depth", "ttft", "queue_time", "prompt_tokens_rate", "prefill_backlog_seconds"):
		if v.waits && (zero || idle) {
			fail(t, "0 while requests have been waiting")
		}
	case of("inflight_requests", "e2e_latency", "request_rate", "generation_tokens_rate", "saturation"):
		if v.busy && (zero || idle) {
			fail(t, "0 while requests have been in the engine")
		}
	case of("tpot", "itl", "running_requests", "kv_cache_usage"):
		if v.runs && (zero || idle) {
			fail(t, "0 while requests have been running")
		}
	case of("goodput", "goodput_upper", "slo_attainment", "slo_miss_rate", "preemption_rate"):
		if v.busy && idle {
			fail(t, "idle while requests have been in the engine")
		}
	}
}

// view is what has come of one pod up to an evaluation.
type view struct {
	at      signals.At
	params  signals.Params
	kind    string
	prefix  string   // of the signals of the kind
	streams []stream // with the readings that count
	newest  int64
	fresh   time.Duration
	quiet   bool
	found   map[string][][][]reading // what candidates has returned
	// waits, busy and runs say that, at every instant between the two newest scrapes of some part,
	// requests waited, were there, or ran as far as the scrapes tell.
	waits, busy, runs bool
}

func (w *world) view(p *pod, at signals.At, params signals.Params) *view {
	v := &view{at: at, params: params, kind: p.form.kind.String(), prefix: prefixes[p.form.kind.String()]}
	var start int64
	if !at.Start.IsZero() {
		start = at.Start.UnixMilli()
	}
	gap := int64(5000)
	type key struct {
		instance string
		rank     int
	}
	byPart := map[key][]reading{}
	for _, s := range w.streams[p.name] {
		first, _ := slices.BinarySearchFunc(s.rs, start, func(r reading, t int64) int { return cmp.Compare(r.t, t) })
		rs := s.rs[first:]
		if len(rs) == 0 {
			continue
		}
		v.streams = append(v.streams, stream{key: s.key, rs: rs})
		v.newest = max(v.newest, rs[len(rs)-1].t)
		for i := max(1, len(rs)-14); i < len(rs); i++ {
			gap = max(gap, rs[i].t-rs[i-1].t)
		}
		k := key{s.key.instance, s.key.rank}
		byPart[k] = append(byPart[k], rs...)
	}
	v.fresh = 2 * time.Duration(gap) * time.Millisecond
	for _, rs := range byPart {
		// By true time: of two spellings one may be stamped before a clock was set back.
		slices.SortStableFunc(rs, func(a, b reading) int { return a.at.Compare(b.at) })
		rs = slices.CompactFunc(rs, func(a, b reading) bool { return a.at.Equal(b.at) })
		if len(rs) < 2 || rs[len(rs)-1].t < v.newest-params.Window.Milliseconds() {
			continue
		}
		a, b := rs[len(rs)-2], rs[len(rs)-1]
		if a.life != b.life || b.life.over || prefixes[b.form.kind.String()] != v.prefix {
			continue
		}
		if v.kind == "tgi" && b.stats.Waiting == 0 && b.shown.running == 0 {
			continue // its router has handed on what its batch tells of with the end of the step
		}
		v.waits = v.waits || !b.waits.IsZero() && !b.waits.After(a.at)
		v.busy = v.busy || !b.busy.IsZero() && !b.busy.After(a.at)
		if v.kind == "dynamo-frontend" {
			continue // to a front end those that run are those that have had a token
		}
		v.runs = v.runs || a.shown.running > 0 && b.shown.running > 0
	}
	// A gauge that appears with the first step is taken for one that is back after an outage.
	long := 8*w.interval + 4*params.Window
	told := v.knows("queue")
	for _, s := range v.streams {
		for _, r := range in(s.rs, long) {
			_, _, ok := r.telling(s.key.underscores, "queue")
			told = told && ok
		}
	}
	v.quiet = !w.outage && !p.down && p.lost == 0 && told && at.Now.Sub(time.UnixMilli(w.source(p.calm))) > long &&
		at.Now.UnixMilli()-v.newest < 2*w.interval.Milliseconds()-2000
	return v
}

// knows reports whether this test knows how the engine tells something.
func (v *view) knows(what string) bool {
	_, ok := tellings[strings.TrimSuffix(v.kind, "-colon")][what]
	return ok
}

// pure says that everything that came of the pod is of the engine that runs in it.
func (v *view) pure() bool {
	of := map[string]bool{}
	for _, s := range v.streams {
		for _, r := range s.rs {
			of[prefixes[r.form.kind.String()]] = true
		}
	}
	return len(of) == 1 && of[v.prefix] && v.kind != "dynamo-frontend" // which is no engine
}

func (v *view) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seen at %g, window %s, start %g, ready %g, partial %v, waits %v, busy %v, runs %v\n", seconds(v.at.Now.UnixMilli()), v.params.Window,
		seconds(v.at.Start.UnixMilli()), seconds(v.at.Ready.UnixMilli()), v.at.Partial, v.waits, v.busy, v.runs)
	for _, s := range v.streams {
		fmt.Fprintf(&b, "  seen %s %s underscores=%v rank %d:", s.key.job, s.key.instance, s.key.underscores, s.key.rank)
		for _, r := range s.rs[max(0, len(s.rs)-24):] {
			fmt.Fprintf(&b, " %g:%g+%g/%d/%d", seconds(r.t), r.shown.waiting, r.shown.running, r.stats.FirstTokens, r.stats.Finished)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func seconds(t int64) float64 { return float64(t-epoch.UnixMilli()) / 1000 }

// A telling is what this test knows of how a kind of engine tells something.
type telling struct {
	// at is from when on it is there at all.
	at func(engine.Stats) bool
	// of is what a gauge says, where that is not what vLLM would.
	of func(reading) float64
	// finished says that a histogram observes with the finish what others do before.
	finished bool
	// part says that it is told in parts that appear one by one: the first of each is not seen to count.
	part bool
}

func always(engine.Stats) bool       { return true }
func stepped(s engine.Stats) bool    { return s.Steps > 0 }
func offered(s engine.Stats) bool    { return s.Submitted+s.Rejected > 0 }
func firstToken(s engine.Stats) bool { return s.FirstTokens > 0 }
func finish(s engine.Stats) bool     { return s.Finished > 0 }

// tellings are those of every kind but vLLM's own. What is not in it is held to the law only.
var tellings = map[string]map[string]telling{
	"vllm": {
		"queue": {at: always}, "running": {at: always}, "inflight": {at: always}, "kv": {at: always},
		"finished": {at: always}, "preemptions": {at: always}, "generated": {at: always}, "prompt": {at: always},
		"ttft": {at: always}, "tpot": {at: always}, "e2e": {at: always}, "queue_time": {at: always},
	},
	"vllm-v0": {
		"queue": {at: always}, "running": {at: always}, "inflight": {at: always}, "kv": {at: always},
		"finished": {at: finish, part: true}, "preemptions": {at: always}, "generated": {at: always}, "prompt": {at: always},
		"ttft": {at: firstToken}, "e2e": {at: finish}, "queue_time": {at: finish},
	},
	"nim": {
		"queue": {at: always}, "running": {at: always}, "inflight": {at: always}, "kv": {at: always},
		"finished": {at: finish, part: true}, "generated": {at: always}, "prompt": {at: always},
		"ttft": {at: firstToken}, "e2e": {at: finish},
	},
	"sglang": {
		"queue": {at: stepped}, "running": {at: stepped}, "inflight": {at: stepped}, "kv": {at: stepped},
		"finished": {at: finish}, "ttft": {at: firstToken}, "e2e": {at: finish},
	},
	"tgi": {
		"queue":    {at: offered, of: func(r reading) float64 { return float64(r.stats.Waiting) }},
		"finished": {at: finish}, "e2e": {at: finish}, "queue_time": {at: finish},
	},
	"trtllm": {
		"queue": {at: stepped}, "running": {at: stepped}, "inflight": {at: stepped}, "kv": {at: stepped},
		"finished": {at: finish, part: true}, "ttft": {at: finish, finished: true}, "tpot": {at: finish}, "e2e": {at: finish}, "queue_time": {at: finish},
	},
	"triton": {
		"queue": {at: stepped}, "kv": {at: stepped}, "finished": {at: always}, "ttft": {at: always},
	},
	"llamacpp": {
		"queue": {at: always}, "running": {at: always}, "inflight": {at: always},
	},
	"lmdeploy": {
		"queue": {at: always}, "running": {at: always}, "inflight": {at: always}, "kv": {at: always},
		"finished": {at: always}, "generated": {at: always}, "prompt": {at: always},
		"ttft": {at: always}, "e2e": {at: always}, "queue_time": {at: always},
	},
	"dynamo-frontend": {
		"finished": {at: finish}, "ttft": {at: firstToken},
	},
}

// telling returns how a reading tells something, and under which names; ok is false when it does not.
// Names need to differ only where those of the form do.
func (r reading) telling(underscores bool, what string) (of telling, names []string, ok bool) {
	f := r.form
	kind := strings.TrimSuffix(f.kind.String(), "-colon")
	of, ok = tellings[kind][what]
	if !ok || !of.at(r.stats) {
		return of, nil, false
	}
	names = []string{what}
	if kind == "vllm" {
		old := f.release == engine.V0_9_1 || f.release == engine.V0_8
		switch {
		case f.multi && slices.Contains([]string{"queue", "running", "inflight", "kv"}, what) && !stepped(r.stats):
			return of, nil, false
		case what == "kv" && old:
			names = []string{"kv, old"}
		case what == "kv" && f.release == engine.V0_10:
			names = []string{"kv", "kv, old"}
		case what == "tpot" && (old || f.release == engine.V0_10):
			return of, nil, false
		}
	}
	if kind == "vllm-v0" && what == "kv" {
		names = []string{"kv, old"}
	}
	if underscores {
		for i := range names {
			names[i] += "_"
		}
	}
	return of, names, true
}

// candidates are the readings of each part that an answer read at some time may have been made of. Which
// of several spellings and jobs it took is its own business; that it takes all parts is not.
func (v *view) candidates(what string, read int64, w time.Duration, union bool) [][][]reading {
	k := fmt.Sprint(what, read, w, union)
	if v.found == nil {
		v.found = map[string][][][]reading{}
	}
	if _, ok := v.found[k]; !ok {
		v.found[k] = v.search(what, read, w, union)
	}
	return v.found[k]
}

func (v *view) search(what string, read int64, w time.Duration, union bool) [][][]reading {
	type key struct {
		instance string
		rank     int
	}
	names := map[string]map[key][]stream{}
	for _, s := range v.streams {
		byName := map[string][]reading{}
		for _, r := range s.rs {
			if prefixes[r.form.kind.String()] != v.prefix {
				continue
			}
			_, names, _ := r.telling(s.key.underscores, what)
			for _, n := range names {
				byName[n] = append(byName[n], r)
			}
		}
		for n, rs := range byName {
			if names[n] == nil {
				names[n] = map[key][]stream{}
			}
			k := key{s.key.instance, s.key.rank}
			names[n][k] = append(names[n][k], stream{key: s.key, rs: rs, last: rs[len(rs)-1].t})
			if !levels[what] { // it may be known from some time on that it was 0 before it was told for the first time
				tells := func(r reading) bool { _, _, ok := r.telling(false, what); return ok }
				for before := untold(v.of(s.key.instance), rs[0], tells); len(before) > 0; before = before[1:] {
					names[n][k] = append(names[n][k], stream{key: s.key, rs: slices.Concat(before, rs), last: rs[len(rs)-1].t})
				}
			}
		}
	}
	var out [][][]reading
	for _, parts := range names {
		var newest int64
		for _, ss := range parts {
			for _, s := range ss {
				newest = max(newest, s.last)
			}
		}
		all := [][][]reading{{}}
		least := int64(math.MaxInt64)
		for _, ss := range parts {
			last := slices.MaxFunc(ss, func(a, b stream) int { return cmp.Compare(a.last, b.last) }).last
			if last < read && last < newest-w.Milliseconds() {
				continue // it was silent for a window
			}
			least = min(least, last)
			var choices [][]reading
			var merged []reading
			for _, s := range ss {
				merged = append(merged, s.rs...)
				if s.last == last {
					choices = append(choices, s.rs)
				}
			}
			if union && len(ss) > 1 {
				slices.SortStableFunc(merged, func(a, b reading) int { return cmp.Compare(a.t, b.t) })
				choices = append(choices, slices.CompactFunc(merged, func(a, b reading) bool { return a.t == b.t }))
			}
			var next [][][]reading
			for _, before := range all {
				for _, c := range choices {
					next = append(next, append(slices.Clone(before), c))
				}
			}
			all = next
		}
		if least == read {
			out = append(out, all...)
		}
	}
	return out
}

// levels are what has no beginning: what gauges tell.
var levels = map[string]bool{"queue": true, "running": true, "inflight": true, "kv": true}

// of are all readings of a target, in the order of time.
func (v *view) of(instance string) []reading {
	var out []reading
	for _, s := range v.streams {
		if s.key.instance == instance {
			out = append(out, s.rs...)
		}
	}
	slices.SortStableFunc(out, func(a, b reading) int { return cmp.Compare(a.t, b.t) })
	return slices.CompactFunc(out, func(a, b reading) bool { return a.t == b.t })
}

// untold are the readings of the last minute before the first that tells something.
func untold(rs []reading, first reading, tells func(reading) bool) []reading {
	end := slices.IndexFunc(rs, func(r reading) bool { return r.t == first.t })
	begin := end
	for begin > 0 && !tells(rs[begin-1]) && first.t-rs[begin-1].t <= time.Minute.Milliseconds() {
		begin--
	}
	return rs[begin:end]
}

// counted reports whether some part told at some time what appears with its first event only.
func (v *view) counted(what string, at int64) bool {
	for _, s := range v.streams {
		for _, r := range s.rs {
			if _, _, ok := r.telling(false, what); ok && r.t == at {
				return true
			}
		}
	}
	return false
}

// until is the view without what came later.
func (v *view) until(t int64) *view {
	cut := *v
	cut.streams, cut.found = nil, nil
	for _, s := range v.streams {
		n, _ := slices.BinarySearchFunc(s.rs, t+1, func(r reading, t int64) int { return cmp.Compare(r.t, t) })
		if n > 0 {
			cut.streams = append(cut.streams, stream{key: s.key, rs: s.rs[:n]})
		}
	}
	return &cut
}

// in are the readings of the window that ends with the newest one.
func in(rs []reading, w time.Duration) []reading {
	from := rs[len(rs)-1].t - w.Milliseconds()
	first, _ := slices.BinarySearchFunc(rs, from, func(r reading, t int64) int { return cmp.Compare(r.t, t) })
	return rs[first:]
}

// population is what a quantile was taken of, as it turns out in the end.
type population struct {
	known  bool
	values []float64
}

// measured holds the number of an answer to what the models know, at once or in the end.
func (j *judge) measured(t *rapid.T, v *view, name string, pl *signals.Plan, m signals.Measure, fail failer) *population {
	pop := &population{}
	if !m.HasValue {
		return pop
	}
	if of, ok := gauges[name]; ok {
		j.gauge(t, v, of, m, fail)
	}
	if of, ok := counters[name]; ok && m.State != signals.Stalled {
		j.counter(t, v, of, m, fail)
	}
	for what, of := range histograms {
		if strings.HasPrefix(name, what+"_") && strings.HasSuffix(name, "_seconds") {
			q := quantileOf(pl, name)
			j.late = append(j.late, func(t *rapid.T) {
				pop.values, pop.known = j.quantile(t, v, strings.TrimSuffix(what, "_latency"), of, q, m, fail)
			})
		}
	}
	if strings.HasPrefix(name, "goodput") || strings.HasPrefix(name, "slo_") {
		j.late = append(j.late, func(t *rapid.T) { j.good(t, v, name, m, fail) })
	}
	return pop
}

// quantileOf returns the quantile that a plan asks for.
func quantileOf(pl *signals.Plan, name string) float64 {
	if _, p, ok := strings.Cut(name, "_p"); ok {
		if percent, err := strconv.Atoi(strings.TrimSuffix(p, "_seconds")); err == nil {
			return float64(percent) / 100
		}
	}
	return cmp.Or(pl.Quantile, 0.9)
}

// atRank returns the value that a quantile is. Where less than one is expected above it, it is the greatest.
func atRank(q float64, sorted []float64) float64 {
	n := float64(len(sorted))
	rank := n
	if n*(1-q) >= 1 {
		rank = q * n
	}
	return sorted[int(math.Ceil(rank))-1]
}

// slack is what the model rounds.
const slack = 2e-9

// gauges are those whose value is the sum, or mean, of what was told.
var gauges = map[string]struct {
	what string
	mean bool
	of   func(shown) float64
}{
	"queue_depth":       {"queue", false, func(s shown) float64 { return s.waiting }},
	"running_requests":  {"running", false, func(s shown) float64 { return s.running }},
	"inflight_requests": {"inflight", false, func(s shown) float64 { return s.waiting + s.running }},
	"kv_cache_usage":    {"kv", true, func(s shown) float64 { return s.kv }},
}

func (j *judge) gauge(t *rapid.T, v *view, of struct {
	what string
	mean bool
	of   func(shown) float64
}, m signals.Measure, fail failer) {
	if !v.knows(of.what) {
		return
	}
	var said []float64
	for _, parts := range v.candidates(of.what, m.Time.UnixMilli(), j.params.Window, false) {
		var sum, parted float64
		for _, rs := range parts {
			newest := rs[len(rs)-1]
			if how, _, _ := newest.telling(false, of.what); how.of != nil {
				newest.shown.waiting = how.of(newest)
			}
			for _, r := range in(rs, m.Window) {
				if how, _, _ := r.telling(false, of.what); how.of != nil {
					r.shown.waiting = how.of(r)
				}
				newest.shown = shown{max(newest.shown.waiting, r.shown.waiting), max(newest.shown.running, r.shown.running), max(newest.shown.kv, r.shown.kv), 0, 0}
			}
			sum += of.of(newest.shown)
		}
		parted = float64(len(parts))
		if of.mean {
			sum /= parted
		}
		if math.Abs(sum-m.Value) < 1e-9 {
			return
		}
		said = append(said, sum)
	}
	fail(t, "the engines said one of %v", said)
}

// counters are those whose value is a rate of what is counted.
var counters = map[string]struct {
	what string
	of   func(reading) float64
}{
	"request_rate":           {"finished", func(r reading) float64 { return float64(r.stats.Finished) }},
	"preemption_rate":        {"preemptions", func(r reading) float64 { return float64(r.stats.Preemptions) }},
	"generation_tokens_rate": {"generated", func(r reading) float64 { return r.shown.generated }},
	"prompt_tokens_rate":     {"prompt", func(r reading) float64 { return r.shown.prompt }},
}

func (j *judge) counter(t *rapid.T, v *view, of struct {
	what string
	of   func(reading) float64
}, m signals.Measure, fail failer) {
	if !v.knows(of.what) {
		return
	}
	var said []float64
	for _, parts := range v.candidates(of.what, m.Time.UnixMilli(), m.Window, false) {
		rate := 0.0
		for _, rs := range parts {
			rs = in(rs, m.Window)
			for i := 1; i < len(rs); i++ {
				d := of.of(rs[i])
				if rs[i].life == rs[i-1].life {
					d -= of.of(rs[i-1])
				} else if was := of.of(rs[i-1]); was > 0 && d >= was {
					return // it cannot be seen that it counts from 0 again
				}
				rate += d / float64(rs[len(rs)-1].t-rs[0].t) * 1000
			}
		}
		if math.Abs(rate-m.Value) < 1e-9 {
			return
		}
		if how, _, _ := parts[0][len(parts[0])-1].telling(false, of.what); how.part && m.Value < rate {
			return
		}
		said = append(said, rate)
	}
	if m.State == signals.Idle && !v.counted(of.what, m.Time.UnixMilli()) {
		return // it appears with its first event
	}
	fail(t, "of what was counted it is one of %v", said)
}

// histograms are those whose observations the models know.
var histograms = map[string]observed{
	"ttft":        {func(l *life) []event { return l.firsts }, func(o engine.Outcome) time.Duration { return o.TTFT() }, func(s engine.Stats) int { return s.FirstTokens }},
	"tpot":        {func(l *life) []event { return l.fins }, func(o engine.Outcome) time.Duration { return o.TPOT() }, func(s engine.Stats) int { return s.Finished }},
	"e2e_latency": {func(l *life) []event { return l.fins }, func(o engine.Outcome) time.Duration { return o.E2E() }, func(s engine.Stats) int { return s.Finished }},
	"queue_time":  {func(l *life) []event { return l.fins }, func(o engine.Outcome) time.Duration { return o.QueueTime() }, func(s engine.Stats) int { return s.Finished }},
}

type observed struct {
	events func(*life) []event
	time   func(engine.Outcome) time.Duration
	count  func(engine.Stats) int
}

// events are what happened between the readings as far as their counts show it. ok is false where a
// restart cannot be seen in them.
func (o observed) between(rs []reading) (out []engine.Outcome, ok bool) {
	for i := 1; i < len(rs); i++ {
		after := rs[i-1].at
		if rs[i].life != rs[i-1].life {
			after = time.Time{}
			if was := o.count(rs[i-1].stats); was > 0 && o.count(rs[i].stats) >= was {
				return nil, false
			}
		}
		for _, e := range between(o.events(rs[i].life), after, rs[i].at) {
			out = append(out, e.o)
		}
	}
	return out, true
}

func (j *judge) quantile(t *rapid.T, v *view, what string, of observed, q float64, m signals.Measure, fail failer) (values []float64, known bool) {
	if !v.knows(what) {
		return nil, false
	}
	if tellings[strings.TrimSuffix(v.kind, "-colon")][what].finished {
		of.events, of.count = histograms["e2e_latency"].events, histograms["e2e_latency"].count
	}
	var said []string
	for _, parts := range v.candidates(what, m.Time.UnixMilli(), m.Window, true) {
		var values []float64
		for _, rs := range parts {
			os, ok := of.between(in(rs, m.Window))
			if !ok {
				return nil, false
			}
			for _, o := range os {
				values = append(values, of.time(o).Seconds())
			}
		}
		if m.State == signals.Stalled {
			if m.Value == 0 || stalls(parts, of, m.Value) {
				return nil, false
			}
			continue
		}
		if m.State == signals.Idle {
			if len(values) == 0 {
				return nil, true
			}
			said = append(said, fmt.Sprintf("%d observations", len(values)))
			continue
		}
		r := m.Resolution
		if r == nil || len(values) == 0 {
			said = append(said, fmt.Sprintf("%d observations", len(values)))
			continue
		}
		slices.Sort(values)
		// Requests that have been waiting for longer than the quantile are above it, and may count.
		n, most := float64(len(values)), 0
		for _, rs := range parts {
			newest := rs[len(rs)-1]
			most += max(int(newest.shown.waiting+newest.shown.running), newest.stats.Waiting+newest.stats.Running)
		}
		true_ := math.NaN()
		for held := range most + 1 {
			q := q * (n + float64(held)) / n
			if q > 1 {
				break
			}
			true_ = atRank(q, values)
			if n == r.Events && true_ > r.Low-slack && true_ <= r.High+slack && (!m.LowerBound || true_ >= m.Value-slack) {
				return values, held == 0
			}
		}
		said = append(said, fmt.Sprintf("%g of %d observations", true_, len(values)))
	}
	if m.State == signals.Idle && !v.counted(what, m.Time.UnixMilli()) {
		return nil, true // it appears with its first event
	}
	fail(t, "quantile %g is really one of %v", q, said)
	return nil, false
}

// stalls reports whether in some part really nothing was observed for so long, with somebody there: up to
// its newest reading, or up to where gauges end that are still fresh.
func stalls(parts [][]reading, of observed, seconds float64) bool {
	w := time.Duration(seconds * float64(time.Second))
	for _, rs := range parts {
		for cut := range min(4, len(rs)-1) {
			rs := rs[:len(rs)-cut]
			since := in(rs, w)
			if len(since) < 2 { // it was capped: nothing has come since the reading before
				since = rs[len(rs)-2:]
			}
			// A front end knows of a request before the engine tells of it.
			if slices.ContainsFunc(since, func(r reading) bool {
				return r.shown.waiting+r.shown.running == 0 && r.stats.Waiting+r.stats.Running == 0
			}) {
				continue
			}
			events, ok := of.between(since)
			first, last := since[0], since[len(since)-1]
			if ok && len(events) == 0 || first.life == last.life && first.shown.generated == last.shown.generated {
				return true
			}
		}
	}
	return false
}

// good holds the bounds of goodput to the requests that met every objective.
func (j *judge) good(t *rapid.T, v *view, name string, m signals.Measure, fail failer) {
	slo := engine.SLO{TTFT: j.params.SLO.TTFT, TPOT: j.params.SLO.TPOT, E2E: j.params.SLO.E2E}
	of := histograms["e2e_latency"]
	if !v.knows("e2e") {
		return
	}
	var said []string
	// One of the histograms may have been read earlier than the others: they are compared up to then.
	read := m.Time.UnixMilli()
	for _, parts := range slices.Concat(v.candidates("e2e", read, m.Window, true), v.until(read).candidates("e2e", read, m.Window, true)) {
		var finished, good float64
		for _, rs := range parts {
			rs = in(rs, m.Window)
			os, ok := of.between(rs)
			if _, seen := histograms["ttft"].between(rs); !ok || !seen {
				return
			}
			span := float64(rs[len(rs)-1].t-rs[0].t) / 1000
			for _, o := range os {
				finished += 1 / span
				if o.Meets(slo) {
					good += 1 / span
				}
			}
		}
		holds := false
		switch name {
		case "goodput":
			holds = m.Value <= good+slack
		case "goodput_upper":
			holds = m.Value >= good-slack
		case "slo_attainment":
			holds = finished == 0 || m.Value <= good/finished+slack
		case "slo_miss_rate":
			holds = m.Value >= finished-good-slack
		default:
			return
		}
		if holds {
			return
		}
		said = append(said, fmt.Sprintf("%g finished and %g good ones", finished, good))
	}
	if m.State == signals.Idle && !v.counted("e2e", m.Time.UnixMilli()) {
		return // it appears with its first event
	}
	fail(t, "there really were one of %v per second", said)
}

func isLatency(name string) bool {
	_, known := histograms[strings.TrimSuffix(name, "_seconds")]
	return known || strings.HasPrefix(name, "itl_") || regexp.MustCompile(`^(ttft|tpot|e2e_latency|queue_time)_p`).MatchString(name)
}

// group holds the result of all pods to those of each.
func (j *judge) group(t *rapid.T, name string, pl *signals.Plan, of []signals.Member, pops []*population) {
	got := pl.Merge(of, j.params)
	fail := func(format string, args ...any) {
		var b strings.Builder
		for _, m := range of {
			fmt.Fprintf(&b, "  %s: %s\n", m.Name, written(m.Result))
		}
		t.Fatalf("%s of the group: %s\nis %s\n%s%s", pl.Query.Signal, fmt.Sprintf(format, args...), written(got), b.String(), j.w.describe())
	}
	reversed := slices.Clone(of)
	slices.Reverse(reversed)
	if back := pl.Merge(reversed, j.params); back.State != got.State || back.HasValue != got.HasValue || math.Abs(back.Value-got.Value) > 1e-9*math.Abs(got.Value) {
		fail("depends on the order of pods: %s", written(back))
	}
	if !got.HasValue {
		if got.Reason == "" {
			fail("no value and no reason")
		}
		return
	}
	var sum, least, most float64
	known, zero := 0, true
	least = math.Inf(1)
	for _, m := range of {
		if !m.HasValue {
			zero = false
			continue
		}
		known++
		sum += m.Value
		least, most = min(least, m.Value), max(most, m.Value)
		zero = zero && (m.Value == 0 || m.State == signals.Idle)
		if got.Time.After(m.Time) {
			fail("newer than %s", m.Name)
		}
	}
	if math.IsNaN(got.Value) || math.IsInf(got.Value, 0) || got.Value < 0 {
		fail("no number")
	}
	if got.State == signals.Idle && slices.ContainsFunc(of, func(m signals.Member) bool { return m.State != signals.Idle }) {
		fail("idle, and not all of it is")
	}
	if got.Value == 0 && !zero && most > 0 && name != "goodput" {
		fail("0, and not all of it is")
	}
	switch {
	case name == "queue_depth" || name == "running_requests" || name == "inflight_requests" || strings.HasSuffix(name, "_rate") || name == "goodput_upper":
		if known == len(of) && math.Abs(got.Value-sum) > slack || got.Value < sum-slack {
			fail("not the sum")
		}
	case name == "goodput" || name == "kv_cache_tokens_free":
		if math.Abs(got.Value-sum) > slack {
			fail("not the sum of what is known")
		}
	case name == "kv_cache_usage" || name == "saturation" || name == "slo_attainment":
		if got.Value < least-slack || got.Value > most+slack {
			fail("not between those of its members")
		}
	case isLatency(name):
		if len(pops) == len(of) && got.Resolution != nil {
			j.late = append(j.late, func(t *rapid.T) {
				var all []float64
				for i, p := range pops {
					if !p.known || of[i].State == signals.Stalled {
						return
					}
					all = append(all, p.values...)
				}
				slices.Sort(all)
				r := *got.Resolution
				if float64(len(all)) != r.Events {
					t.Fatalf("%s of the group is of %g observations, but there were %d", pl.Query.Signal, r.Events, len(all))
				}
				if v := atRank(quantileOf(pl, name), all); v <= r.Low-slack || v > r.High+slack || got.LowerBound && v < got.Value-slack {
					t.Fatalf("%s of the group is really %g of %d, and not %s", pl.Query.Signal, v, len(all), written(got))
				}
			})
		}
		if got.Resolution == nil && got.State == signals.Value {
			fail("a quantile of no bucket")
		}
		if got.Value > most*(1+slack) && got.Resolution == nil {
			fail("above all of its members")
		}
	}
}
