package engine

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata (only when a change of the exposition is meant)")

// served are two ranks in the middle of work: rank 1 has requests waiting, running and finished.
func served(t testing.TB) []*Engine {
	cfg := DefaultConfig()
	cfg.MaxNumSeqs = 2
	cfg.StepTime.Jitter = 0
	engines := []*Engine{mustNew(t, cfg), mustNew(t, cfg)}
	e := engines[1]
	mustSubmit(t, e, sec(1), Request{ID: 1, PromptTokens: 1500, OutputTokens: 40, MaxTokens: 40})
	mustSubmit(t, e, sec(1.1), Request{ID: 2, PromptTokens: 900, OutputTokens: 1})
	mustSubmit(t, e, sec(1.2), Request{ID: 3, PromptTokens: 12000, OutputTokens: 300})
	mustSubmit(t, e, sec(1.3), Request{ID: 4, PromptTokens: 700, OutputTokens: 200})
	mustSubmit(t, e, sec(1.4), Request{ID: 5, PromptTokens: 700, OutputTokens: 200})
	for _, e := range engines {
		e.Advance(sec(3))
	}
	e.Advance(e.stepEnd) // what is reported is then what is
	return engines
}

var current = Exposition{ModelName: "Qwen/Qwen3-8B", Created: t0}

func TestGolden(t *testing.T) {
	for _, tt := range []struct {
		file string
		x    func(*Exposition)
	}{
		{"vllm.prom", func(*Exposition) {}},
		{"vllm_0.10.prom", func(x *Exposition) { x.Release = V0_10 }},
		{"vllm_0.9.1_underscores.prom", func(x *Exposition) { x.Release, x.Underscores = V0_9_1, true }},
	} {
		t.Run(tt.file, func(t *testing.T) {
			x := current
			tt.x(&x)
			golden(t, tt.file, Append(nil, x, served(t)))
		})
	}
	t.Run("dcgm.prom", func(t *testing.T) { golden(t, "dcgm.prom", AppendDCGM(nil, someGPUs)) })
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

var someGPUs = []GPU{
	{Index: 0, UUID: "GPU-0", PCIBusID: "00000000:01:00.0", ModelName: "NVIDIA H100 80GB HBM3", Hostname: "node-a",
		Container: "vllm", Namespace: "default", Pod: "vllm-0", DutyCycle: 0.87654321, UsedMiB: 75034, FreeMiB: 6525},
	{Index: 1, UUID: "GPU-1", PCIBusID: "00000000:02:00.0", ModelName: "NVIDIA H100 80GB HBM3", Hostname: "node-a",
		DutyCycle: 1, UsedMiB: 75034, FreeMiB: 6525},
}

func families(t testing.TB, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	f, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestExpositionTellsWhatTheEngineKnows(t *testing.T) {
	engines := served(t)
	f := families(t, Append(nil, current, engines))
	value := func(family string, want ...string) float64 {
		t.Helper()
		for _, m := range f[family].GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(have, w) }) {
				switch {
				case m.Gauge != nil:
					return m.Gauge.GetValue()
				case m.Counter != nil:
					return m.Counter.GetValue()
				case m.Histogram != nil:
					return float64(m.Histogram.GetSampleCount())
				}
			}
		}
		t.Fatalf("no %s%v", family, want)
		return 0
	}
	s := engines[1].Stats()
	if s.Waiting == 0 || s.Running == 0 || s.Finished == 0 {
		t.Fatalf("the fixture is meant to be in the middle of work: %+v", s)
	}
	for _, tt := range []struct {
		got, want float64
		what      string
	}{
		{value("vllm:num_requests_running", "engine=1"), float64(s.Running), "running"},
		{value("vllm:num_requests_waiting", "engine=1"), float64(s.Waiting), "waiting"},
		{value("vllm:num_requests_waiting_by_reason", "engine=1", "reason=capacity"), float64(s.Waiting), "waiting by reason"},
		{value("vllm:kv_cache_usage_perc", "engine=1"), s.KVUsage(), "KV usage"},
		{value("vllm:num_requests_running", "engine=0"), 0, "running on the idle rank"},
		{value("vllm:request_success_total", "engine=1", "finished_reason=stop"), 1, "stopped"},
		{value("vllm:request_success_total", "engine=1", "finished_reason=length"), 1, "cut"},
		{value("vllm:request_success_total", "engine=1", "finished_reason=abort"), 0, "aborted"},
		{value("vllm:e2e_request_latency_seconds", "engine=1"), float64(s.Finished), "latencies"},
		{value("vllm:time_to_first_token_seconds", "engine=1"), float64(s.Finished + s.Running), "first tokens"},
		{value("vllm:cache_config_info", "engine=1", "block_size=16", "num_gpu_blocks=46000"), 1, "cache configuration"},
		{value("vllm:request_prompt_tokens_created", "engine=0"), float64(t0.Unix()), "created"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %g, want %g", tt.what, tt.got, tt.want)
		}
	}
}

