package pods

import "slices"

// The roles of a replica where prefill and decode are apart.
const (
	RolePrefill = "prefill"
	RoleDecode  = "decode"
)

// roleLabels are the labels that say a pod's role, by the project whose controller or guide sets
// them.
var roleLabels = []string{
	"llm-d.ai/role",                          // llm-d, the inference gateway's picker, KServe's LLMInferenceService
	"disaggregatedset.x-k8s.io/role",         // LeaderWorkerSet's DisaggregatedSet
	"nvidia.com/dynamo-sub-component-type",   // Dynamo, where the component's type is "worker"
	"nvidia.com/dynamo-component-type",       // Dynamo since v1beta1
	"role-name",                              // AIBrix's StormService
	"model.aibrix.ai/role",                   // AIBrix before
	"rolebasedgroup.workloads.x-k8s.io/role", // RoleBasedGroup
	"rbg.workloads.x-k8s.io/role-name",       // RoleBasedGroup since v1alpha2
}

// roles says what the values of those labels mean. A pod of the role "" does both: it is a replica
// like any other.
var roles = map[string]string{
	"prefill":               RolePrefill,
	"encode-prefill":        RolePrefill,
	"decode":                RoleDecode,
	"encode-decode":         RoleDecode,
	"both":                  "",
	"prefill-decode":        "",
	"encode-prefill-decode": "",
}

// Role says whether a pod does prefill or decode only: RolePrefill, RoleDecode, or "". The first
// label decides that has a value we know; those of keys come before those that are built in.
func Role(p *Pod, keys []string) string {
	for _, known := range [][]string{keys, roleLabels} {
		i := slices.IndexFunc(known, func(key string) bool {
			_, ok := roles[p.Labels[key]]
			return ok
		})
		if i >= 0 {
			return roles[p.Labels[known[i]]]
		}
	}
	return ""
}
