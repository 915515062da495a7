package mixin

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/inference-metrics/adapter/test/cluster"
)

const dir = "../../../deploy/mixin"

// Each alert fires where it should, and there is a case close to that in which it does not.
func TestAlerts(t *testing.T) {
	bin, err := cluster.Binaries(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", filepath.Join(dir, "alerts.yaml")},
		{"test", "rules", filepath.Join(dir, "alerts_test.yaml")},
	} {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "promtool"), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}

	var rules struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	read(t, "alerts.yaml", &rules)
	var tests struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	read(t, "alerts_test.yaml", &tests)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.AlertRuleTest {
			fires[a.Alertname] = fires[a.Alertname] || len(a.ExpAlerts) > 0
			silent[a.Alertname] = silent[a.Alertname] || len(a.ExpAlerts) == 0
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("alerts_test.yaml does not show %s fire (%t) and not fire (%t)", r.Alert, fires[r.Alert], silent[r.Alert])
			}
		}
	}
}

func read(t *testing.T, file string, to any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err == nil {
		err = yaml.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
