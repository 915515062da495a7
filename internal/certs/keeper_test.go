package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

const (
	host   = "adapter.metrics.svc"
	v1beta = "v1beta1.custom.metrics.k8s.io"
	other  = "v1beta1.external.metrics.k8s.io"
)

// memory is a store that refuses a write of what has changed, as the Kubernetes API does.
type memory struct {
	clock    *clocktesting.FakeClock
	data     map[string][]byte
	version  int // of the Secret; 0 where there is none
	versions int
	apis     map[string]*apiService
	// trust is what kube-apiserver has been told to trust by v1beta, the newest last.
	trust []told
	// before is called before each operation, and may fail it.
	before func() error
}

type told struct {
	since  time.Time
	bundle []byte
}

func newMemory(clock *clocktesting.FakeClock) *memory {
	return &memory{
		clock: clock, before: func() error { return nil },
		apis:  map[string]*apiService{v1beta: {name: v1beta, version: "0", owner: "metrics/adapter", mine: true}},
		trust: []told{{}},
	}
}

func (m *memory) secret(context.Context) (map[string][]byte, string, error) {
	if err := m.before(); err != nil || m.version == 0 {
		return nil, "", err
	}
	return maps.Clone(m.data), strconv.Itoa(m.version), nil
}

var conflict = apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "thing", errors.New("it has changed"))

func (m *memory) write(_ context.Context, data map[string][]byte, version string) error {
	if err := m.before(); err != nil {
		return err
	}
	if version == "" && m.version == 0 || version == strconv.Itoa(m.version) {
		m.set(data)
		return nil
	}
	return conflict
}

// set is done by anybody.
func (m *memory) set(data map[string][]byte) {
	m.versions++
	m.data, m.version = maps.Clone(data), m.versions
	if data == nil {
		m.version = 0
	}
}

func (m *memory) services(context.Context) ([]apiService, error) {
	if err := m.before(); err != nil {
		return nil, err
	}
	var all []apiService
	for _, name := range []string{v1beta, other} {
		if a := m.apis[name]; a != nil {
			all = append(all, *a)
		}
	}
	return all, nil
}

func (m *memory) publish(_ context.Context, s apiService, bundle []byte) error {
	if err := m.before(); err != nil {
		return err
	}
	if m.apis[s.name] == nil || m.apis[s.name].version != s.version {
		return conflict
	}
	m.versions++
	m.apis[s.name].bundle, m.apis[s.name].version = bundle, strconv.Itoa(m.versions)
	if s.name == v1beta {
		m.trust = append(m.trust, told{m.clock.Now(), bundle})
	}
	return nil
}

const lifetime = 90 * 24 * time.Hour

func newKeeper(m *memory) *Keeper {
	k := New(Config{
		Service: types.NamespacedName{Namespace: "metrics", Name: "adapter"}, Lifetime: lifetime, Clock: m.clock,
	})
	k.store = m
	return k
}

func newClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
}

// steps has a leader look until nothing is left to do at once, as lead does.
func steps(t *testing.T, k *Keeper) {
	t.Helper()
	for range 20 {
		again, err := k.step(t.Context())
		if err != nil && !overtaken(err) {
			t.Fatal(err)
		}
		if !again && err == nil {
			return
		}
	}
	t.Fatal("the leader has something to do at once, again and again")
}

// accepted returns why kube-apiserver, told of this bundle, refuses a server with the certificate.
func accepted(cert, key, bundle []byte, now time.Time) error {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now})
	return err
}

func serials(t *testing.T, bundle []byte) string {
	t.Helper()
	all, err := readBundle(bundle)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, c := range all {
		text = append(text, c.SerialNumber.Text(36)[:4])
	}
	return strings.Join(text, " ")
}

func TestFirstCertificateIsServedAtOnce(t *testing.T) {
	m := newMemory(newClock())
	k := newKeeper(m)
	steps(t, k)
	if err := accepted(m.data[certKey], m.data[keyKey], m.apis[v1beta].bundle, m.clock.Now()); err != nil {
		t.Errorf("kube-apiserver refuses the first certificate: %v", err)
	}
	if !bytes.Equal(m.data[bundleKey], m.apis[v1beta].bundle) {
		t.Error("the Secret's bundle is not the APIService's")
	}
	if err := k.Ready(); err == nil {
		t.Error("ready before the Secret was seen")
	}
	changes := 0
	k.OnChange(func() { changes++ })
	k.load(t.Context(), m.data)
	k.load(t.Context(), m.data)
	if err := k.Ready(); err != nil || changes != 1 {
		t.Errorf("after the Secret was seen twice: ready %v, %d changes, want 1", err, changes)
	}
}

