// Package scrape reads raw samples from the engines themselves: the source of those who run no
// Prometheus.
//
// It is Prometheus's own scrape, as a library: its parsers, its limits, its stale markers, its
// spreading of scrapes over the interval. In the place of its database stands a small buffer that
// the next Fetch empties, and samples are stamped by a clock that nobody sets.
package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/inference-metrics/adapter/internal/source"
)

// jobPrefix begins the label job of every series.
const jobPrefix = "inference-metrics-adapter"

// What one target can make us read and keep is bounded, whatever it serves. An engine's exposition
// is some hundred kilobytes and a few hundred series; vLLM's cache_config_info has some forty
// labels.
const (
	bodySizeLimit         = "16MB"
	sampleLimit           = 20_000
	labelLimit            = 128
	labelNameLengthLimit  = 512
	labelValueLengthLimit = 8192
)

// A Target is an engine to scrape.
type Target struct {
	// Namespace and Pod are the labels of its series, whatever it says itself.
	Namespace, Pod string
	// URL is where it serves its metrics: http://10.0.0.7:8000/metrics.
	URL string
	// Job names the Job that says how it is scraped; "" for what Config says itself.
	Job string
}

// A Job says how some targets are scraped.
type Job struct {
	// Name is what targets call it.
	Name string
	// Names, Interval and Timeout are as those of Config, which hold where these are not set.
	Names             []string
	Interval, Timeout time.Duration
	// Credentials are sent to the targets of this job, and to no other.
	Credentials Credentials
	// Believe tells of a series whether its target may export it; nil believes all. It is called for
	// every sample, so that what it decides by may change.
	Believe func(labels.Labels) bool
}

// Credentials are how a target and the adapter know each other. Files are read again when they change.
type Credentials struct {
	// CAFile holds the authorities by which a target's certificate is checked; "" for those of the
	// system. ServerName is the name it has to be for; "" for the target's address.
	CAFile, ServerName string
	// InsecureSkipVerify takes any certificate.
	InsecureSkipVerify bool
	// CertFile and KeyFile are the adapter's own certificate.
	CertFile, KeyFile string
	// BearerTokenFile holds a token.
	BearerTokenFile string
}

// Config says what to scrape and how.
type Config struct {
	Targets []Target
	// Names are the series to keep, by their exact names. The series up of every target, 1 or 0, is
	// always kept.
	Names []string
	// Interval is the time between two scrapes of a target. Default: 5 s.
	Interval time.Duration
	// Timeout bounds one scrape. Default: the interval.
	Timeout time.Duration
	// Jobs are those that targets name.
	Jobs []Job
	// Retention is for how long samples wait for a Fetch. Default: 10 min.
	Retention time.Duration
}

// Source scrapes targets.
type Source struct {
	manager *scrape.Manager
	buffer  *buffer
	changed chan struct{}
	// believe holds what Believe of a job is, by the label job of its series.
	believe map[string]func(labels.Labels) bool

	mu      sync.Mutex
	targets map[string][]*targetgroup.Group // by job

	// down holds the targets whose last scrape failed, by the hash of the labels of up.
	down map[uint64]bool

	metrics *metrics
}

var _ source.Source = (*Source)(nil)

// New returns a source. Run makes it scrape.
func New(cfg Config) (*Source, error) {
	if cfg.Interval == 0 {
		cfg.Interval = 5 * time.Second
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = cfg.Interval
	}
	if cfg.Retention == 0 {
		cfg.Retention = 10 * time.Minute
	}
	s := &Source{
		changed: make(chan struct{}, 1),
		believe: map[string]func(labels.Labels) bool{},
		down:    map[uint64]bool{},
		metrics: newMetrics(),
	}
	var jobs []Job
	var names []string
	for _, j := range append([]Job{{Interval: cfg.Interval, Timeout: cfg.Timeout}}, cfg.Jobs...) {
		if j.Names == nil {
			j.Names = cfg.Names
		}
		j.Interval = cmp.Or(j.Interval, cfg.Interval)
		j.Timeout = cmp.Or(j.Timeout, min(cfg.Timeout, j.Interval))
		if j.Interval < time.Millisecond || j.Timeout < time.Millisecond || j.Timeout > j.Interval {
			return nil, fmt.Errorf("scrape: %sinterval %s and timeout %s: want a timeout above zero that is not longer than the interval", j.where(), j.Interval, j.Timeout)
		}
		if _, twice := s.believe[j.label()]; twice {
			return nil, fmt.Errorf("scrape: %sthere are two jobs of that name", j.where())
		}
		s.believe[j.label()] = j.Believe
		names = append(names, j.Names...)
		jobs = append(jobs, j)
	}
	s.buffer = newBuffer(names, cfg.Retention, newClock())
	if err := s.SetTargets(cfg.Targets); err != nil {
		return nil, err
	}
	// What Prometheus's scrape says of a single scrape is for those who debug it (a warning comes
	// out at -v=4): a broken target would fill the log. What operators have to know, targets that go
	// down and come back, is logged by Fetch.
	logger := klog.Background().WithName("scrape").V(8)
	var err error
	s.manager, err = scrape.NewManager(
		&scrape.Options{
			DiscoveryReloadInterval:  model.Duration(time.Second),
			DiscoveryReloadOnStartup: true,
		},
		slogAt(logger), nil, nil, s.buffer, prometheus.NewRegistry())
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	settings, err := settings(jobs)
	if err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	for _, sc := range settings.ScrapeConfigs {
		// A job whose files cannot be read would not be scraped, and nobody be told.
		if _, err := commonconfig.NewClientFromConfig(sc.HTTPClientConfig, sc.JobName); err != nil {
			return nil, fmt.Errorf("scrape: %s: %w", strings.TrimPrefix(sc.JobName, jobPrefix+"/"), err)
		}
	}
	if err := s.manager.ApplyConfig(settings); err != nil {
		return nil, fmt.Errorf("scrape: %w", err)
	}
	return s, nil
}

