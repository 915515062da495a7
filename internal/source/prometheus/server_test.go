package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientprom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/inference-metrics/adapter/internal/source/sourcetest"
)

// A server scrapes targets and answers queries about them.
type server struct {
	url   string
	watch func(targets ...sourcetest.Target)
}

// targetGroups are the targets as Prometheus knows them; with a pair, each is scraped twice.
func targetGroups(targets []sourcetest.Target, pair bool) []*targetgroup.Group {
	group := &targetgroup.Group{Source: "test"}
	replicas := []model.LabelValue{""}
	if pair {
		replicas = []model.LabelValue{"prometheus-0", "prometheus-1"}
	}
	for _, t := range targets {
		for _, r := range replicas {
			host, path, _ := strings.Cut(strings.TrimPrefix(t.URL, "http://"), "/")
			group.Targets = append(group.Targets, model.LabelSet{
				model.AddressLabel: model.LabelValue(host), model.MetricsPathLabel: model.LabelValue("/" + path),
				"namespace": model.LabelValue(t.Namespace), "pod": model.LabelValue(t.Pod), "prometheus_replica": r,
			})
		}
	}
	return []*targetgroup.Group{group}
}

// newInProcess returns a Prometheus in this process: its scraping, its database and its query
// engine are the real ones; only the few lines of HTTP before them are ours. skew sets its clock.
func newInProcess(t testing.TB, setup sourcetest.Setup) server {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), promslog.NewNopLogger(), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	manager, err := scrape.NewManager(
		&scrape.Options{DiscoveryReloadInterval: model.Duration(100 * time.Millisecond), DiscoveryReloadOnStartup: true},
		nil, nil, nil, skewed{db, setup.Skew.Milliseconds()}, clientprom.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(scrapeConfig(""), promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.ApplyConfig(cfg); err != nil {
		t.Fatal(err)
	}
	updates := make(chan map[string][]*targetgroup.Group)
	go func() { _ = manager.Run(updates) }()

	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 50e6, Timeout: time.Minute})
	api := httptest.NewServer(queryAPI(engine, db, setup.Skew))
	t.Cleanup(func() {
		api.Close()
		manager.Stop()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return server{url: api.URL, watch: func(targets ...sourcetest.Target) {
		updates <- map[string][]*targetgroup.Group{"engines": targetGroups(targets, setup.Pair)}
	}}
}

// scrapeConfig is a configuration as a user would write it.
func scrapeConfig(targetsFile string) string {
	text := fmt.Sprintf(`
scrape_configs:
- job_name: engines
  scrape_interval: %s
  scrape_timeout: %s
`, sourcetest.Interval, sourcetest.Interval)
	if targetsFile != "" {
		text += fmt.Sprintf("  file_sd_configs: [{files: [%q]}]\n", targetsFile)
	}
	return text
}

// queryAPI answers /api/v1/query as Prometheus does.
func queryAPI(engine *promql.Engine, db storage.Queryable, skew time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/query", func(w http.ResponseWriter, r *http.Request) {
		now := time.Now().Add(skew)
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		fail := func(code int, kind string, err error) {
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(map[string]any{"status": "error", "errorType": kind, "error": err.Error()})
		}
		q, err := engine.NewInstantQuery(r.Context(), db, nil, r.FormValue("query"), now)
		if err != nil {
			fail(http.StatusBadRequest, "bad_data", err)
			return
		}
		defer q.Close()
		result := q.Exec(r.Context())
		if result.Err != nil {
			fail(http.StatusUnprocessableEntity, "execution", result.Err)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{
			"resultType": result.Value.Type(), "result": result.Value,
		}})
	})
	return mux
}

// skewed is a database whose samples have the times of another clock.
type skewed struct {
	storage.AppendableV2
	by int64
}

func (s skewed) AppenderV2(ctx context.Context) storage.AppenderV2 {
	return skewedAppender{s.AppendableV2.AppenderV2(ctx), s.by}
}

type skewedAppender struct {
	storage.AppenderV2
	by int64
}

func (a skewedAppender) Append(ref storage.SeriesRef, ls labels.Labels, st, t int64, v float64, h *histogram.Histogram, fh *histogram.FloatHistogram, opts storage.AOptions) (storage.SeriesRef, error) {
	return a.AppenderV2.Append(ref, ls, st, t+a.by, v, h, fh, opts)
}

// newBinary starts a server's program. args are called with its address, a scrape configuration
// and a directory for its data.
func newBinary(t testing.TB, binary string, setup sourcetest.Setup, args func(address, config, dir string) []string) server {
	t.Helper()
	dir := t.TempDir()
	targets, cfg := filepath.Join(dir, "targets.json"), filepath.Join(dir, "config.yml")
	write := func(file string, data []byte) {
		t.Helper()
		// Renamed into place: the server may look at any time.
		if err := os.WriteFile(file+".new", data, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	watch := func(to ...sourcetest.Target) {
		t.Helper()
		var groups []map[string]any
		for _, g := range targetGroups(to, setup.Pair) {
			for _, ls := range g.Targets {
				address := ls[model.AddressLabel]
				ls = ls.Clone()
				delete(ls, model.AddressLabel)
				groups = append(groups, map[string]any{"targets": []any{address}, "labels": ls})
			}
		}
		data, err := json.Marshal(groups)
		if err != nil {
			t.Fatal(err)
		}
		write(targets, data)
	}
	watch()
	write(cfg, []byte(scrapeConfig(targets)))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, args(address, cfg, filepath.Join(dir, "data"))...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-exited:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", binary, text)
		}
	})
	url := "http://" + address
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		resp, err := http.Get(url + "/api/v1/query?query=time()")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-exited:
			t.Fatalf("%s has ended", binary)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not answer: %v", binary, err)
		}
	}
	return server{url: url, watch: watch}
}

func prometheusArgs(address, config, dir string) []string {
	return []string{"--web.listen-address=" + address, "--config.file=" + config, "--storage.tsdb.path=" + dir}
}

func victoriaArgs(address, config, dir string) []string {
	return []string{"-httpListenAddr=" + address, "-promscrape.config=" + config, "-storageDataPath=" + dir,
		"-promscrape.fileSDCheckInterval=1s", "-memory.allowedPercent=5"}
}

// A gate passes requests on to a server, or shuts them out.
type gate struct {
	url  string
	shut atomic.Bool
}

func newGate(t testing.TB, to string) *gate {
	g := &gate{}
	client := &http.Client{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.shut.Load() {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		if _, password, _ := r.BasicAuth(); password != secret {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, to+r.URL.RequestURI(), r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		req.Header = r.Header.Clone()
		resp, err := client.Do(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(srv.Close)
	g.url = srv.URL
	return g
}
