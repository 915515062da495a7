package signals

// NVIDIA's DCGM exporter. It runs per node and says in labels which pod holds a GPU: in exported_pod and
// exported_namespace where the scraper's own labels (the exporter's pod) took their names, in pod and
// namespace where the scraper honours them, and in pod_name and pod_namespace with its old label names. A
// GPU that no pod holds has none of these, or empty ones, and is then the exporter's own, where nobody asks.
//
// Parts are GPUs and MIG instances (GPU_I_ID besides the UUID of the GPU). An instance has no duty cycle,
// and repeats what is of the whole GPU (power, temperature, clocks), of which nothing is read. With claims
// (DRA) the UUID of an instance is its GPU's too, and further labels say which claim: they tell nothing apart.
//
// A GPU that pods share (time slicing, MPS) is in the labels of one of them, whichever; the others have no
// series, and are unknown. With virtual GPUs (KUBERNETES_VIRTUAL_GPUS, label vgpu) each has a copy of the whole
// GPU's, so that of GPUs in common the pods together use more than there is. Since 4.8.2 the duty cycle
// and the memory are those of each pod's own processes, beside the device's, which then has no pod.
var dcgm = &Engine{
	Name: "DCGM",
	series: map[Canonical]mapping{
		GPUBusy: {
			kind: Gauge, spellings: []string{"DCGM_FI_DEV_GPU_UTIL"}, fold: Mean, scale: 0.01, valid: dcgmValid,
			hint: dcgmHint + ", or it is a MIG instance, which has none: ask for gpu_engine_active",
		},
		GPUEngine: {kind: Gauge, spellings: []string{"DCGM_FI_PROF_GR_ENGINE_ACTIVE"}, fold: Mean, valid: dcgmValid, hint: dcgmHint},
		GPUTensor: {kind: Gauge, spellings: []string{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}, fold: Mean, valid: dcgmValid, hint: dcgmHint},
		GPUMemory: {kind: Gauge, spellings: []string{"DCGM_FI_DEV_FB_USED"}, scale: 1 << 20, valid: dcgmValid, hint: dcgmHint},
	},
	unsupported: declined(
		because("DCGM sees the GPU and not the requests on it", requestSeries...),
		because("DCGM sees the GPU and not the pools of a gateway", poolSeries...),
	),
	part: []string{"UUID", "gpu", "GPU_I_ID"},
	owners: []owner{
		{"exported_namespace", "exported_pod"}, {"exported_pod_namespace", "exported_pod_name"},
		{"pod_namespace", "pod_name"}, {"namespace", "pod"},
	},
}

const dcgmHint = ": it has no GPU, or one that it shares and another pod is named for, or the exporter is not told to export it"

// dcgmValid refuses DCGM's blank values (2^63-16 and above, 1.4e14 for doubles), which mean that
// there was no reading.
func dcgmValid(v float64) bool { return v < 1.4e14 }
