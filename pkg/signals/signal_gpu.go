package signals

// What the GPUs of a pod do, which is served to be compared with.

var gpuUtilization = definition{
	name:     "gpu_utilization",
	unit:     "0..1",
	help:     "Duty cycle of the pod's GPUs: the part of the time in which some kernel ran, however little it did. It does not follow the load; it is served to be compared with.",
	formula:  "mean of gpu_busy over the GPUs",
	needs:    []Canonical{GPUBusy},
	eval:     levelOf(GPUBusy),
	merge:    averaged,
	overload: "is at 1 long before",
	target:   "no: it is 1 with one request, and with a hundred",
}

var gpuEngineActive = definition{
	name:     "gpu_engine_active",
	unit:     "0..1",
	help:     "Part of the time in which the compute engine of the pod's GPUs was active; what MIG instances have in the place of a duty cycle.",
	formula:  "mean of gpu_engine over the GPUs or MIG instances",
	needs:    []Canonical{GPUEngine},
	eval:     levelOf(GPUEngine),
	merge:    averaged,
	overload: "is near 1 long before",
	target:   "no: it does not follow the load either",
}

var gpuTensorActive = definition{
	name:     "gpu_tensor_active",
	unit:     "0..1",
	help:     "Part of the cycles in which the tensor cores of the pod's GPUs were active: high in prefill, low in decode.",
	formula:  "mean of gpu_tensor over the GPUs or MIG instances",
	needs:    []Canonical{GPUTensor},
	eval:     levelOf(GPUTensor),
	merge:    averaged,
	overload: "rises with prefill, falls with decode",
	target:   "no: decode that is memory-bound leaves it low",
}

var gpuMemoryUsed = definition{
	name:     "gpu_memory_used",
	unit:     "bytes",
	help:     "Memory allocated on the pod's GPUs. An engine reserves its KV cache when it starts, so it hardly changes with the load.",
	formula:  "Σ gpu_memory over the GPUs or MIG instances; of a GPU that pods share as virtual GPUs each pod has all of it, before DCGM exporter 4.8.2",
	needs:    []Canonical{GPUMemory},
	eval:     levelOf(GPUMemory),
	merge:    added,
	overload: "stays as it is",
	target:   "no: it never falls",
}
