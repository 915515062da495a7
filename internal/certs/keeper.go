// Package certs keeps the certificate that the adapter serves with, so that nobody has to.
//
// kube-apiserver talks to the adapter by TLS, and trusts the CAs that the APIServices name. One replica,
// the leader, makes certificates, keeps them in a Secret, and writes the CAs into the APIServices; every
// replica serves with what the Secret holds, and follows it without a restart.
//
// Each certificate has a CA of its own, whose key is thrown away once it has signed. A certificate is
// replaced in three steps, each of which is seen done before the next is taken, whoever is leader then:
//
//  1. The new pair is put into the Secret beside the one that is served.
//  2. The APIServices trust its CA, beside those that they trusted so far.
//  3. When kube-apiserver has had the time to see that, the new pair is what the Secret says to serve.
//
// The CA of the one before stays in the APIServices until it expires, as does its certificate, so a
// replica may be late. A pair of leaders does no harm: every write says what it has read, and is refused
// where that has changed. What is not ours is left alone: an APIService that leads to another Service is
// reported and not written to.
package certs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// DefaultLifetime is how long a certificate is valid.
const DefaultLifetime = 90 * 24 * time.Hour

// MinLifetime leaves each step of a rotation time to be seen, and MaxLifetime is what some clients accept at most.
const (
	MinLifetime = time.Minute
	MaxLifetime = 825 * 24 * time.Hour
)

const (
	// maxSettle is how long kube-apiserver is given to see what it has to trust. It takes moments.
	maxSettle = time.Minute
	// maxPeriod is how often the leader looks at the least, beside when the Secret changes.
	maxPeriod = 15 * time.Second
)

// Keeper keeps the serving certificate of a Service.
type Keeper struct {
	host     string
	lifetime time.Duration
	clock    clock.Clock
	cluster  *cluster
	store    store
	metrics  *metrics

	// changed wakes the leader.
	changed chan struct{}

	mu        sync.Mutex
	current   *pair
	listeners []func()
	faults    map[string]string // what was reported last, by what it is about

	// leading is held while this replica leads: an election that is lost and won again could overlap.
	leading sync.Mutex
	// published is which certificate the APIServices have been seen to trust, and since when.
	published struct {
		serial string
		since  time.Time
	}
}

// store is where certificates and trust are kept.
type store interface {
	// secret returns the data of the Secret and its version, or an empty one where there is none.
	secret(ctx context.Context) (data map[string][]byte, version string, err error)
	// write replaces the data of the version that was read, or makes the Secret.
	write(ctx context.Context, data map[string][]byte, version string) error
	// services returns the APIServices, of which one that does not exist has a name only.
	services(ctx context.Context) ([]apiService, error)
	// publish has an APIService trust the bundle, if it is still the one that was read.
	publish(ctx context.Context, s apiService, bundle []byte) error
}

// apiService is what matters of an APIService.
type apiService struct {
	name, version string
	// owner is the Service that it leads to, and mine says that it is ours.
	owner string
	mine  bool
	// bundle is whom kube-apiserver trusts to be that Service.
	bundle []byte
}

// Current returns certificate and key, as PEM, or nothing before there are any.
func (k *Keeper) Current() (certificate, key []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return nil, nil
	}
	return k.current.cert, k.current.key
}

// OnChange has f called after each change of Current.
func (k *Keeper) OnChange(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listeners = append(k.listeners, f)
}

// Ready returns why kube-apiserver would refuse what is served, or nil.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.current == nil:
		return errors.New("there is no serving certificate yet" + k.reasons())
	case k.clock.Now().After(k.current.leaf.NotAfter):
		return fmt.Errorf("the serving certificate expired at %s%s", k.current.leaf.NotAfter.Format(time.RFC3339), k.reasons())
	}
	return nil
}

// reasons are the faults that were reported, as an appendix.
func (k *Keeper) reasons() string {
	var all []string
	for about, fault := range k.faults {
		all = append(all, about+": "+fault)
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return " (" + strings.Join(all, "; ") + ")"
}

// Collectors are the keeper's own metrics.
func (k *Keeper) Collectors() []prometheus.Collector { return k.metrics.all() }

// Run keeps the certificate until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("certs"))
	var running sync.WaitGroup
	running.Go(func() { k.cluster.watch(ctx, k.load) })
	running.Go(func() { k.cluster.elect(ctx, k.lead) })
	running.Wait()
	return nil
}

