package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
)

// Objects knows the objects of the cluster.
type Objects interface {
	// Names returns the names of the objects of a kind in a namespace, or of all of a kind that is in none, whose
	// labels match.
	Names(ctx context.Context, of Resource, namespace string, selector labels.Selector) ([]string, error)
}

// Config says what rules are served from.
type Config struct {
	Server Server
	// Matchers narrow every query: cluster="a".
	Matchers []*promlabels.Matcher
	Objects  Objects
	// Resources returns the kinds of object that there are, and whether these are all.
	Resources func() (all []Resource, complete bool)
	// Ours tells which metrics are served by the adapter itself, whatever rules say.
	Ours func(metric string) bool
	// Interval is the time between two queries for the same, and Timeout bounds one.
	Interval, Timeout time.Duration
	// Changed, if set, is called when other metrics are listed than before.
	Changed func()
}

const (
	// lookEvery is the time between two questions which series there are, and lookAgain that after one that
	// failed.
	lookEvery, lookAgain = time.Minute, 10 * time.Second
	// concurrency is how many queries run at a time.
	concurrency = 8
	// maxWait is how long a query that fails is left alone at most.
	maxWait = 30 * time.Second
	// aloneFor is how long namespaces have queries of their own after one for all was spoiled by some.
	aloneFor = 10 * time.Minute
)

// Rules serves metrics by rules.
type Rules struct {
	config  Config
	metrics *metrics
	slots   *semaphore.Weighted
	wake    chan struct{}
	look    chan struct{}
	running sync.WaitGroup
	current atomic.Pointer[index]
	now     func() time.Time

	// mu guards the rest.
	mu         sync.Mutex
	file       *File
	discovered map[*Rule]discovery
	demand     demand
	outcomes   map[ask]*outcome
	states     map[string]*state // by task
	alone      map[string]time.Time
	failing    map[*Rule]int // tasks that fail
	told       map[string]bool
}

// state is what became of a task.
type state struct {
	running  bool
	failures int
	due      time.Time
	rule     *Rule
}

// New serves the rules of a file. They are listed at once where the file says what they are, and when the server
// has been asked where it does not.
func New(c Config, f *File) *Rules {
	r := &Rules{
		config: c, metrics: newMetrics(), slots: semaphore.NewWeighted(concurrency),
		wake: make(chan struct{}, 1), look: make(chan struct{}, 1), now: time.Now,
		demand: demand{}, outcomes: map[ask]*outcome{}, states: map[string]*state{},
		alone: map[string]time.Time{}, failing: map[*Rule]int{}, told: map[string]bool{},
	}
	r.Apply(f)
	return r
}

// Apply puts another file into effect.
func (r *Rules) Apply(f *File) {
	r.mu.Lock()
	r.file, r.discovered, r.failing = f, map[*Rule]discovery{}, map[*Rule]int{}
	clear(r.states)
	clear(r.alone)
	r.metrics.failed.Reset()
	r.mu.Unlock()
	r.rebuild()
	poke(r.look)
}

// rebuild makes the index anew, and tells of what has changed.
func (r *Rules) rebuild() {
	all, complete := r.config.Resources()
	r.mu.Lock()
	x := newIndex(r.file, all, complete, r.config.Ours, r.discovered)
	before := r.current.Swap(x)
	faulty := r.report(x)
	good := len(slices.DeleteFunc(slices.Clone(r.file.Rules), func(rule *Rule) bool { return faulty[rule.Path] }))
	r.mu.Unlock()
	r.metrics.served(good, len(faulty), len(x.listed)+len(x.listedExternal))
	if r.config.Changed != nil && (before == nil || !before.same(x)) {
		r.config.Changed()
	}
}

// report logs each fault once, for as long as it lasts, and returns which rules have any. mu is held.
func (r *Rules) report(x *index) map[string]bool {
	faulty, now := map[string]bool{}, map[string]bool{}
	for _, f := range x.faults {
		path, _, _ := strings.Cut(f.Path, ".")
		faulty[path], now[f.Error()] = true, true
		if !r.told[f.Error()] {
			klog.Background().Error(f.Err, "Rule has a fault; adapter rules check tells more", "field", f.Path)
		}
	}
	r.told = now
	return faulty
}

// Collectors returns the metrics of the rules themselves, to be registered by the caller.
func (r *Rules) Collectors() []prometheus.Collector { return r.metrics.all() }

