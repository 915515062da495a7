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
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/inference-metrics/adapter/internal/source"
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

// TestCallersTime: what takes all the time that the caller has is too much at once, too, and the queries that
// had to wait for it do not make the server one that cannot be reached.
func TestCallersTime(t *testing.T) {
	hang := make(chan struct{})
	var hanging atomic.Bool
	srv := newFake(t, func(w http.ResponseWriter, query string) string {
		if hanging.Load() || strings.Contains(query, "|") {
			<-hang
			return matrix(0)
		}
		return matrix(3, strings.Split(query, `"`)[1])
	})
	t.Cleanup(func() { close(hang) }) // before srv is closed, which waits for it
	s := open(t, Config{URL: srv.URL})
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	inTime := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := s.Fetch(ctx, names, time.Minute, sink{})
		return err
	}
	if err := inTime(); err == nil || !strings.Contains(err.Error(), "no complete answer in time: the server hangs") {
		t.Errorf("all names at once: %v", err)
	}
	if got := fetch(t, s, names...); len(got) != len(names) {
		t.Errorf("then, one by one: %v", got)
	}
	hanging.Store(true)
	if err := inTime(); err == nil || !strings.Contains(err.Error(), "7 of 7 queries failed: reading a: too much at once: no complete answer in time") ||
		!strings.Contains(err.Error(), "no time left to ask") {
		t.Errorf("more queries than run at a time: %v", err)
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
		}, []string{"no complete answer within 50ms", "timeout is too short"}},
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
	var partial *source.PartialError
	if !errors.As(err, &partial) {
		t.Fatalf("got %T, want that it is known what came", err)
	}
	if diff := cmp.Diff([]string{"b", "c", "d"}, partial.Names); diff != "" {
		t.Errorf("names that failed (-want +got):\n%s", diff)
	}

	// What brought nothing at all is no part.
	if _, err := s.Fetch(t.Context(), []string{"b", "c"}, 30*time.Second, sink{}); err == nil || errors.As(err, &partial) {
		t.Errorf("all queries fail: %T %v", err, err)
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

// Thanos answers 200 without the series of a store that is down, and warns: that must not pass for
// the whole.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		name, warnings string
		partial        bool
	}{
		{"none", "", false},
		{"a store is down", `"receive series from Addr: thanos-sidecar:10901: rpc error: code = Unavailable"`, true},
		{"of the query language", `"PromQL info: metric might not be a counter", "PromQL warning: quantile value should be between 0 and 1"`, false},
		{"both", `"PromQL info: metric might not be a counter", "remote read: connection refused"`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := newFake(t, func(http.ResponseWriter, string) string {
				return strings.Replace(matrix(3, "x"), "{", `{"warnings":[`+c.warnings+`],`, 1)
			})
			s := open(t, Config{URL: srv.URL})
			got := sink{}
			_, err := s.Fetch(t.Context(), []string{"x"}, time.Minute, got)
			var partial *source.PartialError
			if errors.As(err, &partial) != c.partial || errors.Is(err, errPartial) != c.partial {
				t.Errorf("got %v; want that the answer is partial: %v", err, c.partial)
			}
			if c.partial {
				if len(partial.Names) > 0 {
					t.Errorf("%q are told to have failed, and came in part", partial.Names)
				}
				for _, want := range []string{srv.URL, "the server warns: re"} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q is not in: %v", want, err)
					}
				}
			}
			if diff := cmp.Diff(sink{"x": 3}, got); diff != "" {
				t.Errorf("samples (-want +got):\n%s", diff)
			}
		})
	}
}

