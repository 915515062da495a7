package mixin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

// What the dashboards ask for, in the world below.
var variables = strings.NewReplacer("$__rate_interval", "15s", "$namespace", namespace, "$resource", "deployments.apps", "$name", "llama", "$job", ".*")

const namespace = "serving"

// later has answers only once the adapters' Prometheus is gone.
var later = []string{"source_query_failures_total", `state=~"stalled|unknown"`}

// never has no answers here.
var never = map[string]string{
	"kube_horizontalpodautoscaler_": "kube-state-metrics does not run",
	"inference_demand_replicas":     "it is learned for longer than this test lasts",
	"pool_queue_depth":              "there is no gateway",
}

const world = `
apiVersion: v1
kind: Namespace
metadata: {name: serving}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama, namespace: serving}
spec:
  replicas: 2
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      containers: [{name: vllm, image: emulated, ports: [{name: metrics, containerPort: 8000}]}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: llama, namespace: serving}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}
  minReplicas: 2
  maxReplicas: 3
  metrics: [{type: Pods, pods: {metric: {name: vllm_queue_depth}, target: {type: AverageValue, averageValue: "100"}}}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: watcher, namespace: serving}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: inference-metrics-adapter-metrics-reader}
rules:
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: watcher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: inference-metrics-adapter-metrics-reader}
subjects: [{kind: ServiceAccount, name: watcher, namespace: serving}]
`

// Every expression has an answer, and no alert takes a healthy adapter for a sick one.
func TestDashboards(t *testing.T) {
	if testing.Short() {
		t.Skip("a control plane is not short")
	}
	ctx := t.Context()
	c, err := cluster.Start(ctx, cluster.Options{Dir: t.TempDir(), HPASyncPeriod: 3 * time.Second, ScrapeInterval: time.Second, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	bin := t.TempDir()
	must(t, cluster.OwnBinaries(ctx, bin, "adapter", "engine-emulator"))
	port, err := cluster.FreePort()
	must(t, err)
	must(t, c.Install(ctx, fmt.Sprintf("127.0.0.1:%d", port)))
	must(t, c.Apply(ctx, world))
	engines, err := c.StartEmulator(ctx, filepath.Join(bin, "engine-emulator"), namespace, "--max-num-seqs=4", "--max-model-len=4096", "--num-gpu-blocks=1025")
	must(t, err)
	t.Cleanup(engines.Stop)
	var targets []string
	eventually(t, "the engines answer", func() error {
		all, err := engines.Replicas(ctx)
		if err != nil {
			return err
		}
		if len(all) < 2 || all[0].Address == "" || all[1].Address == "" {
			return fmt.Errorf("the replicas are %+v", all)
		}
		// There is one at which nobody is, so that scrapes fail.
		targets = []string{"--target=" + namespace + "/gone=http://127.0.0.1:1/metrics"}
		for _, r := range all {
			targets = append(targets, "--target="+namespace+"/"+r.Name+"=http://"+r.Address+"/metrics")
		}
		return nil
	})
	must(t, engines.Load(ctx, "llama", "constant:rate=3,prompt=100,output=50"))

	exprs := expressions(t)
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, []byte("window: 15s\nslo: {ttft: 2.5s, tpot: 100ms}\n"), 0o644))
	flags := []string{"--config=" + config, "--collect-interval=1s", "--expose-signals=" + strings.Join(signalsOf(exprs), ",")}
	reading, err := c.StartAdapterAt(ctx, port, filepath.Join(bin, "adapter"), append(flags, "--prometheus-url="+c.Prometheus.URL)...)
	must(t, err)
	scraping, err := c.StartAdapter(ctx, filepath.Join(bin, "adapter"), append(append(flags, "--scrape-interval=1s"), targets...)...)
	must(t, err)
	must(t, reading.AwaitReady(ctx))
	must(t, scraping.AwaitReady(ctx))
	must(t, c.AwaitAvailable(ctx))
	watcher := watch(t, c, reading.Address, scraping.Address)

	var waits []string
	for where, expr := range exprs {
		expr = variables.Replace(expr)
		if has(expr, later) || slices.ContainsFunc(keys(never), func(k string) bool { return strings.Contains(expr, k) }) {
			continue
		}
		waits = append(waits, where)
	}
	answered := func(what string, waits []string) {
		eventually(t, what, func() error {
			var empty []string
			for _, where := range waits {
				n, err := watcher.count(variables.Replace(exprs[where]))
				if err != nil {
					t.Fatalf("%s: %v", where, err)
				}
				if n == 0 {
					empty = append(empty, where)
				}
			}
			if waits = empty; len(empty) > 0 {
				slices.Sort(empty)
				return fmt.Errorf("nothing for\n%s", strings.Join(empty, "\n"))
			}
			return nil
		})
	}
	answered("the dashboards have answers", waits)

	// One target is down indeed. Whatever else starts to count has nothing to do with a healthy adapter.
	eventually(t, "no other alert counts", func() error {
		n, err := watcher.count(`ALERTS{alertname!="InferenceTargetsDown"}`)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d do: %s", n, watcher.last)
		}
		return err
	})
	if n, err := watcher.count(`ALERTS{alertname="InferenceTargetsDown"}`); err != nil || n == 0 {
		t.Errorf("the target that is down does not count (%v)", err)
	}

	c.Prometheus.Stop()
	waits = nil
	for where, expr := range exprs {
		if has(expr, later) {
			waits = append(waits, where)
		}
	}
	answered("the rest has answers without a source", waits)
	eventually(t, "the lost source counts", func() error {
		n, err := watcher.count(`ALERTS{alertname="InferenceSourceLost"}`)
		if err == nil && n == 0 {
			err = fmt.Errorf("it does not")
		}
		return err
	})
}

