package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/engine"
	"github.com/inference-metrics/adapter/internal/load"
)

// fleet is all replicas and the loads on them. One lock guards all of it: engines are advanced and
// read for microseconds, and outcomes do not depend on which goroutine came first.
type fleet struct {
	opts   options
	now    func() time.Time
	logger klog.Logger
	start  time.Time

	mu       sync.Mutex
	replicas []*replica // sorted by name
	loads    []*loadRun
	rng      *rand.Rand
	lastID   uint64
	totals   totals
	nextPoll time.Time
	pool     engine.Pool
	gateway  gateway
}

// totals count requests. Offered is always Finished + Dropped + those in flight.
type totals struct {
	Offered  int `json:"offered"`
	Finished int `json:"finished"`
	// Dropped found no replica, were refused, were given up, or were lost with their replica.
	Dropped int `json:"dropped"`
}

func newFleet(o options, now func() time.Time, logger klog.Logger) *fleet {
	start := now()
	o.engine.PriorityScheduling = o.priority > 0
	return &fleet{
		opts: o, now: now, logger: logger, start: start,
		pool:     engine.Pool{Name: o.pickerPool, ModelName: o.modelName},
		rng:      rand.New(rand.NewPCG(o.seed, 2)),
		nextPoll: start.Add(o.dcgmInterval),
		gateway:  newGateway(),
	}
}

// engineTime is the present on the engines' clock, which runs speed times as fast as ours.
func (f *fleet) engineTime() time.Time {
	return f.start.Add(time.Duration(float64(f.now().Sub(f.start)) * f.opts.speed))
}

// tick brings everything up to the present.
func (f *fleet) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.engineTime()
	f.offer(now)
	for _, r := range f.replicas {
		r.advance(now)
		f.reconcile(r)
	}
	f.dispatch(now)
	if !f.now().Before(f.nextPoll) {
		f.pollGPUs(now)
		f.nextPoll = f.now().Add(f.opts.dcgmInterval)
	}
}

func (f *fleet) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.replicas {
		r.stopListening()
	}
	for _, l := range f.loads {
		l.process.Close()
	}
	f.stopPicker()
}

// target says which replicas a load is for. The zero target is all of them.
type target struct {
	Namespace  string `json:"namespace,omitempty"`
	Selector   string `json:"selector,omitempty"`
	Deployment string `json:"deployment,omitempty"`
}

// The ways to choose a replica for a request.
const (
	roundRobin    = "round-robin"
	random        = "random"
	leastRequests = "least-requests"
)

var routings = []string{roundRobin, random, leastRequests}

func validRouting(s string) bool { return slices.Contains(routings, s) }

// loadRun is a load under way.
type loadRun struct {
	target   target
	selector labels.Selector
	spec     load.Spec
	routing  string
	start    time.Time
	process  *load.Process
	next     load.Arrival // meaningless when ended
	ended    bool
	problem  string
	turn     int // of round-robin
	totals   totals
}

// setLoad starts a load on a target, in place of the one that is there.
func (f *fleet) setLoad(t target, spec load.Spec, routing string) error {
	if !validRouting(routing) {
		return fmt.Errorf("routing must be one of %s, is %q", strings.Join(routings, ", "), routing)
	}
	selector, err := labels.Parse(t.Selector)
	if err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	process, err := spec.Start(f.opts.seed + uint64(len(f.loads)))
	if err != nil {
		return err
	}
	f.offer(f.engineTime()) // what the present load has offered by now stays offered
	l := &loadRun{target: t, selector: selector, spec: spec, routing: routing, start: f.engineTime(), process: process}
	f.pull(l)
	i := slices.IndexFunc(f.loads, func(o *loadRun) bool { return o.target == t })
	if i < 0 {
		f.loads = append(f.loads, l)
	} else {
		f.loads[i].process.Close()
		f.loads[i] = l
	}
	f.logger.Info("Load set", "spec", spec.String(), "target", t, "routing", routing)
	return nil
}

// pull takes the load's next arrival.
func (f *fleet) pull(l *loadRun) {
	var err error
	l.next, err = l.process.Next()
	switch {
	case errors.Is(err, io.EOF):
		l.ended = true
	case err != nil:
		l.ended, l.problem = true, err.Error()
		f.logger.Error(err, "Load ended before its time", "target", l.target)
	}
}

// offer routes all arrivals up to the given time, in the order of time over all loads.
func (f *fleet) offer(now time.Time) {
	for {
		var first *loadRun
		for _, l := range f.loads {
			if !l.ended && (first == nil || l.at().Before(first.at())) {
				first = l
			}
		}
		if first == nil || first.at().After(now) {
			return
		}
		f.route(first)
		f.pull(first)
	}
}

