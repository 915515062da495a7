package statetable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/client-go/testing"

	model "github.com/inference-metrics/adapter/internal/engine"
	traffic "github.com/inference-metrics/adapter/internal/load"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Here the engines are not scripted but emulated, because demand_replicas has to learn of them what they can
// do, and what they do depends on how many the HPA has made of them.

// coreServes is how many chats per second one of slowEngine serves until one of ten misses an objective, as the
// test of internal/collect finds by trying.
const coreServes = 1.62

// slowEngine is a model of which a day has few steps.
func slowEngine() model.Config {
	cfg := model.DefaultConfig()
	cfg.MaxNumBatchedTokens = 2048
	cfg.StepTime = model.StepTime{Base: 0.1, PrefillToken: 520e-6, PrefillPair: 12e-9, Sequence: 200e-6, ContextToken: 320e-9, Jitter: 0.02}
	return cfg
}

var (
	chats = traffic.Spec{
		Kind: traffic.Poisson, Rate: 1,
		Prompt: traffic.Length{Median: 400, Sigma: 0.8, Max: 8000},
		Output: traffic.Length{Median: 200, Sigma: 0.7, Max: 2000},
	}
	chatSLO = model.SLO{TTFT: 10 * time.Second, TPOT: 400 * time.Millisecond}

	demand   = metric{signal: "vllm_demand_replicas", kind: objectAverage, target: "850m"}
	inflight = metric{signal: "vllm_inflight_requests", kind: objectAverage, target: "100"}
)

// served is a Deployment of emulated engines behind a Service, under an HPA.
type served struct {
	replicas, max int32
	metrics       []metric
	// watched is for how long the adapter watches before the controller starts.
	watched time.Duration
	// every is the time between scrapes.
	every time.Duration
	// rate is the arrivals per second, in what one replica can do; below 0 the controller has not started.
	rate  func(at time.Duration) float64
	lasts time.Duration
}

// watching is a load that comes and goes twice an hour, as two replicas can serve it.
func watching(at time.Duration) float64 {
	return 1.8 * (0.05 + 0.95*(0.5-0.5*math.Cos(4*math.Pi*at.Hours())))
}

// fleet is the world of it.
type fleet struct {
	*world
	served
	t       *testing.T
	rng     *rand.Rand
	draw    *traffic.Process
	next    time.Time // when the next request comes
	number  uint64
	engines map[string]*model.Engine // by pod
	drained []*model.Engine          // of pods that are gone
	text    []byte

	since          time.Duration // requests that come from then on are judged
	good, finished float64
}

func (s served) run(t *testing.T, since time.Duration) (o outcome, good float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hpa := &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: hpaName, Namespace: namespace},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: app},
				MinReplicas:    new(int32(1)),
				MaxReplicas:    s.max,
			},
		}
		for _, m := range s.metrics {
			spec := m.spec()
			if m == demand {
				spec.Object.Metric.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"ttft": "10s", "tpot": "400ms"}}
			}
			hpa.Spec.Metrics = append(hpa.Spec.Metrics, spec)
		}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: namespace, UID: app},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		}
		client := newClient(t, hpa, deployment)
		// Pods have arguments, of which it is known what they can do alike, and how many seats they have.
		of := func(action core.Action) (bool, runtime.Object, error) {
			p := action.(core.CreateAction).GetObject().(*corev1.Pod)
			p.Spec.Containers = []corev1.Container{{Name: "vllm", Image: "vllm", Args: []string{
				fmt.Sprintf("--max-num-seqs=%d", slowEngine().MaxNumSeqs), fmt.Sprintf("--max-num-batched-tokens=%d", slowEngine().MaxNumBatchedTokens),
			}}}
			return false, nil, nil
		}
		client.PrependReactor("create", "pods", of)
		client.PrependReactor("update", "pods", of)

		draw, err := chats.Start(7)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{
			scenario: scenario{replicas: s.replicas, max: s.max, coldStart: time.Minute, script: nothing},
			client:   client,
			source:   &scrapes{engines: map[string]*engine{}},
			began:    time.Now().Add(s.watched),
			wanted:   s.replicas,
			changes:  []change{{0, s.replicas}},
		}
		f := &fleet{
			world: w, served: s, t: t, draw: draw, rng: rand.New(rand.NewPCG(11, 7)), next: time.Now(),
			engines: map[string]*model.Engine{}, since: since,
		}
		w.mustDo(t, ctx, w.start())
		go w.each(ctx, s.every, f.serve)
		time.Sleep(500 * time.Millisecond)
		go w.each(ctx, time.Second, func() { w.mustDo(t, ctx, w.kubelet()) })
		time.Sleep(300 * time.Millisecond)
		a := startAdapter(t, ctx, w.client, w.source)
		answers := &metricsClient{adapter: a, began: w.began}
		time.Sleep(time.Until(w.began) + 2*time.Second)
		w.startController(ctx, answers)
		time.Sleep(time.Until(w.began.Add(s.lasts)))

		f.mu.Lock() // never while it sleeps
		o.changes, o.answers = slices.Clone(w.changes), slices.Clone(answers.answers)
		good = f.good / f.finished
		f.mu.Unlock()
		cancel()
		time.Sleep(time.Minute) // for everything to stop
	})
	return o, good
}

