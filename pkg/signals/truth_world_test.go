package signals_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"pgregory.net/rapid"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// A world is some pods with modelled engines, what scrapes them, and what a source brings of it to a
// window store. Its time is virtual. Whatever happens in it, the models know the truth.
type world struct {
	now  time.Time     // true time
	skew time.Duration // of the source's clock

	interval time.Duration // between scrapes
	markers  bool          // the source tells of ends
	ups      bool          // the source tells which targets are up
	bare     bool          // there is no Kubernetes to say when a pod started

	pods  []*pod
	lives []*life
	rng   *rand.Rand
	ids   uint64

	log       []*batch
	fetched   int
	looked    time.Time     // true time of the newest fetch
	looks     time.Duration // the skew then
	after     int64         // what is stamped until then was by the clock before it was set
	store     *window.Store
	retention time.Duration
	outage    bool // the source cannot be read
	asleep    bool // and nothing is scraped meanwhile

	streams map[string][]*stream // by the name of the pod
	parsed  map[string]labels.Labels
	text    []byte // the exposition that was written last
}

// epoch is when every world begins. It is a whole second, as Kubernetes' times are.
var epoch = time.Unix(1_700_000_000, 0)

// form is how a pod's engines are shown.
type form struct {
	kind    engine.Kind
	release engine.Release
	multi   bool
}

func (f form) String() string {
	s := f.kind.String()
	if s == engine.VLLM.String() {
		s += " " + f.release.String()
		if f.multi {
			s += " multiprocess"
		}
	}
	return s
}

// prefixes are what the signals of a kind begin with.
var prefixes = map[string]string{
	"vllm": "vllm_", "vllm-v0": "vllm_", "sglang": "sglang_", "tgi": "tgi_", "trtllm": "trtllm_", "trtllm-colon": "trtllm_",
	"triton": "triton_", "nim": "nim_", "llamacpp": "llamacpp_", "lmdeploy": "lmdeploy_", "dynamo-frontend": "dynamo_",
}

// ranked are the kinds that show everything of data-parallel engines apart.
var ranked = map[string]bool{"vllm": true, "lmdeploy": true}

// colons are the kinds whose names have a colon that may be replaced.
var colons = map[string]bool{"vllm": true, "vllm-v0": true, "sglang": true, "lmdeploy": true, "trtllm-colon": true}

// underscored reports whether the names are those with an underscore, as far as there are two.
func underscored(k engine.Kind, negotiated bool) bool {
	return negotiated && colons[k.String()] || k.String() == "trtllm"
}

// forms are those that the catalogue reads.
func forms() []form {
	var out []form
	for _, k := range engine.Kinds() {
		prefix, known := prefixes[k.String()]
		if !known || !slices.ContainsFunc(signals.Catalogue(), func(s *signals.Signal) bool { return strings.HasPrefix(s.Name, prefix) }) {
			continue
		}
		if k.String() != engine.VLLM.String() {
			out = append(out, form{kind: k})
			continue
		}
		for _, r := range engine.Releases() {
			out = append(out, form{kind: k, release: r})
		}
		out = append(out, form{kind: k, release: engine.V0_20, multi: true})
	}
	return out
}

// life is one process of an engine core.
type life struct {
	core      *engine.Engine
	done      []engine.Outcome
	fins      []event // every finish, in order
	firsts    []event // every first token, in order
	admits    []event // every time that one was first scheduled
	over      bool
	preempted int
	shown     shown // at shownAt
	shownAt   time.Time

	// Since when requests have been waiting, or in the engine, at every instant, and the steps it had
	// made then; and since when it has told so, which it does at the end of a step.
	waits, busy since
}

type since struct {
	steps  int
	on     bool
	told   bool
	toldAt time.Time
}

func (s *since) observe(now time.Time, on bool, steps int) {
	switch {
	case !on:
		*s = since{}
	case !s.on:
		*s = since{on: true, steps: steps}
	case !s.told && steps > s.steps:
		s.told, s.toldAt = true, now
	}
}

func (l *life) observe(now time.Time) {
	l.core.Advance(now)
	s := l.core.Stats()
	if s.Preemptions != l.preempted { // the queue may have been empty in between
		l.preempted, l.waits = s.Preemptions, since{}
	}
	l.waits.observe(now, s.Waiting > 0, s.Steps)
	l.busy.observe(now, s.Waiting+s.Running > 0, s.Steps)
}

// event is something that is observed of a request.
type event struct {
	at time.Time
	o  engine.Outcome
}

