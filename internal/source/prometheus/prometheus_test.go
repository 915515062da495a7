package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/klog/v2"
)

// A fake answers queries from a function and remembers what it was asked.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request // with their forms parsed
}

// newFake returns a server that answers with the text that respond returns, unless that wrote an
// answer itself.
func newFake(t testing.TB, respond func(w http.ResponseWriter, query string) string) *fake {
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.requests = append(f.requests, r)
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if text := respond(w, r.Form.Get("query")); text != "" {
			_, _ = w.Write([]byte(text))
		}
	}))
	t.Cleanup(f.Close)
	return f
}

// queries returns what was asked since the last call, sorted.
func (f *fake) queries() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, r := range f.requests {
		all = append(all, r.Form.Get("query"))
	}
	f.requests = nil
	slices.Sort(all)
	return all
}

// matrix is an answer with one sample for each of some series of each name.
func matrix(series int, names ...string) string {
	var items []string
	for _, name := range names {
		for i := range series {
			items = append(items, fmt.Sprintf(`{"metric":{"__name__":%q,"namespace":"default","pod":"pod-%d"},"values":[[1764590400.125,"%d"]]}`, name, i, i))
		}
	}
	return `{"status":"success","data":{"resultType":"matrix","result":[` + strings.Join(items, ",") + `]}}`
}

// sink counts samples by name.
type sink map[string]int

func (s sink) Append(ls labels.Labels, _ int64, _ float64) { s[ls.Get("__name__")]++ }

