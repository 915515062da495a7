package query

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/inference-metrics/adapter/pkg/signals"
)

var parser = Parser{Window: time.Minute, Windows: []time.Duration{2 * time.Minute, 5 * time.Minute}}

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		signal, selector string
		want             signals.Query
	}{
		{"vllm_queue_depth", "", signals.Query{}},
		{"vllm_ttft_seconds", "quantile=0.95", signals.Query{Quantile: 0.95}},
		{"vllm_ttft_seconds", "quantile in (0.950)", signals.Query{Quantile: 0.95}},
		{"vllm_request_rate", "window=2m", signals.Query{Window: 2 * time.Minute}},
		{"vllm_request_rate", "window=120s", signals.Query{Window: 2 * time.Minute}},
		{"vllm_request_rate", "window=1m", signals.Query{}}, // which holds anyway
		{"vllm_goodput", "ttft=1500ms,tpot=80ms,e2e=30s", signals.Query{SLO: signals.SLO{TTFT: 1500 * time.Millisecond, TPOT: 80 * time.Millisecond, E2E: 30 * time.Second}}},
		{"vllm_queue_depth", "role=prefill", signals.Query{}}, // chooses pods, and not what is measured
		{"vllm_queue_depth", "model=meta-llama_Llama-3.1-8B", signals.Query{Where: "model=meta-llama_Llama-3.1-8B"}},
		{"vllm_queue_depth", "model in (a)", signals.Query{Where: "model=a"}},
		{"vllm_queue_depth", "model==a,model=a", signals.Query{Where: "model=a"}},
		{"vllm_queue_depth", "model notin (a)", signals.Query{Where: "model!=a"}},
		{"vllm_queue_depth", "model in (b,a),engine", signals.Query{Where: "engine,model in (a,b)"}},
		{"vllm_queue_depth", "!engine,model!=b,model!=a", signals.Query{Where: "!engine,model!=a,model!=b"}},
		{"inference_queue_depth", "model=a,role=decode", signals.Query{Where: "model=a"}},
	} {
		got, err := parser.ParseText(tc.signal, tc.selector)
		if err != nil {
			t.Errorf("%s{%s}: %v", tc.signal, tc.selector, err)
			continue
		}
		tc.want.Signal = tc.signal
		if diff := cmp.Diff(tc.want, got.Plan.Query); diff != "" {
			t.Errorf("%s{%s} (-want +got):\n%s", tc.signal, tc.selector, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		signal, selector, want string
	}{
		{"nonsense", "", "there is no such signal: nonsense"},
		{"nonsense", "tenant=a", "there is no such signal: nonsense"},
		{"vllm_queue_depth", "===", "metric selector: "},
		{"vllm_queue_depth", "tenant=a", "metric selector: tenant: vllm_queue_depth has neither a parameter nor a label of that name; it has role, window, "},
		{"vllm_queue_depth", "namespace=a", "metric selector: namespace: "},
		{"vllm_queue_depth", "pod=a", "metric selector: pod: "},
		{"vllm_queue_depth", "engine>1", "metric selector: engine: labels are equal or not, and not greater or less than others"},
		{"vllm_queue_depth", "quantile=0.5", "metric selector: quantile: vllm_queue_depth is no quantile"},
		{"vllm_queue_depth", "ttft=1s", "metric selector: ttft: vllm_queue_depth does not depend on objectives"},
		{"vllm_ttft_p99_seconds", "quantile=0.5", "metric selector: quantile: vllm_ttft_p99_seconds has its quantile in its name; ask for vllm_ttft_seconds"},
		{"vllm_ttft_seconds", "quantile=1", "metric selector: quantile: 1 is not between 0 and 1"},
		{"vllm_ttft_seconds", "quantile=NaN", "metric selector: quantile: NaN is not between 0 and 1"},
		{"vllm_ttft_seconds", "quantile=95", "metric selector: quantile: 95 is not between 0 and 1"},
		{"vllm_ttft_seconds", "quantile!=0.5", `metric selector: quantile: "quantile!=0.5" is not one value of a parameter: write quantile=, and a number between 0 and 1, such as 0.95`},
		{"vllm_ttft_seconds", "quantile in (0.5,0.9)", "metric selector: quantile: "},
		{"vllm_ttft_seconds", "quantile", "metric selector: quantile: "},
		{"vllm_ttft_seconds", "quantile=0.5,quantile=0.9", "metric selector: quantile: it is there twice"},
		{"vllm_request_rate", "window=3m", "metric selector: window: 3m0s is not among the windows that are configured: 1m0s, 2m0s, 5m0s"},
		{"vllm_request_rate", "window=5", `metric selector: window: "window=5" is not one value of a parameter: write window=, and a number and a unit, such as 1500ms or 2m`},
		{"vllm_request_rate", "window=2m,window=5m", "metric selector: window: it is there twice"},
		{"vllm_goodput", "ttft=0s", "metric selector: ttft: "},
		{"vllm_goodput", "ttft=-1s", "metric selector: "},
		{"vllm_goodput", "ttft=25h", "metric selector: ttft: 25h0m0s is outside 0 to 24h0m0s"},
		{"vllm_queue_depth", "role=router", `metric selector: role: there are prefill and decode, and not "router"`},
		{"pool_queue_depth", "role=prefill", "metric selector: role: pool_queue_depth is of a pool, and pools have no role; it has window"},
		{"pool_queue_depth", "tenant=a", "metric selector: tenant: pool_queue_depth has neither a parameter nor a label of that name; it has window"},
		{"vllm_queue_depth", "role!=prefill,role!=decode", "metric selector: role: it is there twice"},
		{"vllm_queue_depth", "model=meta-llama/Llama-3", "metric selector: "},
	} {
		if got, err := parser.ParseText(tc.signal, tc.selector); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s{%s}: got %v and error %v, want %q", tc.signal, tc.selector, got.Plan, err, tc.want)
		}
	}
	if _, err := parser.Parse("vllm_queue_depth", labels.Nothing()); err == nil {
		t.Error("a selector that chooses nothing was taken")
	}
}

