package cluster

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Shared is what the tests of a package have together.
type Shared struct {
	*Cluster
	// Service is what an installed adapter's Service may lead to.
	Service *Balancer
	// Programs is the directory of our own: adapter and engine-emulator.
	Programs string
}

// Main runs the tests of a package on one cluster, once prepare has made it theirs, and ends the process.
// Data and logs are kept where a test fails, and in IMA_ARTIFACTS, in a directory of the package's name. With
// -short it runs nothing.
func Main(m *testing.M, options Options, prepare func(context.Context, *Shared) error) {
	flag.Parse()
	if testing.Short() {
		fmt.Println("skipped: a control plane is not short")
		return
	}
	keep := os.Getenv("IMA_ARTIFACTS")
	if keep != "" {
		keep = filepath.Join(keep, strings.TrimSuffix(filepath.Base(os.Args[0]), ".test"))
	}
	options.Dir, options.Progress = keep, os.Stderr
	ctx := context.Background() // a signal ends this process, and all others die with it
	c, err := Start(ctx, options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code, err := c.run(ctx, m, prepare)
	c.Stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 && keep == "" {
		err = os.RemoveAll(c.Dir)
	} else {
		fmt.Fprintf(os.Stderr, "data and logs of the control plane: %s\n", c.Dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func (c *Cluster) run(ctx context.Context, m *testing.M, prepare func(context.Context, *Shared) error) (int, error) {
	s := &Shared{Cluster: c, Programs: c.path("bin")}
	if err := OwnBinaries(ctx, s.Programs, "adapter", "engine-emulator"); err != nil {
		return 1, err
	}
	var err error
	if s.Service, err = c.NewBalancer(); err != nil {
		return 1, err
	}
	defer s.Service.Close()
	if err := prepare(ctx, s); err != nil {
		return 1, fmt.Errorf("preparing what the tests share: %w", err)
	}
	return m.Run(), nil
}
