package drills

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what was observed into docs/reliability.md")

// document is the table's file, seen from here.
const document = "../../../docs/reliability.md"

// What stands around the table in the document.
const (
	tableBegins = "<!-- Written by make update-drills. -->\n\n"
	tableEnds   = "\n<!-- The table ends. -->"
)

// A row is what came of a drill.
type row struct {
	Part, Drill, Done, Observed string
	// Again is how long it took until everything was right again; 0 where it was all the time.
	Again time.Duration
	// HPA says that the drill went through the API server and an HPA, and Judge who saw to it otherwise, if it
	// was not the judge of this package.
	HPA   bool
	Judge string
	// Test is where the drill is.
	Test string
}

var parts = []string{"Source", "Engines", "Kubernetes", "Load"}

// elsewhere are tests of other packages that are drills.
var elsewhere = []row{
	{Part: "Source", Drill: "dies at peak", Done: "Prometheus is killed, for longer than the HPA remembers", HPA: true,
		Observed: "unknown (503); replicas stay, and scaling goes on after it", Test: "test/cluster/e2e/outage_test.go TestOutage"},
	{Part: "Source", Drill: "long outage under an uneven load", Done: "Prometheus is away for longer than the window, and the load is not steady when it is back", HPA: true,
		Observed: "unknown until there is a whole window; replicas stay", Test: "test/cluster/e2e/availability_test.go TestAfterOutage"},
	{Part: "Source", Drill: "away at the start", Done: "adapters start while Prometheus is down", HPA: true,
		Observed: "Ready and Available; unknown (503); namespaces can be deleted", Test: "test/cluster/e2e/availability_test.go TestColdStart"},
	{Part: "Source", Drill: "half of a pair, and a store of Thanos", Done: "a Prometheus and its sidecar are killed behind a Thanos query",
		Observed: "the pair's other half goes on; the only store of an engine is unknown, and the answer known to be partial", Test: "test/cluster/sources/thanos_test.go TestThanos"},
	{Part: "Engines", Drill: "target down, pod deleted, engine restarted", Done: "under an overload, read from Prometheus", HPA: true,
		Observed: "left out, or right: no zero, no leap of a rate", Test: "test/cluster/e2e/churn_test.go TestChurn"},
	{Part: "Kubernetes", Drill: "a replica of the adapter is killed", Done: "each of two, in the middle of a scale-out", HPA: true,
		Observed: "at most the sync in flight fails; scaling out goes on", Test: "test/cluster/e2e/availability_test.go TestRestarts"},
	{Part: "Kubernetes", Drill: "certificates are replaced", Done: "because it is time, and because the Secret is deleted or spoiled, while two adapters are asked all the time",
		Observed: "no request fails; APIServices stay Available", Judge: "requests", Test: "test/cluster/install/rotation_test.go testRotation"},
	{Part: "Kubernetes", Drill: "leader lost", Done: "the replica that makes certificates is killed, and one is to be replaced soon",
		Observed: "another leads when the Lease is over, and replaces it in time; no request fails", Judge: "requests", Test: "test/cluster/install/rotation_test.go testRotation"},
	{Part: "Kubernetes", Drill: "clock jump", Done: "the wall clock under an adapter that scrapes is set, an hour and more, either way",
		Observed: "what it scrapes stays an interval apart, and ages go on evenly", Test: "internal/source/scrape/clock_test.go TestClockIsNotSet"},
	{Part: "Kubernetes", Drill: "rolling upgrade", Done: "each adapter is replaced: the new one is Ready before the old one goes", HPA: true,
		Observed: "no sync fails; replicas stay; APIServices stay Available", Test: "test/cluster/e2e/availability_test.go TestRestarts"},
}

// TestElsewhere: the drills of other packages are where the table says.
func TestElsewhere(t *testing.T) {
	for _, r := range elsewhere {
		file, name, _ := strings.Cut(r.Test, " ")
		source, err := os.ReadFile(filepath.Join("..", "..", "..", file))
		if err != nil {
			t.Error(err)
		} else if !regexp.MustCompile(`\nfunc (\(\w+ \*\w+\) )?` + name + `\(t \*testing\.T\b`).Match(source) {
			t.Errorf("%s has no %s", file, name)
		}
		record(t, r)
	}
}

var writing sync.Mutex

// record puts a row into the document. Without -rewrite it only looks whether the drill is there, and ended
// as it did when the document was written.
func record(t *testing.T, r row) {
	t.Helper()
	if t.Failed() {
		return
	}
	writing.Lock()
	defer writing.Unlock()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Error(err)
		return
	}
	before, rest, ok := strings.Cut(string(text), tableBegins)
	table, after, ends := strings.Cut(rest, tableEnds)
	if !ok || !ends {
		t.Errorf("%s has no table of drills", document)
		return
	}
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) < 2 {
		lines = []string{"", ""}
	}
	lines = lines[2:]
	key := fmt.Sprintf("| %s | %s |", r.Part, r.Drill)
	at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, key) })
	if !*rewrite {
		outcome, _, _ := strings.Cut(r.Observed, ":")
		if at < 0 || !strings.Contains(lines[at], "| "+outcome) {
			t.Errorf("%s has no line that begins with %q and says %q: run make update-drills", document, key, outcome)
		}
		return
	}
	line := fmt.Sprintf("%s %s | %s | %s | %s | %s |", key, r.Done, r.Observed, within(r), judged(r), r.Test)
	if at >= 0 {
		lines[at] = line
	} else {
		lines = append(lines, line)
	}
	slices.SortStableFunc(lines, func(a, b string) int { return partOf(a) - partOf(b) })
	out := before + tableBegins + "| part | drill | what is done | what is answered | right again | judged by | test |\n|---|---|---|---|---|---|---|\n" +
		strings.Join(lines, "\n") + "\n" + tableEnds + after
	if err := os.WriteFile(document, []byte(out), 0o644); err != nil {
		t.Error(err)
	}
}

func partOf(line string) int {
	return slices.IndexFunc(parts, func(p string) bool { return strings.HasPrefix(line, "| "+p+" |") })
}

// within is how long it took, as a bound that the next run is likely to keep.
func within(r row) string {
	if r.Again == 0 {
		return "–"
	}
	for _, bound := range []time.Duration{5 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute} {
		if r.Again <= bound {
			return fmt.Sprintf("in %.0f s", bound.Seconds())
		}
	}
	return fmt.Sprintf("in %.0f min", (r.Again + time.Minute - 1).Truncate(time.Minute).Minutes())
}

func judged(r row) string {
	if r.HPA {
		return "HPA"
	}
	return cmp.Or(r.Judge, "values")
}
