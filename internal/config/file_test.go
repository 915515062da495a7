package config

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// watched is a file that is watched on virtual time.
type watched struct {
	t    *testing.T
	file *File

	mu      sync.Mutex // for the race detector, which does not know that the watcher sleeps
	log     bytes.Buffer
	applied []Config
	refuse  error
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *watched) apply(c Config) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return w.refuse
	}
	w.applied = append(w.applied, c)
	return nil
}

// wait lets the watcher look twice, and returns what it logged.
func (w *watched) wait() string {
	time.Sleep(2*lookEvery + time.Millisecond)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.log.Reset()
	return w.log.String()
}

// gauges are the metrics without their prefix, but for the number of the hash.
func (w *watched) gauges() map[string]float64 {
	w.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.file.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		out[strings.TrimPrefix(f.GetName(), "inference_metrics_adapter_config_")] = f.GetMetric()[0].GetGauge().GetValue()
	}
	return out
}

func watch(t *testing.T, name string, f func(*watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t}
		var err error
		if w.file, _, err = Open(name, kinds); err != nil {
			t.Fatal(err)
		}
		log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), log))
		done := make(chan error, 1)
		go func() { done <- w.file.Watch(ctx, w.apply) }()
		f(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReload(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	write(t, name, "window: 60s\n")
	watch(t, name, func(w *watched) {
		began := w.gauges()
		if log := w.wait(); log != "" || len(w.applied) != 0 {
			t.Errorf("nothing changed: %d applied, log %s", len(w.applied), log)
		}

		write(t, name, "window: 90s\nslo: {ttft: 1s}\nroleLabels: [stage]\n")
		log := w.wait()
		if len(w.applied) != 1 || w.applied[0].Params.Window != 90*time.Second || w.applied[0].Params.SLO.TTFT != time.Second {
			t.Fatalf("applied %+v", w.applied)
		}
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, `"Configuration changed"`) || !strings.Contains(log, `fields=["window","slo","roleLabels"]`) {
			t.Errorf("log of a change: %s", log)
		}
		after := w.gauges()
		if after["hash"] == began["hash"] || after["last_reload_success_timestamp_seconds"] <= began["last_reload_success_timestamp_seconds"] || after["last_reload_successful"] != 1 {
			t.Errorf("metrics before %v, after %v", began, after)
		}

		// A fault changes nothing, and is said once, however long it stays.
		write(t, name, "window: 90\nwindoes: []\n")
		log = w.wait()
		if log2 := w.wait(); log2 != "" {
			t.Errorf("said again: %s", log2)
		}
		if strings.Count(log, "Configuration file changed and cannot be taken") != 1 || !strings.Contains(log, "windoes") {
			t.Errorf("log of a fault: %s", log)
		}
		faulty := w.gauges()
		want := map[string]float64{"hash": after["hash"], "last_reload_success_timestamp_seconds": after["last_reload_success_timestamp_seconds"], "last_reload_successful": 0, "restart_needed": 0}
		if diff := cmp.Diff(want, faulty); diff != "" {
			t.Errorf("metrics of a fault (-want +got):\n%s", diff)
		}
		if s := w.file.Status(); s.Err == nil || !strings.Contains(s.Err.Error(), "windoes") {
			t.Errorf("status of a fault: %+v", s)
		}
		write(t, name, "window: 1s\n")
		if log := w.wait(); !strings.Contains(log, "window: 1s is outside 10s to 10m0s") {
			t.Errorf("log of another fault: %s", log)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if log := w.wait(); !strings.Contains(log, "no such file") {
			t.Errorf("log of a file that is gone: %s", log)
		}
		if len(w.applied) != 1 {
			t.Errorf("a fault was applied: %+v", w.applied)
		}

		write(t, name, "window: 90s\nslo: {ttft: 1s}\nroleLabels: [stage]\n")
		if log := w.wait(); !strings.Contains(log, "again as it holds") || len(w.applied) != 1 || w.gauges()["last_reload_successful"] != 1 || w.file.Status().Err != nil {
			t.Errorf("the file is as before the fault: %d applied, metrics %v, log %s", len(w.applied), w.gauges(), log)
		}

		w.mu.Lock()
		w.refuse = errors.New("not now")
		w.mu.Unlock()
		write(t, name, "window: 2m\n")
		if log := w.wait(); !strings.Contains(log, "not now") || w.gauges()["last_reload_successful"] != 0 {
			t.Errorf("refused: metrics %v, log %s", w.gauges(), log)
		}
	})
}

// Who writes a file in place empties it first, and an empty file is a valid one.
func TestReloadWaitsForTheWriter(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	write(t, name, "window: 90s\n")
	watch(t, name, func(w *watched) {
		write(t, name, "")
		time.Sleep(lookEvery + time.Millisecond)
		write(t, name, "window: 2m\n")
		w.wait()
		if len(w.applied) != 1 || w.applied[0].Params.Window != 2*time.Minute {
			t.Errorf("applied %+v, want what was written in the end only", w.applied)
		}
	})
}

// A ConfigMap's files are symbolic links to a directory that is a symbolic link, which is swapped.
func TestReloadOfConfigMap(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	version := func(name, text string) {
		must(os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "config.yaml"), text)
		must(os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..2026_1", "window: 60s\n")
	name := filepath.Join(dir, "config.yaml")
	must(os.Symlink(filepath.Join("..data", "config.yaml"), name))
	watch(t, name, func(w *watched) {
		version("..2026_2", "window: 90s\n")
		must(os.RemoveAll(filepath.Join(dir, "..2026_1")))
		w.wait()
		if len(w.applied) != 1 || w.applied[0].Params.Window != 90*time.Second {
			t.Errorf("applied %+v", w.applied)
		}
	})
}

// What holds after a restart only is named, and the rest of the file is taken.
func TestReloadOfWhatNeedsARestart(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	write(t, name, "window: 60s\nkinds: [services]\n")
	watch(t, name, func(w *watched) {
		write(t, name, "window: 90s\nkinds: [deployments.apps]\npodLabels: [{namespace: ns, pod: pod}]\n")
		log := w.wait()
		if len(w.applied) != 1 {
			t.Fatalf("applied %+v, log %s", w.applied, log)
		}
		got := w.applied[0]
		if got.Params.Window != 90*time.Second || len(got.Kinds) != 1 || got.Kinds[0].Resource != "services" || got.Params.PodLabels != nil {
			t.Errorf("applied %+v", got)
		}
		if !strings.Contains(log, "after a restart only") || !strings.Contains(log, `fields=["kinds","podLabels"]`) {
			t.Errorf("log: %s", log)
		}
		if diff := cmp.Diff([]string{"kinds", "podLabels"}, w.file.Status().Restart); diff != "" || w.gauges()["restart_needed"] != 1 {
			t.Errorf("metrics %v, status (-want +got):\n%s", w.gauges(), diff)
		}
		write(t, name, "window: 90s\nkinds: [services]\n")
		w.wait()
		if w.file.Status().Restart != nil || w.gauges()["restart_needed"] != 0 {
			t.Errorf("the fields are as at the start: metrics %v, status %+v", w.gauges(), w.file.Status())
		}
	})
}

// A field that is added is either live or needs a restart.
func TestReloadKnowsEveryField(t *testing.T) {
	_, c, err := Open("../../docs/configuration.example.yaml", kinds)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range configFields {
		v := reflect.ValueOf(f.of(&c)).Elem()
		if v.IsZero() {
			t.Errorf("docs/configuration.example.yaml does not set %s", f.name)
		}
		v.SetZero()
	}
	if !reflect.ValueOf(c).IsZero() {
		t.Errorf("fields are missing in the table of fields, which says what a reload does with each: %+v", c)
	}
}
