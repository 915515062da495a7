package adapter_test

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/inference-metrics/adapter"

// A rule says what one package of ours may import of ours, and why.
type rule struct {
	// imports maps a package of ours to the reason why it may be imported.
	imports map[string]string
	// tests maps what only the package's tests may import besides.
	tests map[string]string
	// pure says that the package takes time as an argument and does no I/O, so that the adapter,
	// the emulator, a back-test and a simulator evaluate the same code.
	pure bool
	// files is why a pure package reads files all the same.
	files string
}

// rules knows every package of the module by its directory. A new package is a new line here, and
// a new arrow needs a reason that a reviewer can disagree with.
var rules = map[string]rule{
	".": {tests: map[string]string{
		"pkg/signals": "docs/signals.md is compared with the catalogue",
	}},

	"pkg/signals": {
		pure: true,
		imports: map[string]string{
			"internal/capacity": "demand_replicas is computed from what was learned",
			"internal/window":   "signals are computed from raw windows",
		},
		tests: map[string]string{
			"internal/engine": "modelled engines know the truth",
		},
	},
	"pkg/provider": {
		imports: map[string]string{
			"internal/collect": "answers come from its snapshots",
			"internal/pods":    "requests name pods by selector",
			"internal/query":   "requests have parameters",
			"internal/rules":   "answers for what is no signal",
			"pkg/signals":      "the catalogue is the list of metrics",
		},
		tests: map[string]string{
			"internal/source": "tests fill real snapshots from a literal source",
			"internal/window": "tests fill real snapshots from literal windows",
		},
	},

	"internal/capacity": {pure: true, tests: map[string]string{
		"internal/engine": "what is said of a replica is compared with an emulated one",
		"internal/load":   "which serves what it draws",
	}},
	"internal/certs": {},
	"internal/collect": {imports: map[string]string{
		"internal/capacity": "a tick learns what replicas can do",
		"internal/pods":     "samples are attributed to pods",
		"internal/source":   "a tick fetches from a source",
		"internal/window":   "a tick fills windows",
		"pkg/signals":       "a tick evaluates the demanded signals",
	}, tests: map[string]string{
		"internal/engine": "what is learned of a replica is compared with an emulated one",
		"internal/load":   "which serves what it draws",
	}},
	"internal/config": {imports: map[string]string{
		"internal/discover": "some of it says what to scrape",
		"internal/slo":      "objectives are of some pods",
		"pkg/signals":       "most of it is parameters of signals",
	}, tests: map[string]string{"internal/pods": "objectives are looked up for a pod"}},
	"internal/discover": {},
	"internal/engine":   {pure: true},
	"internal/kube": {imports: map[string]string{
		"internal/pods": "an informer's objects are trimmed to it",
	}},
	"internal/load":  {pure: true, files: "traces are too large to be passed in"},
	"internal/pods":  {},
	"internal/query": {imports: map[string]string{"pkg/signals": "what is asked for is a signal"}},
	"internal/rules": {},
	"internal/slo": {imports: map[string]string{
		"internal/pods": "objectives are of pods",
		"pkg/signals":   "says what an objective is",
	}},
	"internal/status": {imports: map[string]string{
		"internal/collect": "shows what was collected",
		"internal/pods":    "of which pods and objects",
		"pkg/signals":      "and which signals",
	}, tests: map[string]string{"internal/source": "tests collect from a literal source"}},
	"internal/source": {},
	"internal/source/prometheus": {
		imports: map[string]string{"internal/source": "implements it"},
		tests: map[string]string{
			"internal/source/sourcetest": "is held to the contract",
			"internal/window":            "the contract compares what a window holds",
		},
	},
	"internal/source/scrape": {
		imports: map[string]string{"internal/source": "implements it"},
		tests: map[string]string{
			"pkg/signals":                "no exposition may break the signals",
			"internal/source/sourcetest": "is held to the contract",
			"internal/window":            "the contract compares what a window holds",
		},
	},
	"internal/source/sourcetest": {imports: map[string]string{
		"internal/source": "is its contract",
		"internal/window": "the contract compares what a window holds",
	}},
	"internal/window": {pure: true},

	"cmd/adapter": {imports: map[string]string{
		"internal/certs":             "wires it",
		"internal/collect":           "wires it",
		"internal/config":            "wires it",
		"internal/discover":          "wires it",
		"internal/kube":              "wires it",
		"internal/pods":              "static targets are pods without Kubernetes",
		"internal/query":             "wires it",
		"internal/rules":             "wires it",
		"internal/slo":               "wires it",
		"internal/source":            "wires it",
		"internal/source/prometheus": "wires it",
		"internal/source/scrape":     "wires it",
		"internal/status":            "wires it",
		"pkg/provider":               "wires it",
		"pkg/signals":                "its options configure the catalogue",
	}},
	"cmd/engine-emulator": {imports: map[string]string{
		"internal/engine": "runs one model per replica",
		"internal/load":   "drives them",
	}},
}

// banned holds packages of others that only some of ours may import, by import path prefix.
var banned = []struct {
	prefix string
	reason string
	// allowed holds directories of ours, and whatever is below them.
	allowed []string
}{
	{"k8s.io/apiserver", "how answers are served is known at the edge only", []string{"pkg/provider", "cmd/adapter"}},
	{"sigs.k8s.io/custom-metrics-apiserver", "how answers are served is known at the edge only", []string{"pkg/provider", "cmd/adapter"}},
	{"k8s.io/kube-aggregator", "how answers are served is known at the edge only", []string{"pkg/provider", "cmd/adapter"}},
	{"k8s.io/client-go", "one package reads Kubernetes, one finds targets in it, one keeps certificates in it; the rest reads listers", []string{"internal/kube", "internal/discover", "internal/certs", "pkg/provider", "cmd"}},
	{"github.com/stretchr/testify", "the standard library's testing and go-cmp are enough", nil},
	{"io/ioutil", "os and io have it", nil},
}