// Run queries until ctx ends.
func (r *Rules) Run(ctx context.Context) error {
	defer r.running.Wait()
	r.running.Go(func() { r.discoverForever(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-r.wake:
		}
		r.tick(ctx)
		timer.Reset(r.config.Interval)
	}
}

func (r *Rules) discoverForever(ctx context.Context) {
	for {
		wait := lookEvery
		if err := r.discover(ctx); err != nil {
			wait = lookAgain
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.look:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// discover asks which series there are that rules are about. A rule that cannot be asked for keeps what it had,
// and the others are asked for all the same.
func (r *Rules) discover(ctx context.Context) error {
	r.mu.Lock()
	f := r.file
	r.mu.Unlock()
	all, complete := r.config.Resources()
	server := &sharing{Server: r.config.Server, asked: map[string]names{}}
	var errs []error
	if !complete {
		errs = append(errs, errKinds)
	}
	for _, rule := range f.Rules {
		b, _ := rule.bind(all)
		if _, complete := rule.known(b); complete {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, r.config.Timeout)
		there, err := rule.discover(bounded, server, b, r.config.Matchers)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.metrics.looked(rule, err)
		r.mu.Lock()
		if r.file == f {
			d := r.discovered[rule]
			if err != nil && d.err == nil {
				klog.FromContext(ctx).Error(err, "Cannot find the series of a rule; it serves those it found before", "rule", rule.Path)
			} else if err == nil && d.err != nil {
				klog.FromContext(ctx).Info("Series of a rule are found again", "rule", rule.Path)
			}
			if d.err = err; err == nil {
				d.found, d.done = there, true
			}
			r.discovered[rule] = d
		}
		r.mu.Unlock()
		if err != nil {
			errs = append(errs, err)
		}
	}
	r.rebuild()
	return errors.Join(errs...)
}

// sharing asks a server the same thing once.
type sharing struct {
	Server
	asked map[string]names
}

type names struct {
	list []string
	err  error
}

func (s *sharing) LabelNames(ctx context.Context, selector string) ([]string, error) {
	return s.once("\x00"+selector, func() ([]string, error) { return s.Server.LabelNames(ctx, selector) })
}

func (s *sharing) LabelValues(ctx context.Context, label, selector string) ([]string, error) {
	return s.once(label+"\x00"+selector, func() ([]string, error) { return s.Server.LabelValues(ctx, label, selector) })
}

func (s *sharing) once(key string, ask func() ([]string, error)) ([]string, error) {
	n, ok := s.asked[key]
	if !ok {
		n.list, n.err = ask()
		s.asked[key] = n
	}
	return n.list, n.err
}

// tick starts the queries that are due. It waits for none: one that hangs holds up no other.
func (r *Rules) tick(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, a := range r.demand.expire(now) {
		delete(r.outcomes, a)
	}
	tasks := plan(r.current.Load(), r.demand, r.config.Objects, func(group string) bool { return now.Before(r.alone[group]) })
	live := make(map[string]bool, len(tasks))
	for _, t := range tasks {
		live[t.key] = true
		s := r.states[t.key]
		if s == nil {
			s = &state{rule: t.entry.rule}
			r.states[t.key] = s
		}
		if s.running || now.Before(s.due) && !r.fresh(t) {
			continue
		}
		s.running = true
		r.running.Go(func() { r.run(ctx, t) })
	}
	for key, s := range r.states {
		if !live[key] && !s.running {
			r.settle(ctx, s, nil)
			delete(r.states, key)
		}
	}
	r.metrics.tasks.Set(float64(len(tasks)))
}

// fresh reports whether something is asked of a task that it has never been asked for. mu is held.
func (r *Rules) fresh(t *task) bool {
	for _, a := range t.asks {
		if o := r.outcomes[a]; o == nil || o.rule != t.entry.rule {
			return true
		}
	}
	return false
}

func (r *Rules) run(ctx context.Context, t *task) {
	if r.slots.Acquire(ctx, 1) != nil {
		return // stopping
	}
	began := r.now()
	bounded, cancel := context.WithTimeout(ctx, r.config.Timeout)
	o, err := t.run(bounded, r.config)
	cancel()
	r.slots.Release(1)
	if ctx.Err() != nil {
		return
	}
	r.metrics.queried(t.entry.rule, r.now().Sub(began), err)

	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.states[t.key]
	if s == nil || s.rule != t.entry.rule {
		return // of a file that does not hold any more
	}
	s.running = false
	r.settle(ctx, s, err)
	if err != nil {
		if len(t.about.namespaces) > 1 && spoiled(err) {
			r.alone[t.group] = r.now().Add(aloneFor)
			poke(r.wake)
		}
		s.due = began.Add(min(r.config.Interval<<min(s.failures, 10), maxWait))
	} else {
		// A tick comes a little early or late, and one that is for somebody new asks for nothing twice.
		o.at, s.due = began, began.Add(r.config.Interval-r.config.Interval/4)
	}
	for _, a := range t.asks {
		if r.demand[a] == nil {
			continue
		}
		next := o
		if err != nil {
			next = &outcome{rule: t.entry.rule}
			if before := r.outcomes[a]; before != nil && before.rule == t.entry.rule {
				*next = *before
			}
			next.err = err
		}
		r.outcomes[a] = next
	}
}

// settle notes how a task ended, and logs when the first of a rule fails, and when none fails any more. mu is
// held.
func (r *Rules) settle(ctx context.Context, s *state, err error) {
	was := s.failures > 0
	if err != nil {
		s.failures++
	} else {
		s.failures = 0
	}
	switch failing := err != nil; {
	case failing && !was:
		if r.failing[s.rule]++; r.failing[s.rule] == 1 {
			klog.FromContext(ctx).Error(err, "Query of a rule fails; its metrics have no value until one succeeds", "rule", s.rule.Path)
			r.metrics.failing(s.rule, true)
		}
	case !failing && was:
		if r.failing[s.rule]--; r.failing[s.rule] <= 0 {
			delete(r.failing, s.rule)
			klog.FromContext(ctx).Info("Queries of a rule succeed again", "rule", s.rule.Path)
			r.metrics.failing(s.rule, false)
		}
	}
}

// spoiled reports whether a query failed because of what some of the objects have, so that others may do well
// without them. Prometheus says so in words only.
func spoiled(err error) bool {
	text := err.Error()
	return strings.Contains(text, "duplicate series") || strings.Contains(text, "multiple matches for labels")
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

var errCrowded = fmt.Sprintf("more than %d different metrics, selectors and objects have been asked for in the last %s: ask for fewer", maxAsks, askedFor)
