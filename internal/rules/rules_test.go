package rules

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

// world is rules that a test ticks by hand.
type world struct {
	t       *testing.T
	ctx     context.Context
	rules   *Rules
	server  *fakeServer
	clock   time.Time
	objects map[string][]string // by kind and namespace
	listed  int                 // how often the cluster was asked for objects
	changed int
	kinds   []Resource
	// someKinds says that there are more.
	someKinds bool

	mu   sync.Mutex
	logs []string
}

func newWorld(t *testing.T, load, config string) *world {
	t.Helper()
	w := &world{t: t, server: newFakeServer(t, load), clock: time.Unix(1000, 0), objects: map[string][]string{}, kinds: BuiltIn}
	w.ctx = klog.NewContext(t.Context(), funcr.New(func(_, args string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.logs = append(w.logs, args)
	}, funcr.Options{}))
	w.rules = New(Config{
		Server: w.server, Objects: w, Resources: func() ([]Resource, bool) { return w.kinds, !w.someKinds },
		Ours:     func(metric string) bool { return metric == "vllm_queue_depth" },
		Interval: 10 * time.Second, Timeout: 5 * time.Second, Changed: func() { w.changed++ },
	}, parsed(t, config))
	w.rules.now = func() time.Time { return w.clock }
	return w
}

func parsed(t *testing.T, config string) *File {
	t.Helper()
	f, err := Parse([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Names implements Objects. A label selector is the name of an object.
func (w *world) Names(_ context.Context, of Resource, namespace string, selector labels.Selector) ([]string, error) {
	w.listed++
	all := w.objects[of.String()+"/"+namespace]
	if all == nil {
		return nil, fmt.Errorf("nobody lists %s", of.GroupResource)
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !selector.Matches(labels.Set{"name": name}) }), nil
}

// tick waits until the queries of a tick are through, after some time.
func (w *world) tick(after time.Duration) {
	w.clock = w.clock.Add(after)
	w.rules.tick(w.ctx)
	w.rules.running.Wait()
}

func (w *world) request(kind, namespace, metric, selector string) Request {
	w.t.Helper()
	where, err := labels.Parse(selector)
	if err != nil {
		w.t.Fatal(err)
	}
	return Request{Resource: schema.ParseGroupResource(kind), Namespace: namespace, Metric: metric, Selector: where}
}

// get asks for KIND/NAMESPACE/NAME, or KIND//NAME, and a metric{selector}.
func (w *world) get(of, metric string) string {
	w.t.Helper()
	part := strings.Split(of, "/")
	name, selector, _ := strings.Cut(strings.TrimSuffix(metric, "}"), "{")
	q := w.request(part[0], part[1], name, selector)
	v, err := w.rules.Get(q, part[2])
	if err != nil {
		return told(err)
	}
	return fmt.Sprintf("%dm", v.Milli)
}

// list asks for all of KIND/NAMESPACE/ that match.
func (w *world) list(of, objects, metric string) string {
	w.t.Helper()
	part := strings.Split(of, "/")
	name, selector, _ := strings.Cut(strings.TrimSuffix(metric, "}"), "{")
	where, err := labels.Parse(objects)
	if err != nil {
		w.t.Fatal(err)
	}
	all, fault := w.rules.Select(w.ctx, w.request(part[0], part[1], name, selector), where)
	if fault != nil {
		return told(fault)
	}
	var out []string
	for _, v := range all {
		out = append(out, fmt.Sprintf("%s %dm", v.Name, v.Milli))
	}
	return strings.Join(out, ", ")
}

func (w *world) external(namespace, metric string) string {
	w.t.Helper()
	name, selector, _ := strings.Cut(strings.TrimSuffix(metric, "}"), "{")
	where, err := labels.Parse(selector)
	if err != nil {
		w.t.Fatal(err)
	}
	all, fault := w.rules.OfNamespace(namespace, name, where)
	if fault != nil {
		return told(fault)
	}
	var out []string
	for _, v := range all {
		out = append(out, fmt.Sprintf("%v %dm", v.Labels, v.Milli))
	}
	return strings.Join(out, ", ")
}

func told(err *Error) string {
	return map[Why]string{NotThere: "not there", NotNow: "not now", Refused: "refused"}[err.Why] + ": " + err.Message
}

func (w *world) want(got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("got  %s\nwant %s", got, want)
	}
}

func (w *world) asked(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.server.queries()); diff != "" {
		w.t.Errorf("asked (-want +got):\n%s", diff)
	}
}

