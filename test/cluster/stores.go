package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// Stores are programs that scrape and store series, and the emulated engines that they scrape: what
// needs no control plane.
type Stores struct {
	dir       string
	processes *processes
}

// NewStores returns none yet. Data and logs go to dir. They are killed with this process.
func NewStores(dir string) *Stores {
	return &Stores{dir: dir, processes: &processes{dir: dir}}
}

// Stop ends all of them.
func (s *Stores) Stop() { s.processes.stop() }

// Store is a running program with an HTTP API.
type Store struct {
	*Process
	// URL is where it listens.
	URL string
	// GRPC is the address at which a part of Thanos serves others.
	GRPC string
}

// StartPrometheus starts a Prometheus, of any version, with a configuration file's text.
func (s *Stores) StartPrometheus(ctx context.Context, name, program, config string) (*Store, error) {
	file, err := s.write(name, config)
	if err != nil {
		return nil, err
	}
	return s.start(ctx, name, "/-/ready", func(address, _ string) []string {
		return []string{program, "--config.file=" + file, "--storage.tsdb.path=" + s.Data(name), "--web.listen-address=" + address}
	})
}

// StartVictoriaMetrics starts a single-node VictoriaMetrics, which scrapes what the text of a
// Prometheus configuration file says; nothing when it is empty.
func (s *Stores) StartVictoriaMetrics(ctx context.Context, name, program, config string) (*Store, error) {
	file, err := s.write(name, config)
	if err != nil {
		return nil, err
	}
	return s.start(ctx, name, "/health", func(address, _ string) []string {
		return []string{program, "-httpListenAddr=" + address, "-storageDataPath=" + s.Data(name),
			"-promscrape.config=" + file, "-memory.allowedPercent=5"}
	})
}

// StartSidecar starts a Thanos sidecar beside a Prometheus of that name.
func (s *Stores) StartSidecar(ctx context.Context, program, prometheusName string, prometheus *Store) (*Store, error) {
	return s.start(ctx, prometheusName+"-sidecar", "/-/ready", func(address, grpc string) []string {
		return []string{program, "sidecar", "--http-address=" + address, "--grpc-address=" + grpc,
			"--prometheus.url=" + prometheus.URL, "--tsdb.path=" + s.Data(prometheusName)}
	})
}

// StartThanosQuery starts a Thanos Query over sidecars, which merges the series of pairs that the
// replica label tells apart.
func (s *Stores) StartThanosQuery(ctx context.Context, program, name, replicaLabel string, sidecars ...*Store) (*Store, error) {
	return s.start(ctx, name, "/-/ready", func(address, grpc string) []string {
		args := []string{program, "query", "--http-address=" + address, "--grpc-address=" + grpc,
			"--query.replica-label=" + replicaLabel}
		for _, sidecar := range sidecars {
			args = append(args, "--endpoint-strict="+sidecar.GRPC)
		}
		return args
	})
}

// StartEngines starts the engine emulator's program with servers of its own. It returns once the
// emulator answers.
func (s *Stores) StartEngines(ctx context.Context, program string, args ...string) (*Emulator, error) {
	dcgm, err := FreePort()
	if err != nil {
		return nil, err
	}
	store, err := s.start(ctx, "engine-emulator", "/state", func(address, _ string) []string {
		return append([]string{program, "standalone", "--control-address=" + address, "--base-port=0",
			"--dcgm-address=" + loopback(dcgm)}, args...)
	})
	if err != nil {
		return nil, err
	}
	return &Emulator{Process: store.Process, Control: store.URL, DCGM: loopback(dcgm), namespace: "default"}, nil
}

// Data is the directory of a store's data.
func (s *Stores) Data(name string) string { return filepath.Join(s.dir, name+"-data") }

func (s *Stores) write(name, config string) (string, error) {
	file := filepath.Join(s.dir, name+".yaml")
	return file, os.WriteFile(file, []byte(config), 0o644)
}

// start starts a program and waits until it answers at a path. args are called with two free
// addresses, and say the program first.
func (s *Stores) start(ctx context.Context, name, ready string, args func(address, grpc string) []string) (*Store, error) {
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = FreePort(); err != nil {
			return nil, err
		}
	}
	store := &Store{URL: "http://" + loopback(ports[0]), GRPC: loopback(ports[1])}
	line := args(loopback(ports[0]), store.GRPC)
	var err error
	if store.Process, err = s.processes.start(name, line[0], line[1:]...); err != nil {
		return nil, err
	}
	return store, await(ctx, store.Process, fmt.Sprintf("%s to be ready", name), func(ctx context.Context) error {
		return getOK(ctx, http.DefaultClient, store.URL+ready)
	})
}
