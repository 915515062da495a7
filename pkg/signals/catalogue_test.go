package signals

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/window"
)

// Every engine maps each canonical series or says why it cannot, and not both.
func TestMatrix(t *testing.T) {
	for _, e := range engines {
		for _, c := range Canonicals() {
			_, mapped := e.series[c]
			reason, declined := e.unsupported[c]
			if mapped == declined {
				t.Errorf("%s, %s: mapped %v, declared unsupported %v", e.Name, c, mapped, declined)
			}
			if declined && strings.TrimSpace(reason) == "" {
				t.Errorf("%s, %s: no reason for being unsupported", e.Name, c)
			}
		}
		for c := range e.series {
			if !slices.Contains(Canonicals(), c) {
				t.Errorf("%s maps %s, which is not a canonical series", e.Name, c)
			}
		}
	}
}

// A raw series is one engine's one series: otherwise it would depend on map order whose it is. One name
// may hold several canonical series only where labels tell them apart, or where one is made of the other.
func TestNamesAreUnambiguous(t *testing.T) {
	for name, as := range addresses {
		for i, a := range as {
			for _, b := range as[:i] {
				if a.engine != b.engine {
					t.Errorf("%s is of %s and of %s", name, a.engine.Name, b.engine.Name)
				}
			}
		}
	}
	for _, e := range engines {
		for c, m := range e.series {
			if m.kind == Histogram && !slices.IsSorted(m.edges) {
				t.Errorf("%s %s: edges are not ascending", e.Name, c)
			}
			if len(m.spellings) == 0 {
				t.Errorf("%s %s: no spelling", e.Name, c)
			}
		}
	}
}