const podRules = `
rules:
- seriesQuery: 'x{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}, service: {resource: service}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`

const podSeries = `load 10s
  x{namespace="a",pod="p",verb="GET"} 1x60
  x{namespace="a",pod="p",verb="PUT"} 2x60
  x{namespace="a",pod="q",verb="GET"} 0x60
  x{namespace="b",pod="p",verb="GET"} 0.0001x60
`

const warming = "not now: rules[0]: it is warming up, as it has not been asked for lately: ask again in 10 s"

// TestServe: one query for all pods of all namespaces that are asked for, however many ask.
func TestServe(t *testing.T) {
	w := newWorld(t, podSeries, podRules)
	w.objects["pods/a"] = []string{"new", "p", "q"}
	w.tick(0)
	w.asked()
	w.want(w.list("pods/a/", "", "x"), warming)
	w.want(w.get("pods/b/p", "x"), warming)
	w.tick(0)
	w.asked(`sum(x{namespace=~"a|b",pod!=""}) by (pod,namespace)`)
	for range 3 {
		w.want(w.list("pods/a/", "", "x"), "p 3000m, q 0m")
		w.want(w.list("pods/a/", "name in (q,new)", "x"), "q 0m")
		w.want(w.list("pods/a/", "name=new", "x"), "not there: rules[0]: of new: metricsQuery gives nothing for it")
		w.want(w.list("pods/a/", "name=none", "x"), "")
		w.want(w.get("pods/b/p", "x"), "1m") // a little is not nothing
		w.want(w.get("pods/b/q", "x"), "not there: rules[0]: metricsQuery gives nothing for it")
	}
	w.asked()

	// A metric selector is another query, and namespaces are asked for by name.
	w.get("pods/a/p", "x{verb=PUT}")
	w.get("namespaces//a", "x")
	w.tick(10 * time.Second)
	w.asked(
		`sum(x{namespace="a"}) by (namespace)`,
		`sum(x{namespace=~"a|b",pod!=""}) by (pod,namespace)`,
		`sum(x{verb="PUT",namespace="a",pod!=""}) by (pod)`,
	)
	w.want(w.get("pods/a/p", "x{verb=PUT}"), "2000m")
	w.want(w.get("pods/a/q", "x{verb=PUT}"), "not there: rules[0]: metricsQuery gives nothing for it")
	w.want(w.get("namespaces//a", "x"), "3000m")

	// What nobody asks for any more is not queried.
	for range 61 {
		w.get("pods/b/p", "x")
		w.tick(10 * time.Second)
	}
	w.server.queries()
	w.tick(10 * time.Second)
	w.asked(`sum(x{namespace="b",pod!=""}) by (pod)`)
}

// TestRefused: what no rule serves, and what cannot be asked.
func TestRefused(t *testing.T) {
	w := newWorld(t, podSeries, podRules+`
- seriesQuery: all{pod!=""}
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(all) by (pod)
- seriesQuery: vllm_queue_depth{pod!=""}
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`)
	for of, want := range map[string]string{
		"pods/a/p y":                           "not there: no rule serves it",
		"nodes//n x":                           "not there: rules serve it on [namespaces pods services] only",
		"pods//p x":                            "not there: pods are in a namespace, which is not named",
		"namespaces/b/a x":                     "not there: namespaces are in no namespace: ask for them in none",
		"pods/a\"}or{/p x":                     `not there: "a\"}or{" is no name of a namespace`,
		"pods/a/p\" x":                         `not there: "p\"" is no name of an object`,
		"pods/a/p x{app.kubernetes.io/name=y}": `refused: metric selector: "app.kubernetes.io/name" is no label of a series: they have letters, digits and underscores only`,
		"pods/a/p all{verb=GET}":               "refused: rules[1]: metricsQuery has no <<.LabelMatchers>>, so that it cannot take a metric selector",
		"pods/a/p vllm_queue_depth":            "not there: no rule serves it",
	} {
		object, metric, _ := strings.Cut(of, " ")
		w.want(w.get(object, metric), want)
	}
	w.tick(0)
	w.asked()
	for i := range maxAsks {
		w.get("pods/a/p", fmt.Sprintf("x{verb=v%d}", i))
	}
	w.want(w.get("pods/a/p", "x{verb=one-more}"), "not now: more than 5000 different metrics, selectors and objects have been asked for in the last 10m0s: ask for fewer")
	w.clock = w.clock.Add(askedFor)
	w.tick(0)
	w.want(w.get("pods/a/p", "x{verb=one-more}"), warming)
}

