package load

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"time"
)

// Arrival is one request.
type Arrival struct {
	// At is when it comes, counted from the start of the load.
	At           time.Duration
	PromptTokens int
	OutputTokens int
	MaxTokens    int // 0: no limit
}

// Process yields the arrivals of a load, in the order of time.
type Process struct {
	next  func() (Arrival, error)
	close func() error
}

// Next returns the next arrival, or io.EOF when there are no more. Any other error ends the load.
func (p *Process) Next() (Arrival, error) { return p.next() }

// Close closes the trace's file, if there is one.
func (p *Process) Close() error { return p.close() }

// Start begins the load. Close the process in the end.
func (s Spec) Start(seed uint64) (*Process, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("load %s: %w", s, err)
	}
	p := &Process{close: func() error { return nil }}
	switch s.Kind {
	case None:
		p.next = func() (Arrival, error) { return Arrival{}, io.EOF }
	case Trace:
		f, err := os.Open(s.File)
		if err != nil {
			return nil, fmt.Errorf("load %s: open the trace: %w", s, err)
		}
		rows := newTraceReader(f)
		p.close = f.Close
		p.next = func() (Arrival, error) {
			a, err := rows.next()
			if err == io.EOF {
				return Arrival{}, io.EOF
			}
			if err != nil {
				return Arrival{}, fmt.Errorf("trace %s: %w", s.File, err)
			}
			at := float64(a.At) / s.Speed
			if !(at < maxAt) {
				return Arrival{}, io.EOF
			}
			a.At = time.Duration(at)
			a.MaxTokens = s.MaxTokens
			return a, nil
		}
	default:
		p.next = s.synthetic(rand.New(rand.NewPCG(seed, 1)))
	}
	return p, nil
}

// maxAt is when loads end at the latest, in nanoseconds: no later time is a time.Duration. An arrival
// that is as good as never must not come at once.
const maxAt = float64(math.MaxInt64)

// synthetic draws arrivals. The k-th comes when the rate, integrated over time, reaches the sum of k
// gaps: of exponential ones for a Poisson process, of ones for a constant one.
func (s Spec) synthetic(rng *rand.Rand) func() (Arrival, error) {
	at := 0.0 // seconds
	return func() (Arrival, error) {
		gap := 1.0
		if s.Kind != Constant {
			gap = rng.ExpFloat64()
		}
		at = s.after(at, gap)
		nanos := at * float64(time.Second)
		if !(nanos < maxAt) {
			return Arrival{}, io.EOF
		}
		return Arrival{
			At:           time.Duration(nanos),
			PromptTokens: s.Prompt.draw(rng),
			OutputTokens: s.Output.draw(rng),
			MaxTokens:    s.MaxTokens,
		}, nil
	}
}

// after returns the time at which the integral of the rate from at on reaches gap.
func (s Spec) after(at, gap float64) float64 {
	if s.Kind != Burst {
		return at + gap/s.Rate
	}
	period := s.Period.Seconds()
	high := period * s.Duty
	cycle := float64(int(at / period)) // whole periods passed
	at -= cycle * period
	// A gap may be many periods long.
	perPeriod := s.High*high + s.Low*(period-high)
	whole := math.Floor(gap / perPeriod)
	if math.IsInf(whole, 0) || math.IsNaN(whole) {
		return math.Inf(1) // next to none in a period
	}
	cycle, gap = cycle+whole, max(0, gap-whole*perPeriod)
	for {
		rate, end := s.High, high
		if at >= high {
			rate, end = s.Low, period
		}
		room := rate * (end - at)
		if gap < room {
			return cycle*period + at + gap/rate
		}
		gap -= room
		if at = end; end == period {
			cycle, at = cycle+1, 0
		}
	}
}
