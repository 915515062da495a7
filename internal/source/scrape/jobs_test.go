package scrape

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// TestCredentials: a token goes to the targets of its job and to no other, a certificate is checked, and
// both are read again when they change.
func TestCredentials(t *testing.T) {
	var mu sync.Mutex
	seen := map[string][]string{} // what each target was shown
	target := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			seen[name] = append(seen[name], r.Header.Get("Authorization"))
			fmt.Fprint(w, "x 1\n")
		}
	}
	shown := func(name, what string) bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(seen[name], what)
	}
	secure := httptest.NewTLSServer(target("secure"))
	t.Cleanup(secure.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	token := write("token", "geheim")
	s := run(t, Config{
		Names: []string{"x"}, Interval: interval,
		Jobs: []Job{
			{Name: "secure", Credentials: Credentials{CAFile: write("ca.pem", ca), BearerTokenFile: token}},
			{Name: "stranger", Credentials: Credentials{BearerTokenFile: token}},
			{Name: "elsewhere", Credentials: Credentials{CAFile: filepath.Join(dir, "ca.pem"), ServerName: "other.example"}},
		},
		Targets: []Target{
			{"default", "plain", serve(t, target("plain")), ""},
			{"default", "secure", secure.URL, "secure"},
			{"default", "stranger", secure.URL, "stranger"},
			{"default", "elsewhere", secure.URL, "elsewhere"},
		},
	})
	var got sink
	await(t, s, &got, func() bool {
		return slices.IndexFunc([]string{"plain", "secure", "stranger", "elsewhere"}, func(pod string) bool { return len(got.of("up", pod)) == 0 }) < 0
	})
	for pod, want := range map[string]float64{"plain": 1, "secure": 1, "stranger": 0, "elsewhere": 0} {
		if up := got.of("up", pod)[0].v; up != want {
			t.Errorf("up of %s is %v, want %v", pod, up, want)
		}
	}
	if !shown("plain", "") || shown("plain", "Bearer geheim") {
		t.Error("a token went to a target of another job")
	}
	if !shown("secure", "Bearer geheim") {
		t.Error("the token did not go where it belongs")
	}
	write("token", "neu")
	await(t, s, &got, func() bool { return shown("secure", "Bearer neu") })

	for _, up := range got.of("up", "secure") {
		if strings.Contains(up.ls.String(), "geheim") {
			t.Errorf("a token in labels: %s", up.ls)
		}
	}
}

// TestBelieve leaves out what a target of a job may not say, by what is so when it is handed over.
func TestBelieve(t *testing.T) {
	var mu sync.Mutex
	all := false
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "x{pod=\"near\",namespace=\"n\"} 1\nx{pod=\"far\",namespace=\"n\"} 2\ny 3\n")
	})
	s := run(t, Config{
		Names: []string{"y"}, Interval: interval,
		Jobs: []Job{{Name: "gpus", Names: []string{"x"}, Believe: func(ls labels.Labels) bool {
			mu.Lock()
			defer mu.Unlock()
			return all || ls.Get("exported_pod") != "far"
		}}},
		Targets: []Target{{"default", "exporter", url, "gpus"}, {"default", "engine", url, ""}},
	})
	var got sink
	await(t, s, &got, func() bool {
		return len(got.of("x", "exporter")) >= 2 && len(got.of("up", "exporter")) >= 2 && len(got.of("y", "engine")) >= 2
	})
	for _, x := range got.of("x", "exporter") {
		if x.ls.Get("exported_pod") != "near" || x.ls.Get("namespace") != "default" {
			t.Errorf("%s was believed", x.ls)
		}
	}
	if n := len(got.of("x", "engine")) + len(got.of("y", "exporter")); n > 0 {
		t.Errorf("%d samples of series that belong to the other job", n)
	}
	mu.Lock()
	all = true
	mu.Unlock()
	await(t, s, &got, func() bool {
		return slices.ContainsFunc(got.of("x", "exporter"), func(x sample) bool { return x.ls.Get("exported_pod") == "far" })
	})
}

// TestIdentity: whatever a pod says of itself, its series carry the namespace and the pod that it was
// found under, and the address that it was read at.
func TestIdentity(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "x{namespace=\"other\",pod=\"x\",instance=\"i\",job=\"j\",exported_namespace=\"e\",exported_pod=\"p\"} 1\nup{namespace=\"other\",pod=\"x\"} 0\n")
	})
	s := run(t, Config{Names: []string{"x"}, Interval: interval, Targets: []Target{{"default", "a", url, ""}}})
	var got sink
	await(t, s, &got, func() bool { return len(got.of("x", "a")) >= 2 && len(got.of("up", "a")) >= 2 })
	for _, x := range got {
		for name, want := range map[string]string{"namespace": "default", "pod": "a", "instance": strings.TrimPrefix(url, "http://"), "job": jobPrefix} {
			if value := x.ls.Get(name); value != want {
				t.Errorf("%s: %s is %q, want %q", x.ls, name, value, want)
			}
		}
	}
}

func TestNewRefusesJobs(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"timeout of a job", Config{Jobs: []Job{{Name: "pods[0]", Interval: time.Second, Timeout: time.Minute}}}, "pods[0]: interval 1s and timeout 1m0s"},
		{"two of a name", Config{Jobs: []Job{{Name: "a"}, {Name: "a"}}}, "a: there are two jobs"},
		{"no such job", Config{Targets: []Target{{"n", "a", "http://h/", "b"}}}, `no job "b"`},
		{"no such file", Config{Jobs: []Job{{Name: "a", Credentials: Credentials{CAFile: "/no/such.pem"}}}, Targets: []Target{{"n", "a", "http://h/", "a"}}}, "/no/such.pem"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
