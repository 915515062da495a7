package capacity

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Model is what one variant's work costs, in seconds of a replica.
type Model struct {
	Step    float64 // per step, whatever is in it
	Prompt  float64 // per prompt token that no cache held
	Token   float64 // per output token
	Context float64 // per output token, times the request's share of the KV cache
	// TokensPerStep is how many tokens a request gets in a step: above 1 with speculative decoding.
	TokensPerStep float64
	// MostRunning is the most requests that ran at once in what has been seen. 0: not limited.
	MostRunning float64

	// HeldOut is by how much the busy time of windows that were held out was off, and Windows how
	// many there were. Both are 0 of a model that somebody has configured.
	HeldOut float64
	Windows int

	fit   fitted
	noise float64 // variance of a row
}

// Role is which part of the requests' work the replicas do.
type Role int

// The roles.
const (
	Both Role = iota
	Prefill
	Decode
)

// Objectives are what a replica is full by.
type Objectives struct {
	Role Role
	// TTFT and TPOT are to be met by nine requests of ten.
	TTFT, TPOT time.Duration
	// Seats is the engine's max_num_seqs, and BatchTokens its max_num_batched_tokens. 0: not known.
	Seats, BatchTokens float64
	// Drain is the time in which what waits is to be gone; no shorter than a cold start, because
	// what is asked for does not come sooner.
	Drain time.Duration
}

// Load is what is asked of some replicas. Loads add up.
type Load struct {
	// Arrived counts requests by window: first tokens, and by how much the queue has grown, and
	// what was rejected. Never finished ones.
	Arrived map[time.Duration]float64
	// Waiting is how many requests wait now, of each replica that reports: 0 is an entry too.
	Waiting []float64
	// InUse is how many run now.
	InUse float64

	// The rest is of the longest of the windows. Means of gauges: requests that run, and the
	// fraction of the KV cache in use, 0 when not exported.
	Running, KV float64
	// FirstTokens counts them; PromptTokens are those of their prompts, cached or not, and
	// PromptSquares the sum of the squares of them, 0 when not known.
	FirstTokens, PromptTokens, PromptSquares float64
	// WarmTokens are the prompt tokens of replicas that are older than a cold start, and
	// WarmComputed how many of them no cache held. A new replica's cache is cold; were that taken
	// for the service's, a scale-out would ask for another.
	WarmTokens, WarmComputed float64
	// Finished requests and their output tokens. The ratio alone is used.
	Finished, OutputTokens float64
}

// Add returns the load of both.
func (l Load) Add(o Load) Load {
	sum := Load{
		Waiting: slices.Concat(l.Waiting, o.Waiting),
		InUse:   l.InUse + o.InUse,
		Running: l.Running + o.Running, KV: l.KV + o.KV,
		FirstTokens: l.FirstTokens + o.FirstTokens, PromptTokens: l.PromptTokens + o.PromptTokens,
		PromptSquares: l.PromptSquares + o.PromptSquares,
		WarmTokens:    l.WarmTokens + o.WarmTokens, WarmComputed: l.WarmComputed + o.WarmComputed,
		Finished: l.Finished + o.Finished, OutputTokens: l.OutputTokens + o.OutputTokens,
	}
	switch {
	case len(l.Waiting) == 0:
		sum.Arrived = o.Arrived
	case len(o.Waiting) == 0:
		sum.Arrived = l.Arrived
	default:
		// A window that one of them does not know is one that the sum does not know.
		sum.Arrived = map[time.Duration]float64{}
		for w, n := range l.Arrived {
			if m, ok := o.Arrived[w]; ok {
				sum.Arrived[w] = n + m
			}
		}
	}
	return sum
}

// rate is the arrival rate per second: that of the longest window, or a higher one that a shorter
// window is sure of.
func (l Load) rate() (perSecond float64, longest time.Duration) {
	for w := range l.Arrived {
		longest = max(longest, w)
	}
	for w, n := range l.Arrived {
		r := n / w.Seconds()
		if w != longest {
			r = (n - sure*math.Sqrt(lumps*n)) / w.Seconds()
		}
		perSecond = max(perSecond, r)
	}
	return perSecond, longest
}