// pod is one replica.
type pod struct {
	name         string
	form         form
	cfg          engine.Config
	underscores  bool
	both         bool   // it is scraped by two jobs that negotiate different names
	twin         string // "job" or "instance": it is scraped twice
	ranks        []*life
	lost         int // ranks at the end that are not shown
	created      time.Time
	start, ready time.Time
	rate         float64 // requests per second
	next         time.Time
	down         bool
	gone         bool
	calm         time.Time // since when nothing has happened to it but load
}

// together is the rank of engines that are not told apart.
const together = -1

// streamKey tells apart what one scraper reads of one part.
type streamKey struct {
	job, instance string
	underscores   bool
	rank          int
}

// stream is what has come of one part by one scraper.
type stream struct {
	key  streamKey
	rs   []reading
	last int64
}

// reading is one scrape of one engine, and what was true then.
type reading struct {
	t     int64 // as stamped
	at    time.Time
	life  *life
	form  form
	stats engine.Stats
	shown shown
	// waits and busy are since when the engine has told that requests wait, or are there; zero when
	// at some instant none was.
	waits, busy time.Time
}

// shown is what the engine tells, as vLLM would.
type shown struct{ waiting, running, kv, generated, prompt float64 }

// batch is what one scrape of one target brought.
type batch struct {
	pod     string
	samples []sample
	keys    []streamKey
	reads   []reading
}

type sample struct {
	ls labels.Labels
	t  int64
	v  float64
}

func (w *world) source(t time.Time) int64 { return t.Add(w.skew).UnixMilli() }

// boot starts the engines of a pod anew.
func (w *world) boot(p *pod, ranks int) {
	for _, l := range p.ranks {
		l.over = true
	}
	p.ranks, p.lost, p.created = nil, 0, w.now
	for range ranks {
		l := &life{}
		cfg := p.cfg
		cfg.Seed = w.rng.Uint64()
		cfg.OnFinish = func(o engine.Outcome) { l.done = append(l.done, o) }
		core, err := engine.New(cfg, w.now)
		if err != nil {
			panic(err) // a fault of this test
		}
		l.core = core
		p.ranks = append(p.ranks, l)
		w.lives = append(w.lives, l)
	}
	p.next = time.Time{}
}

// pass lets time go on, with what arrives meanwhile.
func (w *world) pass(d time.Duration) {
	const grid = 500 * time.Millisecond
	end := w.now.Add(d)
	for _, p := range w.pods {
		if p.gone {
			continue
		}
		for at := w.now; at.Before(end); {
			at = at.Add(grid)
			if end.Before(at) {
				at = end
			}
			if p.rate > 0 && p.next.IsZero() {
				p.next = w.now.Add(w.gap(p))
			}
			for p.rate > 0 && p.next.Before(at) {
				l := p.ranks[w.rng.IntN(len(p.ranks))]
				l.observe(p.next)
				w.ids++
				r := engine.Request{ID: w.ids, PromptTokens: 1 + w.rng.IntN(1200), OutputTokens: 1 + w.rng.IntN(40)}
				if err := l.core.Submit(p.next, r); err != nil && !errors.Is(err, engine.ErrQueueFull) {
					panic(err)
				}
				p.next = p.next.Add(w.gap(p))
			}
			for _, l := range p.ranks {
				l.observe(at)
			}
		}
	}
	w.now = end
}

func (w *world) gap(p *pod) time.Duration {
	return time.Duration(w.rng.ExpFloat64() / p.rate * float64(time.Second)).Round(time.Millisecond)
}

// scrape reads every target once.
func (w *world) scrape() {
	if w.asleep {
		return
	}
	for _, p := range w.pods {
		if p.gone {
			continue
		}
		jobs := []string{"engines"}
		if p.twin == "job" || p.both {
			jobs = append(jobs, "again")
		}
		instances := []string{p.name + ":8000"}
		if p.twin == "instance" {
			instances = append(instances, p.name+".svc:8000")
		}
		for i, job := range jobs {
			for _, instance := range instances {
				w.scrapeOne(p, job, instance, p.underscores != (p.both && i > 0), p.down)
			}
		}
	}
}