// TestNumbers: what is no number, or does not fit, is an error of that object, and of no other.
func TestNumbers(t *testing.T) {
	w := newWorld(t, `load 10s
  x{namespace="a",pod="good"} 1.5x60
  x{namespace="a",pod="negative"} -2x60
  x{namespace="a",pod="nan"} NaN...
  x{namespace="a",pod="inf"} Inf...
  x{namespace="a",pod="minus"} -Inf...
  x{namespace="a",pod="huge"} 9223372036854775808x60
  x{namespace="a",pod="twice",verb="GET"} 1x60
  x{namespace="a",pod="twice",verb="PUT"} 2x60
  x{namespace="a",pod="same",verb="GET"} 3x60
  x{namespace="a",pod="same",verb="PUT"} 3x60
  x{namespace="a",pod="big1"} 9000000000000000x60
  x{namespace="a",pod="big2"} 9000000000000000x60
`, strings.Replace(podRules, "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)", "<<.Series>>{<<.LabelMatchers>>}", 1))
	w.objects["pods/a"] = []string{"big1", "big2", "good", "huge", "inf", "minus", "nan", "negative", "same", "twice"}
	w.get("pods/a/good", "x")
	w.tick(0)
	for pod, want := range map[string]string{
		"good":     "1500m",
		"negative": "-2000m",
		"nan":      "not now: rules[0]: metricsQuery gives no number (NaN), such as of 0/0",
		"inf":      "not now: rules[0]: metricsQuery gives +Inf, which does not fit into a quantity",
		"minus":    "not now: rules[0]: metricsQuery gives -Inf, which does not fit into a quantity",
		"huge":     "not now: rules[0]: metricsQuery gives 9.223372036854776e+18, which does not fit into a quantity",
		"twice":    "not now: rules[0]: metricsQuery gives several values for it: have it aggregate by (<<.GroupBy>>)",
		"same":     "3000m",
		"big1":     "9000000000000000000m",
	} {
		w.want(w.get("pods/a/"+pod, "x"), want)
	}
	w.want(w.list("pods/a/", "name notin (big1,big2)", "x"), "good 1500m, negative -2000m, same 3000m")
	w.want(w.list("pods/a/", "name in (big1,big2)", "x"), "not now: the sum of the values does not fit into a quantity")
	w.want(w.list("pods/a/", "name in (nan,inf)", "x"), "not now: rules[0]: of inf: metricsQuery gives +Inf, which does not fit into a quantity")
}

// TestSourceDown: values are held for a while, and then there are none: never a zero.
func TestSourceDown(t *testing.T) {
	w := newWorld(t, podSeries, podRules)
	w.get("pods/a/p", "x")
	w.server.err = errors.New("cannot be reached")
	w.tick(0)
	w.want(w.get("pods/a/p", "x"), "not now: rules[0]: cannot be reached")
	w.server.err = nil
	w.tick(40 * time.Second)
	w.want(w.get("pods/a/p", "x"), "3000m")
	w.server.err = errors.New("cannot be reached")
	for range 3 {
		w.tick(10 * time.Second)
		w.want(w.get("pods/a/p", "x"), "3000m")
	}
	w.tick(time.Second)
	w.want(w.get("pods/a/p", "x"), "not now: rules[0]: cannot be reached")
	if got := testutil.ToFloat64(w.rules.metrics.failed.WithLabelValues("rules[0]")); got != 1 {
		t.Errorf("failing is %g", got)
	}
	w.server.err = nil
	w.tick(30 * time.Second)
	w.want(w.get("pods/a/p", "x"), "3000m")
	if got := testutil.ToFloat64(w.rules.metrics.failed.WithLabelValues("rules[0]")); got != 0 {
		t.Errorf("failing is %g", got)
	}
	// Twice it began to fail, and it was told each time, and that it ended.
	if len(w.logs) != 4 || !strings.Contains(w.logs[0], "Query of a rule fails") || !strings.Contains(w.logs[1], "succeed again") {
		t.Errorf("logged:\n%s", strings.Join(w.logs, "\n"))
	}
	// A tick that does not come is no reason to go on with what was.
	w.clock = w.clock.Add(31 * time.Second)
	w.want(w.get("pods/a/p", "x"), "not now: rules[0]: the newest value is 31s old")
}

