package config

import (
	"os"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/internal/slo"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// FuzzConfig reads any text as a configuration. What is not refused can be run with.
func FuzzConfig(f *testing.F) {
	files := []string{"../../docs/configuration.example.yaml", "../../deploy/manifests/base/config.yaml"}
	for _, dir := range []string{"testdata/good", "testdata/bad"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range entries {
			files = append(files, dir+"/"+e.Name())
		}
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	pod := &pods.Pod{NamespacedName: types.NamespacedName{Namespace: "chat", Name: "vllm-0"}, Labels: labels.Set{"app": "vllm", "tier": "gold"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text, kinds)
		if err != nil {
			if err.Error() == "" {
				t.Error("refused without a word")
			}
			return
		}
		c.Warnings()
		if err := c.Params.Validate(); err != nil {
			t.Errorf("read, and no parameters to run with: %v", err)
		}
		for i, w := range c.Windows {
			if w < signals.MinWindow || w > signals.MaxWindow || w == c.Params.Window || slices.Contains(c.Windows[:i], w) {
				t.Errorf("windows %v besides %s", c.Windows, c.Params.Window)
			}
		}
		resolved := slo.New(pods.NoGroups{}.Annotations).Under(c.Params.SLO, c.Objectives)(pod)
		p := signals.DefaultParams()
		p.SLO = resolved
		if err := p.Validate(); err != nil {
			t.Errorf("objectives %+v of a pod: %v", resolved, err)
		}
		for i, k := range c.Kinds {
			if why := kindFault(k, kinds); why != "" || slices.Contains(c.Kinds[:i], k) {
				t.Errorf("kind %q: %s", k, why)
			}
		}
		for _, l := range c.Params.PodLabels {
			if l.Namespace == "" || l.Pod == "" {
				t.Errorf("half a pair of labels: %+v", l)
			}
		}
	})
}
