// Package collect turns what a source delivers into snapshots of signals, tick by tick.
//
// It is demand-driven: only the raw series behind signals that an HPA names, or that somebody asked
// for in the last ten minutes, are fetched, for all namespaces at once. Requests read the newest
// snapshot and cause no query of their own.
package collect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/window"
	"github.com/inference-metrics/adapter/pkg/signals"
)

const (
	// overlap is how far a fetch reaches back behind the one before it: a scrape becomes visible
	// only when it is through, up to its timeout after the time it is stamped with.
	overlap = 15 * time.Second
	// minRetention is what is kept at the least: demand_replicas looks back so far, and a minute more
	// covers its window at any phase of scrapes; goodput looks for first tokens of requests that decode long.
	minRetention = signals.LoadWindow + time.Minute
	// minSpacing keeps new demand from turning into a tick for every request.
	minSpacing = time.Second
)

// Config says what to collect from where.
type Config struct {
	Source source.Source
	Pods   pods.Lister
	// Settings hold until Configure sets others.
	Settings
	// Interval is the time between ticks; DefaultInterval when zero.
	Interval time.Duration
	// Timeout bounds one fetch; DefaultTimeout when zero.
	Timeout time.Duration
}

// The defaults of Config: an HPA looks every 15 seconds.
const (
	DefaultInterval = 5 * time.Second
	DefaultTimeout  = 10 * time.Second
)

// Collector makes snapshots.
type Collector struct {
	source    source.Source
	pods      pods.Lister
	interval  time.Duration
	timeout   time.Duration
	podLabels []signals.PodLabels // by which series were grouped
	demand    *demand
	metrics   *metrics
	current   atomic.Pointer[Snapshot]

	// configured guards next, which the next tick is made under, together with the standing demand.
	configured sync.Mutex
	next       *Settings

	// The rest belongs to the goroutine that ticks.
	settings  *Settings // of the tick at hand
	retention time.Duration
	store     *window.Store
	known     map[string]bool // names that a fetch has brought the past of
	read      map[string]bool // names that have been read in full at some time
	synced    time.Time       // when the newest fetch that succeeded began
	clock     sourceClock
	failed    bool
	// exporters are the pods that have had series of an engine, and what owns them.
	exporters map[types.UID]bool
	learning  *learning
}

// New returns a collector that has not ticked yet.
func New(c Config) (*Collector, error) {
	settings, err := c.Settings.complete()
	if err != nil {
		return nil, err
	}
	if c.Interval < 0 || c.Timeout < 0 {
		return nil, errors.New("the collection interval and timeout must not be negative")
	}
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	retention := settings.retention()
	col := &Collector{
		source:    c.Source,
		pods:      c.Pods,
		interval:  c.Interval,
		timeout:   c.Timeout,
		podLabels: settings.Params.PodLabels,
		demand:    newDemand(),
		metrics:   newMetrics(c.Interval),
		next:      settings,
		settings:  settings,
		retention: retention,
		store:     window.New(retention, settings.Params.GroupOf),
		known:     map[string]bool{},
		read:      map[string]bool{},
		exporters: map[types.UID]bool{},
		learning:  newLearning(),
	}
	col.current.Store(&Snapshot{next: c.Interval, settings: settings, source: SourceStatus{Name: c.Source.String()}})
	return col, nil
}

// Snapshot returns the newest snapshot. It is never nil; before the first tick it is empty.
func (c *Collector) Snapshot() *Snapshot { return c.current.Load() }

// ErrCrowded says that too many different queries have been asked lately.
var ErrCrowded = fmt.Errorf("more than %d queries with different parameters have been asked in the last %s: ask with fewer", maxAsked, askedFor)

// Ask says that somebody asked a query: it is collected for the next ten minutes. One that is not in
// the current snapshot is collected at once. It fails only when there is no room for another query.
func (c *Collector) Ask(plan *signals.Plan) error {
	if !c.demand.ask(plan, time.Now()) {
		return ErrCrowded
	}
	if !c.Snapshot().Collected(plan.Query) {
		c.demand.hurry()
	}
	return nil
}