// serve sends what has come to the Ready pods, at random, and scrapes all of them.
func (f *fleet) serve() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	var ready []*model.Engine
	there := map[string]bool{}
	for i, m := range f.moments() {
		p := f.pods[i]
		if p.Status.Phase != corev1.PodRunning {
			continue
		}
		there[p.Name] = true
		if f.engines[p.Name] == nil {
			f.engines[p.Name] = f.newEngine(uint64(m.pod))
		}
		if m.ready {
			ready = append(ready, f.engines[p.Name])
		}
	}
	for name, e := range f.engines {
		if !there[name] {
			f.drained = append(f.drained, e)
			delete(f.engines, name)
			f.source.forget(name)
		}
	}
	const most = 20 // in what one replica can do
	for ; f.next.Before(now); f.next = f.next.Add(time.Duration(f.rng.ExpFloat64() / (most * coreServes) * float64(time.Second))) {
		if f.rng.Float64()*most >= f.rate(f.next.Sub(f.began)) {
			continue
		}
		a, err := f.draw.Next()
		if err != nil {
			f.t.Error(err)
			return
		}
		f.number++
		r := model.Request{ID: f.number, PromptTokens: a.PromptTokens, OutputTokens: a.OutputTokens}
		if err := ready[f.rng.IntN(len(ready))].Submit(f.next, r); err != nil {
			f.t.Error(err)
			return
		}
	}
	for _, e := range f.drained {
		e.Advance(now)
	}
	f.drained = slices.DeleteFunc(f.drained, func(e *model.Engine) bool { s := e.Stats(); return s.Waiting+s.Running == 0 })
	for _, p := range f.pods {
		if e := f.engines[p.Name]; e != nil {
			e.Advance(now)
			f.read(p.Name, e)
		}
	}
}

