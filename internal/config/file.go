package config

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

// lookEvery is the time between two looks at the file. It is looked at, and not watched: what Kubernetes
// swaps is a symbolic link two directories up, and some file systems tell of no change at all.
const lookEvery = 2 * time.Second

// File is a configuration file that is read again when it changes.
type File struct {
	name    string
	kinds   []schema.GroupResource
	metrics metrics

	mu     sync.Mutex
	status Status

	// The rest belongs to the goroutine that watches.
	current Config
	seen    sight // at the last look
	judged  sight // what was last taken, or refused
	taken   sight
}

// Status says what became of the file.
type Status struct {
	// Name is the file's.
	Name string
	// Hash is the SHA-256 of the text that holds, and Taken is when it was read.
	Hash  string
	Taken time.Time
	// Err says why the file as it is now was refused; nil when it was taken.
	Err error
	// Restart names the fields of it that hold after a restart only.
	Restart []string
}

// sight is what a look at the file saw: the hash of a text, or a fault.
type sight struct {
	hash  [sha256.Size]byte
	fault string
}

// Open reads a file; kinds are the kinds of object that are served where it names none.
func Open(name string, kinds []schema.GroupResource) (*File, Config, error) {
	f := &File{name: name, kinds: kinds, metrics: newMetrics()}
	text, saw, err := f.read()
	if err != nil {
		return nil, Config{}, err
	}
	if f.current, err = f.parse(text); err != nil {
		return nil, Config{}, err
	}
	f.seen = saw
	f.take(saw, nil)
	return f, f.current, nil
}

// Watch looks at the file until ctx ends, and calls apply with what it comes to. What cannot be read, or is
// refused by apply, changes nothing, and is logged once. Fields that hold from the start only are as they
// were.
func (f *File) Watch(ctx context.Context, apply func(Config) error) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.look(ctx, apply)
		}
	}
}

// Status returns what became of the file.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Collectors returns the file's own metrics, to be registered by the caller.
func (f *File) Collectors() []prometheus.Collector { return f.metrics.all() }

// look takes the file if it has changed. A text counts once two looks have seen it: the first may have seen
// half of what somebody is writing, and half a file may be a valid one.
func (f *File) look(ctx context.Context, apply func(Config) error) {
	text, saw, err := f.read()
	again := saw == f.seen
	f.seen = saw
	if !again || saw == f.judged {
		return
	}
	f.judged = saw
	log := klog.FromContext(ctx)
	if err == nil && saw == f.taken {
		f.take(saw, f.Status().Restart)
		log.Info("Configuration file is again as it holds", "file", f.name)
		return
	}
	var next Config
	if err == nil {
		next, err = f.parse(text)
	}
	var changed, restart []string
	if err == nil {
		next, changed, restart = f.current.become(next)
		err = apply(next)
	}
	if err != nil {
		f.refuse(err)
		log.Error(err, "Configuration file changed and cannot be taken; what was read before holds", "file", f.name)
		return
	}
	f.current = next
	f.take(saw, restart)
	log.Info("Configuration changed", "file", f.name, "sha256", f.Status().Hash, "fields", changed)
	if len(restart) > 0 {
		log.Info("Configuration has fields that hold after a restart only; until then they are as before", "file", f.name, "fields", restart)
	}
}

func (f *File) read() ([]byte, sight, error) {
	text, err := readSmall(f.name)
	if err != nil {
		return nil, sight{fault: err.Error()}, err
	}
	return text, sight{hash: sha256.Sum256(text)}, nil
}

func (f *File) parse(text []byte) (Config, error) {
	c, err := parse(text, f.kinds)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", f.name, err)
	}
	return c, nil
}

func (f *File) take(saw sight, restart []string) {
	now := time.Now()
	f.taken, f.judged = saw, saw
	f.mu.Lock()
	f.status = Status{Name: f.name, Hash: hex.EncodeToString(saw.hash[:]), Taken: now, Restart: restart}
	f.mu.Unlock()
	f.metrics.take(saw.hash, now, len(restart) > 0)
}

func (f *File) refuse(err error) {
	f.mu.Lock()
	f.status.Err = errors.New(err.Error()) // what it wraps is of no use to a reader
	f.mu.Unlock()
	f.metrics.ok.Set(0)
}

// field is one of Config.
type field struct {
	name string
	// live says that it may change while the adapter runs.
	live bool
	of   func(*Config) any // a pointer to it
}

// configFields are all of them. Kinds are in the discovery documents, which do not change while a server
// runs, series are grouped by podLabels once, and the scrape is set up once.
var configFields = []field{
	{"window", true, func(c *Config) any { return &c.Params.Window }},
	{"windows", true, func(c *Config) any { return &c.Windows }},
	{"slo", true, func(c *Config) any { return &c.Params.SLO }},
	{"saturation", true, func(c *Config) any { return &c.Params.Full }},
	{"objectives", true, func(c *Config) any { return &c.Objectives }},
	{"kinds", false, func(c *Config) any { return &c.Kinds }},
	{"roleLabels", true, func(c *Config) any { return &c.RoleLabels }},
	{"podLabels", false, func(c *Config) any { return &c.Params.PodLabels }},
	{"scrape", false, func(c *Config) any { return &c.Scrape }},
}

// become returns next with those fields of c that hold from the start, and names the fields that changed,
// and those that would have.
func (c Config) become(next Config) (out Config, changed, restart []string) {
	for _, f := range configFields {
		was, is := reflect.ValueOf(f.of(&c)).Elem(), reflect.ValueOf(f.of(&next)).Elem()
		switch {
		case reflect.DeepEqual(was.Interface(), is.Interface()):
		case f.live:
			changed = append(changed, f.name)
		default:
			restart = append(restart, f.name)
			is.Set(was)
		}
	}
	return next, slices.Clip(changed), slices.Clip(restart)
}

// metrics tell of the newest reading.
type metrics struct {
	ok, at, hash, restart prometheus.Gauge
}

func newMetrics() metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "inference_metrics_adapter", Subsystem: "config", Name: name, Help: help})
	}
	return metrics{
		ok:      gauge("last_reload_successful", "1 when the configuration file as it is now holds, 0 when it was refused and an earlier one does."),
		at:      gauge("last_reload_success_timestamp_seconds", "When the configuration that holds was read, in Unix seconds."),
		hash:    gauge("hash", "Number made of the text of the configuration that holds: replicas that differ in it have different ones."),
		restart: gauge("restart_needed", "1 when the configuration file has changed in fields that hold after a restart only."),
	}
}

func (m metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.ok, m.at, m.hash, m.restart}
}

func (m metrics) take(hash [sha256.Size]byte, at time.Time, restart bool) {
	m.ok.Set(1)
	m.at.Set(float64(at.UnixMilli()) / 1000)
	m.hash.Set(float64(binary.BigEndian.Uint64(hash[:]) >> 16)) // a float holds 53 bits
	m.restart.Set(0)
	if restart {
		m.restart.Set(1)
	}
}
