package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// literal is a source of one queue for each pod.
type literal struct {
	name   string
	queues map[types.NamespacedName]float64
	err    error
}

func (l *literal) Fetch(_ context.Context, names []string, _ time.Duration, sink source.Sink) (time.Time, error) {
	now := time.Now()
	for _, name := range names {
		v, ok := map[string]float64{"vllm:num_requests_waiting": -1, "vllm:num_requests_running": 1}[name]
		if !ok {
			continue
		}
		for pod, queue := range l.queues {
			if v < 0 {
				sink.Append(promlabels.FromStrings("__name__", name, "namespace", pod.Namespace, "pod", pod.Name), now.UnixMilli(), queue)
			} else {
				sink.Append(promlabels.FromStrings("__name__", name, "namespace", pod.Namespace, "pod", pod.Name), now.UnixMilli(), v)
			}
		}
	}
	return now, l.err
}

func (l *literal) String() string { return l.name }

// objects are the groups of a test, each of all pods of its namespace.
type objects struct {
	pods.NoGroups
	names   []string
	results map[string]signals.Result // by name
}

var deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

func (o objects) Shown() []schema.GroupResource { return []schema.GroupResource{deployments} }

func (o objects) Objects(kind schema.GroupResource, namespace string, _ labels.Selector) ([]pods.Object, error) {
	var all []pods.Object
	for _, n := range o.names {
		all = append(all, pods.Object{GroupResource: kind, Namespace: namespace, Name: n})
	}
	return all, nil
}

func (o objects) Result(_ *collect.Snapshot, of pods.Object, p *signals.Plan) (signals.Result, bool) {
	r, ok := o.results[of.Name]
	return r, ok && p.Query.Signal == "vllm_queue_depth"
}

func name(namespace, pod string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: pod}
}

