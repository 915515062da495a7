package capacity

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Observation is what one replica did in one window: the growth of its counters, and its gauges as
// they were sampled. Windows must not overlap, have no restart in them, and be at least three times
// as long as the longest prefill, because prompts are counted when they are done. A minute is good.
type Observation struct {
	At   time.Time // the end of the window
	Span time.Duration

	Steps        float64 // that brought a token
	PromptTokens float64 // computed, not taken from a cache
	FirstTokens  float64
	OutputTokens float64 // with the first ones
	Preemptions  float64

	// ServedSeconds is how long the requests that finished had run: the growth of the sum of the
	// histogram of inference times. 0 when it is not exported.
	ServedSeconds float64

	// Means of the gauges.
	Running float64 // requests
	KV      float64 // fraction of the KV cache in use; 0 when not exported
	// The lowest samples: what tells that the replica was never without work.
	LeastRunning, LeastWaiting float64
}

const (
	// fewest is how many requests must have run on average, when none waited, for a window to be a
	// busy one though the gauges are only sampled: of a Poisson number with that mean 2 % is none.
	fewest = 4
	// mostAlone is how many may have run on average for them to have hardly met.
	mostAlone = 0.3
)

// busy returns the part of the window in which the replica made steps, if that is known. The gauges
// are too coarse to tell, but at both ends: when much runs, it never paused; and when little runs,
// requests hardly met, so that the time is what they took themselves. What lies between is passed
// over. So are windows with preemptions: what is computed again is in no counter.
func (o Observation) busy() (part float64, known bool) {
	served := o.ServedSeconds / o.Span.Seconds()
	x := [...]float64{o.Steps, o.PromptTokens, o.FirstTokens, o.OutputTokens, o.Preemptions, o.ServedSeconds, o.Running, o.KV}
	switch {
	case slices.ContainsFunc(x[:], func(v float64) bool { return !(v >= 0 && v < math.MaxFloat32) }):
		return 0, false
	case !(o.Span > 0 && o.Steps > 0 && o.OutputTokens > 0 && o.Preemptions == 0):
		return 0, false
	case o.LeastRunning >= 1 && (o.Running >= fewest || o.LeastWaiting >= 1):
		return 1, true
	case o.LeastRunning == 0 && served > 0 && served <= mostAlone && o.Running <= fewest*mostAlone:
		return 1 - math.Exp(-served), true
	}
	return 0, false
}

// alone reports whether the requests of a window of known busy time hardly met.
func (o Observation) alone() bool { return o.LeastRunning < 1 }

// concurrency is how many requests ran while some did.
func (o Observation) concurrency() float64 {
	if o.alone() {
		return 1
	}
	return o.Running
}

// level is how much the replica had to do at once: the requests that ran or, where none decodes, the
// prompt tokens per second, because prompts come one after the other.
func (o Observation) level() float64 {
	if o.OutputTokens <= o.FirstTokens {
		return o.PromptTokens / o.Span.Seconds()
	}
	return o.concurrency()
}

// row is the window per second, of which the product with the costs is the busy part of it.
func (o Observation) row() row {
	s := o.Span.Seconds()
	decoded := max(o.OutputTokens-o.FirstTokens, 0) / s
	part, _ := o.busy()
	x := vector{o.Steps / s, o.PromptTokens / s, decoded, 0}
	if o.Running > 0 {
		x[3] = decoded * o.KV / o.Running
	}
	return row{x, part}
}

const (
	maxAge   = 7 * 24 * time.Hour // a week holds a weekend and a working day
	perCell  = 16
	minBusy  = 30  // windows
	minRange = 4.0 // largest to smallest number of running requests
	maxError = 0.15
)

// Learner keeps observations of variants, and fits their models. What it keeps is bounded. It is
// not safe for concurrent use.
type Learner struct {
	variants map[string]*learned
}

type learned struct {
	cells  map[cell][]Observation
	model  Model
	err    error
	fitted bool // model and err are of the cells as they are
}

// cell is a kind of window, by powers of two. As many windows of each are kept, so that quiet days
// do not push out the busy hour.
type cell struct{ level, prompts int }

func cellOf(o Observation) cell {
	return cell{
		level:   bucket(o.level(), 0, 20),
		prompts: bucket(o.PromptTokens/o.OutputTokens, -6, 12),
	}
}

func bucket(v float64, lo, hi int) int {
	return min(max(int(math.Floor(math.Log2(max(v, 1e-9)))), lo), hi)
}

// Observe adds what a replica of the variant did. Windows that teach nothing are passed over.
func (l *Learner) Observe(variant string, o Observation) {
	for name, v := range l.variants {
		v.forget(o.At.Add(-maxAge))
		if len(v.cells) == 0 {
			delete(l.variants, name)
		}
	}
	if _, known := o.busy(); !known {
		return
	}
	v := l.variants[variant]
	if v == nil {
		v = &learned{cells: map[cell][]Observation{}}
		if l.variants == nil {
			l.variants = map[string]*learned{}
		}
		l.variants[variant] = v
	}
	c := cellOf(o)
	kept := append(v.cells[c], o)
	if len(kept) > perCell {
		kept = slices.Delete(kept, 0, 1)
	}
	v.cells[c] = kept
	v.fitted = false
}

