package signals

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/inference-metrics/adapter/internal/window"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the answers in testdata/*.txt; read the difference before you commit it")

// TestTranscripts runs the files of testdata. They are written to be read: series in the notation
// of promtool's unit tests, and what the signals answer at an instant.
//
//	load 5s                                   the samples of the series below are 5 s apart, from 0 s on
//	    vllm:x{pod="p"} 0 1x3                 namespace "ns", pod "p" and instance "p:8000" unless given
//	params window=30s ttft=2.5s               other parameters than the defaults
//	at 60s [pod=p] [start=0s] [ready=10s]     the answers at 60 s; what Kubernetes knows of the pod
//	at 60s partial                            the source answers in part
//	at 60s behind=30s                         the source's clock is behind that of what writes to it
//	    vllm_queue_depth: value 3
//	clear                                     forgets everything
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newTranscript(t).run(string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("answers differ (-transcript +now):\n%s", diff)
			}
		})
	}
}

// epoch is 0 s of the transcripts.
var epoch = time.UnixMilli(1_700_000_000_000)

type transcript struct {
	t        *testing.T
	loaded   []sample
	store    *window.Store // with what has been loaded up to the instant
	params   Params
	interval time.Duration
	mode     string
	pod      string
	at       At
}

type sample struct {
	ls labels.Labels
	window.Sample
}

func newTranscript(t *testing.T) *transcript {
	tr := &transcript{t: t}
	tr.clear()
	return tr
}

func (tr *transcript) clear() {
	tr.loaded = nil
	tr.params = DefaultParams()
}

func (tr *transcript) run(text string) string {
	var out []string
	for n, line := range strings.Split(text, "\n") {
		fail := func(err error) {
			if err != nil {
				tr.t.Fatalf("line %d: %q: %v", n+1, line, err)
			}
		}
		code, _, _ := strings.Cut(line, "#")
		fields := strings.Fields(code)
		switch {
		case len(fields) == 0:
		case !strings.HasPrefix(line, " "):
			fail(tr.directive(fields))
		case tr.mode == "load":
			fail(tr.load(strings.TrimSpace(code)))
		case tr.mode == "at":
			name, _, _ := strings.Cut(fields[0], ":")
			answer, err := tr.answer(name)
			fail(err)
			line = "    " + name + ": " + answer
		default:
			fail(fmt.Errorf("indented line without a directive"))
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func (tr *transcript) directive(fields []string) (err error) {
	tr.mode = fields[0]
	args := map[string]string{}
	for _, f := range fields[1:] {
		k, v, _ := strings.Cut(f, "=")
		args[k] = v
	}
	duration := func(k string) time.Duration {
		if args[k] == "" {
			return 0
		}
		d, e := time.ParseDuration(args[k])
		if e != nil {
			err = e
		}
		return d
	}
	instant := func(k string) time.Time {
		if args[k] == "" {
			return time.Time{}
		}
		return epoch.Add(duration(k))
	}
	switch tr.mode {
	case "clear":
		tr.clear()
	case "load":
		tr.interval, err = time.ParseDuration(fields[1])
	case "params":
		tr.params = DefaultParams()
		if w := duration("window"); w > 0 {
			tr.params.Window = w
		}
		if args["ttft"]+args["tpot"]+args["e2e"] != "" {
			tr.params.SLO = SLO{TTFT: duration("ttft"), TPOT: duration("tpot"), E2E: duration("e2e")}
		}
	case "at":
		var d time.Duration
		if d, err = time.ParseDuration(fields[1]); err == nil {
			_, partial := args["partial"]
			tr.at = At{Now: epoch.Add(d - duration("behind")), Start: instant("start"), Ready: instant("ready"), Partial: partial}
		}
		tr.store = window.New(time.Hour, GroupOf)
		for _, s := range tr.loaded {
			if s.T <= epoch.Add(d).UnixMilli() {
				tr.store.Append(s.ls, s.T, s.V)
			}
		}
		tr.pod = "p"
		if args["pod"] != "" {
			tr.pod = args["pod"]
		}
	default:
		return fmt.Errorf("no directive of that name")
	}
	return err
}

func (tr *transcript) load(series string) error {
	ls, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(series)
	if err != nil {
		return err
	}
	b := labels.NewBuilder(ls)
	for name, value := range map[string]string{"namespace": "ns", "pod": "p", "instance": "p:8000"} {
		if !ls.Has(name) {
			b.Set(name, value)
		}
	}
	ls = b.Labels()
	for i, v := range values {
		if !v.Omitted {
			t := epoch.Add(time.Duration(i) * tr.interval).UnixMilli()
			tr.loaded = append(tr.loaded, sample{ls, window.Sample{T: t, V: v.Value}})
		}
	}
	return nil
}

func (tr *transcript) answer(name string) (string, error) {
	s := Lookup(name)
	if s == nil {
		return "", fmt.Errorf("no signal of that name")
	}
	r := Evaluate([]*Signal{s}, tr.store.Group(GroupKey("ns", tr.pod)), tr.at, tr.params)[0]
	out := r.State.String()
	if r.HasValue {
		out += fmt.Sprintf(" %.5g", r.Value)
	}
	if !r.Time.IsZero() {
		out += fmt.Sprintf(" at %s", r.Time.Sub(epoch))
	}
	if r.Window > 0 {
		out += fmt.Sprintf(" over %s", r.Window)
	}
	if r.Reason != "" {
		out += " (" + r.Reason + ")"
	}
	return out, nil
}

// TestTranscriptsCoverEverySignal keeps a signal from being added without a transcript.
func TestTranscriptsCoverEverySignal(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, s := range Catalogue() {
		for _, state := range []string{"value", "unknown"} {
			if !regexp.MustCompile(`(?m)^    ` + s.Name + `: ` + state).MatchString(all.String()) {
				t.Errorf("no transcript in which %s is %s", s.Name, state)
			}
		}
	}
}
