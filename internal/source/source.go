// Package source is the seam between the adapter and wherever raw series come from.
//
// A source yields raw samples with the time at which the engine was read, never an evaluated
// vector: resets, windows, freshness and quantiles are then handled once, by packages window and
// signals, the same for every source. Implementations are sub-packages that do not know each
// other; package sourcetest holds all of them to one contract.
package source

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// Sink takes samples. A sink drops samples that it already has, so a source may deliver a sample
// twice (overlapping fetches, pairs of Prometheus servers).
type Sink interface {
	// Append adds one sample of the series ls (its name under __name__). t is in Unix milliseconds
	// on the source's clock. A value that is a Prometheus stale marker (value.StaleNaN) says that
	// the series ended at t. Most servers do not tell: then a series that ended just has no newer
	// samples. Any other NaN says that there is no number.
	Append(ls labels.Labels, t int64, v float64)
}

// Source delivers raw samples.
type Source interface {
	// Fetch appends to sink the samples of the last lookback of every series whose name is in
	// names, those of each series in time order, and returns the time on the source's own clock,
	// which may be skewed against ours. It may deliver more series and older samples than asked.
	//
	// An error means that the source could not be read, in whole or (a PartialError) in part: what
	// was appended before it stands, and the caller treats what is missing as unknown, never as
	// zero. The message names the source and what to do about it, and holds no credentials.
	//
	// Fetch is called from one goroutine at a time.
	Fetch(ctx context.Context, names []string, lookback time.Duration, sink Sink) (now time.Time, err error)

	// String names the source in messages and logs, without credentials.
	String() string
}

// A PartialError is the error of a Fetch that brought something. Of the names that are not in Names,
// all came that the source could reach: there is nothing to gain from asking for the past of these
// once more.
type PartialError struct {
	// Names are those that could not be read.
	Names []string
	Err   error
}

func (e *PartialError) Error() string { return e.Err.Error() }

func (e *PartialError) Unwrap() error { return e.Err }