// Bound is a limit on what one replica can serve.
type Bound string

// The bounds.
const (
	Time       Bound = "step time"   // more would make output tokens too slow
	KVCache    Bound = "KV cache"    // more would not fit
	Seats      Bound = "seats"       // more would not be scheduled
	Seen       Bound = "experience"  // more has not been seen
	FirstToken Bound = "first token" // more would make prompts wait too long
)

// Demand is an offered load in replicas.
type Demand struct {
	// Replicas is the sum of Offered, for what arrives, Backlog, for what waits, and Held, for
	// replicas that are there and are not known to be too many.
	Replicas, Offered, Backlog, Held float64
	// Bound is the limit that a replica reaches first.
	Bound Bound
	// Without lists the limits that were not looked at, because what they need is not known.
	Without []Bound
	// Rate is how many requests arrive per second.
	Rate float64
	// Error is the standard error of a replica's capacity, as a fraction: how far the load is from what the
	// model has been learned from. It is 0 of a configured model.
	Error float64
}

const (
	stepMargin = 0.8 // of the objective: requests differ, steps too
	kvMargin   = 0.9 // of the cache: requests grow while they run
	maxReach   = 4.0 // times what has been seen
	sure       = 2.0 // standard deviations
	lumps      = 2.0 // variance of the work that arrives, over that of the count: it comes in lumps
	missing    = 0.1 // of requests may miss the objective
	normal90   = 1.3 // standard deviations above the mean that one of ten exceeds
	leastUse   = 0.3 // of a replica, however long its prompts are
)

