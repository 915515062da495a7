package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// ErrTooLong is returned by Submit for a prompt that leaves no room for an output token.
var ErrTooLong = errors.New("prompt does not fit max-model-len")

// ErrQueueFull is returned by Submit when as many requests wait as may.
var ErrQueueFull = errors.New("the queue is full")

// Request is what a client asks for.
type Request struct {
	// ID is the caller's; it must differ from that of every request in flight.
	ID           uint64
	PromptTokens int
	// OutputTokens is after how many tokens the model would stop by itself.
	OutputTokens int
	// MaxTokens cuts the output; 0 means as many as max-model-len leaves room for.
	MaxTokens int
	// CachedTokens is how much of the prompt the prefix cache holds, which is then not computed.
	// One token at least always is.
	CachedTokens int
	// Priority matters to an engine that schedules by it: the highest goes first.
	Priority int
}

// FinishReason is why a request finished, as vLLM labels it.
type FinishReason int

// The reasons a modelled request finishes for.
const (
	Stop   FinishReason = iota // the model stopped by itself
	Length                     // cut by max_tokens or max-model-len
)

// Outcome is a finished request.
type Outcome struct {
	ID           uint64
	PromptTokens int
	CachedTokens int // of the prompt
	OutputTokens int
	Reason       FinishReason
	Preemptions  int
	// Arrival <= Scheduled < FirstToken <= Finished.
	Arrival, Scheduled, FirstToken, Finished time.Time
}

// Stats is the state of an engine at the time it has been advanced to. Submitted is always
// Waiting + Running + Finished + Aborted.
type Stats struct {
	Submitted, Finished, Aborted int
	Waiting, Running             int
	// Rejected requests found the queue full; they are not among the submitted.
	Rejected int
	// FirstTokens is how many requests have had one, whatever became of them.
	FirstTokens int
	// BlocksUsed of Blocks KV-cache blocks are held by running requests.
	BlocksUsed, Blocks int
	Preemptions        int
	Steps              int
	// Busy is for how long a step has been under way, all in all: the GPU's duty cycle is its
	// growth over that of time.
	Busy time.Duration
}

// KVUsage is the fraction of the KV cache in use, 0..1.
func (s Stats) KVUsage() float64 { return float64(s.BlocksUsed) / float64(s.Blocks) }

// request is a request in flight. Its tokens are the prompt's and those generated so far; a step
// computes some of those that are not computed yet, and when none is left, generates one.
type request struct {
	Request
	limit     int // output tokens it will have
	maxTokens int
	arrival   time.Time

	output      int
	computed    int
	blocks      int
	preemptions int
	aborted     bool

	scheduled, firstToken, lastToken time.Time
}

func (r *request) tokens() int { return r.PromptTokens + r.output }

// slice is a request's share of a step.
type slice struct {
	r *request
	n int // tokens computed
}

// decodes reports whether the slice is a step of decoding: the one token after those that are
// computed, rather than a chunk of a prompt (or of what is computed again).
func (s slice) decodes() bool { return s.n == 1 && s.r.output > 0 }

// Engine is one engine core. It is not safe for concurrent use.
type Engine struct {
	cfg Config
	rng *rand.Rand

	now      time.Time
	waiting  queue
	running  []*request // in order of admission; the last is preempted first
	inFlight map[uint64]*request
	free     int // blocks

	step               []slice // nil when no step is under way
	stepStart, stepEnd time.Time
	frozen             bool
	reserved           int // tokens that the running requests may come to at most
	scheduled          scheduled

	stats   Stats // the counters of it
	metrics metrics
}

// New returns an idle engine whose process started at the given time.
func New(cfg Config, start time.Time) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("engine configuration: %w", err)
	}
	return &Engine{
		cfg:      cfg,
		rng:      rand.New(rand.NewPCG(cfg.Seed, 0)),
		now:      start,
		inFlight: map[uint64]*request{},
		free:     cfg.NumGPUBlocks - 1,
		metrics:  newMetrics(cfg),
	}, nil
}

// Submit advances the engine to the given time and puts the request at the end of its queue. A
// time in the past is taken as the present.
func (e *Engine) Submit(at time.Time, r Request) error {
	switch {
	case r.PromptTokens < 1 || r.OutputTokens < 1 || r.MaxTokens < 0:
		return fmt.Errorf("request %d: needs at least one prompt and one output token, and no negative limit: prompt %d, output %d, limit %d",
			r.ID, r.PromptTokens, r.OutputTokens, r.MaxTokens)
	case r.PromptTokens >= e.cfg.MaxModelLen:
		return fmt.Errorf("request %d: %w: %d of %d tokens", r.ID, ErrTooLong, r.PromptTokens, e.cfg.MaxModelLen)
	case r.CachedTokens < 0 || r.CachedTokens >= r.PromptTokens:
		return fmt.Errorf("request %d: %d of %d prompt tokens are cached: at least one must be computed", r.ID, r.CachedTokens, r.PromptTokens)
	case e.inFlight[r.ID] != nil:
		return fmt.Errorf("request %d is already in flight", r.ID)
	}
	e.Advance(at)
	if e.cfg.MaxWaiting > 0 && e.waiting.len() >= e.cfg.MaxWaiting {
		e.stats.Rejected++
		return fmt.Errorf("request %d: %w: %d requests wait", r.ID, ErrQueueFull, e.waiting.len())
	}
	maxTokens := e.cfg.MaxModelLen - r.PromptTokens
	if r.MaxTokens > 0 {
		maxTokens = min(maxTokens, r.MaxTokens)
	}
	q := &request{Request: r, limit: min(r.OutputTokens, maxTokens), maxTokens: maxTokens, arrival: e.now}
	if e.cfg.PriorityScheduling {
		e.waiting.insert(q)
	} else {
		e.waiting.pushBack(q)
	}
	e.inFlight[r.ID] = q
	e.stats.Submitted++
	return nil
}

