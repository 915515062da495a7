package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// What the Secret holds. The first three are named as everywhere in Kubernetes.
const (
	certKey     = "tls.crt"
	keyKey      = "tls.key"
	bundleKey   = "ca.crt"
	nextCertKey = "next-tls.crt"
	nextKeyKey  = "next-tls.key"
)

// maxTrusted bounds the bundle when certificates are made anew again and again, as it is written into
// each APIService. In the course of things it holds three at most.
const maxTrusted = 8

// state is what the Secret says.
type state struct {
	// serving is what replicas serve with; nil where there is nothing to serve with.
	serving *pair
	// next is to follow it, once kube-apiserver trusts its CA; nil most of the time.
	next *pair
	// trusted are CAs that kube-apiserver trusts besides: some replica may still serve with a
	// certificate of theirs.
	trusted []*x509.Certificate
}

// readState reads the data of a Secret, as far as it makes sense, and says what does not.
func readState(data map[string][]byte, host string, now time.Time) (s state, faults error) {
	var errs []error
	of := func(certKey, keyKey string) *pair {
		if data[certKey] == nil && data[keyKey] == nil {
			return nil
		}
		p, err := readPair(data[certKey], data[keyKey], host, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s and %s: %w", certKey, keyKey, err))
		}
		return p
	}
	s.serving, s.next = of(certKey, keyKey), of(nextCertKey, nextKeyKey)
	cas, err := readBundle(data[bundleKey])
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", bundleKey, err))
	}
	s.trust(cas, now)
	return s, errors.Join(errs...)
}

// trust adds CAs, but for those that are there and those whose time is over. As a CA lives as long as its
// one certificate, none is dropped that a replica could still need.
func (s *state) trust(cas []*x509.Certificate, now time.Time) {
	s.trusted = append(s.trusted, cas...)
	slices.SortStableFunc(s.trusted, func(a, b *x509.Certificate) int { return b.NotAfter.Compare(a.NotAfter) })
	var kept []*x509.Certificate
	for _, c := range s.trusted {
		same := func(o *x509.Certificate) bool { return o.Equal(c) }
		if now.After(c.NotAfter) || slices.ContainsFunc(s.pairs(), func(p *pair) bool { return p.ca.Equal(c) }) || slices.ContainsFunc(kept, same) {
			continue
		}
		kept = append(kept, c)
	}
	s.trusted = kept[:min(len(kept), maxTrusted)]
}

func (s *state) pairs() []*pair {
	return slices.DeleteFunc([]*pair{s.next, s.serving}, func(p *pair) bool { return p == nil })
}

// bundle is what kube-apiserver has to trust, as PEM.
func (s *state) bundle() []byte {
	var cas []*x509.Certificate
	for _, p := range s.pairs() {
		cas = append(cas, p.ca)
	}
	return encode(append(cas, s.trusted...)...)
}

// data is what the Secret has to hold.
func (s *state) data() map[string][]byte {
	data := map[string][]byte{bundleKey: s.bundle()}
	if s.serving != nil {
		data[certKey], data[keyKey] = s.serving.cert, s.serving.key
	}
	if s.next != nil {
		data[nextCertKey], data[nextKeyKey] = s.next.cert, s.next.key
	}
	return data
}

// stage makes the pair that is to follow, where it is time for one.
func (s *state) stage(host string, now time.Time, lifetime time.Duration) error {
	if s.serving != nil && !s.serving.due(now, lifetime) || s.next != nil && !s.next.due(now, lifetime) {
		return nil
	}
	next, err := newPair(host, now, lifetime)
	if err != nil {
		return fmt.Errorf("making a serving certificate: %w", err)
	}
	s.retire(s.next, now)
	s.next = next
	return nil
}

// first reports whether nobody can be served with any certificate so far.
func (s *state) first() bool { return s.serving == nil && len(s.trusted) == 0 }

// promote has replicas serve with the next pair.
func (s *state) promote(now time.Time) {
	previous := s.serving
	s.serving, s.next = s.next, nil
	s.retire(previous, now)
}

// retire keeps the trust in a pair that is being replaced.
func (s *state) retire(p *pair, now time.Time) {
	if p != nil {
		s.trust([]*x509.Certificate{p.ca}, now)
	}
}

// ours are those CAs of a bundle that we have made. Where the Secret is lost, they tell what replicas
// still serve with.
func ours(cas []*x509.Certificate) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(cas), func(c *x509.Certificate) bool { return c.Subject.CommonName != caName })
}

func sameData(a, b map[string][]byte) bool {
	return maps.EqualFunc(a, b, slices.Equal[[]byte])
}