// Demand returns the replicas that the load needs, or an error that says what is not known.
func (m Model) Demand(l Load, o Objectives) (Demand, error) {
	rate, window := l.rate()
	waiting := 0.0
	for _, n := range l.Waiting {
		waiting += n
	}
	switch {
	case len(l.Waiting) == 0:
		return Demand{}, errors.New("no replica reports its load")
	case window == 0:
		return Demand{}, errors.New("arrivals have not been counted over any window")
	case !finite(l) || math.IsNaN(rate+waiting):
		return Demand{}, errors.New("the load is not a number")
	case m.Step < 0 || m.Step == 0 && o.Role != Prefill || m.Prompt < 0 || m.Token < 0 || m.Context < 0 || m.TokensPerStep <= 0:
		return Demand{}, errors.New("the model is not complete: it needs the time of a step, and no cost may be negative")
	case rate == 0 && waiting == 0 && l.InUse == 0 && l.Running == 0:
		return Demand{}, nil // idle
	case l.FirstTokens <= 0 && o.Role != Decode:
		return Demand{}, fmt.Errorf("no first token in %s: how long prompts are is not known", window)
	case l.Finished <= 0 && o.Role != Prefill:
		return Demand{}, fmt.Errorf("no request finished in %s: how long outputs are is not known", window)
	}

	prompt, squares := 0.0, 0.0
	if o.Role != Decode {
		prompt = l.PromptTokens / l.FirstTokens
		if l.WarmTokens > 0 {
			prompt *= l.WarmComputed / l.WarmTokens
		}
		squares = 4 // of the mean's square: a long tail, when not known
		if l.PromptSquares > 0 {
			squares = max(1, l.PromptSquares*l.FirstTokens/(l.PromptTokens*l.PromptTokens))
		}
	}
	output, share := 0.0, 0.0
	if o.Role != Prefill {
		output = max(l.OutputTokens/l.Finished, 1)
		if l.Running > 0 {
			share = l.KV / l.Running
		}
	}
	decoded := output
	if o.Role == Both {
		decoded-- // the first one comes with the prompt
	}
	x := vector{0, prompt, decoded, decoded * share}
	if m.Context == 0 && !m.fit.occurs[3] {
		x[3] = 0 // learned where no KV share is exported: output tokens cost it
	}
	costs := vector{m.Step, m.Prompt, m.Token, m.Context}
	work := x.dot(costs) // seconds of a replica and request, but for the steps' own
	steps := max(output/m.TokensPerStep, 1)
	if work <= 0 {
		return Demand{}, errors.New("the model has no cost for what this load is made of")
	}

	q := requestCost{
		model: m, objectives: o, prompt: m.Prompt * prompt, squares: squares,
		token: m.Token + m.Context*share, work: work, steps: steps,
	}
	// The rate at which one replica is full.
	full, bound := math.Inf(1), Time
	limit := func(rate float64, b Bound) {
		if rate < full {
			full, bound = rate, b
		}
	}
	if o.TPOT > 0 && o.Role != Prefill {
		if longest := stepMargin * m.TokensPerStep * o.TPOT.Seconds(); longest <= m.Step {
			return Demand{}, fmt.Errorf("no number of replicas gives output tokens every %s: a step takes %.3f s with next to nothing in it",
				o.TPOT, m.Step)
		}
		limit(q.byTokenTime(), Time)
	}
	var without []Bound
	if o.Role != Prefill {
		if share > 0 {
			limit(q.byPlaces(kvMargin/share), KVCache)
		} else {
			without = append(without, KVCache)
		}
		if o.Seats > 0 {
			limit(q.byPlaces(o.Seats), Seats)
		} else {
			without = append(without, Seats)
		}
	}
	if m.MostRunning > 0 {
		limit(q.at(maxReach*m.MostRunning), Seen)
	}
	if o.TTFT > 0 && o.Role != Decode {
		limit(q.byFirstToken(full), FirstToken)
	}
	if math.IsInf(full, 1) {
		return Demand{}, errors.New("nothing limits a replica: give an objective for the time per output token or to the first one")
	}
	perRequest, running := 1/full, max(q.running(full), 1)
	d := Demand{Rate: rate, Offered: rate * perRequest, Bound: bound, Without: without}
	if o.Drain > 0 {
		// What waits stays where it is: others can take no more off its replica than all that
		// comes to it, which is one replica's work at most.
		for _, n := range l.Waiting {
			d.Backlog += min(n*perRequest/o.Drain.Seconds(), 1)
		}
	}
	// What runs longer than the window has arrived before it, and few arrivals may be few by chance.
	// Both hold what is there: below what an HPA at 850m takes for full, they never ask for more.
	unsure := d.Offered * (1 + sure*math.Sqrt(lumps/max(l.Arrived[window], 1)))
	held := min(max(l.InUse/running, unsure), 0.8*float64(len(l.Waiting)))
	d.Held = max(0, held-d.Offered-d.Backlog)
	d.Replicas = d.Offered + d.Backlog + d.Held
	x[0] = steps / running
	if m.Windows > 0 {
		d.Error = math.Sqrt(m.noise*m.fit.variance(x)) / x.dot(costs)
	}
	if !(d.Error <= maxError) {
		return Demand{}, fmt.Errorf("this mix of prompts (%.0f tokens) and outputs (%.0f) is too far from what has been seen: the answer may be off by %.0f %%",
			prompt, output, 100*d.Error)
	}
	return d, nil
}

// requestCost is what a mean request costs one replica, and from it the rates at which it is full.
type requestCost struct {
	model      Model
	objectives Objectives
	prompt     float64 // seconds, of its prompt
	squares    float64 // mean square of prompts, over the square of their mean
	token      float64 // seconds, of one output token
	work       float64 // seconds, of both: all that adds up
	steps      float64 // that it runs for
}

// at returns the rate at which n requests run at once. A step then takes Step + n·work/steps, and
// each request steps of them.
func (q requestCost) at(n float64) float64 {
	n = max(n, 1)
	return n / (q.steps*q.model.Step + n*q.work)
}

