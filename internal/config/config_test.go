package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/inference-metrics/adapter/internal/discover"
	"github.com/inference-metrics/adapter/internal/slo"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// kinds are as many of the adapter's own as there are cases.
var kinds = []schema.GroupResource{
	{Group: "apps", Resource: "deployments"}, {Group: "apps", Resource: "statefulsets"},
	{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}, {Resource: "services"}, {Resource: "namespaces"},
}

// with returns the default configuration, changed.
func with(change func(*Config)) Config {
	c := Default(kinds)
	change(&c)
	return c
}

// comparable makes configurations comparable: a selector is what it says.
var comparable = cmp.Options{
	cmp.Transformer("text", func(s labels.Selector) string {
		if s == nil {
			return ""
		}
		return s.String()
	}),
}

func TestGoodConfigs(t *testing.T) {
	app := func(text string) labels.Selector { return selectorOf(t, text) }
	want := map[string]Config{
		"empty.yaml":  Default(kinds),
		"window.yaml": with(func(c *Config) { c.Params.Window = 30 * time.Second }),
		"objectives.yaml": with(func(c *Config) {
			c.Params.Window, c.Params.SLO = 2*time.Minute, signals.SLO{TTFT: time.Second, TPOT: 75 * time.Millisecond}
		}),
		"one-objective.yaml": with(func(c *Config) { c.Params.SLO = signals.SLO{E2E: 30 * time.Second} }),
		"windows.yaml": with(func(c *Config) {
			c.Windows, c.Params.Full = []time.Duration{5 * time.Minute, 2 * time.Minute}, signals.Full{Queue: 5, KV: 0.9}
		}),
		"kinds.yaml": with(func(c *Config) {
			c.Kinds = []schema.GroupResource{{Group: "apps", Resource: "deployments"}, {Group: "argoproj.io", Resource: "rollouts"}, {Resource: "services"}}
			c.RoleLabels = []string{"example.com/role"}
			c.Params.PodLabels = []signals.PodLabels{{Namespace: "kube_namespace", Pod: "kube_pod"}}
		}),
		"scrape.yaml": with(func(c *Config) {
			c.Scrape = Scrape{
				Given: true, Interval: 10 * time.Second, Timeout: 4 * time.Second,
				Discovery: discover.Config{
					Namespaces: []string{"chat", "batch"}, Selector: app("tier in (gold)"), GPUNamespaces: []string{}, MonitorNamespaces: []string{"monitoring"},
					Entries: []discover.Entry{
						{Namespace: "chat", Selector: app("app=mine"), Port: "api", Path: "/m?model=x", Scheme: "https", Exporter: discover.Engine},
						{Selector: app("app=exporter"), Port: "9400", Path: "/metrics", Scheme: "http", Exporter: discover.GPU},
					},
				},
				Pods: []Access{{Interval: 2 * time.Second, Credentials: Credentials{
					CAFile: "/etc/mine/ca.crt", ServerName: "mine.chat.svc", CertFile: "/etc/mine/tls.crt", KeyFile: "/etc/mine/tls.key", BearerTokenFile: "/etc/mine/token",
				}}, {}},
			}
		}),
		"no-discovery.yaml": with(func(c *Config) {
			c.Scrape.Given, c.Scrape.Discovery.Off = true, true
			c.Scrape.Discovery.Entries = []discover.Entry{{Namespace: "chat", Port: "8000", Path: "/metrics", Scheme: "http", Exporter: discover.Engine}}
			c.Scrape.Pods = []Access{{}}
		}),
		"no-kinds.yaml": with(func(c *Config) { c.Kinds = nil }),
		"objectives-of-pods.yaml": with(func(c *Config) {
			c.Objectives = []slo.Rule{
				{Namespace: "chat", Selector: app("app=vllm,tier in (gold,silver)"), SLO: signals.SLO{TTFT: 500 * time.Millisecond}},
				{Selector: app("app=vllm,tier"), SLO: signals.SLO{E2E: 30 * time.Second}},
				{SLO: signals.SLO{TPOT: 50 * time.Millisecond}},
			}
		}),
	}
	for _, name := range fixtures(t, "good", len(want)) {
		_, got, err := Open(name, kinds)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(want[filepath.Base(name)], got, comparable); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func selectorOf(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	allFields = "there are window, windows, slo.ttft, slo.tpot, slo.e2e, saturation.queue, saturation.kv, objectives[].namespace, objectives[].selector, " +
		"objectives[].slo.ttft, objectives[].slo.tpot, objectives[].slo.e2e, kinds, roleLabels, podLabels[].namespace, podLabels[].pod, " +
		"scrape.interval, scrape.timeout, scrape.discovery.enabled, scrape.discovery.namespaces, scrape.discovery.selector, scrape.discovery.gpuNamespaces, scrape.discovery.monitorNamespaces, " +
		"scrape.pods[].namespace, scrape.pods[].selector, scrape.pods[].port, scrape.pods[].path, scrape.pods[].scheme, scrape.pods[].exporter, " +
		"scrape.pods[].interval, scrape.pods[].timeout, scrape.pods[].bearerTokenFile, scrape.pods[].tls.caFile, scrape.pods[].tls.serverName, " +
		"scrape.pods[].tls.certFile, scrape.pods[].tls.keyFile, scrape.pods[].tls.insecureSkipVerify"
	notLabel = `a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`
	builtIn  = "is no kind with pods: write PLURAL.GROUP, without a version; built in are deployments.apps, statefulsets.apps, " +
		"leaderworkersets.leaderworkerset.x-k8s.io, services, namespaces, replicationcontrollers"
)

func TestBadConfigs(t *testing.T) {
	want := map[string]string{
		"unknown-field.yaml":     `unknown field "slos": ` + allFields,
		"unknown-objective.yaml": `unknown field "slo.itl": ` + allFields,
		"unknown-in-list.yaml":   `unknown field "podLabels[0].name": ` + allFields,
		"case.yaml":              `unknown field "Window": ` + allFields,
		"zero.yaml":              `slo.ttft: "0s" is nothing: leave it out`,
		"labels-twice.yaml":      "roleLabels[1]: a is there already\npodLabels[1]: kube_namespace and kube_pod are there already",
		"no-unit.yaml": `window: "60" is no duration: write a number and a unit, such as 2.5s or 100ms` + "\n" +
			`slo.ttft: "fast" is no duration: write a number and a unit, such as 2.5s or 100ms`,
		"out-of-bounds.yaml": "window: 1s is outside 10s to 10m0s\n" +
			"slo.ttft: -1s is negative; leave it out for no objective",
		"scrape.yaml": "scrape.timeout: 2s is longer than the interval, 1s\n" +
			`scrape.discovery.namespaces[0]: "Chat": ` + notLabel + "\n" +
			"scrape.discovery.selector: unable to parse requirement: found '' expected: '('\n" +
			`scrape.discovery.gpuNamespaces[0]: "g p u": ` + notLabel + "\n" +
			`scrape.discovery.monitorNamespaces[0]: "*": ` + notLabel + "\n" +
			"scrape.pods[0]: it is for all pods of the cluster: give a namespace, a selector, or both\n" +
			"scrape.pods[0].port: 70000 is outside 1 to 65535\n" +
			"scrape.pods[0].path: \"metrics\" is no path, such as /metrics\n" +
			"scrape.pods[0].scheme: \"ftp\" is neither http nor https\n" +
			"scrape.pods[0].exporter: \"queue\" is none of engine, gpu, pool\n" +
			"scrape.pods[1].port: it is missing: give the number, or the name that the container gives it\n" +
			"scrape.pods[1].interval: 10ms is outside 100ms to 1m0s\n" +
			"scrape.pods[1].timeout: 2m0s is outside 100ms to 1m0s\n" +
			"scrape.pods[1].timeout: 2m0s is longer than the interval, 10ms\n" +
			"scrape.pods[2].port: \"Not A Name\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)\n" +
			"scrape.pods[2].path: \"//evil.example/x\" is no path, such as /metrics\n" +
			"scrape.pods[2].scheme: tls is for https: leave one of them out\n" +
			"scrape.pods[2].tls: certFile and keyFile belong together: give both, or none\n" +
			"scrape.pods[3].path: \"/x?a=1&a=2\" is no path, such as /metrics\n" +
			"scrape.pods[3].tls.insecureSkipVerify: it takes any certificate, so that caFile and serverName check nothing: leave it out",
		"nothing-scraped.yaml": "scrape.discovery.enabled: nothing is scraped without it: name pods in scrape.pods, or leave it on",
		"scrape-text.yaml":     "scrape.discovery.enabled: want true or false, and not a text",
		"no-objective.yaml":    "slo: no objective is set; goodput needs at least one of ttft, tpot, e2e",
		"wrong-kind.yaml":      "slo: want a mapping of fields to values, and not a list",
		"no-mapping.yaml":      "the whole file: want a mapping of fields to values, and not a list",
		"twice.yaml":           "yaml: unmarshal errors:\n  line 2: key \"window\" already set in map",
		"two-documents.yaml":   "there is more than one document in it: leave out the lines ---",
		"no-yaml.yaml":         "yaml: line 1: did not find expected node content",
		"windows.yaml": "windows[0]: 1s is outside 10s to 10m0s\n" +
			`windows[1]: "5" is no duration: write a number and a unit, such as 2.5s or 100ms` + "\n" +
			"windows[2]: 2m0s is there already\n" +
			"windows[4]: 5m0s is there already\n" +
			"windows[5]: 1h0m0s is outside 10s to 10m0s",
		"saturation.yaml": "saturation.queue: 0 waiting requests are not above 0, or above 1e6\n" +
			"saturation.kv: 80 is not above 0, or above 1",
		"saturation-text.yaml": "saturation.queue: want a number, and not a text",
		"objectives.yaml": `objectives[0].namespace: "Chat": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')` + "\n" +
			`objectives[0].slo.ttft: "1" is no duration: write a number and a unit, such as 2.5s or 100ms` + "\n" +
			"objectives[1].selector: unable to parse requirement: found '' expected: '('\n" +
			"objectives[1].slo: no objective is set; goodput needs at least one of ttft, tpot, e2e\n" +
			"objectives[2].selector: want a text such as app=vllm,tier in (gold), or matchLabels and matchExpressions\n" +
			"objectives[2].slo.ttft: -1s is negative; leave it out for no objective\n" +
			"objectives[2].slo.e2e: 25h0m0s is above 24h0m0s; leave it out for no objective\n" +
			"objectives[3].selector: want a text such as app=vllm,tier in (gold), or matchLabels and matchExpressions\n" +
			"objectives[5]: the one before it is for all pods, so that this one never holds: put that last\n" +
			"objectives[5].slo: it is missing: set at least one of ttft, tpot, e2e",
		"kinds.yaml": `kinds[0]: "Deployment" ` + builtIn + "\n" +
			`kinds[1]: "deployment.apps" ` + builtIn + "\n" +
			`kinds[2]: "deployments" ` + builtIn + "\n" +
			`kinds[3]: "apps/deployments" ` + builtIn + "\n" +
			`kinds[4]: "deployments.v1.apps" ` + builtIn + "\n" +
			"kinds[6]: deployments.apps is there already\n" +
			`kinds[7]: "pods" need not be allowed: pods are served always` + "\n" +
			`kinds[8]: "leaderworkerset.leaderworkerset.x-k8s.io" ` + builtIn + "\n" +
			`kinds[9]: "rollouts.v1alpha1.argoproj.io" ` + builtIn + "\n" +
			`kinds[10]: "" ` + builtIn,
		"labels.yaml": `roleLabels[0]: "llm d/role": prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')` + "\n" +
			`podLabels[0].namespace: "" is no name of a label: give both, as the series have them`,
	}
	for _, name := range fixtures(t, "bad", len(want)) {
		_, _, err := Open(name, kinds)
		if err == nil {
			t.Errorf("%s was read", name)
			continue
		}
		got, found := strings.CutPrefix(err.Error(), name+": ")
		if diff := cmp.Diff(want[filepath.Base(name)], got); !found || diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, _, err := Open("/dev/zero", kinds); err == nil || err.Error() != "/dev/zero is larger than 1 MiB" {
		t.Errorf("a file without end: %v", err)
	}
	if _, _, err := Open("testdata/none.yaml", kinds); err == nil || !strings.Contains(err.Error(), "open testdata/none.yaml") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestConfigWarnings(t *testing.T) {
	c, err := parse([]byte("objectives: [{namespace: chat, slo: {ttft: 2500ms}}, {slo: {ttft: 3s}}]"), kinds)
	if err != nil {
		t.Fatal(err)
	}
	const want = "objectives[1].slo.ttft: 3s lies between the bucket edges 2.5s and 5s of vLLM: goodput counts the requests within 2.5s"
	found := false
	for _, w := range c.Warnings() {
		found = found || w == want
		if strings.HasPrefix(w, "objectives[0]") && strings.Contains(w, "vLLM") {
			t.Errorf("warned of an edge: %s", w)
		}
	}
	if !found {
		t.Errorf("warned %q, want %q among them", c.Warnings(), want)
	}
}

// The example shows every field, the document tells of each, and what we ship can be read.
func TestDocumentedConfig(t *testing.T) {
	const example, document = "../../docs/configuration.example.yaml", "../../docs/configuration.md"
	_, c, err := Open(example, kinds)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Windows) == 0 || len(c.Objectives) == 0 || len(c.Kinds) == 0 || len(c.RoleLabels) == 0 || len(c.Params.PodLabels) == 0 || len(c.Scrape.Pods) == 0 {
		t.Errorf("%s leaves fields out: %+v", example, c)
	}
	if w := c.Warnings(); len(w) > 0 && strings.Contains(strings.Join(w, "\n"), "of vLLM") {
		t.Errorf("%s has objectives off vLLM's edges: %q", example, w)
	}
	if _, c, err = Open("../../deploy/manifests/base/config.yaml", kinds); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(kinds), c, comparable); diff != "" {
		t.Errorf("what we deploy is not the default (-default +deployed):\n%s", diff)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields(reflect.TypeFor[file](), "") {
		if !strings.Contains(string(text), "`"+f+"`") {
			t.Errorf("%s does not tell of %s", document, f)
		}
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