// Each name is of one kind of exporter: what a target may speak for can be told by names.
func TestNamesFrom(t *testing.T) {
	var all []string
	for exporter, one := range map[Exporter]string{FromEngine: "vllm:num_requests_waiting", FromNode: "DCGM_FI_DEV_GPU_UTIL", FromPool: "llm_d_epp_ready_endpoints"} {
		names := NamesFrom(exporter)
		if !slices.Contains(names, one) {
			t.Errorf("%s is missing among %v", one, names)
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	if diff := cmp.Diff(AllNames(), all); diff != "" {
		t.Errorf("all names (-want +got):\n%s", diff)
	}
}

// What a mapping relies on is there, and it asks for nothing that is not done.
func TestMappings(t *testing.T) {
	for _, e := range engines {
		for c, m := range e.series {
			if second := m.second(); second != nil {
				if m.kind == Histogram || second.kind != m.kind {
					t.Errorf("%s %s: two of different kinds, or histograms, are combined", e.Name, c)
				}
				if len(m.within)+len(second.within) > 0 || !slices.Equal(m.part, second.part) {
					t.Errorf("%s %s: two that are combined have other parts, or something within them", e.Name, c)
				}
			}
			witnesses := m.zeroWith
			if m.beside != "" {
				witnesses = append(witnesses, m.beside)
			} else if m.noneIsZero {
				t.Errorf("%s %s: is 0 beside nothing", e.Name, c)
			}
			for _, w := range witnesses {
				if wm, ok := e.series[w]; !ok || wm.beside != "" || wm.kind != Gauge {
					t.Errorf("%s %s: %s does not say whether it is there", e.Name, c, w)
				}
			}
		}
	}
}

func TestCatalogue(t *testing.T) {
	var names []string
	for _, s := range Catalogue() {
		names = append(names, s.Name)
		if Lookup(s.Name) != s {
			t.Errorf("Lookup(%q) is another signal", s.Name)
		}
		if s.Unit == "" || !strings.HasSuffix(s.Help, ".") {
			t.Errorf("%s: unit %q, help %q: want a unit and a sentence", s.Name, s.Unit, s.Help)
		}
	}
	for _, name := range []string{"vllm_queue_depth", "inference_queue_depth", "vllm_ttft_p99_seconds", "vllm_slo_miss_rate", "gpu_utilization",
		"pool_queue_depth", "pool_held_requests", "pool_arrival_rate", "pool_saturation", "trtllm_queue_depth", "triton_queue_depth", "nim_queue_depth", "dynamo_queue_depth"} {
		if !slices.Contains(names, name) {
			t.Errorf("there is no %s", name)
		}
	}
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("names are not sorted, or not unique: %v", names)
	}
}

func TestNames(t *testing.T) {
	got := Names([]*Plan{plan(t, "vllm_queue_depth"), plan(t, "vllm_inflight_requests"), plan(t, "vllm_ttft_p99_seconds")})
	var first []string
	for _, spellings := range got {
		first = append(first, spellings[0])
	}
	want := []string{
		"vllm:num_requests_waiting", "vllm:num_requests_swapped", "vllm:num_requests_running", "vllm:kv_cache_usage_perc",
		"vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_bucket",
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("first spellings (-want +got):\n%s", diff)
	}
	for _, spellings := range got {
		for _, n := range spellings {
			if _, ok := addresses[n]; !ok {
				t.Errorf("%s is asked for and belongs nowhere", n)
			}
		}
	}
}

func TestGroupOf(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ls    labels.Labels
		group string
		ok    bool
	}{
		{"vllm", labels.FromStrings("__name__", "vllm:num_requests_waiting", "namespace", "a", "pod", "p"), "a/p", true},
		{"vllm claims to be another pod", labels.FromStrings("__name__", "vllm:num_requests_waiting", "namespace", "a", "pod", "p", "exported_namespace", "b", "exported_pod", "q"), "a/p", true},
		{"vllm, the kubelet's names of labels", labels.FromStrings("__name__", "vllm:num_requests_waiting", "pod_namespace", "a", "pod_name", "p"), "a/p", true},
		{"vllm, relabelled by the example of old", labels.FromStrings("__name__", "vllm:num_requests_waiting", "kubernetes_namespace", "a", "kubernetes_pod_name", "p"), "a/p", true},
		{"vllm, the namespace of another pair", labels.FromStrings("__name__", "vllm:num_requests_waiting", "kubernetes_namespace", "a", "pod_name", "p"), "", false},
		{"no pod", labels.FromStrings("__name__", "vllm:num_requests_waiting", "namespace", "a"), "", false},
		{"no namespace", labels.FromStrings("__name__", "vllm:num_requests_waiting", "pod", "p"), "", false},
		{"dcgm, labels renamed by the scraper", labels.FromStrings("__name__", "DCGM_FI_DEV_GPU_UTIL", "namespace", "gpu", "pod", "exporter", "exported_namespace", "b", "exported_pod", "q"), "b/q", true},
		{"dcgm, labels honoured", labels.FromStrings("__name__", "DCGM_FI_DEV_GPU_UTIL", "namespace", "b", "pod", "q"), "b/q", true},
		{"the endpoint picker, by inference_pool", labels.FromStrings("__name__", "llm_d_epp_flow_control_queue_size", "namespace", "a", "pod", "epp", "inference_pool", "q"), "inferencepools/a/q", true},
		{"the endpoint picker, by name", labels.FromStrings("__name__", "inference_pool_ready_pods", "namespace", "a", "pod", "epp", "name", "q"), "inferencepools/a/q", true},
		{"the endpoint picker, read through OpenTelemetry", labels.FromStrings("__name__", "llm_d_epp_ready_endpoints", "k8s_namespace_name", "a", "k8s_pod_name", "epp", "name", "q"), "inferencepools/a/q", true},
		{"the endpoint picker, of no namespace", labels.FromStrings("__name__", "llm_d_epp_ready_endpoints", "name", "q"), "", false},
		{"the endpoint picker's requests, of no pool", labels.FromStrings("__name__", "llm_d_epp_request_total", "namespace", "a", "pod", "epp", "model_name", "m"), "", false},
		{"a name that may be NIM's", labels.FromStrings("__name__", "num_requests_running", "namespace", "a", "pod", "p", "model_name", "m"), "a/p", true},
		{"and may not", labels.FromStrings("__name__", "num_requests_running", "namespace", "a", "pod", "p", "model_name", "m", "engine_type", "trtllm"), "", false},
		{"not in the catalogue", labels.FromStrings("__name__", "vllm:x", "namespace", "a", "pod", "p"), "", false},
	} {
		if group, ok := GroupOf(tc.ls); group != tc.group || ok != tc.ok {
			t.Errorf("%s: GroupOf = %q, %v; want %q, %v", tc.name, group, ok, tc.group, tc.ok)
		}
	}
}