func open(t testing.TB, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fetch(t testing.TB, s *Source, names ...string) sink {
	t.Helper()
	got := sink{}
	if _, err := s.Fetch(t.Context(), names, 30*time.Second, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestQueries asserts the bound: the number of queries depends on names alone.
func TestQueries(t *testing.T) {
	const pods = 1000
	var live []string
	srv := newFake(t, func(_ http.ResponseWriter, query string) string {
		var asked []string
		for _, name := range live {
			if strings.Contains(query, name) {
				asked = append(asked, name)
			}
		}
		return matrix(pods, asked...)
	})
	s := open(t, Config{URL: srv.URL, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "cluster", `a"b`)}})
	names := []string{"vllm:x", "vllm_x", "a.b", "dd", "dd"}
	const probe = `{__name__=~"a\\.b|dd|vllm:x|vllm_x",cluster="a\"b"}[30s]`

	for _, step := range []struct {
		name string
		live []string
		want []string
	}{
		{"no name is live", nil, []string{probe}},
		{"a name appears", []string{"vllm:x"}, []string{probe}},
		{"it has a query of its own", []string{"vllm:x", "dd"}, []string{`{__name__="vllm:x",cluster="a\"b"}[30s]`, `{__name__=~"a\\.b|dd|vllm_x",cluster="a\"b"}[30s]`}},
		{"so has the next", []string{"dd"}, []string{`{__name__="dd",cluster="a\"b"}[30s]`, `{__name__="vllm:x",cluster="a\"b"}[30s]`, `{__name__=~"a\\.b|vllm_x",cluster="a\"b"}[30s]`}},
	} {
		live = step.live
		got := fetch(t, s, names...)
		for _, name := range live {
			if got[name] != pods {
				t.Errorf("%s: %d samples of %s, want %d", step.name, got[name], name, pods)
			}
		}
		if diff := cmp.Diff(step.want, srv.queries()); diff != "" {
			t.Errorf("%s: queries (-want +got):\n%s", step.name, diff)
		}
	}

	for range idleFetches {
		fetch(t, s, names...)
		srv.queries()
	}
	fetch(t, s, names...)
	if diff := cmp.Diff([]string{`{__name__="dd",cluster="a\"b"}[30s]`, `{__name__=~"a\\.b|vllm:x|vllm_x",cluster="a\"b"}[30s]`}, srv.queries()); diff != "" {
		t.Errorf("a name is silent: queries (-want +got):\n%s", diff)
	}
}

// TestLongProbe keeps the shared query below what servers accept.
func TestLongProbe(t *testing.T) {
	srv := newFake(t, func(http.ResponseWriter, string) string { return matrix(0) })
	var names []string
	for i := range 400 {
		names = append(names, fmt.Sprintf("vllm:a_name_of_fifty_characters_or_so_like_many_%04d", i))
	}
	fetch(t, open(t, Config{URL: srv.URL}), names...)
	queries := srv.queries()
	if len(queries) != 2 {
		t.Errorf("%d queries, want 2", len(queries))
	}
	all := strings.Join(queries, " ")
	for _, name := range names {
		if !strings.Contains(all, name) {
			t.Errorf("%s was not asked for", name)
		}
	}
	for _, q := range queries {
		if len(q) > 16<<10 {
			t.Errorf("a query of %d bytes", len(q))
		}
	}
}

// TestTooMuchAtOnce: what is too much for one query is asked for name by name.
func TestTooMuchAtOnce(t *testing.T) {
	srv := newFake(t, func(w http.ResponseWriter, query string) string {
		if strings.Contains(query, "|") {
			w.WriteHeader(422)
			return `{"status":"error","error":"too many samples"}`
		}
		return matrix(3, strings.Split(query, `"`)[1])
	})
	s := open(t, Config{URL: srv.URL})
	names := []string{"x", "y", "z"}
	if _, err := s.Fetch(t.Context(), names, time.Minute, sink{}); err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(sink{"x": 3, "y": 3, "z": 3}, fetch(t, s, names...)); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	if got := srv.queries(); len(got) != 1+len(names) {
		t.Errorf("queries %q", got)
	}
}

func TestRequest(t *testing.T) {
	srv := newFake(t, func(http.ResponseWriter, string) string { return matrix(1, "x") })
	fetch(t, open(t, Config{URL: srv.URL + "/prefix/", Timeout: 3 * time.Second}), "x")
	r := srv.requests[0]
	if r.Method != http.MethodPost || r.URL.String() != "/prefix/api/v1/query" {
		t.Errorf("%s %s", r.Method, r.URL)
	}
	want := "map[query:[{__name__=~\"x\"}[30s]] timeout:[3s]]"
	if got := fmt.Sprint(r.Form); got != want { // no time: the server's own now
		t.Errorf("form %s, want %s", got, want)
	}
}

func TestGETWhenPOSTIsRefused(t *testing.T) {
	var methods []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method+" "+r.URL.Query().Get("tenant"))
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if r.FormValue("query") == "" {
			t.Error("no query")
		}
		fmt.Fprint(w, matrix(1, "x"))
	}))
	defer srv.Close()
	s := open(t, Config{URL: srv.URL + "?tenant=a"})
	for range 2 {
		if got := fetch(t, s, "x"); got["x"] != 1 {
			t.Errorf("got %v", got)
		}
	}
	if diff := cmp.Diff([]string{"POST a", "GET a", "GET a"}, methods); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestErrors(t *testing.T) {
	elsewhere := newFake(t, func(http.ResponseWriter, string) string { return matrix(1, "x") })
	status := func(code int, text string) func(http.ResponseWriter, string) string {
		return func(w http.ResponseWriter, _ string) string {
			w.WriteHeader(code)
			return text
		}
	}
	html := func(code int) func(http.ResponseWriter, string) string {
		return func(w http.ResponseWriter, _ string) string {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.WriteHeader(code)
			return "<html><body>Sign in</body></html>"
		}
	}
	for _, c := range []struct {
		name    string
		cfg     Config
		respond func(http.ResponseWriter, string) string
		want    []string
	}{
		{"401", Config{}, status(401, "Unauthorized\n"), []string{"401 Unauthorized", "check the credentials"}},
		{"403", Config{}, html(403), []string{"403 Forbidden", "grant them read access"}},
		{"404", Config{}, status(404, "404 page not found"), []string{"404", "check the path prefix"}},
		{"too many samples", Config{}, status(422, `{"status":"error","errorType":"execution","error":"query processing would load too many samples into memory"}`), []string{"too many samples into memory", "narrow it with matchers"}},
		{"503", Config{}, status(503, "a\nb"), []string{"503", ": a b:", "overloaded"}},
		{"500 with a long text", Config{}, status(500, strings.Repeat("x", 10_000)), []string{"500", "x…"}},
		{"login page", Config{}, html(200), []string{"web page", "check the URL"}},
		{"login page as JSON", Config{}, status(200, "<html>"), []string{"not JSON", "check that the URL"}},
		{"redirect", Config{}, func(w http.ResponseWriter, _ string) string {
			w.Header().Set("Location", elsewhere.URL+"/login?token=geheim")
			w.WriteHeader(307)
			return ""
		}, []string{"redirects to " + elsewhere.URL + " (307", "set the URL"}},
		{"error in an answer that is 200", Config{}, status(200, `{"status":"error","errorType":"timeout","error":"too slow"}`), []string{"timeout: too slow"}},
		{"cut off", Config{}, status(200, matrix(1, "x")[:40]), []string{"cut off"}},
		{"too large", Config{MaxAnswerBytes: 1 << 20}, status(200, matrix(20_000, "x")), []string{"larger than 1 MiB", "narrow"}},
		{"too slow", Config{Timeout: 50 * time.Millisecond}, func(http.ResponseWriter, string) string {
			time.Sleep(300 * time.Millisecond)
			return matrix(0)
		}, []string{"no complete answer within 50ms", "timeout too short"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := newFake(t, c.respond)
			c.cfg.URL = strings.Replace(srv.URL, "http://", "http://user:geheim@", 1) + "?token=geheim"
			_, err := open(t, c.cfg).Fetch(t.Context(), []string{"x", "y"}, time.Minute, sink{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(c.want, "Prometheus at "+srv.URL+": ", "reading x and 1 more: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "user") || strings.ContainsAny(err.Error(), "\n<") {
				t.Errorf("the message holds what it must not: %q", err)
			}
		})
	}
	if asked := elsewhere.queries(); len(asked) > 0 {
		t.Errorf("a redirect was followed, with credentials: %q", asked)
	}
}

func TestUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	s := open(t, Config{URL: "http://" + address})
	_, err = s.Fetch(t.Context(), []string{"x"}, time.Minute, sink{})
	for _, want := range []string{"Prometheus at http://" + address + ": ", "connection refused", "check that the server runs"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Fetch(ctx, []string{"x"}, time.Minute, sink{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context was cancelled", err)
	}
}

func TestPartialFailure(t *testing.T) {
	broken := false
	srv := newFake(t, func(w http.ResponseWriter, query string) string {
		names := strings.Split(strings.Split(query, `"`)[1], "|")
		if broken && names[0] != "a" {
			w.WriteHeader(422)
			return fmt.Sprintf(`{"status":"error","error":"limit of %s"}`, map[string]string{"b": "samples", "c": "series", "d": "samples"}[names[0]])
		}
		return matrix(3, names...)
	})
	s := open(t, Config{URL: srv.URL})
	fetch(t, s, "a", "b", "c", "d")
	broken = true
	got := sink{}
	_, err := s.Fetch(t.Context(), []string{"a", "b", "c", "d"}, 30*time.Second, got)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{": 3 of 4 queries failed: reading b: ", "limit of samples", "; reading c: ", "limit of series"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "reading d") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a reason is told twice, or on lines of its own: %q", err)
	}
	if diff := cmp.Diff(sink{"a": 3}, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

// What a storage node kept to itself is missing and not gone: the caller has to know.
func TestPartialAnswer(t *testing.T) {
	srv := newFake(t, func(http.ResponseWriter, string) string {
		return strings.Replace(matrix(3, "x"), "{", `{"isPartial":true,`, 1)
	})
	s := open(t, Config{URL: srv.URL})
	got := sink{}
	_, err := s.Fetch(t.Context(), []string{"x"}, time.Minute, got)
	if !errors.Is(err, errPartial) || !strings.Contains(err.Error(), srv.URL) {
		t.Errorf("got %v, want that the answer is partial, and of which server", err)
	}
	if diff := cmp.Diff(sink{"x": 3}, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

func TestWarningsAreLoggedOnChange(t *testing.T) {
	warning := ""
	srv := newFake(t, func(http.ResponseWriter, string) string {
		return `{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":[` + warning + `]}`
	})
	s := open(t, Config{URL: srv.URL})
	var log []string
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}))
	for _, w := range []string{"", `"store down"`, `"store down"`, `"other"`, "", ""} {
		warning = w
		if _, err := s.Fetch(ctx, []string{"x"}, time.Minute, sink{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(log) != 3 || !strings.Contains(log[0], "store down") || !strings.Contains(log[1], "other") || !strings.Contains(log[2], "no longer") {
		t.Errorf("log:\n%s", strings.Join(log, "\n"))
	}
}

func TestClientConfigFile(t *testing.T) {
	var got string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		fmt.Fprint(w, matrix(0))
	}))
	defer srv.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("token", "one")
	file := write("client.yml", "authorization: {credentials_file: token}\nfollow_redirects: true\n")
	s := open(t, Config{URL: srv.URL, ClientConfigFile: file})
	for _, token := range []string{"one", "two"} {
		write("token", token)
		fetch(t, s, "x")
		if want := "Bearer " + token; got != want {
			t.Errorf("authorization %q, want %q", got, want)
		}
	}
	bad := write("bad.yml", "authorisation: {}\n")
	for _, file := range []string{bad, filepath.Join(dir, "none.yml")} {
		if _, err := New(Config{URL: srv.URL, ClientConfigFile: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{
		{},
		{URL: "prometheus:9090"},
		{URL: "ftp://user:geheim@prometheus"},
		{URL: "http://user:geheim@prometheus:port"},
		{URL: "http://p", Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "x")}},
	} {
		if _, err := New(cfg); err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestClock(t *testing.T) {
	var date, age string
	srv := newFake(t, func(w http.ResponseWriter, _ string) string {
		w.Header()["Date"] = nil
		w.Header().Set("Age", age)
		if date != "" {
			w.Header().Set("Date", date)
		}
		return matrix(0)
	})
	s := open(t, Config{URL: srv.URL})
	at := func(skew time.Duration) string { return time.Now().Add(skew).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		name, date, age string
		want            time.Duration
	}{
		{"as ours", at(0), "", 0},
		{"no date", "", "", 0},
		{"no date that is one", "yesterday", "", 0},
		{"an hour ahead", at(time.Hour), "", time.Hour},
		{"ten minutes behind", at(-10 * time.Minute), "", -10 * time.Minute},
		{"ten minutes in a cache", at(-10 * time.Minute), "600", 0},
		{"no age that is one", at(-10 * time.Minute), "-600", -10 * time.Minute},
		{"another century", at(-36_000 * time.Hour), "", 0},
	} {
		s.skew, date, age = 0, c.date, c.age
		now, err := s.Fetch(t.Context(), []string{"x"}, time.Minute, sink{})
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Until(now) - c.want; off.Abs() > 20*time.Second {
			t.Errorf("%s: %s ahead of ours, want %s", c.name, time.Until(now), c.want)
		}
	}
}

// TestReplicas follows a pair of servers through a failover: at any time one of them is listened to.
func TestReplicas(t *testing.T) {
	type from struct {
		replica string
		newest  int64
	}
	r := replicas{chosen: map[uint64]*replica{}}
	ls := labels.FromStrings("__name__", "x", "pod", "a")
	for _, step := range []struct {
		from
		want bool
	}{
		{from{"a", 1000_000}, true},
		{from{"b", 1007_000}, false},
		{from{"a", 1015_000}, true},
		{from{"b", 1015_000 + failover}, false}, // a has died
		{from{"b", 1015_001 + failover}, true},
		{from{"b", 1030_000 + failover}, true},
		{from{"a", 1031_000 + failover}, false}, // a is back
	} {
		if got := r.choose(&knownSeries{ls: ls, replica: step.replica}, step.newest); got != step.want {
			t.Errorf("%+v: %v", step.from, got)
		}
	}
	other := labels.FromStrings("__name__", "y", "pod", "a")
	if !r.choose(&knownSeries{ls: other, replica: "a"}, 1) {
		t.Error("another series has a choice of its own")
	}
	r.forget(keepUnseen)
	if len(r.chosen) != 0 {
		t.Errorf("%d are remembered for ever", len(r.chosen))
	}
}

// TestKnownSeries holds a fetch of series that are known to the few allocations that reading their JSON takes:
// their labels are not parsed again.
func TestKnownSeries(t *testing.T) {
	const series = 2000
	srv := newFake(t, func(http.ResponseWriter, string) string { return matrix(series, "x") })
	s := open(t, Config{URL: srv.URL})
	fetch(t, s, "x")
	body := matrix(series, "x")
	f := tick{source: s, sink: nothing{}, found: map[string]bool{}}
	allocs := testing.AllocsPerRun(10, func() {
		if _, err := decode(strings.NewReader(body), f.series); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 8*series {
		t.Errorf("%v allocations for %d known series", allocs, series)
	}

	for range 2 * keepUnseen {
		s.fetches++
		s.forget()
	}
	if len(s.known) != 0 {
		t.Errorf("%d series are remembered for ever", len(s.known))
	}
}

type nothing struct{}

func (nothing) Append(labels.Labels, int64, float64) {}