// load takes what the Secret says to serve with, if it can be served with. Else what there is stays.
func (k *Keeper) load(ctx context.Context, data map[string][]byte) {
	select {
	case k.changed <- struct{}{}:
	default: // the leader has not seen the last change yet
	}
	if data[certKey] == nil && data[keyKey] == nil {
		k.report(ctx, "serving", nil) // the Secret is new, or gone
		return
	}
	p, err := readPair(data[certKey], data[keyKey], k.host, k.clock.Now())
	k.report(ctx, "serving", err)
	if err != nil {
		return
	}
	k.mu.Lock()
	same := k.current != nil && k.current.leaf.Equal(p.leaf)
	k.current = p
	listeners := slices.Clone(k.listeners)
	k.mu.Unlock()
	if same {
		return
	}
	k.metrics.expiry.Set(float64(p.leaf.NotAfter.Unix()))
	klog.FromContext(ctx).Info("Serving with another certificate", "serial", p.leaf.SerialNumber, "expires", p.leaf.NotAfter)
	for _, f := range listeners {
		f()
	}
}

// lead takes the steps that are due until ctx ends, which it does when another replica leads.
func (k *Keeper) lead(ctx context.Context) {
	k.leading.Lock()
	defer k.leading.Unlock()
	k.metrics.leader.Set(1)
	defer k.metrics.notLeader()
	k.published.serial = ""
	for {
		again, err := k.step(ctx)
		if overtaken(err) {
			again, err = true, nil
		}
		k.report(ctx, "rotation", err)
		period := min(maxPeriod, k.settle())
		if again {
			period = 0
		}
		timer := k.clock.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.changed:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// settle is how long kube-apiserver has to have trusted a CA before its certificate is served.
func (k *Keeper) settle() time.Duration { return min(maxSettle, k.lifetime/20) }

// step looks at all there is, takes the one step that is due, and says whether the next may be due at once.
func (k *Keeper) step(ctx context.Context) (again bool, err error) {
	services, err := k.store.services(ctx)
	if err != nil {
		return false, err
	}
	data, version, err := k.store.secret(ctx)
	if err != nil {
		return false, err
	}
	now := k.clock.Now()
	s, faults := readState(data, k.host, now)
	k.report(ctx, "secret", faults)
	services = k.owned(ctx, services)
	for _, a := range services {
		cas, err := readBundle(a.bundle)
		k.report(ctx, "bundle of "+a.name, err)
		// Also what the Secret does not tell of: it may be lost, or another leader's is newer.
		s.trust(ours(cas), now)
	}
	if err := s.stage(k.host, now, k.lifetime); err != nil {
		return false, err
	}
	if wanted := s.data(); !sameData(wanted, data) {
		return true, k.store.write(ctx, wanted, version)
	}

	trusted := true
	for _, a := range services {
		if string(a.bundle) == string(s.bundle()) {
			continue
		}
		trusted = false
		if err := k.store.publish(ctx, a, s.bundle()); err != nil {
			return false, err
		}
		klog.FromContext(ctx).Info("APIService trusts another bundle of CAs", "apiservice", a.name, "cas", len(s.trusted)+len(s.pairs()))
	}
	if !trusted {
		k.published.serial = ""
		return true, nil
	}
	if s.next == nil {
		return false, nil
	}
	if serial := s.next.leaf.SerialNumber.String(); k.published.serial != serial {
		k.published.serial, k.published.since = serial, now
	}
	if waited := now.Sub(k.published.since); !s.first() && waited < k.settle() {
		return false, nil
	}
	s.promote(now)
	return true, k.store.write(ctx, s.data(), version)
}

// owned returns those APIServices that lead to us, and says of which that is not so.
func (k *Keeper) owned(ctx context.Context, services []apiService) (mine []apiService) {
	k.metrics.owned.Reset()
	for _, a := range services {
		var fault error
		owned := 0.
		switch {
		case a.mine:
			mine = append(mine, a)
			owned = 1
		case a.owner == "":
			fault = errors.New("there is none, so that no client finds this API: apply the manifests")
		default:
			fault = fmt.Errorf("it leads to %s, which is not this server, and is left alone", a.owner)
		}
		k.metrics.owned.WithLabelValues(a.name).Set(owned)
		k.report(ctx, a.name, fault)
	}
	return mine
}

// report logs when something is wrong that was not, or in another way, or is right again.
func (k *Keeper) report(ctx context.Context, about string, fault error) {
	if ctx.Err() != nil {
		return // stopping, which is no fault
	}
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	k.mu.Lock()
	before := k.faults[about]
	if k.faults[about] = text; text == "" {
		delete(k.faults, about)
	}
	k.mu.Unlock()
	switch {
	case text == before:
	case text == "":
		klog.FromContext(ctx).Info("Certificates: what was wrong is right again", "about", about)
	default:
		klog.FromContext(ctx).Info("Certificates: something is wrong", "about", about, "fault", text)
	}
}