// SetStanding says which queries objects of the cluster ask; they are collected until it is called
// again.
func (c *Collector) SetStanding(plans []*signals.Plan) {
	if c.demand.setStanding(plans) {
		c.demand.hurry()
	}
}

// Collectors returns the collector's own metrics, to be registered by the caller.
func (c *Collector) Collectors() []prometheus.Collector { return c.metrics.all() }

// Run ticks until the context ends.
func (c *Collector) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.demand.wake:
			if wait := minSpacing - time.Since(c.Snapshot().Taken); wait > 0 {
				timer.Reset(wait)
				continue
			}
		}
		c.tick(ctx)
		timer.Reset(c.interval)
	}
}

// tick makes one snapshot.
func (c *Collector) tick(ctx context.Context) {
	began := time.Now()
	plans, standing := c.begin(began)
	c.metrics.demand(standing, len(plans)-standing)
	refused := c.store.Dropped()
	var err error
	if len(plans) > 0 {
		err = c.fetch(ctx, signals.Names(plans))
		if ctx.Err() != nil {
			return
		}
	}
	c.report(ctx, err)
	now := time.Now()
	if at := c.clock.at(now).UnixMilli(); err == nil {
		c.store.Advance(at)
	} else {
		c.store.Hold(at)
	}
	snap := c.evaluate(plans, now, err)
	series, samples := c.store.Stats()
	snap.source.Took, snap.source.Series, snap.source.Samples = time.Since(began), series, samples
	c.current.Store(snap)
	c.metrics.observe(snap, plans, time.Since(began), series, samples, c.store.Dropped()-refused)
}

// fetch brings the store up to date: what is new of the names it knows, and the whole past of the
// others, so that neither a restart nor a new HPA finds us blind.
func (c *Collector) fetch(ctx context.Context, canonical [][]string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var known, fresh []string
	for _, name := range slices.Concat(canonical...) {
		if c.known[name] {
			known = append(known, name)
		} else {
			fresh = append(fresh, name)
		}
	}
	began := time.Now()
	var errs []error
	jumped := false
	get := func(names []string, lookback time.Duration) (arrived bool) {
		if len(names) == 0 {
			return true
		}
		asked := time.Now()
		now, err := c.source.Fetch(ctx, names, min(lookback, c.retention), c.store)
		var partial *source.PartialError
		if err != nil {
			errs = append(errs, err)
			if !errors.As(err, &partial) {
				return false
			}
		}
		if until, set := c.clock.set(now, asked, time.Now()); set {
			jumped = true
			c.beginAnew(ctx, now, until)
		}
		for _, n := range names {
			// The past of a name that could not be read is asked for until it comes, and of no other.
			c.known[n] = partial == nil || !slices.Contains(partial.Names, n)
			c.read[n] = c.read[n] || err == nil
		}
		return true
	}
	if get(known, began.Sub(c.synced)+overlap) {
		c.synced = began
	}
	get(fresh, c.retention)
	if jumped {
		c.known = map[string]bool{} // what came before it was known was not kept
	}
	c.forget(known, fresh)
	return errors.Join(errs...)
}

// beginAnew forgets what was read by a clock that has been set since. Of what the source still has of
// that time, which would pass for fresh or hide what is, nothing is taken again. After a clock was set
// back there are no values until it is where it was: what is read by it cannot be told from what was.
func (c *Collector) beginAnew(ctx context.Context, now, until time.Time) {
	c.store.Restart(until.UnixMilli())
	c.metrics.jumps.Inc()
	klog.FromContext(ctx).Info("Source's clock was set; signals are unknown until there are enough samples by it as it is now",
		"source", c.source.String(), "by", now.Sub(until).Round(time.Second), "samplesAfter", until)
}