func plan(t testing.TB, q signals.Query) *signals.Plan {
	t.Helper()
	p, err := signals.Prepare(q)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// collected returns what a real collector has made of a source in one collection.
func collected(t testing.TB, src *literal, lister pods.Lister, standing ...*signals.Plan) *collect.Collector {
	t.Helper()
	c, err := collect.New(collect.Config{Source: src, Pods: lister, Settings: collect.Settings{Params: signals.DefaultParams()}, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c.SetStanding(standing)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); c.Snapshot().Taken.IsZero(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no snapshot within a minute")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return c
}

// of returns the page's configuration over queues, with pods that are Ready, and more pods.
func of(t testing.TB, src *literal, more ...*pods.Pod) Config {
	t.Helper()
	list := more
	for n := range src.queues {
		list = append(list, &pods.Pod{NamespacedName: n, UID: types.UID(n.String()), Owner: types.UID(n.Namespace), Ready: true, WasReady: true})
	}
	lister := pods.NewStatic(list)
	return Config{
		Version: "v1", Host: "adapter-0", Pods: lister, Groups: objects{}, Objects: objects{},
		Collector: collected(t, src, lister, plan(t, signals.Query{Signal: "vllm_queue_depth"})),
	}
}

func get(t testing.TB, c Config, query, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, Path+query, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	New(c).ServeHTTP(w, r)
	return w
}

// read returns the page as a program reads it.
func read(t testing.TB, c Config, query string) page {
	t.Helper()
	w := get(t, c, query, "application/json")
	var p page
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: a %d: %v: %s", query, w.Code, err, w.Body)
	}
	return p
}

func TestPage(t *testing.T) {
	src := &literal{name: "the test's source", queues: map[types.NamespacedName]float64{name("chat", "vllm-0"): 7, name("chat", "vllm-1"): 0, name("batch", "vllm-0"): 3},
		err: errors.New("one of two shards is gone")}
	c := of(t, src, &pods.Pod{NamespacedName: name("chat", "vllm-2"), UID: "new", Owner: "chat"}, &pods.Pod{NamespacedName: name("chat", "vllm-3"), UID: "lost", Owner: "chat", WasReady: true},
		&pods.Pod{NamespacedName: name("web", "nginx"), UID: "web", WasReady: true})
	c.Collector = collected(t, src, c.Pods, plan(t, signals.Query{Signal: "vllm_queue_depth"}), plan(t, signals.Query{Signal: "sglang_queue_depth"}))
	groups := objects{names: []string{"llama", "web"}, results: map[string]signals.Result{
		"llama": {State: signals.Stalled, HasValue: true, Value: 90, LowerBound: true, Time: time.Now(), Reason: "no first token for 90 s"},
	}}
	c.Groups, c.Objects = groups, groups
	c.Targets = func() []Target {
		return []Target{{Namespace: "chat", Pod: "vllm-0", URL: "http://10.0.0.1:8000/metrics", Up: true, Scraped: time.Now()}, {Namespace: "chat", Pod: "vllm-1", URL: "http://10.0.0.2:8000/metrics", Reason: "connection refused", Scraped: time.Now()}}
	}
	c.Monitors = func() []Monitor {
		return []Monitor{{"PodMonitor", "batch", "m", "spec.selector", "it is missing"}, {"PodMonitor", "chat", "m", "spec.podMetricsEndpoints[0].basicAuth", "needs credentials"}}
	}
	c.File = func() File {
		return File{Name: "config.yaml", Hash: strings.Repeat("0a", 32), Err: errors.New("window: 1s is outside"), Restart: []string{"kinds"}}
	}

	p := read(t, c, "?namespace=chat")
	if p.Source.State != "down" || p.Source.Error != "one of two shards is gone" || p.Source.Name != src.name || p.Source.Series == 0 {
		t.Errorf("source: %+v", p.Source)
	}
	if p.Targets.Up != 1 || p.Targets.Down != 1 || len(p.Targets.Rows) != 2 || p.Targets.Rows[1].Reason != "connection refused" || p.Targets.Rows[1].State != "down" {
		t.Errorf("targets: %+v", p.Targets)
	}
	if diff := cmp.Diff([]monitorRow{{"PodMonitor", "chat", "m", "spec.podMetricsEndpoints[0].basicAuth", "needs credentials"}}, p.Monitors.Rows); diff != "" || p.Monitors.Total != 1 {
		t.Errorf("monitors (-want +got):\n%s", diff)
	}
	if html := get(t, c, "", "text/html").Body.String(); !strings.Contains(html, "2 not followed") || !strings.Contains(html, "<code>spec.podMetricsEndpoints[0].basicAuth</code>") {
		t.Errorf("the page does not say what of monitors is not followed: %s", html)
	}
	if p.Queries.Total != 2 || p.Queries.Rows[1].Query != "vllm_queue_depth" || !p.Queries.Rows[1].HPA || p.Queries.Rows[1].Asked {
		t.Errorf("queries: %+v", p.Queries)
	}
	short := func(rows []valueRow) (out []string) {
		for _, r := range rows {
			value := "-"
			if r.Value != nil {
				value = fmt.Sprint(*r.Value)
			}
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s/%s %s %s %s %s", r.Kind, r.Namespace, r.Name, r.Query, r.State, value, r.Reason)))
		}
		return out
	}
	if diff := cmp.Diff([]string{"chat/vllm-0 vllm_queue_depth value 7", "chat/vllm-1 vllm_queue_depth idle 0",
		"chat/vllm-2  unknown - warming up: it has never been Ready",
		"chat/vllm-3 sglang_queue_depth unknown - the source has no sample of an engine in this pod",
		"chat/vllm-3 vllm_queue_depth unknown - the source has no sample of an engine in this pod"}, short(p.Pods.Rows)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"deployments.apps chat/llama vllm_queue_depth stalled 90 no first token for 90 s"}, short(p.Workloads.Rows)); diff != "" {
		t.Errorf("workloads (-want +got):\n%s", diff)
	}
	if got := short(read(t, c, "?state=idle").Pods.Rows); len(got) != 1 {
		t.Errorf("idle pods: %v", got)
	}
	if got := read(t, c, "?signal=vllm_running_requests"); len(got.Pods.Rows)+len(got.Workloads.Rows)+got.Queries.Total != 0 {
		t.Errorf("of another signal: %+v", got)
	}

	w := get(t, c, "", "text/html,application/xhtml+xml,*/*;q=0.8")
	if got := w.Header().Get("Content-Type"); got != "text/html; charset=utf-8" {
		t.Errorf("a browser gets %s", got)
	}
	for _, want := range []string{"one of two shards is gone", "1 up, 1 down", "connection refused", "vllm_queue_depth", "≥ 90", "no first token for 90 s", "5 with an engine", "window: 1s is outside", "after a restart only:</strong> kinds"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if get(t, c, "", "application/json").Header().Get("Content-Type") != "application/json" || get(t, c, "?format=json", "text/html").Header().Get("Content-Type") != "application/json" || get(t, c, "?format=html", "application/json").Header().Get("Content-Type") == "application/json" {
		t.Error("format and Accept do not choose")
	}
}

// Looking changes nothing: what is on the page is not asked for by it.
func TestPageAsksNothing(t *testing.T) {
	c := of(t, &literal{name: "s", queues: map[types.NamespacedName]float64{name("a", "b"): 1}})
	before := c.Collector.Demands()
	for range 3 {
		get(t, c, "", "")
	}
	if diff := cmp.Diff(fmt.Sprint(before), fmt.Sprint(c.Collector.Demands())); diff != "" {
		t.Errorf("demand (-before +after):\n%s", diff)
	}
	w := httptest.NewRecorder()
	New(c).ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path, nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a POST got a %d", w.Code)
	}
}

func TestParameters(t *testing.T) {
	c := of(t, &literal{name: "s"})
	for query, want := range map[string]string{
		"?pods=0":               "pods: \"0\" is no number of a page",
		"?pods=-1":              "pods: \"-1\" is no number of a page",
		"?targets=99999999999":  "targets: ",
		"?state=fine":           "state: \"fine\" is none of value, idle, stalled, unknown",
		"?format=xml":           "format: \"xml\" is neither html nor json",
		"?namespace=%3Cscript>": "namespace: \"<script>\" is no name of a namespace",
		"?signal=a%20b":         "signal: \"a b\" is no name of a signal",
		"?limit=1000000":        "\"limit\" is no parameter: there are namespace",
	} {
		w := get(t, c, query, "")
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: a %d: %s, want a 400 with %q", query, w.Code, w.Body, want)
		}
	}
	if w := get(t, c, "?pods=1000000&namespace=x", ""); w.Code != http.StatusOK {
		t.Errorf("a page beyond the last got a %d", w.Code)
	}
}

