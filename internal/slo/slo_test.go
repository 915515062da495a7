package slo

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

const ms = time.Millisecond

var fallback = signals.SLO{TTFT: 2500 * ms, TPOT: 100 * ms}

func own(p *pods.Pod) map[string]string { return p.Annotations }

func newPod(namespace, name string, ls labels.Set, annotations ...string) *pods.Pod {
	p := &pods.Pod{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, UID: types.UID(name), Labels: ls}
	for i := 0; i < len(annotations); i += 2 {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations["inference-metrics.github.io/"+annotations[i]] = annotations[i+1]
	}
	return p
}

func rule(namespace, selector string, slo signals.SLO) Rule {
	r := Rule{Namespace: namespace, SLO: slo}
	if selector != "" {
		var err error
		if r.Selector, err = labels.Parse(selector); err != nil {
			panic(err)
		}
	}
	return r
}

func TestPrecedence(t *testing.T) {
	rules := []Rule{
		rule("chat", "tier=gold", signals.SLO{TTFT: 500 * ms, TPOT: 50 * ms}),
		rule("chat", "", signals.SLO{TTFT: time.Second}),
		rule("", "tier in (gold,silver)", signals.SLO{E2E: 30 * time.Second}),
	}
	gold := labels.Set{"tier": "gold"}
	for _, tc := range []struct {
		name   string
		pod    *pods.Pod
		want   signals.SLO
		faults []string
	}{
		{"default", newPod("batch", "p", nil), fallback, nil},
		{"the first rule that matches", newPod("chat", "p", gold), rules[0].SLO, nil},
		{"by namespace, and what the rule leaves out is no objective", newPod("chat", "p", nil), signals.SLO{TTFT: time.Second}, nil},
		{"by labels", newPod("batch", "p", gold), signals.SLO{E2E: 30 * time.Second}, nil},
		{"annotations before rules, one by one", newPod("chat", "p", gold, "slo-ttft", "250ms"), signals.SLO{TTFT: 250 * ms, TPOT: 50 * ms}, nil},
		{"all annotations", newPod("chat", "p", gold, "slo-ttft", "1s", "slo-tpot", "20ms", "slo-e2e", "1m"), signals.SLO{TTFT: time.Second, TPOT: 20 * ms, E2E: time.Minute}, nil},
		{"others of ours", newPod("batch", "p", nil, "role", "x"), fallback, nil},
		{"no unit", newPod("chat", "p", gold, "slo-ttft", "2", "slo-tpot", "20ms"), signals.SLO{TTFT: 500 * ms, TPOT: 20 * ms},
			[]string{`inference-metrics.github.io/slo-ttft: "2" is no duration: write a number and a unit, such as 2.5s or 100ms`}},
		{"zero", newPod("batch", "p", nil, "slo-ttft", "0s"), fallback,
			[]string{"inference-metrics.github.io/slo-ttft: 0s is outside 0 to 24h0m0s"}},
		{"negative", newPod("batch", "p", nil, "slo-e2e", "-1s"), fallback,
			[]string{"inference-metrics.github.io/slo-e2e: -1s is outside 0 to 24h0m0s"}},
		{"too much", newPod("batch", "p", nil, "slo-e2e", "25h"), fallback,
			[]string{"inference-metrics.github.io/slo-e2e: 25h0m0s is outside 0 to 24h0m0s"}},
		{"a name that is none", newPod("batch", "p", nil, "slo-tftt", "1s"), fallback,
			[]string{"inference-metrics.github.io/slo-tftt: there are inference-metrics.github.io/slo-ttft, inference-metrics.github.io/slo-tpot and inference-metrics.github.io/slo-e2e"}},
		{"long garbage", newPod("batch", "p", nil, "slo-ttft", strings.Repeat("x", 10_000)), fallback,
			[]string{fmt.Sprintf(`inference-metrics.github.io/slo-ttft: %q is no duration: write a number and a unit, such as 2.5s or 100ms`, strings.Repeat("x", 40))}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := New(own)
			of := r.Under(fallback, rules)
			for range 2 { // the second time from memory
				if diff := cmp.Diff(tc.want, of(tc.pod)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(tc.faults, r.known[tc.pod.NamespacedName].faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

// What is remembered is forgotten when the pod, or the annotations of its workload, change.
func TestChangesAreSeen(t *testing.T) {
	ofWorkload := map[string]string{}
	r := New(func(*pods.Pod) map[string]string { return ofWorkload })
	of := r.Under(fallback, []Rule{rule("", "tier=gold", signals.SLO{TTFT: time.Second})})
	p := newPod("chat", "p", nil)
	want := func(slo signals.SLO) {
		t.Helper()
		if got := of(p); got != slo {
			t.Errorf("got %v, want %v", got, slo)
		}
	}
	want(fallback)
	ofWorkload = map[string]string{annotationPrefix + "ttft": "3s"}
	want(signals.SLO{TTFT: 3 * time.Second, TPOT: 100 * ms})
	ofWorkload = map[string]string{annotationPrefix + "ttft": "4s"}
	want(signals.SLO{TTFT: 4 * time.Second, TPOT: 100 * ms})
	ofWorkload = nil
	want(fallback)
	p = newPod("chat", "p", labels.Set{"tier": "gold"})
	want(signals.SLO{TTFT: time.Second})
	before := of
	of = r.Under(signals.SLO{E2E: time.Minute}, nil)
	want(signals.SLO{E2E: time.Minute})
	of = before // a collection that began before ends as it began
	want(signals.SLO{TTFT: time.Second})
}

// A fault is logged once for a workload, again when it changes, and counted for as long as the pods are
// there.
func TestFaultsAreVisible(t *testing.T) {
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	defer klog.LogToStderr(true)
	lines := func() int {
		klog.Flush()
		defer log.Reset()
		return strings.Count(log.String(), "Annotations cannot be read")
	}
	synctest.Test(t, func(t *testing.T) {
		r := New(own)
		of := r.Under(fallback, nil)
		all := []*pods.Pod{
			newPod("chat", "a-0", nil, "slo-ttft", "fast"), newPod("chat", "a-1", nil, "slo-ttft", "fast"),
			newPod("chat", "b-0", nil, "slo-ttft", "fast"), newPod("chat", "c-0", nil, "slo-ttft", "1s"),
			newPod("batch", "d-0", nil, "slo-tpot", "100"),
		}
		for _, p := range all {
			p.Owner = types.UID(p.Name[:1])
		}
		tick := func() {
			for _, p := range all {
				of(p)
			}
		}
		counted := func(want string) {
			t.Helper()
			const head = `
# HELP inference_metrics_adapter_unreadable_objectives Replicas with an annotation for an objective that cannot be read, by namespace; what would hold without the annotation holds instead.
# TYPE inference_metrics_adapter_unreadable_objectives gauge
`
			if want != "" {
				want = head + want
			}
			if err := testutil.CollectAndCompare(r, strings.NewReader(want)); err != nil {
				t.Error(err)
			}
		}
		for range 3 {
			tick()
		}
		if n := lines(); n != 3 {
			t.Errorf("logged %d times, want once for each of the workloads a, b and d", n)
		}
		of = r.Under(signals.SLO{E2E: time.Minute}, nil)
		tick()
		if n := lines(); n != 0 {
			t.Errorf("logged %d times after the configuration changed, want no more: the annotations are the same", n)
		}
		counted(`inference_metrics_adapter_unreadable_objectives{namespace="batch"} 1
inference_metrics_adapter_unreadable_objectives{namespace="chat"} 3
`)
		for i, p := range all[:2] {
			changed := *p
			changed.Annotations = map[string]string{annotationPrefix + "ttft": "slow"}
			all[i] = &changed
		}
		tick()
		if n := lines(); n != 1 {
			t.Errorf("logged %d times after a change, want once", n)
		}
		all = nil
		time.Sleep(forgotten)
		counted("")
		of(newPod("other", "e", nil))
		if len(r.known) != 1 {
			t.Errorf("%d pods are remembered, want the one that is there", len(r.known))
		}
	})
}
