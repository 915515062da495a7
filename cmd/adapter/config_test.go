package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inference-metrics/adapter/pkg/signals"
)

func TestGoodConfigs(t *testing.T) {
	full := signals.DefaultParams().Full
	want := map[string]signals.Params{
		"empty.yaml":         signals.DefaultParams(),
		"window.yaml":        {Window: 30 * time.Second, SLO: signals.DefaultParams().SLO, Full: full},
		"objectives.yaml":    {Window: 2 * time.Minute, SLO: signals.SLO{TTFT: time.Second, TPOT: 75 * time.Millisecond}, Full: full},
		"one-objective.yaml": {Window: time.Minute, SLO: signals.SLO{E2E: 30 * time.Second}, Full: full},
	}
	for _, file := range fixtures(t, "good", len(want)) {
		got, err := readConfig(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(want[filepath.Base(file)], got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	want := map[string]string{
		"unknown-field.yaml":     `unknown field "slos": there are window, slo.ttft, slo.tpot and slo.e2e`,
		"unknown-objective.yaml": `unknown field "itl": there are window, slo.ttft, slo.tpot and slo.e2e`,
		"no-unit.yaml": `window: "60" is no duration: write a number and a unit, such as 2.5s or 100ms` + "\n" +
			`slo.ttft: "fast" is no duration: write a number and a unit, such as 2.5s or 100ms`,
		"out-of-bounds.yaml": "window: 1s is outside 10s to 10m0s\n" +
			"slo.ttft: -1s is negative; leave it out for no objective",
		"no-objective.yaml":  "slo: no objective is set; goodput needs at least one of ttft, tpot, e2e",
		"wrong-kind.yaml":    "slo: this cannot be of type array",
		"no-mapping.yaml":    "the whole file: this cannot be of type array",
		"twice.yaml":         "error converting YAML to JSON: yaml: unmarshal errors:\n  line 2: key \"window\" already set in map",
		"two-documents.yaml": "there is more than one document in it: leave out the lines ---",
		"no-yaml.yaml":       "error converting YAML to JSON: yaml: line 1: did not find expected node content",
	}
	for _, file := range fixtures(t, "bad", len(want)) {
		_, err := readConfig(file)
		if err == nil {
			t.Errorf("%s was read", file)
			continue
		}
		got, found := strings.CutPrefix(err.Error(), "--config "+file+": ")
		if diff := cmp.Diff(want[filepath.Base(file)], got); !found || diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
	if _, err := readConfig("/dev/zero"); err == nil || err.Error() != "--config: /dev/zero is larger than 1 MiB" {
		t.Errorf("a file without end: %v", err)
	}
	if _, err := readConfig("testdata/none.yaml"); err == nil || !strings.Contains(err.Error(), "--config: open testdata/none.yaml") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// fixtures returns the files of a directory, which are to be as many as there are expectations.
func fixtures(t *testing.T, dir string, n int) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != n {
		t.Fatalf("%d files in testdata/%s, and %d expectations", len(entries), dir, n)
	}
	var files []string
	for _, e := range entries {
		files = append(files, filepath.Join("testdata", dir, e.Name()))
	}
	return files
}
