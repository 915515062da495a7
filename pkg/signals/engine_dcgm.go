package signals

// NVIDIA's DCGM exporter. It runs per node and says in labels which pod holds a GPU: in exported_pod and
// exported_namespace where the scraper's own labels (the exporter's pod) took their names, in pod and
// namespace where the scraper honours them, and in pod_name and pod_namespace with its old label names.
// A MIG instance has no duty cycle, and GPU_I_ID besides the UUID of its GPU.
var dcgm = &Engine{
	Name: "DCGM",
	series: map[Canonical]mapping{
		GPUBusy:   {kind: Gauge, spellings: []string{"DCGM_FI_DEV_GPU_UTIL"}, fold: Mean, scale: 0.01, valid: dcgmValid},
		GPUEngine: {kind: Gauge, spellings: []string{"DCGM_FI_PROF_GR_ENGINE_ACTIVE"}, fold: Mean, valid: dcgmValid},
		GPUTensor: {kind: Gauge, spellings: []string{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"}, fold: Mean, valid: dcgmValid},
		GPUMemory: {kind: Gauge, spellings: []string{"DCGM_FI_DEV_FB_USED"}, scale: 1 << 20, valid: dcgmValid},
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

// dcgmValid refuses DCGM's blank values (2^63-16 and above, 1.4e14 for doubles), which mean that
// there was no reading.
func dcgmValid(v float64) bool { return v < 1.4e14 }
