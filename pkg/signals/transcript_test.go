package signals

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/inference-metrics/adapter/internal/capacity"
	"github.com/inference-metrics/adapter/internal/window"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the answers in testdata/*.txt; read the difference before you commit it")

// TestTranscripts runs the files of testdata. They are written to be read: series in the notation
// of promtool's unit tests, and what the signals answer at an instant.
//
//	load 5s                                   the samples of the series below are 5 s apart, from 0 s on
//	    vllm:x{pod="p"} 0 1x3                 namespace "ns", pod "p" and instance "p:8000" unless given
//	params window=30s ttft=2.5s               other parameters than the defaults
//	capacity variant=a pods=p,q step=0.02 prompt=0.0001 token=0.0005 context=0.01 seats=64 drain=3m
//	                                          what is known of the pods' capacity; of all without pods=
//	capacity missing variant=b pods=r         not learned yet; of a variant without a name, not known at all
//	at 60s [pod=p] [start=0s] [ready=10s]     the answers at 60 s; what Kubernetes knows of the pod
//	at 60s partial                            the source answers in part
//	at 60s behind=30s                         the source's clock is behind that of what writes to it
//	    vllm_queue_depth: value 3
//	    vllm_queue_depth{reason=capacity}: value 2      a selector, and the parameters of a query
//	at 60s group=p,q:prefill,r:decode         the answers of a group of pods, with their roles
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
			if diff := gocmp.Diff(strings.Split(string(text), "\n"), strings.Split(got, "\n")); diff != "" {
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
	capacity map[string]*Capacity // by pod, and of all others under ""
	interval time.Duration
	mode     string
	pod      string
	group    []string
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
	tr.capacity = map[string]*Capacity{}
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
			query, err := splitQuery(strings.TrimSpace(code))
			fail(err)
			answer, err := tr.answer(query)
			fail(err)
			line = "    " + query + ": " + answer
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
	case "capacity":
		c := &Capacity{Variant: args["variant"], Drain: duration("drain"), Role: capacity.Role(slices.Index([]string{"", Prefill, Decode}, args["role"]))}
		c.Model.TokensPerStep = 1
		for k, to := range map[string]*float64{
			"step": &c.Model.Step, "prompt": &c.Model.Prompt, "token": &c.Model.Token, "context": &c.Model.Context, "seats": &c.Seats, "batch": &c.BatchTokens,
		} {
			if args[k] != "" {
				if *to, err = strconv.ParseFloat(args[k], 64); err != nil {
					return err
				}
			}
		}
		if _, missing := args["missing"]; missing {
			c.Missing = "12 busy windows have been seen, 30 are needed"
		}
		for _, pod := range strings.Split(args["pods"], ",") {
			if tr.capacity[pod] = c; c.Variant == "" {
				tr.capacity[pod] = nil
			}
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
		tr.group = nil
		if args["group"] != "" {
			tr.group = strings.Split(args["group"], ",")
		}
		tr.pod = cmp.Or(args["pod"], "p")
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

// splitQuery cuts the answer off a line: what follows the name and the selector.
func splitQuery(line string) (query string, err error) {
	end := strings.IndexAny(line, "{:")
	switch {
	case end < 0:
		return line, nil
	case line[end] == ':':
		return line[:end], nil
	}
	if end = strings.Index(line, "}"); end < 0 {
		return "", fmt.Errorf("the selector does not end")
	}
	return line[:end+1], nil
}

func (tr *transcript) answer(text string) (string, error) {
	name, selector, _ := strings.Cut(strings.TrimSuffix(text, "}"), "{")
	q := Query{Signal: name}
	var where []string
	for _, part := range strings.FieldsFunc(selector, func(r rune) bool { return r == ';' }) {
		k, v, _ := strings.Cut(part, "=")
		var err error
		switch k {
		case "quantile":
			q.Quantile, err = strconv.ParseFloat(v, 64)
		case "window":
			q.Window, err = time.ParseDuration(v)
		case "ttft":
			q.SLO.TTFT, err = time.ParseDuration(v)
		case "tpot":
			q.SLO.TPOT, err = time.ParseDuration(v)
		case "e2e":
			q.SLO.E2E, err = time.ParseDuration(v)
		default:
			where = append(where, part)
		}
		if err != nil {
			return "", err
		}
	}
	q.Where = strings.Join(where, ",")
	plan, err := Prepare(q)
	if err != nil {
		return "refused (" + err.Error() + ")", nil
	}
	if tr.group == nil {
		return written(tr.measure(plan, tr.pod).Result), nil
	}
	var members []Member
	for _, m := range tr.group {
		pod, role, _ := strings.Cut(m, ":")
		members = append(members, Member{Name: pod, Role: role, Measure: tr.measure(plan, pod)})
	}
	return written(plan.Merge(members, tr.params)), nil
}

func (tr *transcript) measure(plan *Plan, pod string) Measure {
	at := tr.at
	at.Pod = pod
	key := GroupKey("ns", pod)
	if plan.Signal().OfPool() {
		key = PoolKey("ns", pod)
	}
	params := tr.params
	params.Capacity = cmp.Or(tr.capacity[pod], tr.capacity[""])
	return Evaluate([]*Plan{plan}, tr.store.Group(key), at, params)[0]
}

func written(r Result) string {
	out := r.State.String()
	if r.HasValue {
		out += " "
		if r.LowerBound {
			out += ">= "
		}
		out += fmt.Sprintf("%.5g", r.Value)
	}
	if r.Resolution != nil {
		out += fmt.Sprintf(" in %g..%g of %g", r.Resolution.Low, r.Resolution.High, r.Resolution.Events)
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
	return out
}

// TestTranscriptsCoverTheCatalogue keeps a signal from being added without a transcript in which it has
// a value, and one in which it has none; and a series of an engine without being read in one.
func TestTranscriptsCoverTheCatalogue(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for _, d := range definitions {
		if d.fixed && d.quantile != 0.99 {
			continue // they differ in a number
		}
		for _, state := range []string{"(value|idle)", "unknown"} {
			if !regexp.MustCompile(`(?m)^    [a-z_]*` + d.name + `(\{.*\})?: ` + state).MatchString(all.String()) {
				t.Errorf("no transcript in which %s is %s", d.name, state)
			}
		}
	}
	for _, e := range engines {
		for c, m := range e.series {
			if !slices.ContainsFunc(m.names(), func(n string) bool {
				return regexp.MustCompile(`(?m)^    ` + regexp.QuoteMeta(n) + `[ {]`).MatchString(all.String())
			}) {
				t.Errorf("no transcript with a sample of %s of %s", c, e.Name)
			}
		}
	}
}