// running is the inverse of at.
func (q requestCost) running(rate float64) float64 {
	return rate * q.steps * q.stepTime(rate)
}

// stepTime is the mean of it: what the rate's own work leaves of a second is shared by the steps.
func (q requestCost) stepTime(rate float64) float64 {
	idle := 1 - rate*q.work
	if idle <= 0 {
		return math.Inf(1)
	}
	return q.model.Step / idle
}

// byTokenTime is the rate at which one request of ten has slower tokens than the objective.
//
// Its output takes steps, and the prompts that come meanwhile go first: a busy period with a delay,
// of which the mean and the variance are known. Short outputs average over less of it, which half
// the mean output stands for.
func (q requestCost) byTokenTime() float64 {
	longest := stepMargin * q.model.TokensPerStep * q.objectives.TPOT.Seconds()
	onAverage := (1 - q.model.Step/longest) / q.work
	varied := highest(onAverage, func(rate float64) bool {
		mean, free := q.stepTime(rate), 1-rate*q.prompt
		variance := mean * rate * q.prompt * q.prompt * q.squares / (free * free * q.steps / 2)
		return mean+normal90*math.Sqrt(variance) <= longest
	})
	// More replicas do not help those that a single prompt stops for too long.
	return max(varied, leastUse*onAverage)
}

// byPlaces is the rate at which one request of ten waits longer than the objective for one of n
// places: Erlang's queue.
func (q requestCost) byPlaces(n float64) float64 {
	n = max(n, 1)
	full := q.at(n)
	patience := q.objectives.TTFT.Seconds()
	if patience <= 0 || n > 4096 {
		return full // of that many, nobody waits
	}
	return highest(full, func(rate float64) bool {
		stay := n / full // as long as when all are taken
		return erlangC(n, rate*stay)*math.Exp(-(n-rate*stay)*patience/stay) <= missing
	})
}

// byFirstToken is the rate at which one request of ten waits longer than the objective for its first
// token. Prompts are computed one after the other, each in chunks that share their steps with what
// decodes: an M/G/1 queue, of which the tail is taken to be exponential. full is the rate that the
// other limits allow.
func (q requestCost) byFirstToken(full float64) float64 {
	if q.prompt <= 0 {
		return math.Inf(1)
	}
	batch := q.objectives.BatchTokens
	if batch <= 0 {
		batch = 2048 // the smallest default there is: the least room beside what decodes
	}
	others := q.model.Step
	if !math.IsInf(full, 1) && q.objectives.Role != Prefill {
		others += q.running(full) * q.token
	}
	service := q.prompt * (1 + others/(q.model.Prompt*batch))
	slack := q.objectives.TTFT.Seconds() - service - others // a step that is under way ends first
	use := highest(1, func(use float64) bool {
		return use*math.Exp(-slack*2*(1-use)/(service*q.squares)) <= missing
	})
	// More replicas do not help those whose own prompt takes too long.
	return max(use, leastUse) / service
}

// highest is the highest value below most at which ok holds, which it does up to there.
func highest(most float64, ok func(float64) bool) float64 {
	lo, hi := 0.0, most
	for range 25 {
		mid := (lo + hi) / 2
		if ok(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// erlangC is the probability that all of n places are taken, with the offered load in places.
func erlangC(n, offered float64) float64 {
	if offered >= n {
		return 1
	}
	blocked := 1.0 // Erlang B, of 0, 1, … places
	for k := 1.0; k <= n; k++ {
		blocked = offered * blocked / (k + offered*blocked)
	}
	return blocked / (1 - offered/n*(1-blocked))
}

func finite(l Load) bool {
	sum := l.InUse + l.Running + l.KV + l.FirstTokens + l.PromptTokens + l.PromptSquares +
		l.WarmTokens + l.WarmComputed + l.Finished + l.OutputTokens
	return !math.IsNaN(sum) && !math.IsInf(sum, 0)
}