func (v *learned) forget(before time.Time) {
	for c, kept := range v.cells {
		n := len(kept)
		kept = slices.DeleteFunc(kept, func(o Observation) bool { return o.At.Before(before) })
		switch {
		case len(kept) == n:
			continue
		case len(kept) == 0:
			delete(v.cells, c)
		default:
			v.cells[c] = kept
		}
		v.fitted = false
	}
}

// Model returns what has been learned of the variant, or an error that says what is missing.
func (l *Learner) Model(variant string) (Model, error) {
	v := l.variants[variant]
	if v == nil {
		return Model{}, errors.New("no replica of this variant has been seen busy for a whole window")
	}
	if !v.fitted {
		v.model, v.err = v.learn()
		v.fitted = true
	}
	return v.model, v.err
}

// learn fits the cells.
func (v *learned) learn() (Model, error) {
	var all []Observation
	for _, kept := range v.cells {
		all = append(all, kept...)
	}
	if len(all) < minBusy {
		return Model{}, fmt.Errorf("%d busy windows have been seen, %d are needed", len(all), minBusy)
	}
	// The order of a map must not decide the last digit.
	slices.SortFunc(all, func(a, b Observation) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return int(math.Copysign(1, a.Running-b.Running))
	})
	least, most, running := math.Inf(1), 0.0, 0.0
	for _, o := range all {
		least, most = min(least, o.level()), max(most, o.level())
		running = max(running, o.concurrency())
	}
	if most < minRange*least {
		return Model{}, fmt.Errorf("busy windows have been seen with %.0f to %.0f requests running (without decoding: prompt tokens/s): the largest must be %g times the smallest",
			least, most, minRange)
	}
	all, f, ok := trimmed(all)
	if !ok {
		return Model{}, errors.New("the busy windows do not tell costs apart")
	}
	heldOut, err := heldOutError(all)
	if err != nil {
		return Model{}, err
	}
	if heldOut > maxError {
		return Model{}, fmt.Errorf("the busy time of windows that were held out is off by %.0f %%: at most %.0f %% is trusted",
			100*heldOut, 100*maxError)
	}
	var ratios []float64
	for _, o := range all {
		if x := o.row().x; !o.alone() && x[2] > 0 {
			ratios = append(ratios, x[2]/(x[0]*o.Running))
		}
	}
	m := Model{
		Step: f.coef[0], Prompt: f.coef[1], Token: f.coef[2], Context: f.coef[3],
		TokensPerStep: 1,
		MostRunning:   running,
		HeldOut:       heldOut,
		Windows:       len(all),
		fit:           f,
	}
	if len(ratios) > 0 {
		// The product of means is above the mean of the product, as steps are slow when many
		// run, and requests in prefill run too: it comes out too low, and is 1 at least.
		slices.Sort(ratios)
		m.TokensPerStep = max(1, ratios[len(ratios)/2])
	}
	// Windows of one cell are alike and err alike: only cells are taken to be independent.
	m.noise = max(heldOut, 0.02) * max(heldOut, 0.02) * float64(len(all)) / float64(len(v.cells))
	return m, nil
}

// trimmed fits, and again without the windows that are far off: a restart that was missed, or a hang.
func trimmed(all []Observation) ([]Observation, fitted, bool) {
	f, ok := fit(rows(all))
	if !ok {
		return nil, fitted{}, false
	}
	errs := make([]float64, len(all))
	for i, o := range all {
		errs[i] = o.row().off(f.coef)
	}
	sorted := slices.Sorted(slices.Values(errs))
	limit := max(4*sorted[len(sorted)/2], 0.05)
	var kept []Observation
	for i, o := range all {
		if errs[i] <= limit {
			kept = append(kept, o)
		}
	}
	// A tenth may be outliers; more of them are the truth.
	if 10*len(kept) < 9*len(all) || len(kept) == len(all) {
		return all, f, true
	}
	f, ok = fit(rows(kept))
	return kept, f, ok
}

func rows(all []Observation) []row {
	out := make([]row, len(all))
	for i, o := range all {
		out[i] = o.row()
	}
	return out
}

// heldOutError is by how much the busy time is off, on average, of windows with as much to do as the
// fit has seen nothing near. Windows that are held out at random have a twin in the rest, and prove
// nothing. But the quietest and the busiest ones are what tells the costs apart: of these only the
// older half is held out. What the fit cannot know of loads beyond is its variance.
func heldOutError(all []Observation) (float64, error) {
	levels := map[int]int{} // how many windows there are
	for _, o := range all {
		levels[cellOf(o).level]++
	}
	sorted := slices.Sorted(maps.Keys(levels))
	wrong, whole := 0.0, 0.0
	for _, level := range sorted {
		n := levels[level]
		if level == sorted[0] || level == sorted[len(sorted)-1] {
			n /= 2
		}
		var rest, held []Observation
		for _, o := range all { // in the order of time
			if cellOf(o).level == level && len(held) < n {
				held = append(held, o)
			} else {
				rest = append(rest, o)
			}
		}
		f, ok := fit(rows(rest))
		if !ok {
			return 0, errors.New("the busy windows are too much alike to hold some out")
		}
		for _, o := range held {
			r := o.row()
			wrong += r.off(f.coef)
			whole += r.busy
		}
	}
	return wrong / whole, nil
}