// TestOneBrokenRule: a rule whose query hangs, or fails, takes nothing from the others.
func TestOneBrokenRule(t *testing.T) {
	const bad = `
- seriesQuery: 'bad{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(bad{<<.LabelMatchers>>} + on () x{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: 'hung{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(hung{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: 'syntax{'
`
	w := newWorld(t, podSeries+`  bad{namespace="a",pod="p",verb="GET"} 1x60
  bad{namespace="a",pod="q",verb="GET"} 1x60
`, podRules+bad)
	w.server.hang, w.server.hangText = make(chan struct{}), "hung"
	defer close(w.server.hang)
	w.rules.config.Timeout = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	w.rules.now = time.Now
	w.get("pods/a/p", "bad")
	w.get("pods/a/p", "hung")
	w.get("pods/a/p", "x")
	go func() { done <- w.rules.Run(ctx) }()
	await(t, func() string { return w.get("pods/a/p", "x") }, "3000m")
	await(t, func() string { return w.get("pods/a/p", "hung") }, "not now: rules[2]: context deadline exceeded")
	await(t, func() string { text, _, _ := strings.Cut(w.get("pods/a/p", "bad"), " for"); return text }, "not now: rules[1]: found duplicate series")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(w.rules.metrics.rules.WithLabelValues("faulty")); got != 1 {
		t.Errorf("%g rules are faulty", got)
	}
}

func await(t *testing.T, got func() string, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		text := got()
		if text == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got  %s\nwant %s", text, want)
		}
	}
}

// TestSpoiled: series of one namespace with which a query cannot be evaluated take nothing from the others.
func TestSpoiled(t *testing.T) {
	w := newWorld(t, podSeries+`  y{namespace="a",pod="p",n="1"} 1x60
  y{namespace="a",pod="p",n="2"} 1x60
  y{namespace="b",pod="p"} 4x60
`, strings.Replace(podRules, "by (<<.GroupBy>>)", "by (<<.GroupBy>>) + on (<<.GroupBy>>) y{<<.LabelMatchers>>}", 1))
	w.get("pods/a/p", "x")
	w.get("pods/b/p", "x")
	w.tick(0)
	if got := w.get("pods/b/p", "x"); !strings.Contains(got, "duplicate series") {
		t.Errorf("got %s", got)
	}
	w.tick(20 * time.Second)
	w.want(w.get("pods/b/p", "x"), "4000m")
	if got := w.get("pods/a/p", "x"); !strings.Contains(got, "duplicate series") {
		t.Errorf("got %s", got)
	}
}

// TestEach: where a value depends on what else is asked for, each request has a query of its own, of the objects
// that there are at each tick.
func TestEach(t *testing.T) {
	w := newWorld(t, podSeries, strings.Replace(podRules, "by (<<.GroupBy>>)", "by (<<.GroupBy>>) / scalar(sum(<<.Series>>{<<.LabelMatchers>>}))", 1))
	w.objects["pods/a"] = []string{"p"}
	w.want(w.get("pods/a/p", "x"), warming)
	w.want(w.list("pods/a/", "", "x"), warming)
	w.tick(0)
	w.want(w.get("pods/a/p", "x"), "1000m")
	w.want(w.list("pods/a/", "", "x"), "p 1000m")
	w.server.queries()
	w.objects["pods/a"] = []string{"p", "q"}
	w.tick(10 * time.Second)
	w.asked(
		`sum(x{namespace="a",pod="p"}) by (pod) / scalar(sum(x{namespace="a",pod="p"}))`,
		`sum(x{namespace="a",pod=~"p|q"}) by (pod) / scalar(sum(x{namespace="a",pod=~"p|q"}))`,
	)
	w.want(w.list("pods/a/", "", "x"), "p 1000m, q 0m")
	w.objects["pods/a"] = []string{}
	w.tick(10 * time.Second)
	w.want(w.list("pods/a/", "", "x"), "")
}

// TestManyNamespaces: no query grows with the cluster.
func TestManyNamespaces(t *testing.T) {
	w := newWorld(t, podSeries, podRules)
	for i := range 250 {
		w.get(fmt.Sprintf("pods/n%03d/p", i), "x")
	}
	w.get("pods/b/p", "x")
	w.tick(0)
	if got := w.server.queries(); len(got) != 3 {
		t.Errorf("%d queries of 251 namespaces", len(got))
	}
	w.want(w.get("pods/b/p", "x"), "1m")
	w.want(w.get("pods/n249/p", "x"), "not there: rules[0]: metricsQuery gives nothing for it")
}

