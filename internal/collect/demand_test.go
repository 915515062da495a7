package collect

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Parameters are free, and every query costs an evaluation of each pod: so those that somebody only asked
// are bounded, and neither what HPAs name nor plain signals are.
func TestQueriesAreBounded(t *testing.T) {
	inBubble(t, &fakeSource{}, func() []*pods.Pod { return nil }, func(c *Collector) {
		goodput := func(i int) *signals.Plan {
			p, err := signals.Prepare(signals.Query{Signal: "vllm_goodput", SLO: signals.SLO{TTFT: time.Duration(i+1) * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		for i := range maxAsked {
			if err := c.Ask(goodput(i)); err != nil {
				t.Fatalf("query %d: %v", i, err)
			}
		}
		if err := c.Ask(goodput(maxAsked)); !errors.Is(err, ErrCrowded) {
			t.Fatalf("one too many: %v", err)
		}
		if err := c.Ask(goodput(0)); err != nil {
			t.Errorf("one that is there already: %v", err)
		}
		for _, s := range signals.Catalogue() {
			if err := c.Ask(plan(s.Name)); err != nil {
				t.Fatalf("%s without parameters: %v", s.Name, err)
			}
		}
		standing := []*signals.Plan{goodput(maxAsked + 1)}
		c.SetStanding(standing)
		if err := c.Ask(standing[0]); err != nil {
			t.Errorf("one that an HPA names: %v", err)
		}
		// Ten minutes later nobody asks any more, and there is room again.
		time.Sleep(askedFor + 2*DefaultInterval)
		synctest.Wait()
		for i := range maxAsked {
			if err := c.Ask(goodput(2*maxAsked + i)); err != nil {
				t.Fatal(fmt.Errorf("ten minutes later, query %d: %w", i, err))
			}
		}
	})
}