// label is the label job of the series of a job.
func (j Job) label() string {
	if j.Name == "" {
		return jobPrefix
	}
	return jobPrefix + "/" + j.Name
}

// where names a job in an error.
func (j Job) where() string {
	if j.Name == "" {
		return ""
	}
	return j.Name + ": "
}

// settings are Prometheus's, as a user would write them: its defaults are set where they are read.
func settings(jobs []Job) (*config.Config, error) {
	var all []any
	for _, j := range jobs {
		all = append(all, j.settings())
	}
	text, err := yaml.Marshal(map[string]any{"scrape_configs": all})
	if err != nil {
		return nil, err
	}
	return config.Load(string(text), promslog.NewNopLogger())
}

func (j Job) settings() map[string]any {
	var keep []string
	for _, name := range j.Names {
		if name != upName { // the target's own word on whether it is up
			keep = append(keep, regexp.QuoteMeta(name))
		}
	}
	s := map[string]any{
		"job_name":        j.label(),
		"scrape_interval": model.Duration(j.Interval).String(),
		"scrape_timeout":  model.Duration(j.Timeout).String(),

		// What a target says of itself is not believed: not its labels, not its clock, not where
		// else to look.
		"honor_labels":     false,
		"honor_timestamps": false,
		"follow_redirects": false,
		"enable_http2":     false,

		// Every engine serves the plain text format, and its names are never rewritten there.
		"scrape_protocols":                   []string{"PrometheusText0.0.4"},
		"fallback_scrape_protocol":           "PrometheusText0.0.4",
		"scrape_native_histograms":           false,
		"convert_classic_histograms_to_nhcb": false,

		"body_size_limit":          bodySizeLimit,
		"sample_limit":             sampleLimit,
		"label_limit":              labelLimit,
		"label_name_length_limit":  labelNameLengthLimit,
		"label_value_length_limit": labelValueLengthLimit,

		"metric_relabel_configs": []any{map[string]any{
			"source_labels": []string{model.MetricNameLabel},
			"regex":         strings.Join(keep, "|"),
			"action":        "keep",
		}},
	}
	c := j.Credentials
	s["tls_config"] = map[string]any{
		"ca_file": c.CAFile, "server_name": c.ServerName, "insecure_skip_verify": c.InsecureSkipVerify,
		"cert_file": c.CertFile, "key_file": c.KeyFile,
	}
	if c.BearerTokenFile != "" {
		s["authorization"] = map[string]any{"credentials_file": c.BearerTokenFile}
	}
	return s
}