// What an engine cannot give is not the selector's fault, whatever that says.
func TestParseNotComputable(t *testing.T) {
	for _, signal := range []string{"sglang_tpot_seconds", "tgi_ttft_seconds"} {
		if signals.Lookup(signal) == nil {
			continue // that engine is not in the catalogue
		}
		for _, selector := range []string{"", "tenant=a"} {
			_, err := parser.ParseText(signal, selector)
			if !errors.Is(err, signals.ErrNotComputable) || strings.Contains(err.Error(), "selector") {
				t.Errorf("%s{%s}: %v", signal, selector, err)
			}
		}
	}
}

func TestRoles(t *testing.T) {
	for selector, want := range map[string]string{
		"":                         "prefill decode -",
		"role=prefill":             "prefill",
		"role in (prefill,decode)": "prefill decode",
		"role!=prefill":            "decode -",
		"role notin (decode)":      "prefill -",
		"role":                     "prefill decode",
		"!role":                    "-",
	} {
		r, err := parser.ParseText("vllm_queue_depth", selector)
		if err != nil {
			t.Errorf("%s: %v", selector, err)
			continue
		}
		var got []string
		for _, role := range []string{"prefill", "decode", ""} {
			if r.Takes(role) {
				got = append(got, map[bool]string{true: role, false: "-"}[role != ""])
			}
		}
		if strings.Join(got, " ") != want || r.Roles() == (selector == "") {
			t.Errorf("%s takes %v, want %s", selector, got, want)
		}
	}
}

func TestSelectorIsRepeated(t *testing.T) {
	r, err := parser.ParseText("vllm_queue_depth", "model in (b,a),role=decode,!reason,engine")
	if err != nil {
		t.Fatal(err)
	}
	want := &metav1.LabelSelector{
		MatchLabels: map[string]string{"role": "decode"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "engine", Operator: "Exists"}, {Key: "model", Operator: "In", Values: []string{"a", "b"}}, {Key: "reason", Operator: "DoesNotExist"},
		},
	}
	if diff := cmp.Diff(want, r.Selector, cmp.Transformer("set", func(v []string) string { return strings.Join(v, " ") })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r, _ := parser.ParseText("vllm_queue_depth", ""); r.Selector != nil {
		t.Errorf("nothing was asked, and %v is repeated", r.Selector)
	}
}

// FuzzSelector asks for any name with any selector. What is understood means the same when it is written
// in its canonical way, and as the answer repeats it.
func FuzzSelector(f *testing.F) {
	for _, seed := range [][2]string{
		{"vllm_queue_depth", "model in (b,a),engine,!reason"},
		{"vllm_queue_depth", "model==a,model=a,model!=,role notin (prefill)"},
		{"vllm_ttft_seconds", "quantile=0.95,window=2m"},
		{"inference_goodput", "ttft=1500ms,tpot in (80ms),e2e=30s,model=meta-llama_Llama-3.1-8B"},
		{"vllm_queue_depth", "model=a,model=b"},
		{"vllm_queue_depth", "engine>1"},
		{"epp_pool_queue_depth", "window=1m"},
		{"nonsense", "==="},
	} {
		f.Add(seed[0], seed[1])
	}
	for _, s := range signals.Catalogue() {
		f.Add(s.Name, "model=a,role=decode")
	}
	f.Fuzz(func(t *testing.T, signal, selector string) {
		r, err := parser.ParseText(signal, selector)
		if err != nil {
			if err.Error() == "" || r.Plan != nil {
				t.Fatalf("refused with %q and %v", err, r.Plan)
			}
			return
		}
		q := r.Plan.Query
		again, err := parser.ParseText(signal, q.Where)
		if err != nil {
			t.Fatalf("%q is understood, and not as %q: %v", selector, q.Where, err)
		}
		if again.Plan.Where != q.Where {
			t.Errorf("%q becomes %q, and that %q", selector, q.Where, again.Plan.Where)
		}
		repeated, err := metav1.LabelSelectorAsSelector(r.Selector)
		if r.Selector == nil {
			repeated, err = labels.Everything(), nil
		}
		if err != nil {
			t.Fatalf("%q is repeated as %v: %v", selector, r.Selector, err)
		}
		again, err = parser.Parse(signal, repeated)
		if err != nil {
			t.Fatalf("%q is understood, and not as the answer repeats it, %q: %v", selector, repeated, err)
		}
		if again.Plan.Query != q {
			t.Errorf("%q is %+v, and as the answer repeats it, %q, %+v", selector, q, repeated, again.Plan.Query)
		}
		for _, role := range []string{"", signals.Prefill, signals.Decode} {
			if again.Takes(role) != r.Takes(role) {
				t.Errorf("%q and %q differ in whether they take the role %q", selector, repeated, role)
			}
		}
	})
}