// What the configuration says of labels holds for series of targets that are pods, and for each of
// their uses: to find the pod, and to tell pods apart whose names differ in a rank.
func TestPodLabels(t *testing.T) {
	p := DefaultParams()
	p.PodLabels = []PodLabels{{Namespace: "kube_ns", Pod: "kube_pod"}, {Namespace: "ns", Pod: "podname"}}
	for _, tc := range []struct {
		name  string
		ls    labels.Labels
		group string
	}{
		{"configured", labels.FromStrings("__name__", "vllm:num_requests_waiting", "ns", "a", "podname", "p"), "a/p"},
		{"the first one first", labels.FromStrings("__name__", "vllm:num_requests_waiting", "ns", "a", "podname", "p", "kube_ns", "b", "kube_pod", "q"), "b/q"},
		{"before those built in", labels.FromStrings("__name__", "vllm:num_requests_waiting", "namespace", "a", "pod", "p", "kube_ns", "b", "kube_pod", "q"), "b/q"},
		{"half a pair", labels.FromStrings("__name__", "vllm:num_requests_waiting", "namespace", "a", "pod", "p", "kube_pod", "q"), "a/p"},
		{"up", labels.FromStrings("__name__", "up", "namespace", "a", "pod", "p", "kube_ns", "b", "kube_pod", "q"), "b/q"},
		{"dcgm, whose target is the exporter", labels.FromStrings("__name__", "DCGM_FI_DEV_GPU_UTIL", "kube_ns", "gpu", "kube_pod", "exporter", "exported_namespace", "b", "exported_pod", "q"), "b/q"},
	} {
		if group, ok := p.GroupOf(tc.ls); group != tc.group || !ok {
			t.Errorf("%s: GroupOf = %q, %v; want %q", tc.name, group, ok, tc.group)
		}
	}

	store := window.New(time.Hour, p.GroupOf)
	now := time.UnixMilli(1_000_000)
	for pod, waiting := range map[string]float64{"vllm-rank-0": 3, "vllm-rank-1": 4} {
		for back := range 3 {
			ls := labels.FromStrings("__name__", "vllm:num_requests_waiting", "kube_ns", "a", "kube_pod", pod, "namespace", "x", "pod", "collector", "engine", "0")
			store.Append(ls, now.Add(time.Duration(back-2)*5*time.Second).UnixMilli(), waiting)
		}
	}
	plan, err := Prepare(Query{Signal: "vllm_queue_depth"})
	if err != nil {
		t.Fatal(err)
	}
	for pod, want := range map[string]float64{"vllm-rank-0": 3, "vllm-rank-1": 4, "vllm": 7} {
		got := Evaluate([]*Plan{plan}, store.Group(GroupKey("a", pod)), At{Now: now, Pod: pod}, p)[0]
		if got.Value != want {
			t.Errorf("%s: %+v, want %g", pod, got.Result, want)
		}
	}
}

func TestParams(t *testing.T) {
	full := DefaultParams().Full
	for _, tc := range []struct {
		name     string
		params   Params
		err      string
		warnings []string
	}{
		{name: "defaults", params: DefaultParams()},
		{
			name:   "window too short",
			params: Params{Window: time.Second, SLO: SLO{TTFT: time.Second}, Full: full},
			err:    "window: 1s is outside 10s to 10m0s",
		},
		{
			name:   "negative and none",
			params: Params{Window: time.Minute, SLO: SLO{TPOT: -time.Second}, Full: full},
			err:    "slo.tpot: -1s is negative; leave it out for no objective",
		},
		{
			name:   "so long that twice of it is no duration",
			params: Params{Window: time.Minute, SLO: SLO{TTFT: 1<<63 - 1}, Full: full},
			err:    "slo.ttft: 2562047h47m16.854775807s is above 24h0m0s; leave it out for no objective",
		},
		{
			name:   "no objective",
			params: Params{Window: time.Minute, Full: full},
			err:    "slo: no objective is set; goodput needs at least one of ttft, tpot, e2e",
		},
		{
			name:   "off the edges",
			params: Params{Window: time.Minute, SLO: SLO{TTFT: 2 * time.Second, TPOT: time.Millisecond, E2E: 3 * time.Hour}, Full: full},
			warnings: []string{
				"slo.ttft: 2s lies between the bucket edges 1s and 2.5s of vLLM: goodput counts the requests within 1s",
				"slo.tpot: 1ms is below the least bucket edge of vLLM (0.01s): its goodput is not guaranteed to be above 0",
				"slo.e2e: 3h0m0s is above the greatest bucket edge of vLLM (7680s), which counts instead",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			if err := tc.params.Validate(); err != nil {
				got = err.Error()
			}
			if got != tc.err {
				t.Errorf("Validate: %q, want %q", got, tc.err)
			}
			if tc.err == "" {
				if diff := cmp.Diff(tc.warnings, tc.params.Warnings()); diff != "" {
					t.Errorf("Warnings (-want +got):\n%s", diff)
				}
			}
		})
	}
}
