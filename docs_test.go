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

func plansOf(s *signals.Signal) []*signals.Plan {
	p, err := signals.Prepare(signals.Query{Signal: s.Name})
	if err != nil {
		panic(err) // it is in the catalogue
	}
	return []*signals.Plan{p}
}

func signalsDoc() []byte {
	var out bytes.Buffer
	out.WriteString(`# Signals

<!-- Generated from the catalogue in pkg/signals by make update-signals. -->

Each signal is a metric of ` + "`custom.metrics.k8s.io`" + ` on pods, named as below. What it answers when there is
nothing to say is told in [concepts.md](concepts.md): never a made-up zero.

A series may be stored under several spellings. The first table names the first of them, the second one all: those are
what a Prometheus server that drops series has to keep.
`)
	out.WriteString("\n| metric | unit | meaning | read from |\n|---|---|---|---|\n")
	spellings := map[string][]string{} // by the first one
	var order []string
	for _, s := range signals.Catalogue() {
		var from []string
		for _, names := range signals.Names(plansOf(s)) {
			from = append(from, "`"+names[0]+"`")
			if spellings[names[0]] == nil {
				spellings[names[0]] = names
				order = append(order, names[0])
			}
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", s.Name, s.Unit, s.Help, strings.Join(from, ", "))
	}
	out.WriteString("\n## Spellings\n\n| series | also stored as |\n|---|---|\n")
	for _, name := range order {
		var others []string
		for _, o := range spellings[name][1:] {
			others = append(others, "`"+o+"`")
		}
		if others == nil {
			others = []string{"–"}
		}
		fmt.Fprintf(&out, "| `%s` | %s |\n", name, strings.Join(others, ", "))
	}
	return out.Bytes()
}