// expressions are those of the dashboards, their variables, and the queries of docs/keda.md, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	exprs := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no dashboards: %v", err)
	}
	for _, file := range files {
		var d struct {
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
		read(t, filepath.Join("dashboards", filepath.Base(file)), &d)
		where := filepath.Base(file) + ": "
		for _, v := range d.Templating.List {
			var q struct{ Query string }
			if json.Unmarshal(v.Query, &q) == nil && q.Query != "" {
				m := regexp.MustCompile(`^label_values\((.*), ([a-z]+)\)$`).FindStringSubmatch(q.Query)
				if m == nil {
					t.Fatalf("%s%s: cannot read %s", where, v.Name, q.Query)
				}
				exprs[where+"variable "+v.Name] = fmt.Sprintf(`group by (%[2]s) (%[1]s) unless on (%[2]s) group by (%[2]s) ({__name__=~".+", %[2]s=""})`, m[1], m[2])
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				exprs[where+p.Title+": "+target.Expr] = target.Expr
			}
		}
	}
	text, err := os.ReadFile("../../../docs/keda.md")
	must(t, err)
	for _, m := range regexp.MustCompile(`(?m)^ *query: (.*)$`).FindAllStringSubmatch(string(text), -1) {
		exprs["docs/keda.md: "+m[1]] = m[1]
	}
	return exprs
}

// signalsOf are the signals that expressions name.
func signalsOf(exprs map[string]string) []string {
	all := map[string]string{}
	for _, expr := range exprs {
		for _, m := range regexp.MustCompile(`signal="([a-z0-9_]+)"`).FindAllStringSubmatch(expr, -1) {
			all[m[1]] = ""
		}
	}
	return keys(all)
}

func keys(m map[string]string) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

func has(expr string, any []string) bool {
	return slices.ContainsFunc(any, func(s string) bool { return strings.Contains(expr, s) })
}

// watcher is the Prometheus that scrapes adapters, as docs/observability.md says, and has the alerts.
type watcher struct {
	url  string
	last string // the newest answer
}

func watch(t *testing.T, c *cluster.Cluster, adapters ...string) *watcher {
	t.Helper()
	files := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(files, name)
		must(t, os.WriteFile(path, data, 0o600))
		return path
	}
	account, err := c.ServiceAccountConfig(t.Context(), namespace, "watcher")
	must(t, err)
	rules, err := filepath.Abs(filepath.Join(dir, "alerts.yaml"))
	must(t, err)
	server, err := url.Parse(c.Config.Host)
	must(t, err)
	token := write("token", []byte(account.BearerToken))
	config := write("prometheus.yaml", fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: inference-metrics-adapter
  scheme: https
  honor_labels: true
  authorization: {credentials_file: %s}
  tls_config: {ca_file: %s, server_name: localhost}
  static_configs: [{targets: ["%s"]}]
- job_name: apiserver
  scheme: https
  authorization: {credentials_file: %s}
  tls_config: {ca_file: %s}
  static_configs: [{targets: ["%s"]}]
`, rules, token, write("adapter.crt", c.AdapterCA()), strings.Join(adapters, `", "`), token, write("ca.crt", c.Config.CAData), server.Host))
	port, err := cluster.FreePort()
	must(t, err)
	w := &watcher{url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	cmd := exec.Command(filepath.Join(c.Bin, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(files, "data"),
		"--web.listen-address="+strings.TrimPrefix(w.url, "http://"))
	log, err := os.Create(filepath.Join(c.Dir, "watcher.log"))
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, "the watching Prometheus answers", func() error {
		_, err := w.count("vector(1)")
		return err
	})
	return w
}

// count returns how many series an expression has now.
func (w *watcher) count(expr string) (int, error) {
	resp, err := http.Get(w.url + "/api/v1/query?" + url.Values{"query": {expr}}.Encode())
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	w.last = fmt.Sprintf("%s", answer.Data.Result)
	return len(answer.Data.Result), nil
}

func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(500 * time.Millisecond) {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s: %v", what, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