// A rotation on a calendar: what is served and trusted in the course of two lifetimes.
func TestRotation(t *testing.T) {
	m := newMemory(newClock())
	k := newKeeper(m)
	steps(t, k)
	first, firstTrust := m.data, serials(t, m.data[bundleKey])

	m.clock.Step(lifetime*2/3 - time.Minute)
	steps(t, k)
	if !sameData(m.data, first) {
		t.Fatal("the certificate is touched before two thirds of its lifetime are over")
	}
	m.clock.Step(2 * time.Minute)
	steps(t, k)
	if !bytes.Equal(m.data[certKey], first[certKey]) {
		t.Fatal("the next certificate is served as soon as kube-apiserver is told to trust it")
	}
	both := serials(t, m.apis[v1beta].bundle)
	if len(strings.Fields(both)) != 2 || !strings.HasSuffix(both, firstTrust) {
		t.Fatalf("told to trust %s, want the CA of the next and then %s", both, firstTrust)
	}
	m.clock.Step(maxSettle - time.Second)
	steps(t, k)
	if !bytes.Equal(m.data[certKey], first[certKey]) {
		t.Fatal("the next certificate is served before kube-apiserver had the time to see it")
	}
	m.clock.Step(time.Second)
	writes := m.versions
	steps(t, k)
	if bytes.Equal(m.data[certKey], first[certKey]) || m.data[nextCertKey] != nil {
		t.Fatal("the next certificate is not served")
	}
	if writes = m.versions - writes; writes != 1 {
		t.Errorf("serving the next certificate takes %d writes, want the Secret's, which still trusts the one before", writes)
	}
	if got := serials(t, m.apis[v1beta].bundle); got != both {
		t.Errorf("a replica may still serve with the one before, and kube-apiserver trusts %s, want %s", got, both)
	}
	m.clock.Step(lifetime / 3)
	steps(t, k)
	if got := serials(t, m.apis[v1beta].bundle); len(strings.Fields(got)) != 1 || !strings.HasPrefix(both, got) {
		t.Errorf("the certificate before has expired, and kube-apiserver trusts %s, want the first of %s", got, both)
	}
}

// Who takes the trust away while a rotation waits for it to be seen makes it wait from the start.
func TestTrustIsTakenAway(t *testing.T) {
	m := newMemory(newClock())
	k := newKeeper(m)
	steps(t, k)
	m.clock.Step(lifetime*2/3 + time.Second)
	steps(t, k)
	first := m.data[certKey]
	m.clock.Step(maxSettle / 2)
	m.apis[v1beta].bundle = nil
	steps(t, k)
	if !bytes.Equal(m.apis[v1beta].bundle, m.data[bundleKey]) {
		t.Fatal("the bundle is not published again")
	}
	m.clock.Step(maxSettle - time.Second)
	steps(t, k)
	if !bytes.Equal(m.data[certKey], first) {
		t.Fatal("the next certificate is served before kube-apiserver had the time to see its CA again")
	}
	m.clock.Step(time.Second)
	steps(t, k)
	if bytes.Equal(m.data[certKey], first) {
		t.Fatal("the next certificate is not served")
	}
}

