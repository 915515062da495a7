package engine

import (
	"strconv"
)

// GPU is one GPU as a DCGM exporter saw it at its last poll.
type GPU struct {
	Index    int
	UUID     string
	PCIBusID string
	// ModelName is the product's name, Hostname the node's.
	ModelName, Hostname string
	// Container, Namespace and Pod say who holds the GPU.
	Container, Namespace, Pod string

	// DutyCycle is for which fraction of the time between the last two polls a kernel ran, 0..1.
	// It says nothing of how much that kernel did.
	DutyCycle float64
	// UsedMiB and FreeMiB are the framebuffer's. An engine reserves its KV cache up front, so they
	// do not change with the load.
	UsedMiB, FreeMiB int
}

// AppendDCGM appends to b what /metrics of a DCGM exporter serves for the GPUs.
func AppendDCGM(b []byte, gpus []GPU) []byte {
	for _, f := range dcgmFields {
		b = append(b, "# HELP "+f.name+" "+f.help+"\n# TYPE "+f.name+" "+f.typ+"\n"...)
		for i := range gpus {
			g := &gpus[i]
			b = append(b, f.name+`{gpu="`...)
			b = strconv.AppendInt(b, int64(g.Index), 10)
			b = append(b, `",UUID="`+g.UUID+`",pci_bus_id="`+g.PCIBusID+`",device="nvidia`...)
			b = strconv.AppendInt(b, int64(g.Index), 10)
			b = append(b, `",modelName="`+g.ModelName+`",Hostname="`+g.Hostname+
				`",container="`+g.Container+`",namespace="`+g.Namespace+`",pod="`+g.Pod+`"} `...)
			b = strconv.AppendFloat(b, f.value(g), 'f', f.digits, 64)
			b = append(b, '\n')
		}
	}
	return b
}

// dcgmFields are the fields of the exporter's default set that the model has something to say of;
// a field that would be made up (clocks, temperatures, energy) is left out. digits is how many
// decimals the exporter prints: it has integers and doubles.
var dcgmFields = []struct {
	name, typ, help string
	digits          int
	value           func(*GPU) float64
}{
	{"DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", 0, func(g *GPU) float64 { return 100 * g.DutyCycle }},
	{"DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", 0, func(*GPU) float64 { return 0 }},
	{"DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", 0, func(g *GPU) float64 { return float64(g.FreeMiB) }},
	{"DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", 0, func(g *GPU) float64 { return float64(g.UsedMiB) }},
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active (in %).", 6, func(g *GPU) float64 { return g.DutyCycle }},
}