func (w *world) scrapeOne(p *pod, job, instance string, underscores, fails bool) {
	b := &batch{pod: p.name}
	w.log = append(w.log, b)
	t := w.source(w.now)
	target := labels.FromStrings("namespace", "ns", "pod", p.name, "job", job, "instance", instance)
	up := func(v float64) {
		if w.ups {
			lb := labels.NewBuilder(target)
			lb.Set("__name__", "up")
			b.samples = append(b.samples, sample{lb.Labels(), t, v})
		}
	}
	shownRanks := p.ranks[:len(p.ranks)-p.lost]
	if !fails {
		cores := make([]*engine.Engine, len(shownRanks))
		for i, l := range shownRanks {
			cores[i] = l.core
		}
		w.text = engine.Append(w.text[:0], engine.Exposition{
			Kind: p.form.kind, Release: p.form.release, Multiprocess: p.form.multi, Underscores: underscores, ModelName: "org/model", Created: p.created,
		}, cores)
		up(1)
	} else {
		w.text = w.text[:0]
		up(0)
	}
	now := w.parse(w.text, target)
	if w.markers {
		ended := map[uint64]labels.Labels{}
		for _, s := range w.previous(p.name, job, instance) {
			ended[s.ls.Hash()] = s.ls
		}
		for _, s := range now {
			delete(ended, s.ls.Hash())
		}
		for _, ls := range ended {
			b.samples = append(b.samples, sample{ls, t, math.Float64frombits(value.StaleNaN)})
		}
	}
	for i := range now {
		now[i].t = t
	}
	b.samples = append(b.samples, now...)
	if fails {
		return
	}
	for i, l := range shownRanks {
		r := reading{t: t, at: w.now, life: l, form: p.form, stats: l.core.Stats(), shown: w.tells(l)}
		if l.waits.told {
			r.waits = l.waits.toldAt
		}
		if l.busy.told {
			r.busy = l.busy.toldAt
		}
		if !ranked[p.form.kind.String()] {
			i = together
		}
		b.keys = append(b.keys, streamKey{job, instance, underscored(p.form.kind, underscores), i})
		b.reads = append(b.reads, r)
	}
}

// previous are the series of the scrape of a target before the present one.
func (w *world) previous(pod, job, instance string) []sample {
	for i := len(w.log) - 2; i >= 0; i-- {
		b := w.log[i]
		if b.pod != pod || len(b.samples) == 0 {
			continue
		}
		ls := b.samples[len(b.samples)-1].ls
		if ls.Get("job") == job && ls.Get("instance") == instance {
			return slices.DeleteFunc(slices.Clone(b.samples), func(s sample) bool { return value.IsStaleNaN(s.v) || s.ls.Get("__name__") == "up" })
		}
	}
	return nil
}

var catalogueNames = func() map[string]bool {
	out := map[string]bool{}
	for _, n := range signals.AllNames() {
		out[n] = true
	}
	return out
}()

// parse reads an exposition as Prometheus does, and keeps what the catalogue knows.
func (w *world) parse(text []byte, target labels.Labels) []sample {
	if len(text) == 0 {
		return nil
	}
	p, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		panic(err)
	}
	prefix := target.String()
	var out []sample
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			panic(err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		series, _, v := p.Series()
		name := series
		if i := bytes.IndexByte(series, '{'); i >= 0 {
			name = series[:i]
		}
		if !catalogueNames[string(name)] {
			continue
		}
		key := prefix + string(series)
		ls, ok := w.parsed[key]
		if !ok {
			p.Labels(&ls)
			b := labels.NewBuilder(ls)
			target.Range(func(l labels.Label) {
				if was := ls.Get(l.Name); was != "" {
					b.Set("exported_"+l.Name, was)
				}
				b.Set(l.Name, l.Value)
			})
			ls = b.Labels()
			w.parsed[key] = ls
		}
		out = append(out, sample{ls: ls, v: v})
	}
}

