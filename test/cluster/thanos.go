package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ThanosBinary builds Thanos, and returns the program's path. It is a module of its own (thanos/go.mod),
// because Thanos is built with another Prometheus than the one that is tested beside it.
func ThanosBinary(ctx context.Context, progress io.Writer) (string, error) {
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	module = filepath.Join(module, "thanos")
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	const tags = "slicelabels" // as Thanos's own builds: without, it takes labels for what they are not
	key := sha256.New()
	version, err := goCommand(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(key, version, tags)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		key.Write(data)
	}
	dir := filepath.Join(cache, "thanos", hex.EncodeToString(key.Sum(nil))[:16])
	return filepath.Join(dir, "thanos"), once(dir, func(temp string) error {
		fmt.Fprintf(progress, "building thanos (once; kept in %s)\n", dir)
		_, err := goCommand(ctx, module, "build", "-trimpath", "-tags", tags, "-ldflags", "-s -w",
			"-o", filepath.Join(temp, "thanos"), "github.com/thanos-io/thanos/cmd/thanos")
		return err
	})
}
