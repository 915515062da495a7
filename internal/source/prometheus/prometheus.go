// Package prometheus reads raw samples from a server that speaks Prometheus's query API:
// Prometheus itself, Thanos, Mimir, VictoriaMetrics and the managed ones.
//
// It asks instant queries for range selectors, {__name__="x"}[30s], without a time: all of these
// servers then answer raw samples with the times at which the engines were scraped, up to their
// own now. What a server's rate or staleness would make of them never matters.
//
// The number of queries of a fetch depends on the names asked for alone, never on how many pods or
// autoscalers there are: one for each name that has data, and one for all other names together.
// Where that one proves too much for the server, its names are asked for one by one.
package prometheus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"github.com/inference-metrics/adapter/internal/source"
)

const (
	// concurrency is how many queries of a fetch run at a time: a server evaluates twenty at a time
	// by default, and serves others too.
	concurrency = 4

	// idleFetches is how many fetches in a row a name may bring nothing before it goes back to the
	// shared query. A fetch that looks back less than a scrape interval often brings nothing.
	idleFetches = 60

	// keepUnseen is how many fetches a label set is remembered that no longer comes.
	keepUnseen = 120
)

// DefaultReplicaLabel is the Prometheus operator's.
const DefaultReplicaLabel = "prometheus_replica"

// Config says which server to read and how.
type Config struct {
	// URL is where the server's API lives, without /api/v1: http://prometheus.monitoring:9090.
	URL string

	// ClientConfigFile, if set, is a file in Prometheus's HTTP client format: TLS, basic auth,
	// bearer tokens, OAuth2, proxies, headers. Credentials that it keeps in files of their own are
	// read again when they change. Redirects are never followed, whatever it says: they would carry
	// the credentials to where nobody meant to send them.
	ClientConfigFile string

	// Matchers narrow every query: cluster="a".
	Matchers []*labels.Matcher

	// ReplicaLabel is the label by which a pair of servers that scrape the same pods tell their
	// series apart, where the store behind URL does not merge them itself. Default:
	// DefaultReplicaLabel.
	ReplicaLabel string

	// Timeout bounds one query. Default: 10 s.
	Timeout time.Duration

	// MaxAnswerBytes bounds the text of one answer, uncompressed. Default: 512 MiB; one name at ten
	// thousand replicas takes about 5 MB, a histogram's buckets 100 MB. An answer is read as it
	// comes, so this is not what is held in memory.
	MaxAnswerBytes int64
}

// Source is a Prometheus-compatible server.
type Source struct {
	name     string
	endpoint *url.URL
	client   *http.Client
	matchers []*labels.Matcher
	timeout  time.Duration
	maxBytes int64
	seed     [2]maphash.Seed
	metrics  *metrics

	// idle counts the fetches since a name last brought data; a name that is not in it is not live.
	idle map[string]int
	// fetches counts fetches, for forgetting label sets.
	fetches uint64

	// mu guards what the queries of a fetch share: the sink and the fields below.
	mu       sync.Mutex
	known    map[seriesKey]*knownSeries
	replicas replicas
	skew     time.Duration
	useGET   bool
}

var _ source.Source = (*Source)(nil)

// A seriesKey is a hash of a label set's JSON text. Its 128 bits, seeded at random, make a clash of
// two series that differ as good as impossible, by chance or by intent.
type seriesKey [2]uint64

// knownSeries is a label set that has been parsed before: servers repeat every label of every
// series in every answer, and most of an answer is that.
type knownSeries struct {
	ls      labels.Labels // without the replica label
	replica string        // the replica label's value
	key     uint64        // its replicaKey, if it has a replica
	seen    uint64
}

