package install

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inference-metrics/adapter/test/cluster"
)

// lifetime is that of certificates while requests are made: short enough for one to be replaced because
// it is time.
const lifetime = 90 * time.Second

// load asks through the aggregation layer all the time.
type load struct {
	// stop ends it.
	stop  func()
	asked atomic.Int64

	mu     sync.Mutex
	failed []string
}

// startLoad asks until it is stopped: for the list of metrics, which needs no data.
func (i *install) startLoad(t *testing.T) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	fail := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			l.mu.Lock()
			l.failed = append(l.failed, fmt.Sprintf("%s %s: %v", time.Now().Format(time.StampMilli), what, err))
			l.mu.Unlock()
		}
	}
	for _, version := range cluster.APIVersions {
		running.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				data, err := i.cluster.Client.Discovery().RESTClient().Get().AbsPath("/apis/custom.metrics.k8s.io", version).DoRaw(ctx)
				var list metav1.APIResourceList
				if err == nil {
					err = json.Unmarshal(data, &list)
				}
				if err == nil && len(list.APIResources) == 0 {
					err = fmt.Errorf("no metrics are listed: %.200s", data)
				}
				fail(version, err)
				l.asked.Add(1)
			}
		})
	}
	running.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(250 * time.Millisecond) {
			fail("status", i.cluster.Available(ctx))
		}
	})
	l.stop = func() { cancel(); running.Wait() }
	t.Cleanup(l.stop)
	return l
}

// testRotation has certificates replaced because it is time, though who made them is gone, and because the
// Secret is deleted or spoiled, while requests are made: none of them fails.
func (i *install) testRotation(t *testing.T, leader *cluster.Adapter, adapters []*cluster.Adapter, l *load) {
	secrets := i.cluster.Client.CoreV1().Secrets(cluster.AdapterNamespace)
	replaced := func(what string) {
		t.Helper()
		var before []string
		for _, a := range adapters {
			before = append(before, servedCertificate(t, a.Address))
		}
		for n, a := range adapters {
			eventually(t, 3*time.Minute, fmt.Sprintf("adapter %d serves with another certificate: %s", n, what), func() error {
				if servedCertificate(t, a.Address) == before[n] {
					return fmt.Errorf("it does not; its log:\n%s", logOf(t, a))
				}
				return nil
			})
		}
		asked := l.asked.Load()
		eventually(t, time.Minute, "requests are made", func() error {
			if n := l.asked.Load() - asked; n < 20 {
				return fmt.Errorf("only %d", n)
			}
			return nil
		})
	}
	led := i.holder(t)
	leader.Kill()
	replaced("it is time, and another leads")
	if leads := i.holder(t); leads == led {
		t.Errorf("a certificate was replaced, and who was killed still leads: %s", leads)
	}
	for _, spoil := range []struct {
		what string
		do   func() error
	}{
		{"the Secret was deleted", func() error { return secrets.Delete(t.Context(), secret, metav1.DeleteOptions{}) }},
		{"the key is not the certificate's", func() error {
			s, err := secrets.Get(t.Context(), secret, metav1.GetOptions{})
			if err != nil {
				return err
			}
			s.Data["tls.key"] = bytes.Repeat([]byte("x"), 100)
			_, err = secrets.Update(t.Context(), s, metav1.UpdateOptions{})
			return err
		}},
	} {
		err := spoil.do()
		for apierrors.IsConflict(err) {
			err = spoil.do()
		}
		if err != nil {
			t.Fatal(err)
		}
		replaced(spoil.what)
	}
	l.stop()
	if len(l.failed) > 0 {
		t.Errorf("of %d requests while certificates were replaced, %d failed, such as %.20q", l.asked.Load(), len(l.failed), l.failed[:min(10, len(l.failed))])
	}
	t.Logf("%d requests", l.asked.Load())
}

// holder is who makes certificates.
func (i *install) holder(t *testing.T) string {
	t.Helper()
	lease, err := i.cluster.Client.CoordinationV1().Leases(cluster.AdapterNamespace).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		t.Fatalf("nobody leads: %+v", lease.Spec)
	}
	return *lease.Spec.HolderIdentity
}
