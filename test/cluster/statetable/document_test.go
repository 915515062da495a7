package statetable

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const documentPath = "../../../docs/states.md"

// document holds the part of docs/states.md between the part's two markers to what was seen.
func document(t *testing.T, part, seen string) {
	t.Helper()
	text, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- begin "+part+": written by its test -->\n", "<!-- end "+part+" -->\n"
	before, rest, found := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no part %q and %q", documentPath, begin, end)
	}
	seen += "\n"
	if *rewrite {
		if err := os.WriteFile(documentPath, []byte(before+begin+seen+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, seen); diff != "" {
		t.Errorf("%s does not say what was seen (-file +seen); if that is right, run this test with -rewrite:\n%s", documentPath, diff)
	}
}