// Abort takes a request back, as when its client goes away, and reports whether it was in flight.
// As in vLLM, what has been counted of it stays counted, and nothing else is.
func (e *Engine) Abort(at time.Time, id uint64) bool {
	e.Advance(at)
	r := e.inFlight[id]
	if r == nil {
		return false
	}
	delete(e.inFlight, id)
	r.aborted = true
	if !e.waiting.remove(r) {
		e.running = slices.DeleteFunc(e.running, func(o *request) bool { return o == r })
		e.release(r)
	}
	e.stats.Aborted++
	e.metrics.aborted++
	if !e.frozen {
		e.report()
	}
	return true
}

// Freeze stops all progress, as a hung kernel does: the step under way does not end, requests go on
// arriving, and the reported gauges keep their last values.
func (e *Engine) Freeze(at time.Time) {
	e.Advance(at)
	e.frozen = true
}

// Unfreeze lets the engine go on where it was frozen.
func (e *Engine) Unfreeze(at time.Time) {
	e.Advance(at)
	e.frozen = false
}

// Frozen reports whether the engine is frozen.
func (e *Engine) Frozen() bool { return e.frozen }

// Advance runs the model's steps up to the given time. A step that would start right then does not
// yet, so that requests which arrive at that very time are in it.
func (e *Engine) Advance(to time.Time) {
	for e.now.Before(to) {
		switch {
		case e.frozen:
			if e.stepping() {
				e.stepEnd = e.stepEnd.Add(to.Sub(e.now))
			}
			e.now = to
		case e.stepping() && e.stepEnd.After(to):
			e.now = to
		case e.stepping():
			e.now = e.stepEnd
			e.endStep()
		case !e.startStep():
			e.now = to
		}
	}
}

// Stats returns the state at the time the engine has been advanced to. Unlike the exposition,
// which reports as of the last step, it is exact.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Waiting, s.Running = e.waiting.len(), len(e.running)
	s.Blocks = e.cfg.NumGPUBlocks - 1
	s.BlocksUsed = s.Blocks - e.free
	if e.stepping() {
		s.Busy += e.now.Sub(e.stepStart)
	}
	return s
}

func (e *Engine) stepping() bool { return len(e.step) > 0 }

// startStep schedules the next step at the present time, and reports whether there is any work.
func (e *Engine) startStep() bool {
	budget := e.cfg.MaxNumBatchedTokens
	e.scheduled = scheduled{}
	for i := 0; i < len(e.running) && budget > 0; i++ {
		r := e.running[i]
		n := min(r.tokens()-r.computed, budget)
		for !e.allocate(r, r.computed+n) {
			if e.preemptLast() == r {
				n = 0
				break
			}
		}
		if n > 0 {
			e.step = append(e.step, slice{r, n})
			budget -= n
		}
	}
	for budget > 0 && e.waiting.len() > 0 && len(e.running) < e.cfg.MaxNumSeqs {
		r := e.waiting.front()
		// Admission looks at the whole prompt, though a chunk may be all that is computed now:
		// else prompts that cannot all fit would be begun, and preempt each other. For the same
		// reason a request that this step has preempted does not come back in it: it needs what
		// it gave up.
		if blocksFor(r.tokens(), e.cfg.BlockSize) > e.free {
			break
		}
		e.waiting.popFront()
		e.running = append(e.running, r)
		if r.scheduled.IsZero() {
			r.scheduled = e.now
		}
		r.computed = r.CachedTokens
		n := min(r.tokens()-r.computed, budget)
		e.allocate(r, r.computed+n)
		e.reserved += r.PromptTokens + r.maxTokens
		e.scheduled.admitted = append(e.scheduled.admitted, r)
		e.step = append(e.step, slice{r, n})
		budget -= n
	}
	if !e.stepping() {
		return false
	}
	for _, s := range e.step {
		e.scheduled.count(s)
	}
	e.metrics.admitted(e.scheduled.admitted)
	e.stepStart = e.now
	e.stepEnd = e.now.Add(e.stepDuration())
	return true
}

// stepDuration is what the scheduled step costs.
func (e *Engine) stepDuration() time.Duration {
	c := e.cfg.StepTime
	t := c.Base
	for _, s := range e.step {
		if s.decodes() {
			t += c.Sequence + c.ContextToken*float64(s.r.computed)
			continue
		}
		n := float64(s.n)
		t += c.PrefillToken*n + c.PrefillPair*n*(float64(s.r.computed)+n/2)
	}
	if c.Jitter > 0 {
		t *= 1 + c.Jitter*(2*e.rng.Float64()-1)
	}
	return max(time.Duration(t*float64(time.Second)), 1)
}