func TestPrometheusParsesIt(t *testing.T) {
	for name, text := range map[string][]byte{
		"vllm":        Append(nil, current, served(t)),
		"old":         Append(nil, Exposition{ModelName: `a "quoted" \ name`, Created: t0, Release: V0_9_1}, served(t)),
		"underscores": Append(nil, Exposition{ModelName: "m", Created: t0, Underscores: true}, served(t)),
		"dcgm":        AppendDCGM(nil, someGPUs),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := textparse.New(text, "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
			if err != nil {
				t.Fatal(err)
			}
			series := map[string]bool{}
			for {
				entry, err := p.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if entry != textparse.EntrySeries {
					continue
				}
				var ls labels.Labels
				p.Labels(&ls)
				if series[ls.String()] {
					t.Errorf("series twice: %s", ls)
				}
				series[ls.String()] = true
				if name == "old" && ls.Get("model_name") != `a "quoted" \ name` && !strings.HasSuffix(ls.Get("__name__"), "cache_config_info") {
					t.Fatalf("model_name was not escaped: %s", ls)
				}
			}
			if want := bytes.Count(text, []byte("\n")) - bytes.Count(text, []byte("# ")); len(series) != want {
				t.Errorf("%d series, want %d", len(series), want)
			}
		})
	}
}

// shape reduces an exposition to what must be like the real one: families with their types, label
// names, the values of those labels that are an enumeration, and bucket edges.
func shape(t *testing.T, text []byte) map[string][]string {
	got := map[string][]string{}
	for name, f := range families(t, text) {
		seen := map[string]bool{f.GetType().String(): true}
		for _, m := range f.GetMetric() {
			var ls []string
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "finished_reason", "reason", "source", "sleep_state":
					ls = append(ls, l.GetName()+"="+l.GetValue())
				default:
					ls = append(ls, l.GetName())
				}
			}
			sort.Strings(ls)
			seen[strings.Join(ls, ",")] = true
			for _, b := range m.GetHistogram().GetBucket() {
				seen["le="+string(appendFloat(nil, b.GetUpperBound()))] = true
			}
		}
		for s := range seen {
			got[name] = append(got[name], s)
		}
		sort.Strings(got[name])
	}
	return got
}

// TestLikeRecorded compares with expositions of real servers where somebody has put some beside
// the repository.
func TestLikeRecorded(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/dumps/vllm_v1_*.prom")
	if len(files) == 0 {
		t.Skip("no recorded expositions beside the repository")
	}
	ours := Append(nil, current, served(t))
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := shape(t, text)
			delete(want, "vllm:lora_requests_info") // only with LoRA
			if d := cmp.Diff(want, shape(t, ours)); d != "" {
				t.Errorf("(-recorded +ours):\n%s", d)
			}
			if d := cmp.Diff(heads(text), heads(ours)); d != "" {
				t.Errorf("HELP, TYPE and their order (-recorded +ours):\n%s", d)
			}
			for line := range strings.SplitSeq(string(text), "\n") {
				if strings.Contains(line, `engine="0"`) && strings.Contains(line, "_bucket") &&
					!strings.Contains(string(ours), line[:strings.LastIndexByte(line, ' ')]) {
					t.Errorf("we have no %s", line)
				}
			}
		})
	}
}

func heads(text []byte) []string {
	var h []string
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.HasPrefix(line, "# ") && !strings.Contains(line, "lora_requests_info") {
			h = append(h, line)
		}
	}
	return h
}

func TestAppendFloat(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 1: "1.0", 0.001: "0.001", 0.00001: "1e-05", 0.0001: "0.0001", -3: "-3.0", 2560: "2560.0",
		999999: "999999.0", 1e6: "1e+06", 1234567: "1.234567e+06", 12345678.5: "1.23456785e+07",
		1796102844.571783: "1.796102844571783e+09", 0.4123456789012345: "0.4123456789012345",
		100000.25: "100000.25", 1e16: "1e+16", 5e15: "5e+015",
	} {
		if got := string(appendFloat(nil, v)); got != want {
			t.Errorf("%g is written %s, want %s", v, got, want)
		}
	}
}

func TestParseRelease(t *testing.T) {
	for _, r := range []Release{V0_20, V0_10, V0_9_1} {
		if got, ok := ParseRelease(r.String()); !ok || got != r {
			t.Errorf("%v: %v, %v", r, got, ok)
		}
	}
	if _, ok := ParseRelease("0.3"); ok {
		t.Error("0.3 was accepted")
	}
}

func TestTokenEdges(t *testing.T) {
	if d := cmp.Diff([]float64{1, 2, 5, 10, 20, 50, 100, 200}, tokenEdges(200)); d != "" {
		t.Error(d)
	}
}

func BenchmarkAppend(b *testing.B) {
	engines := served(b)[1:]
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], current, engines)
	}
}