func (l *loadRun) at() time.Time { return l.start.Add(l.next.At) }

func (f *fleet) route(l *loadRun) {
	l.totals.Offered++
	f.totals.Offered++
	f.lastID++
	p := pending{request: f.request(l.next.PromptTokens, l.next.OutputTokens, l.next.MaxTokens), load: l}
	if f.closed() {
		f.gateway.held = append(f.gateway.held, p)
		return
	}
	// Without a replica, or refused, as a server refuses a prompt that is too long.
	if err := f.send(l.at(), p); err != nil {
		f.dropped(p)
	}
}

// request is the next request, with what the flags say that all have.
func (f *fleet) request(prompt, output, limit int) engine.Request {
	r := engine.Request{
		ID: f.lastID, PromptTokens: prompt, OutputTokens: output, MaxTokens: limit,
		CachedTokens: min(int(f.opts.cached*float64(prompt)), max(prompt-1, 0)),
	}
	if f.opts.priority > 0 {
		r.Priority = int(f.lastID % uint64(f.opts.priority))
	}
	return r
}

// choose picks a replica of the load's target that takes requests at the given time, or nil.
func (f *fleet) choose(l *loadRun, at time.Time) *replica {
	var fit []*replica
	for _, r := range f.replicas {
		if r.takesRequests() && l.fits(r) {
			fit = append(fit, r)
		}
	}
	if len(fit) == 0 {
		return nil
	}
	switch l.routing {
	case random:
		return fit[f.rng.IntN(len(fit))]
	case leastRequests:
		for _, r := range fit {
			r.advance(at)
		}
		return slices.MinFunc(fit, func(a, b *replica) int { return len(a.flights) - len(b.flights) })
	default:
		l.turn++
		return fit[(l.turn-1)%len(fit)]
	}
}

func (l *loadRun) fits(r *replica) bool {
	return (l.target.Namespace == "" || l.target.Namespace == r.id.Namespace) &&
		(l.target.Deployment == "" || l.target.Deployment == r.deployment) &&
		l.selector.Matches(r.labels)
}

// add puts a new replica into the fleet.
func (f *fleet) add(m member) (*replica, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(m)
}

func (f *fleet) addLocked(m member) (*replica, error) {
	r := &replica{member: m, fleet: f, gpus: f.freeGPUs(m.node)}
	r.exposition.ModelName = f.opts.modelName
	r.exposition.Kind, _ = engine.ParseKind(f.opts.kind)
	r.exposition.Release, _ = engine.ParseRelease(f.opts.release)
	r.exposition.Multiprocess = f.opts.processes > 1
	r.exposition.TensorParallel = f.opts.tensor
	if err := r.boot(); err != nil {
		return nil, err
	}
	i, _ := slices.BinarySearchFunc(f.replicas, m.id, byName)
	f.replicas = slices.Insert(f.replicas, i, r)
	f.logger.Info("Replica added", "replica", r.id, "address", r.address)
	f.reconcile(r)
	return r, nil
}

// removeLocked takes a replica out of the fleet; what is in flight on it is lost.
func (f *fleet) removeLocked(r *replica) {
	r.stopListening()
	lost := r.dropAll()
	f.pool.Lose(r.engines)
	i := slices.Index(f.replicas, r)
	f.replicas = slices.Delete(f.replicas, i, i+1)
	f.logger.Info("Replica removed", "replica", r.id, "dropped", lost)
}

func byName(r *replica, id types.NamespacedName) int {
	if c := strings.Compare(r.id.Namespace, id.Namespace); c != 0 {
		return c
	}
	return strings.Compare(r.id.Name, id.Name)
}

func (f *fleet) findLocked(id types.NamespacedName) *replica {
	i, ok := slices.BinarySearchFunc(f.replicas, id, byName)
	if !ok {
		return nil
	}
	return f.replicas[i]
}

// reconcile makes the replica listen, or not, as its pod and the control API want it.
func (f *fleet) reconcile(r *replica) {
	want := r.serve && !r.down
	switch {
	case want && r.server == nil && !f.now().Before(r.upAt):
		s, err := listen(r.address, r.handler())
		if err != nil {
			if r.problem != err.Error() {
				r.problem = err.Error()
				f.logger.Error(err, "Replica cannot listen; trying on", "replica", r.id)
			}
			r.upAt = f.now().Add(time.Second)
			return
		}
		r.server, r.problem = s, ""
		f.logger.Info("Replica listens", "replica", r.id, "address", s.address)
	case !want && r.server != nil:
		r.stopListening()
		f.logger.Info("Replica stopped listening", "replica", r.id)
	}
}