// Whatever is done to the Secret, replicas serve on, and come to serve with something new that is trusted.
func TestSecretIsLost(t *testing.T) {
	for name, spoil := range map[string]func(*memory){
		"deleted": func(m *memory) { m.set(nil) },
		"emptied": func(m *memory) { m.set(map[string][]byte{}) },
		"garbage": func(m *memory) { m.set(map[string][]byte{certKey: []byte("x"), keyKey: {0}, bundleKey: []byte("y")}) },
		"another key": func(m *memory) {
			p, err := newPair(host, m.clock.Now(), lifetime)
			if err != nil {
				t.Fatal(err)
			}
			data := maps.Clone(m.data)
			data[keyKey] = p.key
			m.set(data)
		},
		"another host": func(m *memory) {
			p, err := newPair("elsewhere.metrics.svc", m.clock.Now(), lifetime)
			if err != nil {
				t.Fatal(err)
			}
			m.set(map[string][]byte{certKey: p.cert, keyKey: p.key, bundleKey: encode(p.ca)})
		},
		"without its CA": func(m *memory) {
			data := maps.Clone(m.data)
			block := bytes.Index(data[certKey][1:], []byte("-----BEGIN"))
			data[certKey] = data[certKey][:block+1]
			m.set(data)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(newClock())
			k := newKeeper(m)
			steps(t, k)
			k.load(t.Context(), m.data)
			before, _ := k.Current()

			spoil(m)
			k.load(t.Context(), m.data)
			if now, _ := k.Current(); !bytes.Equal(now, before) {
				t.Fatal("the replica dropped what it served with")
			}
			steps(t, k)
			cert, key := k.Current()
			if err := accepted(cert, key, m.apis[v1beta].bundle, m.clock.Now()); err != nil {
				t.Errorf("kube-apiserver refuses what replicas still serve with: %v", err)
			}
			if m.data[certKey] != nil {
				t.Error("another certificate is served before kube-apiserver had the time to see its CA")
			}
			m.clock.Step(maxSettle)
			steps(t, k)
			k.load(t.Context(), m.data)
			cert, key = k.Current()
			if bytes.Equal(cert, before) {
				t.Error("there is no new certificate")
			}
			if err := accepted(cert, key, m.apis[v1beta].bundle, m.clock.Now()); err != nil {
				t.Errorf("kube-apiserver refuses the new certificate: %v", err)
			}
			if err := k.Ready(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What leads to another server is its owner's, as long as it does.
func TestAnothersAPIService(t *testing.T) {
	m := newMemory(newClock())
	m.apis[other] = &apiService{name: other, version: "0", owner: "keda/keda", bundle: []byte("keda's")}
	k := newKeeper(m)
	steps(t, k)
	m.clock.Step(lifetime * 2 / 3)
	m.clock.Step(time.Hour)
	steps(t, k)
	m.clock.Step(maxSettle)
	steps(t, k)
	if got := string(m.apis[other].bundle); got != "keda's" {
		t.Fatalf("the bundle of another server's APIService was changed to %s", got)
	}
	if m.data[nextCertKey] != nil {
		t.Error("the rotation waits for another server's APIService")
	}
	expected := `
# HELP inference_metrics_adapter_apiservice_owned 1 where the APIService leads to this server, 0 where it leads to another and is left alone, or does not exist. Of the leader only.
# TYPE inference_metrics_adapter_apiservice_owned gauge
inference_metrics_adapter_apiservice_owned{apiservice="v1beta1.custom.metrics.k8s.io"} 1
inference_metrics_adapter_apiservice_owned{apiservice="v1beta1.external.metrics.k8s.io"} 0
`
	if err := testutil.CollectAndCompare(k.metrics.owned, strings.NewReader(expected)); err != nil {
		t.Error(err)
	}
	if fault := k.faults[other]; !strings.Contains(fault, "keda/keda") {
		t.Errorf("it is reported as %q, want the owner's name in it", fault)
	}

	m.apis[other].owner, m.apis[other].mine = "metrics/adapter", true
	steps(t, k)
	if !bytes.Equal(m.apis[other].bundle, m.apis[v1beta].bundle) || k.faults[other] != "" {
		t.Errorf("the APIService is ours again, and trusts %q (%s)", m.apis[other].bundle, k.faults[other])
	}
}

// A certificate from the future, as a clock that was set back leaves one, is replaced.
func TestClockIsSetBack(t *testing.T) {
	m := newMemory(newClock())
	k := newKeeper(m)
	m.clock.Step(365 * 24 * time.Hour)
	steps(t, k)
	m.clock.SetTime(m.clock.Now().Add(-365 * 24 * time.Hour))
	steps(t, k)
	m.clock.Step(maxSettle)
	steps(t, k)
	if err := accepted(m.data[certKey], m.data[keyKey], m.apis[v1beta].bundle, m.clock.Now()); err != nil {
		t.Error(err)
	}
}

func TestExpiredIsNotReady(t *testing.T) {
	m := newMemory(newClock())
	k := newKeeper(m)
	steps(t, k)
	k.load(t.Context(), m.data)
	m.clock.Step(lifetime + time.Second)
	if err := k.Ready(); err == nil || !strings.Contains(err.Error(), "expired at 2027-03-01T00:00:00Z") {
		t.Errorf("ready says %v, want that it expired, and when", err)
	}
}

// However many rotations there are, the bundle stays small.
func TestBundleIsBounded(t *testing.T) {
	m := newMemory(newClock())
	k := newKeeper(m)
	for range 3 * maxTrusted {
		m.set(nil)
		steps(t, k)
		m.clock.Step(maxSettle)
		steps(t, k)
	}
	all, err := readBundle(m.apis[v1beta].bundle)
	if err != nil || len(all) > maxTrusted+2 {
		t.Errorf("the bundle holds %d CAs (%v), want at most %d", len(all), err, maxTrusted+2)
	}
}

// Two replicas that both believe to lead, interrupted anywhere, with failures, and a Secret that comes to
// harm: whatever the Secret says to serve has then been trusted for as long as kube-apiserver needs to
// see it, and stays trusted until it expires.
func TestNothingUntrustedIsServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMemory(newClock())
		leaders := []*Keeper{newKeeper(m), newKeeper(m)}
		type served struct{ cert, key []byte }
		var all []served // since the beginning
		// seen is what a kube-apiserver trusts which is told late.
		seen := func(late time.Duration) []byte {
			bundle := m.trust[0].bundle
			for _, x := range m.trust {
				if !x.since.After(m.clock.Now().Add(-late)) {
					bundle = x.bundle
				}
			}
			return bundle
		}
		check := func() {
			if cert := m.data[certKey]; len(cert) > 10 && (len(all) == 0 || !bytes.Equal(all[len(all)-1].cert, cert)) {
				s := served{cert, m.data[keyKey]}
				alive := slices.ContainsFunc(all, func(s served) bool {
					_, err := readPair(s.cert, s.key, host, m.clock.Now())
					return err == nil
				})
				// Where nobody can be served, there is nothing to wait for.
				if err := accepted(s.cert, s.key, seen(maxSettle), m.clock.Now()); err != nil && alive {
					t.Fatalf("another certificate is served, which a kube-apiserver that is told late refuses: %v", err)
				}
				all = append(all, s)
			}
			for i, s := range all {
				p, err := readPair(s.cert, s.key, host, m.clock.Now())
				if err != nil {
					continue // expired
				}
				if err := accepted(s.cert, s.key, seen(0), m.clock.Now()); err != nil {
					t.Fatalf("certificate %d of %d, which expires %s, is refused: %v", i, len(all), p.leaf.NotAfter, err)
				}
			}
		}
		running := -1
		var run func(i int)
		m.before = func() error {
			check()
			switch rapid.IntRange(0, 19).Draw(t, "event") {
			case 0:
				return errors.New("cannot be reached")
			case 1, 2:
				if nested := running; nested >= 0 { // the other leader comes in between
					running = -1
					run(1 - nested)
					running = nested
				}
			case 3:
				m.clock.Step(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			}
			return nil
		}
		run = func(i int) {
			_, _ = leaders[i].step(context.Background())
		}
		spoiled := 0
		for range rapid.IntRange(20, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "action") {
			case 0:
				m.clock.Step(lifetime / 3)
			case 1:
				if spoiled++; spoiled < maxTrusted/2 {
					m.set(nil)
				}
			case 2:
				if spoiled++; spoiled < maxTrusted/2 {
					m.set(map[string][]byte{certKey: []byte("x")})
				}
			case 3:
				k := newKeeper(m) // a replica is replaced
				leaders[rapid.IntRange(0, 1).Draw(t, "replaced")] = k
			default:
				running = rapid.IntRange(0, 1).Draw(t, "leader")
				run(running)
				running = -1
			}
			check()
			m.clock.Step(time.Duration(rapid.IntRange(0, 90).Draw(t, "later")) * time.Second)
		}
	})
}
