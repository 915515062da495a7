package scrape

import (
	"context"
	"testing"

	"github.com/inference-metrics/adapter/internal/source/sourcetest"
)

func TestContract(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T, setup sourcetest.Setup) *sourcetest.Harness {
		if setup.Skew != 0 || setup.Pair {
			return nil // the clock is ours, and nobody else scrapes for us
		}
		s := run(t, Config{Names: sourcetest.Names, Interval: sourcetest.Interval})
		return &sourcetest.Harness{
			Source: s,
			Watch: func(targets ...sourcetest.Target) {
				var ours []Target
				for _, x := range targets {
					ours = append(ours, Target{Namespace: x.Namespace, Pod: x.Pod, URL: x.URL})
				}
				if err := s.SetTargets(ours); err != nil {
					t.Error(err)
				}
			},
		}
	})
}

// run returns a source that scrapes until the test ends.
func run(t testing.TB, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}