// Run scrapes until ctx ends. It is called once.
func (s *Source) Run(ctx context.Context) error {
	updates := make(chan map[string][]*targetgroup.Group)
	done := make(chan error, 1)
	go func() { done <- s.manager.Run(updates) }()
	defer func() {
		s.manager.Stop()
		<-done
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
			s.mu.Lock()
			targets := s.targets
			s.mu.Unlock()
			select {
			case updates <- targets:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// SetTargets replaces the targets. Those that stay are scraped on without a gap. The series of those
// that go end with stale markers, after somewhat more than two intervals.
func (s *Source) SetTargets(targets []Target) error {
	byJob := map[string]*targetgroup.Group{}
	for label := range s.believe {
		byJob[label] = &targetgroup.Group{}
	}
	seen := map[Target]bool{}
	var errs []error
	for _, t := range targets {
		ls, err := t.labels()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		group := byJob[Job{Name: t.Job}.label()]
		if group == nil {
			errs = append(errs, fmt.Errorf("target %s: there is no job %q", t.name(), t.Job))
			continue
		}
		key := Target{Namespace: t.Namespace, Pod: t.Pod, URL: string(ls[model.AddressLabel])}
		if seen[key] {
			errs = append(errs, fmt.Errorf("target %s: two targets on %s: their series could not be told apart", t.name(), ls[model.AddressLabel]))
		}
		seen[key] = true
		group.Targets = append(group.Targets, ls)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	groups := map[string][]*targetgroup.Group{}
	for label, group := range byJob {
		groups[label] = []*targetgroup.Group{group}
	}
	s.mu.Lock()
	s.targets = groups
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default: // Run has yet to hear of an earlier change
	}
	return nil
}

func (t Target) name() string { return t.Namespace + "/" + t.Pod }

// labels are the target's in Prometheus's terms.
func (t Target) labels() (model.LabelSet, error) {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil:
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err // the URL itself may hold a password
		}
		return nil, fmt.Errorf("target %s: URL: %w", t.name(), err)
	case t.Namespace == "" || t.Pod == "":
		return nil, fmt.Errorf("target %s: want a namespace and a pod", t.name())
	case (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return nil, fmt.Errorf("target %s: URL %q: want http://host:port/metrics", t.name(), u.Redacted())
	case u.User != nil:
		return nil, fmt.Errorf("target %s: the URL holds a user name: targets are scraped without credentials", t.name())
	case u.RawPath != "":
		return nil, fmt.Errorf("target %s: URL %q: a path with an escaped slash cannot be scraped", t.name(), u.Redacted())
	}
	ls := model.LabelSet{
		model.AddressLabel:     model.LabelValue(u.Host),
		model.SchemeLabel:      model.LabelValue(u.Scheme),
		model.MetricsPathLabel: model.LabelValue(u.Path),
		"namespace":            model.LabelValue(t.Namespace),
		"pod":                  model.LabelValue(t.Pod),
	}
	if u.Path == "" {
		ls[model.MetricsPathLabel] = "/"
	}
	params, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("target %s: URL %q: query: %w", t.name(), u.Redacted(), err)
	}
	for key, values := range params {
		if len(values) > 1 {
			return nil, fmt.Errorf("target %s: URL %q: the parameter %q is there twice", t.name(), u.Redacted(), key)
		}
		ls[model.LabelName(model.ParamLabelPrefix+key)] = model.LabelValue(values[0])
	}
	if err := ls.Validate(); err != nil {
		return nil, fmt.Errorf("target %s: %w", t.name(), err)
	}
	return ls, nil
}

// String names the source in messages.
func (s *Source) String() string { return "scraping the engines" }

// Fetch hands over what was scraped since the last Fetch. names and lookback do not matter: the
// names to keep are Config's, and nothing is older than Config.Retention.
//
// A target that is down is no error: its series end, and its series up says 0.
func (s *Source) Fetch(ctx context.Context, _ []string, _ time.Duration, sink source.Sink) (time.Time, error) {
	scrapes := s.buffer.drain()
	var fell, rose, failed []labels.Labels
	for _, samples := range scrapes {
		believe := s.believe[samples[0].ls.Get(model.JobLabel)]
		for _, x := range samples {
			if believe != nil && !believe(x.ls) {
				continue
			}
			sink.Append(x.ls, x.t, x.v)
			if x.ls.Get(model.MetricNameLabel) != upName {
				continue
			}
			if x.v == 0 {
				failed = append(failed, x.ls)
			}
			key := x.ls.Hash()
			switch {
			case x.v == 0 && !s.down[key]:
				s.down[key] = true
				fell = append(fell, x.ls)
			case x.v != 0 && s.down[key]: // 1, or a stale marker: the target was removed
				delete(s.down, key)
				if x.v == 1 {
					rose = append(rose, x.ls)
				}
			}
		}
	}
	s.metrics.observe(s.manager, failed)
	s.logHealth(ctx, fell, rose)
	return s.buffer.clock.now(), nil
}

// logHealth logs which targets went down or came back. A whole fleet may: it names a few.
func (s *Source) logHealth(ctx context.Context, fell, rose []labels.Labels) {
	const few = 5
	logger := klog.FromContext(ctx)
	if len(fell) > 0 {
		reasons := s.reasons(fell[:min(few, len(fell))])
		logger.Info("Targets cannot be scraped: their pods have no fresh samples", "targets", len(fell), "reasons", reasons)
	}
	if len(rose) > 0 {
		names := make([]string, 0, few)
		for _, up := range rose[:min(few, len(rose))] {
			names = append(names, up.Get("namespace")+"/"+up.Get("pod"))
		}
		logger.Info("Targets can be scraped again", "targets", len(rose), "pods", names)
	}
}

// reasons says why the targets of some series up are down.
func (s *Source) reasons(down []labels.Labels) []string {
	var reasons []string
	for _, t := range slices.Concat(slices.Collect(maps.Values(s.manager.TargetsActive()))...) {
		err := t.LastError()
		if err == nil || !slices.ContainsFunc(down, func(up labels.Labels) bool {
			return up.Get("namespace") == t.GetValue("namespace") && up.Get("pod") == t.GetValue("pod") && up.Get(model.InstanceLabel) == t.GetValue(model.InstanceLabel)
		}) {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("%s/%s: %s", t.GetValue("namespace"), t.GetValue("pod"), reasonOf(err)))
	}
	return reasons
}