// forget drops names that are no longer demanded: they will have a hole when they are again.
func (c *Collector) forget(demanded ...[]string) {
	known := map[string]bool{}
	for _, n := range slices.Concat(demanded...) {
		if c.known[n] {
			known[n] = true
		}
	}
	c.known = known
}

// evaluate measures every pod that can have values, and every pool. err is what the fetch before it met.
func (c *Collector) evaluate(plans []*signals.Plan, now time.Time, err error) *Snapshot {
	snap := &Snapshot{
		Taken:     now,
		Err:       err,
		settings:  c.settings,
		source:    SourceStatus{Name: c.source.String(), ClockOffset: c.clock.offset(now)},
		plans:     plans,
		next:      c.interval,
		valid:     c.interval + c.timeout + overlap,
		demanded:  make(map[signals.Query]int, len(plans)),
		results:   map[types.NamespacedName]measured{},
		pools:     map[types.NamespacedName]measured{},
		exporters: map[types.UID]bool{},

		unsurveyed: map[signals.Query]bool{},
	}
	for i, p := range plans {
		snap.demanded[p.Query] = i
		if err != nil && !c.surveyed(p) {
			snap.unsurveyed[p.Query] = true
		}
	}
	if len(plans) == 0 {
		return snap
	}
	learning := learns(plans)
	if learning {
		c.learning.begin(c.settings.Role, func(uid types.UID) bool { return c.exporters[uid] })
	}
	c.pods.All(func(p *pods.Pod) {
		if p.Gone {
			return
		}
		key := signals.GroupKey(p.Namespace, p.Name)
		series := c.store.Group(key)
		known := c.exporters[p.UID] || p.Owner != "" && c.exporters[p.Owner]
		if len(series) == 0 && !known {
			return // most pods of a cluster are no engines
		}
		if known || c.settings.Params.Serves(series) { // others have a GPU, and no requests
			snap.exporters[p.UID], snap.exporters[p.Owner] = true, true
		}
		if !p.WasReady {
			return
		}
		at := c.instant(key, p.Name, now, err)
		if !p.Start.IsZero() {
			at.Start = p.Start.Add(c.clock.offset(now))
		}
		if !p.ReadySince.IsZero() {
			at.Ready = p.ReadySince.Add(c.clock.offset(now))
		}
		params := c.settings.Params
		params.SLO = c.settings.SLO(p)
		if learning {
			params.Capacity = c.learning.of(p)
		}
		values := signals.Evaluate(plans, series, at, params)
		if learning {
			c.learning.watch(p, params.Capacity, values)
		}
		snap.results[p.NamespacedName] = measured{uid: p.UID, serves: snap.exporters[p.UID], values: values}
	})
	c.exporters = snap.exporters
	for key := range c.store.Groups() {
		if namespace, pool, ok := signals.PoolOf(key); ok {
			at := c.instant(key, pool, now, err)
			snap.pools[types.NamespacedName{Namespace: namespace, Name: pool}] = measured{serves: true, values: signals.Evaluate(plans, c.store.Group(key), at, c.settings.Params)}
		}
	}
	return snap
}

// surveyed reports whether all that a plan reads has been read in full at some time, so that the pods that
// have it are known.
func (c *Collector) surveyed(p *signals.Plan) bool {
	for _, names := range signals.Names([]*signals.Plan{p}) {
		if slices.ContainsFunc(names, func(n string) bool { return !c.read[n] }) {
			return false
		}
	}
	return true
}

func (c *Collector) instant(key, name string, now time.Time, err error) signals.At {
	at := signals.At{Now: c.clock.at(now), Pod: name, Partial: err != nil}
	at.Truncated = !c.store.Whole(key, at.Now.Add(-c.retention).UnixMilli())
	return at
}

// report logs when the source is lost, and when it is back.
func (c *Collector) report(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	switch {
	case err != nil && !c.failed:
		log.Error(err, "Source lost; signals become unknown as their samples age", "source", c.source.String())
	case err == nil && c.failed:
		log.Info("Source is back", "source", c.source.String())
	}
	c.failed = err != nil
}
