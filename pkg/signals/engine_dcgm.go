package signals

// NVIDIA's DCGM exporter. It runs per node and says in labels which pod holds a GPU: in pod and
// namespace where the scraper honours them, in exported_pod and exported_namespace where the
// scraper's own labels (the exporter's pod) took those names.
var dcgm = &Engine{
	Name: "DCGM",
	series: map[Canonical]mapping{
		GPUBusy: {kind: Gauge, spellings: []string{"DCGM_FI_DEV_GPU_UTIL"}, part: []string{"UUID", "gpu"}, fold: Mean, scale: 0.01, valid: dcgmValid},
	},
	unsupported: map[Canonical]string{
		Queue: dcgmReason, Running: dcgmReason, KVUsed: dcgmReason, TTFT: dcgmReason, TPOT: dcgmReason,
		E2E: dcgmReason, Finished: dcgmReason, Generated: dcgmReason,
	},
	podLabels: []podLabel{{"exported_namespace", "exported_pod"}, {"namespace", "pod"}},
}

const dcgmReason = "DCGM sees the GPU and not the requests on it"

// dcgmValid refuses DCGM's blank values (2^63-16 and above, 1.4e14 for doubles), which mean that
// there was no reading.
func dcgmValid(v float64) bool { return v < 1.4e14 }