// A fleet of ten thousand is shown in pages, each row once.
func TestPageIsBounded(t *testing.T) {
	const fleet = 10_000
	src := &literal{name: "s", queues: map[types.NamespacedName]float64{}}
	for i := range fleet {
		src.queues[name("chat", fmt.Sprintf("vllm-%05d", i))] = float64(i)
	}
	c := of(t, src)
	groups := objects{results: map[string]signals.Result{}}
	for i := range fleet {
		n := fmt.Sprintf("llama-%05d", i)
		groups.names = append(groups.names, n)
		if i%2 == 0 {
			groups.results[n] = signals.Result{Reason: "none"}
		}
	}
	c.Groups, c.Objects = groups, groups
	c.Targets = func() []Target {
		all := make([]Target, fleet)
		for i := range all {
			all[i] = Target{Namespace: "chat", Pod: fmt.Sprintf("vllm-%05d", i), URL: "http://10.0.0.1:8000/metrics"}
		}
		return all
	}
	for range 2 {
		if n := get(t, c, "", "text/html").Body.Len(); n > 500_000 {
			t.Errorf("the page has %d bytes", n)
		}
		for n := range groups.results { // and now with much to say of each
			groups.results[n] = signals.Result{Reason: strings.Repeat("a long reason ", 1000)}
		}
	}
	for n := range groups.results {
		groups.results[n] = signals.Result{Reason: "none"}
	}
	walk := func(table string, rows func(page) ([]string, Pages)) int {
		seen := map[string]bool{}
		for query := ""; ; {
			names, around := rows(read(t, c, query))
			for _, n := range names {
				if seen[n] {
					t.Fatalf("%s: %s is there twice", table, n)
				}
				seen[n] = true
			}
			if around.Next == "" {
				return len(seen)
			}
			u, err := url.Parse(around.Next)
			if err != nil {
				t.Fatal(err)
			}
			query = "?" + u.RawQuery
		}
	}
	if n := walk("pods", func(p page) (out []string, _ Pages) {
		for _, r := range p.Pods.Rows {
			out = append(out, r.Name)
		}
		return out, p.Pods.Pages
	}); n != fleet {
		t.Errorf("%d pods on all pages, want %d", n, fleet)
	}
	if n := walk("targets", func(p page) (out []string, _ Pages) {
		for _, r := range p.Targets.Rows {
			out = append(out, r.Pod)
		}
		return out, p.Targets.Pages
	}); n != fleet {
		t.Errorf("%d targets on all pages, want %d", n, fleet)
	}
	// Objects cost a computation each, so there is an end, which is told.
	if p := read(t, c, "?workloads=26"); !p.Workloads.Cut || p.Workloads.Next != "" {
		t.Errorf("workloads beyond the end: cut %t, next %q", p.Workloads.Cut, p.Workloads.Next)
	}
	if p := read(t, c, "?workloads=25"); len(p.Workloads.Rows) != pageRows {
		t.Errorf("%d workloads on page 25, want %d", len(p.Workloads.Rows), pageRows)
	}
}

