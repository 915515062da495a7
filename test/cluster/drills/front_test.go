package drills

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A front stands before a server and can have faults. It listens on one address for as long as it lives,
// but for a time of refusing.
type front struct {
	url, address string

	t       *testing.T
	secure  bool
	forward http.Handler
	cert    atomic.Pointer[tls.Certificate]

	mu     sync.Mutex
	server *http.Server
	fault  fault
	lifted chan struct{}
}

// A fault answers in the place of what is behind, which next asks. It lasts until lifted is closed.
type fault func(w http.ResponseWriter, r *http.Request, next http.Handler, lifted <-chan struct{})

// newFront returns a front without faults. With TLS it serves with a certificate of identify.
func newFront(t *testing.T, target string, secure bool) *front {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{t: t, secure: secure, address: "127.0.0.1:0", forward: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(u)
			r.Out.Header.Del("Accept-Encoding") // faults change plain text
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}}
	if secure {
		f.identify()
	}
	f.open()
	f.url = "http://" + f.address
	if secure {
		f.url = "https://" + f.address
	}
	t.Cleanup(func() { f.lift(); f.close() })
	return f
}

func (f *front) open() {
	l, err := net.Listen("tcp", f.address)
	if err != nil {
		f.t.Error(err)
		return
	}
	f.address = l.Addr().String()
	if f.secure {
		l = tls.NewListener(l, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.cert.Load(), nil }})
	}
	server := &http.Server{Handler: f, ErrorLog: log.New(io.Discard, "", 0)} // that clients go away is what drills are for
	f.mu.Lock()
	f.server = server
	f.mu.Unlock()
	go func() { _ = server.Serve(l) }() // ends when it is closed
}

// close refuses connections from now on, and cuts those there are.
func (f *front) close() {
	f.mu.Lock()
	server := f.server
	f.mu.Unlock()
	_ = server.Close()
}

// set has the front answer with a fault until lift.
func (f *front) set(fault fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.lifted = fault, make(chan struct{})
}

func (f *front) lift() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		close(f.lifted)
	}
	f.fault = nil
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault, lifted := f.fault, f.lifted
	f.mu.Unlock()
	if fault == nil {
		f.forward.ServeHTTP(w, r)
		return
	}
	fault(w, r, f.forward, lifted)
}

// identify has the front serve with a certificate that only itself vouches for, and returns it.
func (f *front) identify() []byte {
	f.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		f.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: serial.String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:        true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		f.t.Fatal(err)
	}
	f.cert.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A matrix is an answer of Prometheus's API, as far as faults change it.
type matrix struct {
	Status   string   `json:"status"`
	Warnings []string `json:"warnings,omitempty"`
	Data     struct {
		ResultType string   `json:"resultType"`
		Result     []series `json:"result"`
	} `json:"data"`
}

type series struct {
	Metric map[string]string `json:"metric"`
	Values [][2]any          `json:"values"`
}

// behind returns what is behind a front answers.
func behind(r *http.Request, next http.Handler) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	next.ServeHTTP(rec, r)
	return rec
}

// changed is a fault that answers with something else than the server did.
func changed(change func(*matrix)) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler, _ <-chan struct{}) {
		rec := behind(r, next)
		var m matrix
		if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil || m.Status != "success" {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		change(&m)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(m)
	}
}

// shifted is a server whose clock is off by some nanoseconds, which may change.
func shifted(by *atomic.Int64) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler, lifted <-chan struct{}) {
		off := time.Duration(by.Load())
		w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
		changed(func(m *matrix) {
			for _, s := range m.Data.Result {
				for i := range s.Values {
					s.Values[i][0] = s.Values[i][0].(float64) + off.Seconds()
				}
			}
		})(w, r, next, lifted)
	}
}

// valued is a server that has other values for the queues.
func valued(values ...float64) fault {
	var n atomic.Int64
	return changed(func(m *matrix) {
		for _, s := range m.Data.Result {
			if s.Metric["__name__"] != "vllm:num_requests_waiting" {
				continue
			}
			for i := range s.Values {
				s.Values[i][1] = strconv.FormatFloat(values[int(n.Add(1))%len(values)], 'g', -1, 64)
			}
		}
	})
}

func answers(status int, contentType, body string, header ...string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler, _ <-chan struct{}) {
		w.Header().Set("Content-Type", contentType)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// hangs is a server that takes connections, and never answers.
func hangs(_ http.ResponseWriter, r *http.Request, _ http.Handler, lifted <-chan struct{}) {
	select {
	case <-r.Context().Done():
	case <-lifted:
	}
}

// trickles is a server whose answers come a byte at a time.
func trickles(w http.ResponseWriter, r *http.Request, next http.Handler, lifted <-chan struct{}) {
	for _, b := range behind(r, next).Body.Bytes() {
		if _, err := w.Write([]byte{b}); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-lifted:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// cuts is a server whose answers end in the middle of the first series that they have, as if they were whole:
// those before the cut would be taken.
func cuts(w http.ResponseWriter, r *http.Request, next http.Handler, _ <-chan struct{}) {
	body := behind(r, next).Body.Bytes()
	end := len(body) / 2
	if _, values, ok := bytes.Cut(body, []byte(`"values":[`)); ok {
		end = len(body) - len(values) + 10
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body[:end])
}

// swells is a server that answers with 50 MB more than is true of anything that runs.
func swells(w http.ResponseWriter, r *http.Request, next http.Handler, _ <-chan struct{}) {
	body := behind(r, next).Body.Bytes()
	const list = `"result":[`
	before, after, ok := bytes.Cut(body, []byte(list))
	if !ok || !bytes.Contains(after, []byte(`vllm:num_requests_waiting"`)) {
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(before, list...))
	now := strconv.FormatInt(time.Now().Unix(), 10)
	for n, i := 0, 0; n < 50<<20; i++ {
		k, _ := w.Write([]byte(`{"metric":{"__name__":"vllm:num_requests_waiting","namespace":"gone","pod":"vllm-` + strconv.Itoa(i) +
			`","model_name":"Qwen/Qwen3-8B","engine":"0","job":"engines","instance":"127.0.0.1:8000"},"values":[[` + now + `,"0"]]},`))
		n += k
		if k == 0 {
			return
		}
	}
	_, _ = w.Write(after)
}