// New returns a source that reads the server at cfg.URL. It does not call it.
func New(cfg Config) (*Source, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err // the URL itself may hold a password
		}
		return nil, fmt.Errorf("prometheus URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("prometheus URL %q: want http://host:port or https://host:port, with a path if the server has a prefix", u.Redacted())
	}
	name := fmt.Sprintf("Prometheus at %s://%s%s", u.Scheme, u.Host, strings.TrimRight(u.Path, "/"))

	clientConfig := config.DefaultHTTPClientConfig
	if cfg.ClientConfigFile != "" {
		fromFile, _, err := config.LoadHTTPConfigFile(cfg.ClientConfigFile)
		if err != nil {
			return nil, fmt.Errorf("%s: client config %s: %w", name, cfg.ClientConfigFile, err)
		}
		clientConfig = *fromFile
	}
	clientConfig.FollowRedirects = false
	client, err := config.NewClientFromConfig(clientConfig, "prometheus-source", config.WithUserAgent("inference-metrics-adapter"))
	if err != nil {
		return nil, fmt.Errorf("%s: client config %s: %w", name, cfg.ClientConfigFile, err)
	}

	for _, m := range cfg.Matchers {
		if m.Name == model.MetricNameLabel {
			return nil, fmt.Errorf("%s: matcher %s: the metric name is not for a matcher to choose", name, m)
		}
	}
	s := &Source{
		name:     name,
		endpoint: u.JoinPath("api/v1/query"),
		client:   client,
		matchers: cfg.Matchers,
		timeout:  cfg.Timeout,
		maxBytes: cfg.MaxAnswerBytes,
		seed:     [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		metrics:  newMetrics(),
		idle:     map[string]int{},
		known:    map[seriesKey]*knownSeries{},
		replicas: replicas{label: cfg.ReplicaLabel, chosen: map[uint64]*replica{}},
	}
	if s.timeout == 0 {
		s.timeout = 10 * time.Second
	}
	if s.maxBytes == 0 {
		s.maxBytes = 512 << 20
	}
	if s.replicas.label == "" {
		s.replicas.label = DefaultReplicaLabel
	}
	return s, nil
}

// String names the server without credentials.
func (s *Source) String() string { return s.name }

// Fetch implements source.Source.
func (s *Source) Fetch(ctx context.Context, names []string, lookback time.Duration, sink source.Sink) (time.Time, error) {
	s.fetches++
	queries := s.plan(names, lookback)
	f := tick{source: s, sink: sink, found: map[string]bool{}}

	// No errgroup.WithContext: one query's failure must not take away what the others would bring.
	var group errgroup.Group
	group.SetLimit(concurrency)
	for _, q := range queries {
		group.Go(func() error {
			f.run(ctx, q)
			return nil
		})
	}
	_ = group.Wait()

	for name := range f.found {
		s.idle[name] = 0
	}
	for _, q := range queries {
		if !f.failed(q) {
			s.settle(q.names, f.found)
		}
	}
	for _, fail := range f.failures {
		if errors.Is(fail.err, errTooMuch) && !f.unreachable {
			// Next time, one by one: a first look at a large fleet may be too much for one answer.
			for _, name := range fail.query.names {
				s.idle[name] = 0
			}
		}
	}
	s.forget()
	return s.now(), f.err(len(queries))
}

// settle counts the names that a query which succeeded brought nothing for.
func (s *Source) settle(names []string, found map[string]bool) {
	for _, name := range names {
		n, live := s.idle[name]
		switch {
		case !live || found[name]:
		case n+1 >= idleFetches:
			delete(s.idle, name)
		default:
			s.idle[name] = n + 1
		}
	}
}

// forget drops what is remembered of series that no longer come. It looks through all of them, so
// it does so once in a while.
func (s *Source) forget() {
	if s.fetches%keepUnseen != 0 {
		return
	}
	for key, k := range s.known {
		if s.fetches-k.seen >= keepUnseen {
			delete(s.known, key)
		}
	}
	s.replicas.forget(s.fetches)
}

// A tick is what the queries of one Fetch share. Its fields are guarded by source.mu.
type tick struct {
	source   *Source
	sink     source.Sink
	found    map[string]bool
	failures []failure
	// unreachable is set when no connection came about: then the queries that have not begun would
	// only wait for the same.
	unreachable bool
}

type failure struct {
	query query
	err   error
	// part says that there was an answer, which lacks something.
	part bool
}

