package sources

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inference-metrics/adapter/test/cluster"
)

// interval is the scrape interval of every store, and how long a scrape may take on a busy machine.
const interval = time.Second

// exporter is the DCGM exporter's pod, which tells of the engines' GPUs.
const exporter = "dcgm-exporter"

// An exposition is what was served once.
type exposition struct {
	at   time.Time
	text string
}

// A front stands before the engines: it serves /STORE/POD to each store, and remembers what.
type front struct {
	*httptest.Server
	engines *cluster.Emulator

	mu        sync.Mutex
	addresses map[string]string       // by pod
	served    map[string][]exposition // by STORE/POD
	goStyle   map[string]bool         // pods whose bounds of buckets are written as Go does: le="1"
}

func newFront(t *testing.T, engines *cluster.Emulator) *front {
	t.Helper()
	f := &front{engines: engines, addresses: map[string]string{}, served: map[string][]exposition{}, goStyle: map[string]bool{}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	if err := f.find(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// find asks where the engines are, which changes when one restarts.
func (f *front) find(ctx context.Context) error {
	replicas, err := f.engines.Replicas(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range replicas {
		f.addresses[r.Name] = r.Address
	}
	f.addresses[exporter] = f.engines.DCGM
	return nil
}

// pods are the pods of the engines, sorted.
func (f *front) pods() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pods []string
	for pod := range f.addresses {
		if pod != exporter {
			pods = append(pods, pod)
		}
	}
	slices.Sort(pods)
	return pods
}

var wholeBound = regexp.MustCompile(`le="(\d+)\.0"`)

func (f *front) serve(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/")
	_, pod, _ := strings.Cut(key, "/")
	text, kind, err := f.read(r.Context(), pod)
	if err != nil {
		_ = f.find(r.Context()) // for the next time
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	f.mu.Lock()
	if f.goStyle[pod] {
		text = wholeBound.ReplaceAllString(text, `le="$1"`)
	}
	f.served[key] = append(f.served[key], exposition{time.Now(), text})
	f.mu.Unlock()
	w.Header().Set("Content-Type", kind)
	_, _ = io.WriteString(w, text)
}

func (f *front) read(ctx context.Context, pod string) (text, kind string, err error) {
	f.mu.Lock()
	address := f.addresses[pod]
	f.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return "", "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s", pod, resp.Status)
	}
	return string(body), resp.Header.Get("Content-Type"), err
}

// scrapes are what a store was served of a pod.
func (f *front) scrapes(store, pod string) []exposition {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.served[store+"/"+pod])
}

// await waits until each store has scraped each pod n times from now on.
func (f *front) await(t *testing.T, n int, stores ...string) {
	t.Helper()
	for _, store := range stores {
		f.awaitPods(t, n, store, append(f.pods(), exporter)...)
	}
}

func (f *front) awaitPods(t *testing.T, n int, store string, pods ...string) {
	t.Helper()
	began := time.Now()
	for _, pod := range pods {
		eventually(t, fmt.Sprintf("%s scrapes %s", store, pod), func() error {
			late := 0
			for _, s := range f.scrapes(store, pod) {
				if s.at.After(began) {
					late++
				}
			}
			if late < n {
				return fmt.Errorf("%d scrapes, want %d", late, n)
			}
			return nil
		})
	}
}

// config is a scrape configuration for a store of Prometheus's kind: of each of the pods, or of the
// engine "as" under the name of another: "pod=as".
func (f *front) config(store string, pods ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "scrape_configs:\n- job_name: engines\n  scrape_interval: %s\n  scrape_timeout: %s\n  static_configs:\n", interval, interval)
	for _, pod := range pods {
		pod, as, ok := strings.Cut(pod, "=")
		if !ok {
			as = pod
		}
		fmt.Fprintf(&b, "  - targets: [%q]\n    labels: {namespace: default, pod: %s, __metrics_path__: /%s/%s}\n",
			f.Listener.Addr(), pod, store, as)
	}
	return b.String()
}

func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	t.Fatalf("waiting until %s: %v", what, err)
}

func (w *world) load(t *testing.T, perSecond float64) {
	t.Helper()
	spec := "none"
	if perSecond > 0 {
		spec = fmt.Sprintf("constant:rate=%g,prompt=100,output=20", perSecond)
	}
	if err := w.engines.Load(t.Context(), "", spec); err != nil {
		t.Fatal(err)
	}
}

func (w *world) act(t *testing.T, pod, action string) {
	t.Helper()
	if err := w.engines.Act(t.Context(), pod, action); err != nil {
		t.Fatal(err)
	}
}

// drained waits until nothing is in flight.
func (w *world) drained(t *testing.T) {
	t.Helper()
	eventually(t, "the engines are idle", func() error {
		replicas, err := w.engines.Replicas(t.Context())
		for _, r := range replicas {
			if r.Waiting+r.Running > 0 {
				return fmt.Errorf("%s has %d waiting and %d running", r.Name, r.Waiting, r.Running)
			}
		}
		return err
	})
}