// VictoriaMetrics answers its markers of an end as samples.
func TestMarkers(t *testing.T) {
	header := ""
	srv := newFake(t, func(w http.ResponseWriter, _ string) string {
		w.Header().Set("X-Server-Hostname", header)
		return `{"status":"success","data":{"resultType":"matrix","result":[
			{"metric":{"__name__":"x"},"values":[[1,"1"],[2,"NaN"],[3,"3"],[4,"NaN"]]},
			{"metric":{"__name__":"y"},"values":[[4,"NaN"]]}]}}`
	})
	for _, c := range []struct {
		header string
		want   sink
	}{
		{"", sink{"x": 4, "y": 1}}, // there it is a number that is none
		{"vm-0", sink{"x": 2}},
	} {
		header = c.header
		if diff := cmp.Diff(c.want, fetch(t, open(t, Config{URL: srv.URL}), "x", "y")); diff != "" {
			t.Errorf("from the server %q: samples (-want +got):\n%s", c.header, diff)
		}
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

// TestReplicas follows pairs of servers: at any time one of them is listened to, and what it tells is
// still fresh when the other takes over.
func TestReplicas(t *testing.T) {
	ls := func(le string) labels.Labels {
		return labels.FromStrings("__name__", "x_bucket", "pod", "a", "le", le)
	}
	const second = 1000
	type fetch struct {
		replica string
		le      string
		at      int64   // seconds
		times   []int64 // of the points of the answer, in seconds
		want    []int64
	}
	for _, c := range []struct {
		name    string
		fetches []fetch
	}{
		{"healthy", []fetch{
			{"a", "1", 1000, []int64{970, 985, 1000}, []int64{970, 985, 1000}},
			{"b", "1", 1000, []int64{977, 992}, nil},
			{"b", "1", 1010, []int64{992, 1007}, nil}, // a will follow
			{"a", "1", 1010, []int64{985, 1000}, []int64{985, 1000}},
			{"a", "1", 1020, []int64{1000, 1015}, []int64{1000, 1015}},
		}},
		{"one has died", []fetch{
			{"a", "1", 1000, []int64{970, 985, 1000}, []int64{970, 985, 1000}},
			{"b", "1", 1020, []int64{977, 992, 1007}, nil}, // as it may be late
			{"b", "1", 1025, []int64{992, 1007, 1022}, []int64{1022}},
			{"a", "1", 1025, []int64{985, 1000}, nil},
			{"b", "1", 1040, []int64{1007, 1022, 1037}, []int64{1007, 1022, 1037}},
			{"a", "1", 1045, []int64{1044}, nil}, // it is back
		}},
		{"at the worst time for the other", []fetch{
			{"a", "1", 1000, []int64{970, 985, 1000}, []int64{970, 985, 1000}},
			{"b", "1", 1025, []int64{993, 1008, 1023}, []int64{1008, 1023}}, // before 1030, when 1000 is no longer fresh
		}},
		{"one has died before we began", []fetch{
			{"a", "1", 1000, []int64{820, 835, 850}, []int64{820, 835, 850}},
			{"b", "1", 1000, []int64{827, 842, 857, 872, 887, 902}, []int64{872, 887, 902}},
		}},
		{"the interval is not known yet", []fetch{
			{"a", "1", 1000, []int64{1000}, []int64{1000}},
			{"b", "1", 1060, []int64{1000, 1015, 1030, 1045, 1060}, nil},
			{"a", "1", 1060, []int64{1060}, []int64{1060}},
			{"a", "1", 1120, []int64{1120}, []int64{1120}},
		}},
		{"one is upgraded to Prometheus 3", []fetch{
			{"a", "1", 1000, []int64{985, 1000}, []int64{985, 1000}},
			{"b", "1.0", 1001, []int64{990}, nil},
			{"a", "1.0", 1015, []int64{1015}, []int64{1015}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := replicas{chosen: map[uint64]*replica{}}
			for _, f := range c.fetches {
				var points []point
				for _, s := range f.times {
					points = append(points, point{t: s * second})
				}
				var got []int64
				for _, p := range r.choose(&knownSeries{key: replicaKey(ls(f.le)), replica: f.replica}, points, f.at*second) {
					got = append(got, p.t/second)
				}
				if diff := cmp.Diff(f.want, got); diff != "" {
					t.Errorf("at %d, from %s (-want +got):\n%s", f.at, f.replica, diff)
				}
			}
			if len(r.chosen) != 1 {
				t.Errorf("%d choices, want 1", len(r.chosen))
			}
			if got := r.choose(&knownSeries{key: replicaKey(ls("2")), replica: "b"}, []point{{t: 1}}, 1); len(got) != 1 {
				t.Error("another series has no choice of its own")
			}
			r.forget(keepUnseen)
			if len(r.chosen) != 0 {
				t.Errorf("%d are remembered for ever", len(r.chosen))
			}
		})
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
		series := func(metric []byte, points []point) error { return f.series(metric, points, 0) }
		if _, err := decode(strings.NewReader(body), series); err != nil {
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
