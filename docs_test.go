package adapter_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inference-metrics/adapter/pkg/signals"
)

var rewrite = flag.Bool("rewrite", false, "write the generated documents instead of comparing them")

// TestSignalsDoc holds docs/signals.md to the catalogue that it is generated from.
func TestSignalsDoc(t *testing.T) {
	const path = "docs/signals.md"
	want := signalsDoc()
	if *rewrite {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("%s is not what the catalogue says (-file +catalogue); run make update-signals:\n%s", path, diff)
	}
}

func signalsDoc() []byte {
	var out bytes.Buffer
	say := func(format string, args ...any) { fmt.Fprintf(&out, format, args...) }
	say(`# Signals

<!-- Generated from the catalogue in pkg/signals by make update-signals. -->

Each signal is a metric of ` + "`custom.metrics.k8s.io`" + `, on pods and on the objects that stand for groups of them. Its name is
that of the engine and that of the signal, such as ` + "`vllm_queue_depth`" + `; with ` + "`inference_`" + ` before it, it is read of whatever
engine a pod runs. What a state is, and why nothing here ever answers a made-up zero, is told in [concepts.md](concepts.md); what an
HPA does with each answer is in [states.md](states.md).

Latencies are there with a quantile in their name too, such as ` + "`vllm_ttft_p99_seconds`" + `: p50, p90, p95 and p99.

| signal | unit | under overload | as the target of an HPA |
|---|---|---|---|
`)
	all := signals.Describe()
	for _, d := range all {
		say("| [`%s`](#%s) | %s | %s | %s |\n", d.Name, d.Name, d.Unit, d.Overload, d.Target)
	}
	for _, d := range all {
		say("\n## %s\n\n%s\n\n", d.Name, d.Help)
		say("- **Unit**: %s.\n- **Computed as**: %s.\n- **A group of pods**: %s.\n", d.Unit, d.Formula, d.Group)
		if d.Generic != "" {
			say("- **For whatever engine a pod runs**: `%s`.\n", d.Generic)
		}
		say("\n| state | answer |\n|---|---|\n")
		for state := signals.Unknown; state <= signals.Stalled; state++ {
			say("| %s | %s |\n", state, d.States[state])
		}
		say("\n| metric | of | read from | and, to tell the state |\n|---|---|---|---|\n")
		for _, o := range d.Offers {
			if o.Why != "" {
				say("| – | %s | not computable: %s | |\n", o.Engine, o.Why)
				continue
			}
			say("| `%s` | %s | %s | %s |\n", o.Metric, o.Engine, code(o.Series), code(o.Sharpened))
		}
	}
	say("\n## Objectives\n\nGoodput, attainment and the miss rate check requests against objectives, each in a histogram. An engine\n" +
		"without it cannot check that objective, and has none of these signals while it holds.\n\n" +
		"| engine | ttft | tpot | e2e |\n|---|---|---|---|\n")
	checks := map[string]map[signals.Canonical]string{}
	for _, s := range signals.Spellings() {
		if checks[s.Engine] == nil {
			checks[s.Engine] = map[signals.Canonical]string{}
		}
		checks[s.Engine][s.Series] = map[bool]string{true: "yes", false: "no"}[s.Why == ""]
	}
	for _, d := range all {
		if d.Name != "goodput" {
			continue
		}
		for _, o := range d.Offers {
			of := checks[o.Engine]
			say("| %s | %s | %s | %s |\n", o.Engine, of[signals.TTFT], of[signals.TPOT], of[signals.E2E])
		}
	}
	say("\n## Spellings\n\nA series may be stored under several names. Where two of them are written at once, the first counts.\n" +
		"A Prometheus server that drops series has to keep these.\n")
	engine := ""
	spellings := signals.Spellings()
	for i, s := range spellings {
		if s.Engine != engine {
			engine = s.Engine
			say("\n### %s\n\n| canonical series | names |\n|---|---|\n", engine)
		}
		if s.Why == "" {
			say("| %s | %s |\n", s.Series, code(s.Names))
		} else if next := i + 1; next == len(spellings) || spellings[next].Engine != engine || spellings[next].Why != s.Why {
			say("| %s | none: %s |\n", strings.Join(alike(spellings[:next]), ", "), s.Why)
		}
	}
	return out.Bytes()
}

// alike lists the last of the series that are missing for the same reason.
func alike(spellings []signals.Spelling) []string {
	last := spellings[len(spellings)-1]
	var out []string
	for i := len(spellings) - 1; i >= 0 && spellings[i].Engine == last.Engine && spellings[i].Why == last.Why; i-- {
		out = append([]string{string(spellings[i].Series)}, out...)
	}
	return out
}

func code(names []string) string {
	if len(names) == 0 {
		return "–"
	}
	return "`" + strings.Join(names, "`, `") + "`"
}
