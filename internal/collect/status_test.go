package collect

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/inference-metrics/adapter/internal/pods"
)

// What is collected is told with for whom, and until when.
func TestDemands(t *testing.T) {
	src := &fakeSource{skew: 3 * time.Second, series: []fakeSeries{gauge("vllm:num_requests_waiting", "a", 7)}}
	inBubble(t, src, func() []*pods.Pod { return []*pods.Pod{readyPod("a", time.Hour)} }, func(c *Collector) {
		asked := time.Now()
		for _, name := range []string{"vllm_queue_depth", "inference_queue_depth"} {
			if err := c.Ask(plan(name)); err != nil {
				t.Error(err)
			}
		}
		c.SetStanding(plans("vllm_queue_depth", "vllm_running_requests"))
		type want struct {
			signal   string
			standing bool
			asked    bool
		}
		check := func(wants ...want) {
			t.Helper()
			got := c.Demands()
			if len(got) != len(wants) {
				t.Errorf("%d demands, want %d", len(got), len(wants))
				return
			}
			for i, w := range wants {
				d := got[i]
				if d.Plan.Query.Signal != w.signal || d.Standing != w.standing || d.Until.IsZero() == w.asked || w.asked && !d.Until.Equal(asked.Add(askedFor)) {
					t.Errorf("demand %d is %s, standing %t, until %s; want %+v", i, d.Plan.Query.Signal, d.Standing, d.Until, w)
				}
			}
		}
		check(want{"inference_queue_depth", false, true}, want{"vllm_queue_depth", true, true}, want{"vllm_running_requests", true, false})
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		s := c.Snapshot()
		if got := s.Source(); got.Name != "the fake source" || got.ClockOffset != 3*time.Second || got.Series != 1 || got.Samples == 0 {
			t.Errorf("source: %+v", got)
		}
		if len(s.Plans()) != 3 || s.Plans()[1].Query.Signal != "vllm_queue_depth" {
			t.Errorf("plans: %v", s.Plans())
		}
		time.Sleep(askedFor + DefaultInterval)
		synctest.Wait()
		check(want{"vllm_queue_depth", true, false}, want{"vllm_running_requests", true, false})
	})
}