func TestImports(t *testing.T) {
	files := goFiles(t)
	seen := map[string]bool{}
	for _, f := range files {
		if f.nested {
			continue // its own module: it depends on us, never the other way round
		}
		r, ok := rules[f.dir]
		if !ok {
			t.Errorf("%s: package %s is not in the table of rules", f.path, f.dir)
			continue
		}
		seen[f.dir] = true
		for _, imp := range f.ast.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatalf("%s: %v", f.path, err)
			}
			for _, b := range banned {
				if within(name, b.prefix) && !slices.ContainsFunc(b.allowed, func(dir string) bool { return within(f.dir, dir) }) {
					t.Errorf("%s imports %s: not here, because %s", f.path, name, b.reason)
				}
			}
			if !within(name, module) {
				continue
			}
			dir := strings.TrimPrefix(strings.TrimPrefix(name, module), "/")
			if dir == f.dir || r.imports[dir] != "" || f.test && r.tests[dir] != "" {
				continue
			}
			t.Errorf("%s imports %s: no rule allows %s → %s", f.path, name, f.dir, dir)
		}
	}
	for dir := range rules {
		if !seen[dir] {
			t.Errorf("the table of rules has package %s, which does not exist", dir)
		}
	}
}

// TestPurePackages holds the pure packages to their word: no clock, no files, no network.
func TestPurePackages(t *testing.T) {
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	files := []string{"os", "io/fs", "path/filepath"}
	rest := []string{"net", "net/http", "os/exec", "log", "log/slog", "k8s.io/klog/v2"}
	for _, f := range goFiles(t) {
		if f.nested || f.test || !rules[f.dir].pure {
			continue
		}
		for _, imp := range f.ast.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			if slices.Contains(rest, name) || rules[f.dir].files == "" && slices.Contains(files, name) {
				t.Errorf("%s imports %s: package %s does no I/O", f.path, name, f.dir)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(clock, sel.Sel.Name) {
				t.Errorf("%s: time.%s: package %s takes time as an argument", f.fset.Position(sel.Pos()), sel.Sel.Name, f.dir)
			}
			return true
		})
	}
}

// TestPackageDocs wants one package comment in each package: none leaves a reader alone, and two
// are shown run together.
func TestPackageDocs(t *testing.T) {
	docs := map[string][]string{}
	for _, f := range goFiles(t) {
		if strings.HasSuffix(f.ast.Name.Name, "_test") {
			continue
		}
		if _, ok := docs[f.dir]; !ok {
			docs[f.dir] = nil
		}
		if f.ast.Doc == nil {
			continue
		}
		docs[f.dir] = append(docs[f.dir], f.path)
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "" // the name of a program is its directory's, in whatever case starts the sentence
		}
		if got := f.ast.Doc.Text(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: package comment starts %q; want %q", f.path, firstLine(got), want)
		}
	}
	for dir, files := range docs {
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments %q; want 1", dir, len(files), files)
		}
	}
}

// TestNoMachinePaths keeps out of the repository what holds on one machine only.
func TestNoMachinePaths(t *testing.T) {
	home := regexp.MustCompile(`/(?:root|work|Users|home/[a-z]+)/`)
	walk(t, func(p string, _ bool) {
		if path.Base(p) == "go.sum" {
			return
		}
		data, err := os.ReadFile(filepath.FromSlash(p))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(data, 0) >= 0 {
			return // binary
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, len(data)+1)
		for n := 1; lines.Scan(); n++ {
			if found := home.FindString(lines.Text()); found != "" {
				t.Errorf("%s:%d mentions %s, a path of one machine", p, n, found)
			}
		}
	})
}

type goFile struct {
	path   string // slash-separated, from the root
	dir    string
	test   bool // a _test.go file
	nested bool // belongs to a module below ours
	fset   *token.FileSet
	ast    *ast.File
}

// goFiles parses every Go file in this process: the test cache then knows what was read, which it
// would not of a `go list`.
func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	walk(t, func(p string, nested bool) {
		if path.Ext(p) != ".go" {
			return
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, filepath.FromSlash(p), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if ignored(parsed) {
			return
		}
		files = append(files, goFile{
			path: p, dir: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), nested: nested, fset: fset, ast: parsed,
		})
	})
	if len(files) == 0 {
		t.Fatal("no Go files found")
	}
	return files
}

// ignored reports whether the file is part of no build: it only pins the tools that it imports.
func ignored(f *ast.File) bool {
	for _, group := range f.Comments {
		if group.Pos() > f.Package {
			return false
		}
		for _, c := range group.List {
			if c.Text == "//go:build tools" || c.Text == "//go:build ignore" {
				return true
			}
		}
	}
	return false
}

// walk calls f for each file of the working tree but those that git does not keep.
func walk(t *testing.T, f func(path string, nested bool)) {
	t.Helper()
	skip := []string{".git", "bin", "dist", "artifacts"}
	var modules []string
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		if d.IsDir() {
			if slices.Contains(skip, p) {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != "." {
				modules = append(modules, p)
			}
			return nil
		}
		if p == ".git" {
			return nil // of a worktree it is a file, which says where the rest is
		}
		if !d.Type().IsRegular() {
			return nil
		}
		f(p, slices.ContainsFunc(modules, func(m string) bool { return within(p, m) }))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// within reports whether path is parent or lies below it.
func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return fmt.Sprintf("%.60s", line)
}
