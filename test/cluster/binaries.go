package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// programs maps the control plane's programs to the packages they are built from.
var programs = map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kwok":                    "sigs.k8s.io/kwok/cmd/kwok",
	"prometheus":              "github.com/prometheus/prometheus/cmd/prometheus",
	"promtool":                "github.com/prometheus/prometheus/cmd/promtool",
}

// Binaries builds the control plane's programs and returns the directory that holds them. They are
// kept in the user's cache directory (or below $IMA_CACHE) under a key of the modules that they are
// made of and the Go version, so that they are built once: the first time takes several minutes.
func Binaries(ctx context.Context, progress io.Writer) (string, error) {
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	key, err := cacheKey(ctx, module)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "bin", key)
	return dir, once(dir, func(temp string) error {
		kubernetes, err := goCommand(ctx, module, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
		if err != nil {
			return err
		}
		for name, pkg := range programs {
			fmt.Fprintf(progress, "building %s (once; kept in %s)\n", name, dir)
			if _, err := goCommand(ctx, module, "build", "-trimpath", "-ldflags", versionFlags(kubernetes),
				"-o", filepath.Join(temp, name), pkg); err != nil {
				return err
			}
		}
		return nil
	})
}

// once fills a directory, unless it is there already. Several processes may want the same: those who
// waited find it there.
func once(dir string, fill func(temp string) error) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := fill(temp); err != nil {
		return err
	}
	return os.Rename(temp, dir)
}

// cacheKey tells programs that were built of other modules, or with another Go, from those wanted.
func cacheKey(ctx context.Context, module string) (string, error) {
	goVersion, err := goCommand(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	packages := slices.Sorted(maps.Values(programs))
	linked, err := goCommand(ctx, module, append([]string{
		"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}",
	}, packages...)...)
	if err != nil {
		return "", err
	}
	modules := strings.Split(linked, "\n")
	slices.Sort(modules)
	key := sha256.New()
	for _, line := range append([]string{goVersion}, slices.Compact(modules)...) {
		fmt.Fprintln(key, line)
	}
	return hex.EncodeToString(key.Sum(nil))[:16], nil
}

// versionFlags has the linker strip symbols, and stamp what a Kubernetes release build stamps: a
// program without it calls itself v0.0.0, which kubectl then takes for an incompatible server.
func versionFlags(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for name, value := range map[string]string{
			"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean",
		} {
			flags = append(flags, fmt.Sprintf("-X %s.%s=%s", pkg, name, value))
		}
	}
	slices.Sort(flags[2:]) // one order, for the sake of the build cache
	return strings.Join(flags, " ")
}

// OwnBinaries builds the commands of the main module into dir, afresh: they are what is tested.
func OwnBinaries(ctx context.Context, dir string, names ...string) error {
	module, err := moduleDir()
	if err != nil {
		return err
	}
	main := filepath.Join(module, "..", "..")
	for _, name := range names {
		if _, err := goCommand(ctx, main, "build", "-o", filepath.Join(dir, name), "./cmd/"+name); err != nil {
			return err
		}
	}
	return nil
}

// cacheDir is $IMA_CACHE, or the project's directory in the user's cache directory.
func cacheDir() (string, error) {
	if dir := os.Getenv("IMA_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a cache directory (set IMA_CACHE): %w", err)
	}
	return filepath.Join(dir, "inference-metrics-adapter"), nil
}

// moduleDir is this module's directory. The programs are built from source, so the source is there.
func moduleDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("cannot tell where test/cluster is: built with -trimpath; build it without")
	}
	return filepath.Dir(file), nil
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := run(ctx, dir, "go", args...)
	if err != nil {
		return "", fmt.Errorf("in %s: %w", dir, err)
	}
	return out, nil
}