func (f *fleet) newEngine(seed uint64) *model.Engine {
	cfg := slowEngine()
	cfg.Seed = seed
	cfg.OnFinish = func(o model.Outcome) {
		if o.Arrival.Sub(f.began) < f.since {
			return
		}
		f.finished++
		if o.Meets(chatSLO) {
			f.good++
		}
	}
	e, err := model.New(cfg, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// names are the raw series that the HPAs here need.
var names = func() map[string]bool {
	out := map[string]bool{}
	for _, m := range []metric{demand, inflight} {
		plan, err := signals.Prepare(signals.Query{Signal: m.signal})
		if err != nil {
			panic(err)
		}
		for _, n := range slices.Concat(signals.Names([]*signals.Plan{plan})...) {
			out[n] = true
		}
	}
	return out
}()

// read scrapes an engine.
func (f *fleet) read(pod string, e *model.Engine) {
	f.text = model.Append(f.text[:0], model.Exposition{ModelName: "llama", Created: f.began}, []*model.Engine{e})
	p, err := textparse.New(f.text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		f.t.Error(err)
		return
	}
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	of := f.source.engines[pod]
	if of == nil {
		of = &engine{series: map[string]*series{}, named: map[string][]*series{}}
		f.source.engines[pod] = of
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			f.t.Error(err)
			return
		}
		if entry != textparse.EntrySeries {
			continue
		}
		text, _, v := p.Series()
		prefix, _, _ := bytes.Cut(text, []byte("{"))
		if !names[string(prefix)] {
			continue
		}
		s := of.series[string(text)]
		if s == nil {
			s = &series{}
			p.Labels(&s.labels)
			s.labels = labels.NewBuilder(s.labels).Set("namespace", namespace).Set("pod", pod).Set("instance", pod+":8000").Labels()
			of.series[strings.Clone(string(text))] = s
			name := s.labels.Get("__name__")
			of.named[name] = append(of.named[name], s)
		}
		if s.samples = append(s.samples, sample{time.Now(), v}); len(s.samples) > 256 {
			s.samples = slices.Delete(s.samples, 0, 128)
		}
	}
}

// forget drops what was scraped of a pod that is gone.
func (s *scrapes) forget(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.engines, pod)
}

// nothing is the script of engines that have none.
func nothing(moment) load { return load{} }

// right is how many replicas a load needs, given in what one can do, for an HPA that leaves 15 % free.
func right(load float64) int32 { return int32(math.Ceil(load / 0.85)) }

// turns counts how often the number of replicas went the other way.
func (o outcome) turns(from time.Duration) int {
	n, direction := 0, 0
	for i := 1; i < len(o.changes); i++ {
		if o.changes[i].at < from {
			continue
		}
		d := 1
		if o.changes[i].replicas < o.changes[i-1].replicas {
			d = -1
		}
		if direction != 0 && d != direction {
			n++
		}
		direction = d
	}
	return n
}

func (o outcome) written() string {
	var b strings.Builder
	for _, c := range o.changes {
		fmt.Fprintf(&b, " %s:%d", c.at.Truncate(time.Second), c.replicas)
	}
	return b.String()
}

// story is the outcome as docs/states.md has it.
func (o outcome) story(of ...metric) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n```\nHPA: %s", of[0])
	for _, m := range of[1:] {
		fmt.Fprintf(&b, ", and %s", m)
	}
	b.WriteString("\n")
	for _, c := range o.changes {
		fmt.Fprintf(&b, "%7s  %d\n", c.at.Truncate(time.Second), c.replicas)
	}
	b.WriteString("```\n")
	return b.String()
}

// TestDemandStep has four times the load at once, for an HPA on demand_replicas alone, after an hour of
// watching.
func TestDemandStep(t *testing.T) {
	const step = 12 * time.Minute
	low := 1.6
	o, good := served{
		replicas: 2, max: 20, metrics: []metric{demand}, watched: time.Hour, every: 5 * time.Second, lasts: 40 * time.Minute,
		rate: func(at time.Duration) float64 {
			switch {
			case at < 0:
				return watching(at)
			case at < step:
				return low
			}
			return 4 * low
		},
	}.run(t, step+6*time.Minute)
	document(t, "demand step", o.story(demand))
	before, want := o.replicasAt(step), right(4*low)
	t.Logf("%d are right before and %d after:%s; %.1f %% good in the end", right(low), want, o.written(), 100*good)
	if d := before - right(low); d < -1 || d > 1 {
		t.Errorf("%d replicas before the step, want %d", before, right(low))
	}
	writes, reached := 0, time.Duration(-1)
	for _, c := range o.changes {
		if c.at <= step {
			continue
		}
		if writes++; c.replicas >= want-1 {
			reached = c.at - step
			break
		}
	}
	// The shortest window is full of the new load after half a minute, and the next sync sees it.
	if reached < 0 || reached > 55*time.Second || writes > 3 {
		t.Errorf("came to within one of %d in %d steps after %s:%s", want, writes, reached, o.written())
	}
	most := want + 1 + int32(math.Ceil(float64(before)/0.85)) // what waits
	for _, c := range o.changes {
		if c.replicas > most {
			t.Errorf("asked for %d, want %d at most:%s", c.replicas, most, o.written())
		}
	}
	if d := o.end() - want; d < -1 || d > 1 {
		t.Errorf("%d replicas in the end, want %d", o.end(), want)
	}
	if n := o.turns(step); n > 1 {
		t.Errorf("turned round %d times:%s", n, o.written())
	}
	if good < 0.95 {
		t.Errorf("%.1f %% of the requests are good in the end", 100*good)
	}
}

