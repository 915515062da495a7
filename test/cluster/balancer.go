package cluster

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Balancer stands in for a Service and kube-proxy, neither of which reaches a process of the host:
// it forwards each TCP connection to the next backend whose /readyz last answered 200. As with the
// real thing, a backend that has died gets connections until a probe has noticed, and connections
// that are open stay where they are.
type Balancer struct {
	// Address is where it listens.
	Address string

	listener net.Listener
	probe    *http.Client
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu       sync.Mutex
	backends []*backend
	next     int
}

type backend struct {
	address string
	ready   bool
}

// probePeriod is how soon a dead backend is noticed: quicker than a readiness probe, as the kubelet
// also sees a container end.
const probePeriod = time.Second

// newBalancer listens on a free port. Its probes check no certificate, as those of a kubelet.
func newBalancer() (*Balancer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &Balancer{
		Address:  listener.Addr().String(),
		listener: listener,
		probe: &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true,
		}},
		cancel: cancel,
	}
	b.wg.Go(b.accept)
	b.wg.Go(func() { b.probeAll(ctx) })
	return b, nil
}

// Close ends the balancer and cuts no connection that is open.
func (b *Balancer) Close() {
	b.cancel()
	b.listener.Close()
	b.wg.Wait()
}

// Add puts a backend into rotation, as soon as it is ready.
func (b *Balancer) Add(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = append(b.backends, &backend{address: address})
}

// Remove takes a backend out of rotation at once, as the deletion of a pod does.
func (b *Balancer) Remove(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = slices.DeleteFunc(b.backends, func(be *backend) bool { return be.address == address })
}

func (b *Balancer) accept() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		go b.forward(conn)
	}
}

// forward joins a connection to a ready backend; without one it is cut, as a Service without
// endpoints refuses it.
func (b *Balancer) forward(conn net.Conn) {
	defer conn.Close()
	address, ok := b.pick()
	if !ok {
		return
	}
	upstream, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(upstream, conn)
		upstream.Close()
	}()
	_, _ = io.Copy(conn, upstream)
}

func (b *Balancer) pick() (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.backends {
		b.next++
		if be := b.backends[b.next%len(b.backends)]; be.ready {
			return be.address, true
		}
	}
	return "", false
}

func (b *Balancer) probeAll(ctx context.Context) {
	for {
		b.mu.Lock()
		backends := slices.Clone(b.backends)
		b.mu.Unlock()
		for _, be := range backends {
			err := getOK(ctx, b.probe, "https://"+be.address+"/readyz")
			b.mu.Lock()
			be.ready = err == nil
			b.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(probePeriod):
		}
	}
}