// endStep accounts for the step that ends at the present time.
func (e *Engine) endStep() {
	var it iteration
	finished := e.step[:0:0]
	for _, s := range e.step {
		r := s.r
		if r.aborted {
			continue
		}
		r.computed += s.n
		if r.computed < r.tokens() {
			continue
		}
		r.output++
		it.generated++
		if r.output == 1 {
			r.firstToken = e.now
			it.prompts += r.PromptTokens
			e.stats.FirstTokens++
			e.metrics.firstToken(r)
		} else {
			e.metrics.nextToken(e.now.Sub(r.lastToken).Seconds())
		}
		r.lastToken = e.now
		if r.output == r.limit {
			finished = append(finished, s)
		}
	}
	e.stats.Busy += e.stepEnd.Sub(e.stepStart)
	e.stats.Steps++
	e.step = e.step[:0]
	it.scheduled, it.seconds = e.scheduled, e.stepEnd.Sub(e.stepStart).Seconds()
	e.metrics.step(it)
	for _, s := range finished {
		e.finish(s.r)
	}
	if len(finished) > 0 {
		e.running = slices.DeleteFunc(e.running, func(r *request) bool { return r.output == r.limit })
	}
	e.report()
	if e.cfg.OnFinish != nil {
		for _, s := range finished {
			e.cfg.OnFinish(s.r.outcome())
		}
	}
}

func (e *Engine) finish(r *request) {
	e.release(r)
	delete(e.inFlight, r.ID)
	e.stats.Finished++
	e.metrics.finished(r)
}

func (r *request) reason() FinishReason {
	if r.OutputTokens < r.maxTokens {
		return Stop
	}
	return Length
}

func (r *request) outcome() Outcome {
	return Outcome{
		ID: r.ID, PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, OutputTokens: r.output, Reason: r.reason(), Preemptions: r.preemptions,
		Arrival: r.arrival, Scheduled: r.scheduled, FirstToken: r.firstToken, Finished: r.lastToken,
	}
}

// allocate gives the request the blocks for that many computed tokens, or reports that there are
// not enough.
func (e *Engine) allocate(r *request, tokens int) bool {
	need := blocksFor(tokens, e.cfg.BlockSize) - r.blocks
	if need > e.free {
		return false
	}
	if need > 0 {
		r.blocks += need
		e.free -= need
	}
	return true
}

// release takes back what a running request holds.
func (e *Engine) release(r *request) {
	e.free += r.blocks
	r.blocks = 0
	e.reserved -= r.PromptTokens + r.maxTokens
}

// preemptLast puts the request that was admitted last back to the front of the queue. What had been
// computed of it is lost and is computed again, its output with it.
func (e *Engine) preemptLast() *request {
	r := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.release(r)
	r.computed = 0
	r.preemptions++
	e.stats.Preemptions++
	e.scheduled.preempted++
	e.metrics.preempted(r)
	e.waiting.pushFront(r)
	return r
}

// report takes the gauges that the exposition shows. vLLM does so at the end of a step.
func (e *Engine) report() {
	s := e.Stats()
	e.metrics.waiting, e.metrics.running, e.metrics.kvUsage = s.Waiting, s.Running, s.KVUsage()
	e.metrics.blocksUsed, e.metrics.reserved = s.BlocksUsed, e.reserved
	if e.cfg.PriorityScheduling {
		e.metrics.countPriorities(e.waiting.all(), e.running)
	}
}

// untouched counts the requests in flight that have not had a token yet.
func (e *Engine) untouched() int {
	n := 0
	for _, r := range e.inFlight {
		if r.output == 0 {
			n++
		}
	}
	return n
}

// queue is a double-ended queue of waiting requests.
type queue struct {
	items []*request
	head  int
}

func (q *queue) len() int            { return len(q.items) - q.head }
func (q *queue) front() *request     { return q.items[q.head] }
func (q *queue) pushBack(r *request) { q.items = append(q.items, r) }

func (q *queue) popFront() {
	q.items[q.head] = nil
	q.head++
	// Compacting when half is dead keeps the cost of a pop constant on average.
	if q.head*2 > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
}

func (q *queue) pushFront(r *request) {
	if q.head == 0 {
		q.items = slices.Insert(q.items, 0, r)
		return
	}
	q.head--
	q.items[q.head] = r
}

// insert puts the request behind all that have its priority or a higher one.
func (q *queue) insert(r *request) {
	i := len(q.items)
	for i > q.head && q.items[i-1].Priority < r.Priority {
		i--
	}
	q.items = slices.Insert(q.items, i, r)
}

func (q *queue) all() []*request { return q.items[q.head:] }

func (q *queue) remove(r *request) bool {
	i := slices.Index(q.items, r)
	if i < 0 {
		return false
	}
	q.items = slices.Delete(q.items, i, i+1)
	return true
}
