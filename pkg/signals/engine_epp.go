package signals

// The inference gateway's endpoint picker (EPP), of the Gateway API Inference Extension and of llm-d. Its
// series are of an InferencePool, and not of the pod that exports them.
//
// Names. llm_d_epp_* is what it writes today; for some weeks of 2026 that was llm_d_router_epp_*; both
// beside deprecated twins, inference_pool_* and inference_extension_*, which are all that older pickers
// write. (Of its third old prefix, llm_d_inference_scheduler_, nothing is read here.) A twin is another
// spelling of the same series, so it never counts twice.
//
// The pool. Its name is in the label inference_pool, or in name, by the series. None says the namespace
// (kubernetes-sigs/gateway-api-inference-extension#2309). A picker serves a pool of its own namespace,
// so it is that of its pod, where the source says which that is. Pools of one name in two namespaces
// stay two.
//
// Several pickers. What they say of the pool's replicas each says of all of them: of such copies the
// greatest counts. A standby that waits to be elected knows no replica (llm-d/llm-d-router#1884): it has
// none of these series, or says that an empty pool is saturated, which is left out. What a picker holds
// back are requests that came to it and to no other: a standby holds none, and where all of them serve
// (llm-d/llm-d-router#2228) each holds its share, so these are added. A picker that died leaves its
// last figures: like every lost part they make the pool unknown, until it has been silent for a window.
//
// Presence. A picker without flow control holds nothing back and has no series of it; with flow control
// a series comes with the first request of a flow, and goes as the flow has been idle for long. So where
// a picker tells how many replicas are ready and nothing of what it holds, it holds nothing: also of a pool
// that is empty (llm-d/llm-d#2492). Where it counts requests that leave, the series was lost on the way. A picker that refuses the requests of an empty pool instead of holding
// them (before kubernetes-sigs/gateway-api-inference-extension#1952) never says that there are any.
var epp = &Engine{
	Name: "the endpoint picker",
	series: map[Canonical]mapping{
		PoolHeld: {
			kind: Gauge, spellings: eppNames("flow_control_queue_size", "inference_extension_flow_control_queue_size"),
			within: []string{"fairness_id", "priority", "model_name", "target_model_name"},
			beside: PoolReady, noneIsZero: true, unless: PoolLeft,
		},
		PoolLeft: {
			kind: Counter, spellings: eppNames("flow_control_requests_total"),
			within: []string{"outcome", "fairness_id", "priority", "model_name", "target_model_name"},
			beside: PoolReady,
		},
		// The average of it over the replicas leaves out those whose metrics are stale, keeps its last value
		// when the last replica goes, and was a whole number once: 3 requests in 4 replicas were none.
		PoolQueue: {
			kind: Gauge, spellings: eppNames("per_endpoint_queue_size", "inference_pool_per_pod_queue_size"),
			within: []string{"model_server_endpoint", "model_server_pod"}, fold: Max,
			beside: PoolReady, zeroWith: []Canonical{PoolReady},
		},
		PoolReady: {kind: Gauge, spellings: eppNames("ready_endpoints", "inference_pool_ready_pods"), fold: Max},
		// One series, and for each stage since prefill and decode are told apart: effective is their maximum.
		PoolSaturation: {
			kind: Gauge, spellings: eppNames("flow_control_pool_saturation", "inference_extension_flow_control_pool_saturation"),
			part: []string{"stage"}, fold: Max, beside: PoolReady,
			hint: ": only a picker with flow control exports it",
		},
	},
	unsupported: declined(
		because("the endpoint picker's series are of an InferencePool: ask for pool_queue_depth", Queue),
		because("the endpoint picker sees requests, and not what they wait for", QueueByReason),
		because("what the endpoint picker counts of requests does not say of which InferencePool they are; "+
			"of a pool with flow control ask for pool_arrival_rate", Running, TTFT, TPOT, ITL, E2E, QueueTime, Arrived, Rejected, Finished, Prompt),
		because("the endpoint picker repeats what the engines say of it: ask for theirs", KVUsed, KVCapacity, PrefixQueries, PrefixHits),
		because("the endpoint picker does not see inside of the engines", PromptComputed, Generated, Preemptions, Steps),
		declinedDemand("the endpoint picker"),
		because("the endpoint picker sees no GPU", gpuSeries...),
	),
	pool:   true,
	owners: poolOwners("inference_pool", "exported_name", "name"),
}

// poolOwners are the labels that name a pool, each with those that may name the namespace of the picker.
// name is a label that scrapers are made to set, too: the picker's own is then exported_name.
func poolOwners(names ...string) []owner {
	var out []owner
	for _, name := range names {
		for _, o := range ownPod {
			out = append(out, owner{o.namespace, name})
		}
	}
	return out
}

func eppNames(name string, twins ...string) []string {
	return append([]string{"llm_d_epp_" + name, "llm_d_router_epp_" + name}, twins...)
}
