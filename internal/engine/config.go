package engine

import (
	"errors"
	"fmt"
	"math"
)

// Config says which engine is modelled. DefaultConfig is the place to start.
type Config struct {
	// MaxNumSeqs is the most requests that run at once (the seats).
	MaxNumSeqs int
	// MaxNumBatchedTokens is the token budget of one step, shared by prefill and decode.
	MaxNumBatchedTokens int
	// MaxModelLen is the most tokens, prompt and output, one request may have.
	MaxModelLen int
	// NumGPUBlocks is the number of KV-cache blocks, with the one that vLLM never hands out.
	NumGPUBlocks int
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// MaxWaiting is the most requests that wait; whoever comes then is rejected. 0 is no limit.
	MaxWaiting int
	// PriorityScheduling lets the waiting request with the highest priority go first, in place of
	// the one that came first. It preempts nobody.
	PriorityScheduling bool

	StepTime StepTime

	// Seed drives the jitter of step times.
	Seed uint64
	// OnFinish, if set, is called for every request that finishes, in the order of finishing,
	// from within Advance. It may Submit at the time of the outcome (closed-loop clients).
	OnFinish func(Outcome)
}

// StepTime is what one step costs, in seconds. With T prompt tokens in the step, each of which
// attends to the tokens before it, and B requests that decode, with K tokens of context together:
//
//	Base + PrefillToken·T + PrefillPair·Σ(chunk·context) + Sequence·B + ContextToken·K
type StepTime struct {
	Base         float64 // reading the weights, launching kernels
	PrefillToken float64
	PrefillPair  float64
	Sequence     float64
	ContextToken float64
	// Jitter spreads step times evenly over ± this fraction.
	Jitter float64
}

// DefaultConfig is an 8-billion-parameter model in bf16 on one 80 GB GPU of the H100 kind, with
// vLLM's defaults: 16 GB of weights read at 2.5 TB/s, 2 FLOP per parameter and token at 45 % of
// the peak, 147 kB of KV cache per token of context.
func DefaultConfig() Config {
	return Config{
		MaxNumSeqs:          256,
		MaxNumBatchedTokens: 8192,
		MaxModelLen:         32768,
		NumGPUBlocks:        23000,
		BlockSize:           16,
		StepTime: StepTime{
			Base:         7e-3,
			PrefillToken: 36e-6,
			PrefillPair:  1.5e-9,
			Sequence:     20e-6,
			ContextToken: 60e-9,
			Jitter:       0.02,
		},
		Seed: 1,
	}
}

// Validate returns every fault of the configuration.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, v int) {
		if v < 1 {
			errs = append(errs, fmt.Errorf("%s must be at least 1, is %d", name, v))
		}
	}
	positive("max-num-seqs", c.MaxNumSeqs)
	positive("max-num-batched-tokens", c.MaxNumBatchedTokens)
	positive("max-model-len", c.MaxModelLen)
	positive("block-size", c.BlockSize)
	if c.MaxWaiting < 0 {
		errs = append(errs, fmt.Errorf("max-waiting must not be negative, is %d", c.MaxWaiting))
	}
	if c.MaxModelLen < 2 {
		errs = append(errs, fmt.Errorf("max-model-len must leave room for a prompt and one output token, is %d", c.MaxModelLen))
	}
	if c.BlockSize > 0 && c.NumGPUBlocks-1 < blocksFor(c.MaxModelLen, c.BlockSize) {
		// vLLM refuses to start: such a request could neither run nor be preempted out of its own way.
		errs = append(errs, fmt.Errorf("num-gpu-blocks %d cannot hold one request of max-model-len %d: need %d blocks of %d tokens and one more",
			c.NumGPUBlocks, c.MaxModelLen, blocksFor(c.MaxModelLen, c.BlockSize), c.BlockSize))
	}
	s := c.StepTime
	for _, term := range []float64{s.Base, s.PrefillToken, s.PrefillPair, s.Sequence, s.ContextToken, s.Jitter} {
		if math.IsNaN(term) || math.IsInf(term, 0) {
			errs = append(errs, fmt.Errorf("step time: every term must be a finite number, one is %g", term))
		}
	}
	if s.Base <= 0 {
		errs = append(errs, fmt.Errorf("step time: the base must be above 0 seconds, is %g", s.Base))
	}
	if s.PrefillToken < 0 || s.PrefillPair < 0 || s.Sequence < 0 || s.ContextToken < 0 {
		errs = append(errs, errors.New("step time: no term may be negative"))
	}
	if s.Jitter < 0 || s.Jitter >= 1 {
		errs = append(errs, fmt.Errorf("step time: the jitter must be in [0, 1), is %g", s.Jitter))
	}
	return errors.Join(errs...)
}

func blocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }
