package prometheus

import (
	"os"
	"strings"
	"testing"

	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/sourcetest"
)

// secret is the password of every server here.
const secret = "pa55word"

// TestContract runs the contract through a Prometheus in this process.
func TestContract(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T, setup sourcetest.Setup) *sourcetest.Harness {
		return harness(t, newInProcess(t, setup))
	})
}

// TestContractOnPrograms runs the contract through servers' own programs, where they are at hand:
//
//	PROMETHEUS_BIN=/usr/bin/prometheus VICTORIA_METRICS_BIN=/usr/bin/victoria-metrics go test ./internal/source/prometheus
func TestContractOnPrograms(t *testing.T) {
	for _, p := range []struct {
		env  string
		args func(address, config, dir string) []string
	}{
		{"PROMETHEUS_BIN", prometheusArgs},
		{"VICTORIA_METRICS_BIN", victoriaArgs},
	} {
		t.Run(p.env, func(t *testing.T) {
			binary := os.Getenv(p.env)
			if binary == "" {
				t.Skipf("%s is not set", p.env)
			}
			sourcetest.Run(t, func(t *testing.T, setup sourcetest.Setup) *sourcetest.Harness {
				if setup.Skew != 0 {
					return nil // a program has the machine's clock
				}
				h := harness(t, newBinary(t, binary, setup, p.args))
				h.Lenient = p.env == "VICTORIA_METRICS_BIN"
				return h
			})
		})
	}
}

func harness(t *testing.T, srv server) *sourcetest.Harness {
	g := newGate(t, srv.url)
	open := func() source.Source {
		s, err := New(Config{URL: strings.Replace(g.url, "http://", "http://user:"+secret+"@", 1)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	return &sourcetest.Harness{
		Source: open(),
		Watch:  srv.watch,
		Reopen: open,
		Outage: g.shut.Store,
		Secret: secret,
	}
}
