package scrape

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// upName is the series that says whether a target could be scraped.
const upName = "up"

// maxSamples bounds what waits for a Fetch: 128 MB and 1,000 targets of 150 series over two
// minutes.
const maxSamples = 4_000_000

type sample struct {
	ls labels.Labels
	t  int64
	v  float64
}

// buffer holds whole scrapes until they are fetched: either all samples of a scrape or none, so
// that the buckets of a histogram are always from the same moment. When it is full, or when nobody
// fetches, the oldest scrapes go.
type buffer struct {
	wanted    map[string]bool
	retention time.Duration
	clock     clock

	mu      sync.Mutex
	scrapes [][]sample // in the order of their commits
	samples int
}

var _ storage.AppendableV2 = (*buffer)(nil)

func newBuffer(names []string, retention time.Duration, clock clock) *buffer {
	b := &buffer{wanted: map[string]bool{upName: true}, retention: retention, clock: clock}
	for _, name := range names {
		b.wanted[name] = true
	}
	return b
}

// AppenderV2 implements storage.AppendableV2. It is called as a scrape begins.
func (b *buffer) AppenderV2(context.Context) storage.AppenderV2 {
	return &appender{buffer: b, wall: b.clock.wall(), began: b.clock.now()}
}

// drain returns the scrapes that wait, oldest first, and forgets them.
func (b *buffer) drain() [][]sample {
	b.mu.Lock()
	defer b.mu.Unlock()
	scrapes := b.scrapes
	b.scrapes, b.samples = nil, 0
	return scrapes
}

func (b *buffer) add(samples []sample) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scrapes = append(b.scrapes, samples)
	b.samples += len(samples)
	newest := samples[len(samples)-1].t
	gone := 0
	for gone < len(b.scrapes)-1 {
		oldest := b.scrapes[gone]
		if b.samples <= maxSamples && newest-oldest[0].t <= b.retention.Milliseconds() {
			break
		}
		b.samples -= len(oldest)
		b.scrapes[gone] = nil
		gone++
	}
	b.scrapes = b.scrapes[gone:]
}

// appender collects the samples of one scrape.
type appender struct {
	buffer  *buffer
	samples []sample
	// wall and began are one instant, when the scrape began, on the wall clock and on ours.
	wall, began time.Time
}

// stamp is on our clock what t is on the wall clock: when the scrape began or, of the markers that end
// the series of a target which was removed, somewhat earlier.
func (a *appender) stamp(t int64) int64 {
	ago := min(max(0, a.wall.UnixMilli()-t), a.buffer.retention.Milliseconds())
	return a.began.UnixMilli() - ago
}

// Append implements storage.AppenderV2. The reference that it returns is the hash of the labels:
// Prometheus's scrape compares references, within one target, to find the series that ended.
func (a *appender) Append(ref storage.SeriesRef, ls labels.Labels, _, t int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram, _ storage.AOptions) (storage.SeriesRef, error) {
	if ref == 0 {
		ref = storage.SeriesRef(max(1, ls.Hash()))
	}
	// Besides up, a scrape reports on itself: durations and counts that nobody asked for.
	if h == nil && fh == nil && a.buffer.wanted[ls.Get(model.MetricNameLabel)] {
		a.samples = append(a.samples, sample{ls, a.stamp(t), v})
	}
	return ref, nil
}

// Commit implements storage.AppenderTransaction.
func (a *appender) Commit() error {
	if len(a.samples) > 0 {
		a.buffer.add(a.samples)
	}
	a.samples = nil
	return nil
}

// Rollback implements storage.AppenderTransaction.
func (a *appender) Rollback() error {
	a.samples = nil
	return nil
}

// slogAt lets Prometheus's scrape log through logger, at its verbosity whatever the level.
func slogAt(logger logr.Logger) *slog.Logger { return slog.New(logr.ToSlogHandler(logger)) }