// TestDemandDay is a day and a night under the HPA controller, with scrapes every 15 s.
func TestDemandDay(t *testing.T) {
	if testing.Short() {
		t.Skip("emulates a day")
	}
	o, good := served{
		replicas: 2, max: 20, metrics: []metric{demand}, watched: time.Hour, every: 15 * time.Second, lasts: 24 * time.Hour,
		rate: func(at time.Duration) float64 {
			if at < 0 {
				return watching(at)
			}
			return 2.3 * (1 - 0.7*math.Cos(2*math.Pi*at.Hours()/24))
		},
	}.run(t, 0)
	const settled = 15 * time.Minute
	turns, writes := o.turns(settled), 0
	most := int32(0)
	for _, c := range o.changes {
		if c.at > settled {
			writes++
		}
		most = max(most, c.replicas)
	}
	t.Logf("%d turns and %d writes:%s; %.2f %% good", turns, writes, o.written(), 100*good)
	if turns > 1 {
		t.Errorf("turned round %d times in a day:%s", turns, o.written())
	}
	if writes > 12 {
		t.Errorf("wrote %d times in a day:%s", writes, o.written())
	}
	if want := right(2.3 * 1.7); most < want || most > want+1 {
		t.Errorf("%d replicas at the height of the day, want %d", most, want)
	}
	if least := o.least(settled, 24*time.Hour); least != 1 {
		t.Errorf("%d replicas at night, want 1", least)
	}
	if good < 0.98 {
		t.Errorf("%.2f %% of the requests are good", 100*good)
	}
	for _, a := range o.answers {
		if a.err != nil {
			t.Fatalf("no answer at %s: %v", a.at, a.err)
		}
	}
}

// TestDemandUnknown has nothing to go by at first. Requests in flight, the HPA's other metric, scale out, and
// the overload is what the demand is learned from. Nothing scales in before.
func TestDemandUnknown(t *testing.T) {
	const falls = 20 * time.Minute
	o, _ := served{
		replicas: 1, max: 20, metrics: []metric{demand, inflight}, watched: 2 * time.Minute, every: 5 * time.Second, lasts: 45 * time.Minute,
		rate: func(at time.Duration) float64 {
			switch {
			case at < 0:
				return 0.8
			case at < falls:
				return 2.6
			}
			return 0
		},
	}.run(t, 0)
	var known time.Duration // after the last sync without a demand
	for _, a := range o.answers {
		if a.err != nil && a.at < falls {
			known = a.at
		}
	}
	document(t, "demand unknown", o.story(demand, inflight)+fmt.Sprintf("\nThe demand was unknown until %s.\n", known.Truncate(time.Second)))
	t.Logf("unknown until %s; replicas:%s", known.Truncate(time.Second), o.written())
	if known < 5*time.Minute || known > falls-5*time.Minute {
		t.Errorf("the demand was unknown for %s", known)
	}
	if n := o.replicasAt(5 * time.Minute); n < 3 || n > 5 {
		t.Errorf("%d replicas after five minutes of what fills 2.6:%s", n, o.written())
	}
	for i, c := range o.changes[1:] {
		if c.at <= known && c.replicas < o.changes[i].replicas {
			t.Errorf("scaled in at %s, where the demand was unknown until %s:%s", c.at, known, o.written())
		}
	}
	if n := o.replicasAt(falls); n < right(2.6)-1 || n > right(2.6)+1 {
		t.Errorf("%d replicas with the demand known, want %d:%s", n, right(2.6), o.written())
	}
	if o.end() != 1 {
		t.Errorf("%d replicas when nothing has been asked for long:%s", o.end(), o.written())
	}
}