// tells is what an engine says of itself, read from the exposition that the tests of the model hold to
// the truth.
func (w *world) tells(l *life) shown {
	if l.shownAt.Equal(w.now) {
		return l.shown
	}
	w.text = engine.Append(w.text[:0], engine.Exposition{ModelName: "m"}, []*engine.Engine{l.core})
	text := w.text
	get := func(name string) float64 {
		i := bytes.Index(text, []byte("\nvllm:"+name+"{"))
		line, _, _ := bytes.Cut(text[i+1:], []byte("\n"))
		v, err := strconv.ParseFloat(string(line[bytes.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			panic(err)
		}
		return v
	}
	l.shownAt, l.shown = w.now, shown{get("num_requests_waiting"), get("num_requests_running"), get("kv_cache_usage_perc"), get("generation_tokens_total"), get("prompt_tokens_total")}
	return l.shown
}

// fetch brings to the store what the source has.
func (w *world) fetch(t *rapid.T) {
	now := w.source(w.now)
	if w.outage {
		w.store.Hold(now)
		return
	}
	w.notice(now)
	// A fetch reaches back over what an earlier one brought already.
	from := max(0, w.fetched-rapid.IntRange(0, 8).Draw(t, "overlap"))
	fresh := slices.Clone(w.log[from:])
	if rapid.Bool().Draw(t, "by target") {
		slices.SortStableFunc(fresh, func(a, b *batch) int { return strings.Compare(a.pod, b.pod) })
	}
	for _, b := range fresh {
		for _, s := range b.samples {
			w.store.Append(s.ls, s.t, s.v)
		}
		for i, k := range b.keys {
			w.stream(b.pod, k).add(b.reads[i])
		}
	}
	w.fetched = len(w.log)
	w.store.Advance(now)
}

// notice begins anew when the source's clock was set, as the collector does, and has it deliver all that
// it has once more.
func (w *world) notice(now int64) {
	was := w.looks
	first := w.looked.IsZero()
	w.looked, w.looks = w.now, w.skew
	if first || (w.skew-was).Abs() <= 3*time.Second {
		return
	}
	until := w.now.Add(was).UnixMilli()
	w.store.Restart(until)
	w.after = max(w.after, until)
	w.fetched = 0
	for _, ss := range w.streams {
		for _, s := range ss {
			s.rs, s.last = nil, w.after
		}
	}
	for _, p := range w.pods {
		p.calm = w.now.Add(time.Duration(max(0, w.after-now)) * time.Millisecond)
	}
}

func (w *world) stream(pod string, k streamKey) *stream {
	for _, s := range w.streams[pod] {
		if s.key == k {
			return s
		}
	}
	s := &stream{key: k, last: w.after}
	w.streams[pod] = append(w.streams[pod], s)
	return s
}

// add mirrors what the store does: it drops what is not newer than what it has.
func (s *stream) add(r reading) {
	if r.t > s.last {
		s.last = r.t
		s.rs = append(s.rs, r)
	}
}

// at is what the adapter knows of a pod.
func (w *world) at(p *pod, now time.Time) signals.At {
	at := signals.At{Now: time.UnixMilli(w.source(now)), Pod: p.name, Partial: w.outage}
	if !w.bare {
		at.Start = time.UnixMilli(w.source(p.start.Truncate(time.Second)))
		at.Ready = time.UnixMilli(w.source(p.ready.Truncate(time.Second)))
	}
	return at
}

// end lets every request that ever was finish, in engines that nobody asks any more: only then it is
// known what a request had come to at some time.
func (w *world) end() {
	for _, l := range w.lives {
		l.core.Unfreeze(w.now)
		for at := w.now; l.core.Stats().Waiting+l.core.Stats().Running > 0; at = at.Add(time.Minute) {
			l.core.Advance(at)
		}
		for _, o := range l.done {
			l.fins = append(l.fins, event{o.Finished, o})
			l.firsts = append(l.firsts, event{o.FirstToken, o})
			l.admits = append(l.admits, event{o.Scheduled, o})
		}
		for _, es := range [][]event{l.fins, l.firsts, l.admits} {
			slices.SortFunc(es, func(a, b event) int { return a.at.Compare(b.at) })
		}
	}
}

// between are the events after one time, up to another.
func between(es []event, after, until time.Time) []event {
	first, _ := slices.BinarySearchFunc(es, after, func(e event, t time.Time) int {
		if e.at.After(t) {
			return 1
		}
		return -1
	})
	last, _ := slices.BinarySearchFunc(es, until, func(e event, t time.Time) int {
		if e.at.After(t) {
			return 1
		}
		return -1
	})
	return es[first:max(first, last)]
}

// describe tells the state of the world, for messages.
func (w *world) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s (source %+v), interval %s, markers %v, up %v, bare %v, outage %v/%v\n",
		w.now.Sub(epoch), w.skew, w.interval, w.markers, w.ups, w.bare, w.outage, w.asleep)
	for _, p := range w.pods {
		fmt.Fprintf(&b, "  %s: %s, underscores %v, both %v, twin %q, lost %d, down %v, gone %v, rate %g, start %s, ready %s\n",
			p.name, p.form, p.underscores, p.both, p.twin, p.lost, p.down, p.gone, p.rate, p.start.Sub(epoch), p.ready.Sub(epoch))
	}
	return b.String()
}