// TestExternal: external metrics are those of the namespace, unless the rule says otherwise.
func TestExternal(t *testing.T) {
	w := newWorld(t, podSeries+`  lag{namespace="a",name="q1"} 5x60
  lag{namespace="a",name="q2"} 7x60
  lag{namespace="b",name="q1"} 11x60
  part{namespace="a",name="q1"} 5x60
  part{namespace="a",name="q2"} NaN...
`, `
externalRules:
- seriesQuery: lag{namespace!=""}
  resources: {overrides: {namespace: {resource: namespace}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (name)
- seriesQuery: lag{namespace!=""}
  name: {as: lag_anywhere}
  resources: {namespaced: false}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>})
- seriesQuery: lag{namespace!=""}
  name: {as: seconds}
  resources: {namespaced: false}
  metricsQuery: scalar(<<.Series>>{<<.LabelMatchers>>})
- seriesQuery: part{namespace!=""}
  resources: {overrides: {namespace: {resource: namespace}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (name)
`)
	w.want(w.external("a", "none"), "not there: no rule serves it")
	w.want(w.external("a", "lag"), "not now: externalRules[0]: it is warming up, as it has not been asked for lately: ask again in 10 s")
	asks := [][2]string{{"a", "lag{name=q2}"}, {"b", "lag"}, {"c", "lag"}, {"a", "lag{namespace=b}"}, {"a", "lag_anywhere"}, {"a", "lag_anywhere{namespace=b}"}, {"a", "seconds{namespace=b}"}, {"a", "part"}}
	for _, a := range asks {
		w.external(a[0], a[1])
	}
	w.tick(0)
	w.want(w.external("a", "lag"), "map[name:q1] 5000m, map[name:q2] 7000m")
	for i, want := range []string{
		"map[name:q2] 7000m", "map[name:q1] 11000m", `not there: externalRules[0]: metricsQuery gives nothing for namespace="c"`,
		`not there: externalRules[0]: metricsQuery gives nothing for namespace="a"`, // and not what b has
		"map[] 23000m", "map[] 11000m", "map[] 11000m",
		"not now: externalRules[3]: metricsQuery gives no number (NaN), such as of 0/0",
	} {
		w.want(w.external(asks[i][0], asks[i][1]), want)
	}
	if diff := cmp.Diff([]string{"lag", "lag_anywhere", "part", "seconds"}, w.rules.External()); diff != "" {
		t.Error(diff)
	}
}

// TestDiscovery: names are asked for, and no series; while the server cannot be asked what was found stays.
func TestDiscovery(t *testing.T) {
	w := newWorld(t, `load 10s
  http_requests_total{namespace="a",pod="p",service="s",nonsense="x"} 0+1x60
  http_errors_total{namespace="a",service="s"} 0+1x60
  temperature{node="n"} 40x60
`, podRules+`
- seriesQuery: '{__name__=~".*_total"}'
  resources: {template: <<.Resource>>}
  name: {matches: ^http_(.*)_total$}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: '{__name__=~".*_total"}'
  resources: {template: <<.Resource>>}
  name: {matches: ^http_(.*)_total$, as: "${1}_again"}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`)
	fixed := []string{"namespaces x", "pods x", "services x"}
	w.lists(fixed...)
	w.want(w.get("pods/a/p", "requests"), "not now: no rule is known yet that serves it: the server has not been asked yet which series there are")
	w.server.err = errors.New("cannot be reached")
	if err := w.rules.discover(w.ctx); err == nil {
		t.Error("it could ask a server that cannot be reached")
	}
	w.want(w.get("pods/a/p", "requests"), "not now: no rule is known yet that serves it: cannot be reached")
	w.lists(fixed...)
	w.server.queries()

	w.server.err = nil
	changed := w.changed
	if err := w.rules.discover(w.ctx); err != nil {
		t.Error(err)
	}
	// The second rule is about the same series, and asks for nothing.
	w.asked(
		`__name__ of {__name__=~".*_total",namespace!=""}`, `__name__ of {__name__=~".*_total",pod!=""}`, `__name__ of {__name__=~".*_total",service!=""}`,
		`labels of {__name__=~".*_total"}`,
	)
	all := append(slices.Clone(fixed), "namespaces errors", "namespaces errors_again", "namespaces requests", "namespaces requests_again",
		"pods requests", "pods requests_again", "services errors", "services errors_again", "services requests", "services requests_again")
	w.lists(all...)
	if w.changed != changed+1 {
		t.Errorf("a change was told %d times", w.changed-changed)
	}
	w.get("pods/a/p", "requests")
	w.tick(0)
	w.want(w.get("pods/a/p", "requests"), "30000m")
	w.want(w.get("nodes//n", "temperature"), "not there: no rule serves it")

	w.server.err = errors.New("cannot be reached")
	if err := w.rules.discover(w.ctx); err == nil {
		t.Error("it could ask a server that cannot be reached")
	}
	w.lists(all...)
	if w.changed != changed+1 {
		t.Error("a change was told of what did not change")
	}

	// Another file holds at once.
	w.rules.Apply(parsed(t, strings.ReplaceAll(podRules, "x{", "z{")))
	w.lists("namespaces z", "pods z", "services z")
}

