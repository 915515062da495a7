package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

var (
	handedOutMu sync.Mutex
	handedOut   = map[int]bool{}
)

// FreePort returns a loopback port that nobody listens on, and that this process has not handed
// out before. It stays below the kernel's range for outgoing connections, one of which could
// otherwise take the port before its program binds it.
func FreePort() (int, error) {
	handedOutMu.Lock()
	defer handedOutMu.Unlock()
	for range 1000 {
		port := 16000 + rand.IntN(16000)
		if handedOut[port] {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		l.Close()
		handedOut[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 between 16000 and 32000")
}

// freePodNetwork returns the X of a network 127.X.0.0/16 that no other cluster's kwok serves on.
func freePodNetwork() (int, error) {
	for range 100 {
		x := 64 + rand.IntN(128)
		l, err := net.Listen("tcp", kwokAddress(x))
		if err != nil {
			continue
		}
		l.Close()
		return x, nil
	}
	return 0, fmt.Errorf("no free network between 127.64.0.0/16 and 127.191.0.0/16")
}

// kwokAddress is where kwok serves. Always the last address of the pod network, so that it marks
// the network as taken.
func kwokAddress(x int) string { return fmt.Sprintf("127.%d.255.254:10247", x) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
