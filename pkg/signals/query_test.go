package signals

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

func TestPrepare(t *testing.T) {
	for _, tc := range []struct {
		name  string
		query Query
		err   string // "" for none
		is    error
	}{
		{name: "all there is", query: Query{Signal: "vllm_ttft_seconds", Quantile: 0.95, Window: time.Minute, SLO: SLO{TTFT: time.Second}, Where: "model=m,engine!=1"}},
		{name: "no such signal", query: Query{Signal: "vllm_happiness"}, err: "there is no such signal: vllm_happiness", is: ErrNoSignal},
		{name: "no name", err: "there is no such signal: ", is: ErrNoSignal},
		{name: "an engine that cannot", query: Query{Signal: "tgi_ttft_seconds"}, err: "tgi_ttft_seconds is not computable on ", is: ErrNotComputable},
		{name: "an unknown key", query: Query{Signal: "vllm_request_rate", Where: "team=a"}, err: "team: vllm_request_rate has no label of that name; it has engine, finished_reason, model, model_name"},
		{name: "a key of another signal", query: Query{Signal: "vllm_kv_cache_usage", Where: "reason=capacity"}, err: "reason: vllm_kv_cache_usage has no label of that name; it has engine, model, model_name"},
		{name: "no selector", query: Query{Signal: "vllm_queue_depth", Where: "model=="}, err: ""},
		{name: "half a selector", query: Query{Signal: "vllm_queue_depth", Where: "model in (a"}, err: "selector: "},
		{name: "a quantile of a rate", query: Query{Signal: "vllm_request_rate", Quantile: 0.9}, err: "quantile: vllm_request_rate is no quantile"},
		{name: "a quantile below 0", query: Query{Signal: "vllm_ttft_seconds", Quantile: -0.9}, err: "quantile: -0.9 is not between 0 and 1"},
		{name: "an objective of a gauge", query: Query{Signal: "vllm_queue_depth", SLO: SLO{E2E: time.Second}}, err: "e2e: vllm_queue_depth does not depend on objectives"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Prepare(tc.query)
			switch {
			case tc.err == "" && err != nil:
				t.Fatalf("refused: %v", err)
			case tc.err == "":
				if p.Signal() != Lookup(tc.query.Signal) || p.Query != tc.query {
					t.Errorf("plan of %v, want of %v", p.Query, tc.query)
				}
			case err == nil || !strings.HasPrefix(err.Error(), tc.err):
				t.Errorf("error %v, want %q", err, tc.err)
			case tc.is != nil && !errors.Is(err, tc.is):
				t.Errorf("%v is not %v", err, tc.is)
			}
		})
	}
}

func TestLabelValue(t *testing.T) {
	long := strings.Repeat("a", 62) + "/b"
	for v, want := range map[string]string{
		"":                            "",
		"m":                           "m",
		"meta-llama/Llama-3.1-8B":     "meta-llama_Llama-3.1-8B",
		"/models/llama 3/":            "models_llama_3",
		"Qwen/Qwen3:32b@fp8+chat":     "Qwen_Qwen3_32b_fp8_chat",
		"模型":                          "",
		"模型-7b":                       "7b",
		"...":                         "",
		long:                          strings.Repeat("a", 62), // and not with '_' at the end
		strings.Repeat("x", 100):      strings.Repeat("x", 63),
		"_" + strings.Repeat("x", 64): strings.Repeat("x", 63),
	} {
		if got := LabelValue(v); got != want {
			t.Errorf("LabelValue(%q) = %q, want %q", v, got, want)
		}
	}
}

// Whatever a model is called, the API server accepts what LabelValue makes of it, and what it accepts
// stays as it is.
func TestLabelValueIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9/._: -]{0,80}`)).Draw(t, "name")
		got := LabelValue(v)
		if faults := validation.IsValidLabelValue(got); len(faults) > 0 {
			t.Fatalf("LabelValue(%q) = %q: %v", v, got, faults)
		}
		if len(validation.IsValidLabelValue(v)) == 0 && got != v {
			t.Fatalf("LabelValue(%q) = %q", v, got)
		}
	})
}
