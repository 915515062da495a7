package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianPrograms maps Debian's packages to the one program of each that is wanted.
var debianPrograms = map[string]string{
	"prometheus":       "usr/bin/prometheus",
	"victoria-metrics": "usr/bin/victoria-metrics",
}

// DebianBinaries unpacks the stores that Debian has packages of, and returns the directory that holds
// "prometheus" (2.x, as many still run it) and "victoria-metrics". Nothing is installed, so that it
// needs no root and starts no service; they are kept in the cache under the release of the system and
// its architecture. It needs apt and dpkg, and the repositories that they are set up for.
func DebianBinaries(ctx context.Context, progress io.Writer) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	system, err := debianSystem(ctx)
	if err != nil {
		return "", fmt.Errorf("the packages of Prometheus 2 and VictoriaMetrics: %w", err)
	}
	dir := filepath.Join(cache, "debian", system)
	err = once(dir, func(temp string) error {
		for name := range debianPrograms {
			fmt.Fprintf(progress, "fetching the Debian package %s (once; kept in %s)\n", name, dir)
		}
		return unpackDebian(ctx, temp)
	})
	if err != nil {
		return "", fmt.Errorf("the packages of Prometheus 2 and VictoriaMetrics: %w", err)
	}
	return dir, nil
}

// debianSystem names the release and the architecture that packages are for.
func debianSystem(ctx context.Context) (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("this needs Debian or a system made of it: %w", err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(release)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		fields[key] = strings.Trim(value, `"`)
	}
	arch, err := run(ctx, "", "dpkg", "--print-architecture")
	if err != nil {
		return "", fmt.Errorf("this needs Debian or a system made of it: %w", err)
	}
	return strings.Join([]string{fields["ID"], fields["VERSION_ID"], arch}, "-"), nil
}

// unpackDebian leaves the programs in dir, with a file that tells their packages' versions.
func unpackDebian(ctx context.Context, dir string) error {
	work, err := os.MkdirTemp("", "debian-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	// apt's own state is the system's, which only root may write, and may be empty or old. The sandbox
	// is for root, whose temporary directory its user could not enter.
	apt := func(args ...string) error {
		for _, sub := range []string{"state/lists/partial", "cache/archives/partial"} {
			if err := os.MkdirAll(filepath.Join(work, sub), 0o755); err != nil {
				return err
			}
		}
		_, err := run(ctx, work, "apt-get", append([]string{
			"-q", "-o", "Dir::State=" + filepath.Join(work, "state"), "-o", "Dir::State::status=/var/lib/dpkg/status",
			"-o", "Dir::Cache=" + filepath.Join(work, "cache"), "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3",
		}, args...)...)
		return err
	}
	if err := apt("update"); err != nil {
		return err
	}
	var versions []string
	for name, program := range debianPrograms {
		if err := apt("download", name); err != nil {
			return fmt.Errorf("%w\n(is the package %s in the repositories of this system?)", err, name)
		}
		files, err := filepath.Glob(filepath.Join(work, name+"_*.deb"))
		if err != nil || len(files) != 1 {
			return fmt.Errorf("apt-get download %s brought %q: %w", name, files, err)
		}
		root := filepath.Join(work, "root-"+name)
		if _, err := run(ctx, work, "dpkg-deb", "-x", files[0], root); err != nil {
			return err
		}
		if _, err := run(ctx, work, "cp", filepath.Join(root, program), filepath.Join(dir, name)); err != nil {
			return err
		}
		versions = append(versions, strings.TrimSuffix(filepath.Base(files[0]), ".deb")+"\n")
	}
	return os.WriteFile(filepath.Join(dir, "versions"), []byte(strings.Join(versions, "")), 0o644)
}

// run runs a program to its end and returns what it prints.
func run(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}
