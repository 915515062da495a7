package main

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const mixin = "../../deploy/mixin/"

// registered returns the metrics that adapters on either source register, with their labels.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	described := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", .*variableLabels: \{([^}]*)\}\}$`)
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("window: 60s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, source := range []string{"--prometheus-url=http://127.0.0.1:1", "--target=default/vllm-0=http://127.0.0.1:1/metrics"} {
		c := parse(t, source, "--kubeconfig="+kubeconfig(t, "http://127.0.0.1:1"), "--authentication-skip-lookup",
			"--bind-address=127.0.0.1", "--serving-cert-service=a/b", "--config="+config, "--expose-signals="+strings.Join(shownSignals(t), ","))
		var err error
		if c.server.SecureServing.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.server.SecureServing.Listener.Close() })
		a, err := newAdapter(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range a.metrics {
			ch := make(chan *prom.Desc)
			go func() {
				defer close(ch)
				m.Describe(ch)
			}()
			for desc := range ch {
				found := described.FindStringSubmatch(desc.String())
				if found == nil {
					t.Fatalf("cannot read %s", desc)
				}
				all[found[1]] = strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' })
				slices.Sort(all[found[1]])
			}
		}
	}
	return all
}

// others are the metrics of the mixin that we do not register, and whose they are.
var others = map[string]string{
	"metrics_apiserver_metric_freshness_seconds_bucket":    "the library that serves the API",
	"apiserver_request_total":                              "the library that serves the API",
	"apiserver_request_duration_seconds_bucket":            "the library that serves the API",
	"process_resident_memory_bytes":                        "the client library",
	"process_cpu_seconds_total":                            "the client library",
	"aggregator_unavailable_apiservice":                    "kube-apiserver",
	"kube_horizontalpodautoscaler_status_desired_replicas": "kube-state-metrics",
	"kube_horizontalpodautoscaler_spec_max_replicas":       "kube-state-metrics",
}

// dashboard is what is looked at of one.
type dashboard struct {
	UID        string
	Templating struct {
		List []struct {
			Name  string
			Query json.RawMessage
		}
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

// mixinExprs returns every expression of the mixin, by where it is.
func mixinExprs(t *testing.T) map[string]string {
	t.Helper()
	exprs := map[string]string{}
	files, err := filepath.Glob(mixin + "dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no dashboards: %v", err)
	}
	uids := map[string]bool{}
	for _, file := range files {
		var d dashboard
		unmarshal(t, file, json.Unmarshal, &d)
		if d.UID == "" || uids[d.UID] {
			t.Errorf("%s: the uid %q is not its own", file, d.UID)
		}
		uids[d.UID] = true
		where := filepath.Base(file) + ": "
		for _, v := range d.Templating.List {
			var q struct{ Query string }
			if json.Unmarshal(v.Query, &q) == nil {
				inner, ok := strings.CutPrefix(q.Query, "label_values(")
				i := strings.LastIndex(inner, ",")
				if !ok || i < 0 {
					t.Fatalf("%s variable %s: %q is no label_values", where, v.Name, q.Query)
				}
				exprs[where+"variable "+v.Name] = inner[:i]
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				exprs[where+p.Title+": "+target.Expr] = target.Expr
			}
		}
	}
	for _, r := range alerts(t) {
		exprs["alert "+r.Alert] = r.Expr
	}
	return exprs
}

type alert struct {
	Alert, Expr string
	Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var rules struct{ Groups []struct{ Rules []alert } }
	unmarshal(t, mixin+"alerts.yaml", func(data []byte, to any) error { return yaml.Unmarshal(data, to) }, &rules)
	for _, g := range rules.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func unmarshal(t *testing.T, file string, f func([]byte, any) error, to any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = f(data, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

var variable = regexp.MustCompile(`\$[a-z]+`)

// selectors returns the series that an expression of the mixin reads.
func selectors(t *testing.T, where, expr string) (all []*parser.VectorSelector) {
	t.Helper()
	expr = variable.ReplaceAllString(strings.ReplaceAll(expr, "$__rate_interval", "1m"), "x")
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return nil
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			all = append(all, v)
		}
		return nil
	})
	return all
}

// shownSignals are those that the dashboards show.
func shownSignals(t *testing.T) []string {
	t.Helper()
	shown := map[string]bool{}
	for where, expr := range mixinExprs(t) {
		for _, s := range selectors(t, where, expr) {
			for _, m := range s.LabelMatchers {
				if m.Name == "signal" && m.Type == labels.MatchEqual {
					shown[m.Value] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(shown))
}

// Every expression parses, and reads series that are there, by labels that these have. That they have
// values is seen where the adapter runs, in test/cluster.
func TestMixinReadsWhatIsThere(t *testing.T) {
	ours := registered(t)
	used := map[string]bool{}
	for where, expr := range mixinExprs(t) {
		for _, s := range selectors(t, where, expr) {
			name := s.Name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} { // of a histogram or summary
				if base, ok := strings.CutSuffix(name, suffix); ok {
					if _, ok := ours[base]; ok {
						name = base
					}
				}
			}
			has, own := ours[name]
			if !own {
				if others[name] == "" {
					t.Errorf("%s: nobody has the series %s", where, name)
				}
				used[name] = true
				continue
			}
			for _, m := range s.LabelMatchers {
				if !slices.Contains(append([]string{model.MetricNameLabel, "job", "instance"}, has...), m.Name) {
					t.Errorf("%s: %s has no label %s, but %v", where, name, m.Name, has)
				}
			}
		}
	}
	for name := range others {
		if !used[name] {
			t.Errorf("the list of others' metrics has %s, which nothing reads", name)
		}
	}
}

const observability = "../../docs/observability.md"

// The document has every metric with its labels, every alert with what to do, and the signals that the
// dashboards want.
func TestObservabilityDoc(t *testing.T) {
	data, err := os.ReadFile(observability)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)

	documented := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `(inference_[a-z_]+)` \\|([^|]*)\\| [^|]{10,} \\|$")
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		documented[m[1]] = nil
		for _, label := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(m[2], -1) {
			documented[m[1]] = append(documented[m[1]], label[1])
		}
		slices.Sort(documented[m[1]])
	}
	ours := registered(t)
	for name, has := range ours {
		if of, ok := documented[name]; !ok {
			t.Errorf("docs/observability.md does not describe %s, with labels %v", name, has)
		} else if !slices.Equal(of, has) {
			t.Errorf("docs/observability.md says that %s has labels %v, and it has %v", name, of, has)
		}
	}
	for name := range documented {
		if _, ok := ours[name]; !ok {
			t.Errorf("docs/observability.md describes %s, which nobody registers", name)
		}
	}

	headings := map[string]bool{}
	for _, a := range alerts(t) {
		headings[a.Alert] = true
		if !strings.Contains(text, "\n### "+a.Alert+"\n") {
			t.Errorf("docs/observability.md does not say what to do about %s", a.Alert)
		}
		const runbook = "https://github.com/inference-metrics/adapter/blob/main/docs/observability.md#"
		if want := runbook + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s has the runbook %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### (Inference\w+)$`).FindAllStringSubmatch(text, -1) {
		if !headings[m[1]] {
			t.Errorf("docs/observability.md tells of the alert %s, which is not there", m[1])
		}
	}
	if flag := "--expose-signals=" + strings.Join(shownSignals(t), ","); !strings.Contains(text, flag) {
		t.Errorf("docs/observability.md does not say what the dashboards want: %s", flag)
	}
}
