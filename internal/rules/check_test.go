package rules

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "rewrite what testdata/check/*.txt says; read the difference before you commit it")

// TestCheck reads each file of testdata/check: the configuration, after a line "load …" the series that a server
// has, if any, and after a line "says:" what is said of it.
func TestCheck(t *testing.T) {
	files, err := filepath.Glob("testdata/check/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			before, want, ok := strings.Cut(string(text), "\nsays:\n")
			if !ok {
				t.Fatal("it has no line says:")
			}
			config, load, served := strings.Cut(before, "\nload ")
			c := Check{Resources: BuiltIn, Ours: func(metric string) bool { return metric == "vllm_queue_depth" }, Timeout: time.Minute}
			if served {
				c.Server = newFakeServer(t, "load "+load)
			}
			var out strings.Builder
			if f, err := Parse([]byte(config)); err != nil {
				out.WriteString("cannot be read: " + err.Error() + "\n")
			} else if faults := c.Write(t.Context(), &out, f); faults != strings.Count(out.String(), "FAULT ") {
				t.Errorf("%d faults are counted, and others told", faults)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(before+"\nsays:\n"+out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(out.String(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