// What others wrote shows as what it is, and no more of it than fits.
func TestHostileTexts(t *testing.T) {
	hostile := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, "a\nb\x00c\x1b[31m", "a\u202eb\u2066c\u200fd\ufeff", "\xff\xfe", strings.Repeat("A", 1<<20),
		"{{.Style}}", "</style><script>", "<!-- -->",
	}
	for _, text := range hostile {
		src := &literal{name: text, err: errors.New(text), queues: map[types.NamespacedName]float64{name(text, text): 1}}
		c := of(t, src)
		c.Version, c.Host = text, text
		groups := objects{names: []string{text}, results: map[string]signals.Result{text: {Reason: text}}}
		c.Groups, c.Objects = groups, groups
		c.Targets = func() []Target { return []Target{{Namespace: text, Pod: text, URL: text, Reason: text}} }
		c.Monitors = func() []Monitor { return []Monitor{{text, text, text, text, text}} }
		c.File = func() File { return File{Name: text, Hash: strings.Repeat("0", 64), Err: errors.New(text)} }
		for _, accept := range []string{"text/html", "application/json"} {
			body := get(t, c, "", accept).Body.String()
			for _, raw := range []string{"<script", "<img", "\x00", "\x1b", "\u202e", "\u2066", "\u200f", "\ufeff", "\xff", strings.Repeat("A", 2*maxShown), "<!-- -->", `href="javascript`} {
				if strings.Contains(body, raw) {
					t.Errorf("%.40q: %s has %.40q in it", text, accept, raw)
				}
			}
			if len(body) > 100_000 {
				t.Errorf("%.40q: %s has %d bytes", text, accept, len(body))
			}
		}
	}
}

// The page loads nothing, runs nothing, and is put into no other.
func TestPolicy(t *testing.T) {
	w := get(t, of(t, &literal{name: "s"}), "", "text/html")
	if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'; style-src 'sha256-") || !strings.Contains(got, "frame-ancestors 'none'") || strings.Contains(got, "unsafe") {
		t.Errorf("policy %s", got)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control %q", got)
	}
	if strings.Contains(w.Body.String(), "<script") || strings.Contains(w.Body.String(), "src=") {
		t.Error("there is a script on the page, or another file")
	}
	if !strings.Contains(w.Body.String(), styleText) {
		t.Error("the style is not as the policy's hash has it")
	}
}
