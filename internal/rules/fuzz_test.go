package rules

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	promlabels "github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/labels"
)

// FuzzFile reads any text as a file of rules. What is not refused can be checked, and queries be made of it.
func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/check/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatalf("no files: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		config, _, _ := strings.Cut(string(text), "\nsays:\n")
		config, _, _ = strings.Cut(config, "\nload ")
		f.Add([]byte(config))
	}
	selector, err := labels.Parse("a=b,c in (d.e,f)")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse(text)
		if err != nil {
			if err.Error() == "" {
				t.Error("refused without a word")
			}
			return
		}
		for _, fault := range file.Faults {
			if fault.Path == "" || fault.Err == nil || fault.Err.Error() == "" {
				t.Errorf("a fault without a word: %v", fault)
			}
		}
		c := Check{Resources: BuiltIn, Timeout: time.Minute}
		if faults := c.Write(t.Context(), io.Discard, file); faults < len(file.Faults) {
			t.Errorf("%d faults are told of %d", faults, len(file.Faults))
		}
		where, err := ofSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range file.Rules {
			b, _ := r.bind(BuiltIn)
			all, _ := r.known(b)
			entries, _ := r.entries(b, all)
			for _, e := range entries {
				a := about{series: e.series, label: e.label, namespaceLabel: e.namespaceLabel, selector: where}
				if e.namespaceLabel != "" {
					a.namespaces = []string{"x", "y.z"}
				}
				if query, err := r.query(a); err == nil {
					_, _ = narrowed(query, []*promlabels.Matcher{where[0].matcher})
				}
			}
		}
	})
}