func (w *world) lists(want ...string) {
	w.t.Helper()
	var got []string
	for _, m := range w.rules.Custom() {
		if m.Namespaced != (m.Resource != "namespaces" && m.Resource != "nodes") {
			w.t.Errorf("%v is namespaced: %v", m, m.Namespaced)
		}
		got = append(got, m.String()+" "+m.Name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("listed (-want +got):\n%s", diff)
	}
}

// TestKinds: a rule may be about a kind of the cluster's own, which is not known at once.
func TestKinds(t *testing.T) {
	w := newWorld(t, `load 10s
  milk{namespace="a",brand="b"} 5x60
`, podRules)
	w.someKinds = true
	w.rules.Apply(parsed(t, `
rules:
- seriesQuery: milk{brand!=""}
  resources: {overrides: {namespace: {resource: namespace}, brand: {group: cheese.io, resource: brand}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
`))
	w.want(w.get("brands.cheese.io/a/b", "milk"), "not now: no rule is known yet that serves it: the kinds of object of the cluster are not known yet")
	if err := w.rules.discover(w.ctx); err == nil {
		t.Error("it is content without the kinds")
	}
	w.kinds = append(slices.Clone(BuiltIn), Resource{schema.GroupResource{Group: "cheese.io", Resource: "brands"}, "v1", "Brand", "brand", true})
	w.someKinds = false
	if err := w.rules.discover(w.ctx); err != nil {
		t.Error(err)
	}
	w.get("brands.cheese.io/a/b", "milk")
	w.tick(0)
	w.want(w.get("brands.cheese.io/a/b", "milk"), "5000m")
	w.want(w.list("brands.cheese.io/a/", "", "milk"), "b 5000m")
	if w.listed != 0 {
		t.Error("the cluster was asked for objects that an answer names")
	}
	w.kinds = BuiltIn
	if err := w.rules.discover(w.ctx); err != nil {
		t.Error(err)
	}
	w.want(w.get("brands.cheese.io/a/b", "milk"), "not there: rules serve it on [namespaces] only")
	if got := testutil.ToFloat64(w.rules.metrics.rules.WithLabelValues("faulty")); got != 1 {
		t.Errorf("%g rules are faulty", got)
	}
}

// TestWatch: a file holds once it has been seen twice, and one that is none changes nothing.
func TestWatch(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(podRules)
	w := newWorld(t, podSeries, podRules)
	of := watching{name: name, seen: look(name), judged: look(name)}
	looks := func(metric string) {
		t.Helper()
		w.rules.again(w.ctx, &of)
		w.lists("namespaces "+metric, "pods "+metric, "services "+metric)
	}
	looks("x")
	write(strings.ReplaceAll(podRules, "x{", "y{"))
	looks("x")
	looks("y")
	write("rules: {")
	for range 3 {
		looks("y")
	}
	if got := testutil.ToFloat64(w.rules.metrics.refused); got != 1 || strings.Count(strings.Join(w.logs, "\n"), "Cannot take the rules") != 1 {
		t.Errorf("refused is %g; logged %q", got, w.logs)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	looks("y")
	looks("y")
	write(podRules)
	looks("y")
	looks("x")
	if got := testutil.ToFloat64(w.rules.metrics.refused); got != 0 {
		t.Errorf("refused is %g", got)
	}
}
