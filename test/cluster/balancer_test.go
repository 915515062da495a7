package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// server answers with its name, and is ready when told so.
type server struct {
	address string
	ready   atomic.Bool
	http    *http.Server
}

func serve(t *testing.T, name string, pair *keyPair) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{address: listener.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) })
	s.http = &http.Server{Handler: mux}
	go s.http.ServeTLS(listener, pair.certFile, pair.keyFile)
	t.Cleanup(func() { s.http.Close() })
	return s
}

func TestBalancer(t *testing.T) {
	ca, err := newAuthority("ca")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.server(t.TempDir(), "server", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBalancer()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()

	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true,
	}}
	// ask counts who answers, under "" when nobody does.
	ask := func() map[string]int {
		counts := map[string]int{}
		for range 6 {
			who := ""
			if resp, err := client.Get("https://" + b.Address); err == nil {
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				who = string(body)
			}
			counts[who]++
		}
		return counts
	}
	await := func(what string, want map[string]int) {
		t.Helper()
		var got map[string]int
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			got = ask()
			if len(got) != len(want) {
				continue
			}
			same := true
			for who, n := range want {
				same = same && got[who] == n
			}
			if same {
				return
			}
		}
		t.Fatalf("%s: answers come from %v, want %v", what, got, want)
	}

	one, two := serve(t, "one", pair), serve(t, "two", pair)
	await("without backends", map[string]int{"": 6})
	b.Add(one.address)
	b.Add(two.address)
	await("none is ready", map[string]int{"": 6})
	one.ready.Store(true)
	await("one is ready", map[string]int{"one": 6})
	two.ready.Store(true)
	await("both are ready", map[string]int{"one": 3, "two": 3})
	one.http.Close()
	await("one has died", map[string]int{"two": 6})
	b.Remove(two.address)
	if got := ask(); got[""] != 6 {
		t.Fatalf("after its removal at once, a backend still answers: %v", got)
	}
}