func (f *tick) run(ctx context.Context, q query) {
	s := f.source
	s.mu.Lock()
	unreachable := f.unreachable
	s.mu.Unlock()
	if unreachable {
		return
	}
	if err := ctx.Err(); err != nil {
		// Not the server's fault: those before this one took all the time that there was.
		s.mu.Lock()
		defer s.mu.Unlock()
		f.failures = append(f.failures, failure{query: q, err: fmt.Errorf("there was no time left to ask: %w", err)})
		return
	}

	// One time for the whole answer, so that the buckets of a histogram stay together.
	now := int64(0)
	began := time.Now()
	ans, err := s.ask(ctx, q, func(metric []byte, points []point) error {
		if now == 0 {
			now = s.now().UnixMilli()
		}
		return f.series(metric, points, now)
	})
	lacking := ans.lacking()
	s.metrics.observe(q, time.Since(began), cmp.Or(err, lacking))

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		f.failures = append(f.failures, failure{query: q, err: err})
		f.unreachable = f.unreachable || errors.Is(err, errUnreachable)
	case lacking != nil:
		f.failures = append(f.failures, failure{query: q, err: lacking, part: true})
	}
}

// series takes one series of an answer that came at a time on the server's clock.
func (f *tick) series(metric []byte, points []point, now int64) error {
	if len(points) == 0 {
		return nil
	}
	s := f.source
	key := seriesKey{maphash.Bytes(s.seed[0], metric), maphash.Bytes(s.seed[1], metric)}

	s.mu.Lock()
	k := s.known[key]
	s.mu.Unlock()
	if k == nil {
		ls, err := parseLabels(metric)
		if err != nil {
			return err
		}
		k = &knownSeries{ls: ls}
		if k.replica = ls.Get(s.replicas.label); k.replica != "" {
			k.ls = labels.NewBuilder(ls).Del(s.replicas.label).Labels()
			k.key = replicaKey(k.ls)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[key] = k
	k.seen = s.fetches
	if name := k.ls.Get(model.MetricNameLabel); !f.found[name] {
		f.found[name] = true
	}
	if k.replica != "" {
		points = s.replicas.choose(k, points, now)
	}
	for _, p := range points {
		f.sink.Append(k.ls, p.t, p.v)
	}
	return nil
}

func parseLabels(metric []byte) (labels.Labels, error) {
	var m map[string]string
	if err := json.Unmarshal(metric, &m); err != nil {
		return labels.EmptyLabels(), fmt.Errorf("%w: label set: %w", errSyntax, err)
	}
	return labels.FromMap(m), nil
}

// failed says whether a query failed or was not asked.
func (f *tick) failed(q query) bool {
	return f.unreachable || slices.ContainsFunc(f.failures, func(fail failure) bool { return fail.query.expr == q.expr })
}

// err names the source and each distinct reason once: when a server is in trouble, most queries fail
// alike. It is a source.PartialError unless nothing came at all.
func (f *tick) err(queries int) error {
	if len(f.failures) == 0 {
		return nil
	}
	if f.unreachable {
		return fmt.Errorf("%s: %w", f.source, f.failures[0].err)
	}
	partial := &source.PartialError{}
	lost := 0
	for _, fail := range f.failures {
		if !fail.part {
			lost++
			partial.Names = append(partial.Names, fail.query.names...)
		}
	}
	slices.Sort(partial.Names)
	// In an order that does not change from tick to tick.
	slices.SortFunc(f.failures, func(a, b failure) int { return strings.Compare(a.query.expr, b.query.expr) })
	var all error
	seen := map[string]bool{}
	for _, fail := range f.failures {
		text := fail.err.Error()
		if seen[text] {
			continue
		}
		seen[text] = true
		err := fmt.Errorf("reading %s: %w", fail.query, fail.err)
		if all != nil {
			err = fmt.Errorf("%w; %w", all, err)
		}
		all = err
	}
	err := fmt.Errorf("%s: %d of %d queries failed: %w", f.source, len(f.failures), queries, all)
	if lost == queries {
		return err
	}
	partial.Err = err
	return partial
}
