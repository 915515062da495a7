package signals

// Canonical names a canonical series: what signals are computed from, whatever engine exported it.
type Canonical string

// The canonical series of what serves requests. Every engine maps each of them or says why it cannot.
const (
	// Queue is how many requests wait to be scheduled.
	Queue Canonical = "queue"
	// QueueByReason is how many requests wait, by what for.
	QueueByReason Canonical = "queue_by_reason"
	// Running is how many requests are in the running batch.
	Running Canonical = "running"
	// KVUsed is the fraction, 0..1, of the KV cache that is allocated.
	KVUsed Canonical = "kv_used"
	// KVCapacity is how many tokens the KV cache holds.
	KVCapacity Canonical = "kv_capacity"
	// TTFT is the histogram of the time to first token, observed at the first token.
	TTFT Canonical = "ttft"
	// TPOT is the histogram of the mean time per output token of a request, observed at its finish.
	TPOT Canonical = "tpot"
	// ITL is the histogram of the time between two outputs of a request, observed at each.
	ITL Canonical = "itl"
	// E2E is the histogram of the end-to-end latency, observed at the finish.
	E2E Canonical = "e2e"
	// QueueTime is the histogram of the time from arrival until a request is scheduled.
	QueueTime Canonical = "queue_time"
	// Arrived counts requests as they arrive, by whatever then becomes of them.
	Arrived Canonical = "arrived"
	// Rejected counts requests that were turned away before they were queued.
	Rejected Canonical = "rejected"
	// Finished counts finished requests.
	Finished Canonical = "finished"
	// Prompt counts the tokens of prompts, cached or not.
	Prompt Canonical = "prompt"
	// PromptComputed counts the tokens of prompts that were computed here: neither found in a prefix
	// cache nor transferred.
	PromptComputed Canonical = "prompt_computed"
	// Generated counts output tokens, as they are generated.
	Generated Canonical = "generated"
	// Preemptions counts how often a running request was put back.
	Preemptions Canonical = "preemptions"
	// PrefixQueries counts the tokens that were looked up in the prefix cache, or its blocks.
	PrefixQueries Canonical = "prefix_queries"
	// PrefixHits counts those of PrefixQueries that were found.
	PrefixHits Canonical = "prefix_hits"
	// Steps counts iterations of the engine.
	Steps Canonical = "steps"
	// PromptLengths is the histogram of the tokens of a prompt, observed at the finish.
	PromptLengths Canonical = "prompt_lengths"
	// OutputSum counts the output tokens of finished requests, and OutputCount those requests.
	OutputSum   Canonical = "output_sum"
	OutputCount Canonical = "output_count"
	// ServedTime counts the seconds for which finished requests ran.
	ServedTime Canonical = "served_time"
)

// The canonical series of GPUs.
const (
	// GPUBusy is the duty cycle of a GPU, 0..1: the part of the time in which some kernel ran.
	GPUBusy Canonical = "gpu_busy"
	// GPUEngine is the part of the time, 0..1, in which the graphics or compute engine was active.
	GPUEngine Canonical = "gpu_engine"
	// GPUTensor is the part of the cycles, 0..1, in which the tensor cores were active.
	GPUTensor Canonical = "gpu_tensor"
	// GPUMemory is the memory of the GPU that is allocated, in bytes.
	GPUMemory Canonical = "gpu_memory"
)

// The canonical series of a gateway's pool of replicas.
const (
	// PoolHeld is how many requests the gateway holds back, in front of the pool.
	PoolHeld Canonical = "pool_held"
	// PoolLeft counts the requests that the gateway no longer holds back, whatever became of them.
	PoolLeft Canonical = "pool_left"
	// PoolQueue is how many requests wait in the pool's replicas, as the gateway sees them.
	PoolQueue Canonical = "pool_queue"
	// PoolReady is how many replicas the gateway knows and has fresh metrics of.
	PoolReady Canonical = "pool_ready"
	// PoolSaturation is how full the gateway holds the pool to be; 1 is full.
	PoolSaturation Canonical = "pool_saturation"
)

var (
	requestSeries = []Canonical{
		Queue, QueueByReason, Running, KVUsed, KVCapacity, TTFT, TPOT, ITL, E2E, QueueTime, Arrived, Rejected, Finished,
		Prompt, PromptComputed, Generated, Preemptions, PrefixQueries, PrefixHits, Steps, PromptLengths, OutputSum, OutputCount, ServedTime,
	}
	// demandSeries are those that demand_replicas alone reads.
	demandSeries = []Canonical{PromptLengths, OutputSum, OutputCount, ServedTime}

	gpuSeries  = []Canonical{GPUBusy, GPUEngine, GPUTensor, GPUMemory}
	poolSeries = []Canonical{PoolHeld, PoolLeft, PoolQueue, PoolReady, PoolSaturation}
)

// Canonicals lists every canonical series.
func Canonicals() []Canonical {
	var out []Canonical
	for _, cs := range [][]Canonical{requestSeries, gpuSeries, poolSeries} {
		out = append(out, cs...)
	}
	return out
}

// Kind says how the samples of a canonical series are to be read.
type Kind int

const (
	// Gauge is a level: the newest sample counts.
	Gauge Kind = iota
	// Counter only grows, but for a reset when the engine restarts.
	Counter
	// Histogram is a classic histogram: counters by upper bound, cumulative in the bound.
	Histogram
)

// Fold says how the parts of one replica (its data-parallel engines, its GPUs) make one value.
type Fold int

const (
	// Sum adds the parts: requests, tokens.
	Sum Fold = iota
	// Mean averages the parts: fractions of parts of equal size.
	Mean
	// MaxOfTarget takes the highest part of each target and adds those up: what each part says of all that its
	// process serves, where a pod may have several processes.
	MaxOfTarget
	// Max takes the highest part: what each of them says of the whole.
	Max
)
