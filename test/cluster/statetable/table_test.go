package statetable

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// The table's HPAs have targets that busy meets: with it, replicas stay what they are. An Object
// AverageValue is compared with the value divided by the replicas.
var targets = []struct{ signal, target, average string }{
	{"vllm_queue_depth", "5", "1.25"},
	{"vllm_running_requests", "8", "2"},
	{"vllm_inflight_requests", "13", "3.25"},
	{"vllm_kv_cache_usage", "0.8", "0.2"},
	{"vllm_ttft_p50_seconds", "2.5", "0.625"},
	{"vllm_ttft_p90_seconds", "2.5", "0.625"},
	{"vllm_ttft_p95_seconds", "2.5", "0.625"},
	{"vllm_ttft_p99_seconds", "2.5", "0.625"},
	{"vllm_request_rate", "1", "0.25"},
	{"vllm_goodput", "1", "0.25"},
	{"vllm_goodput_upper", "1", "0.25"},
}

// TestTableIsWhole keeps a signal of vLLM from being added without its rows.
func TestTableIsWhole(t *testing.T) {
	rows := map[string]bool{}
	for _, target := range targets {
		rows[target.signal] = true
	}
	for _, s := range signals.Catalogue() {
		if strings.HasPrefix(s.Name, "vllm_") && !rows[s.Name] {
			t.Errorf("%s has no rows", s.Name)
		}
	}
}

var kinds = []kind{podsAverage, objectValue, objectAverage}

const (
	four    = 4
	entered = 3 * time.Minute // when the state is entered
	ended   = 12 * time.Minute
)

// A state is what happens to the four replicas, and what the signals are to make of it.
type state struct {
	name string
	// happens is the state in words.
	happens string
	want    signals.State
	script  func(moment) load
	source  func(at time.Duration) bool
}

var states = []state{
	{
		name:    "value",
		happens: "1.6 times as much load as the targets allow, spread over all Ready pods.",
		want:    signals.Value,
		script:  func(m moment) load { return busy.times(1.6 * m.share) },
	},
	{
		name:    "idle",
		happens: "No request in any engine, and none comes.",
		want:    signals.Idle,
		script:  func(moment) load { return load{} },
	},
	{
		name:    "stalled",
		happens: "All four engines hold the requests they have, generate no token and finish nothing. Pods that are added get no request.",
		want:    signals.Stalled,
		script: func(m moment) load {
			if m.pod < four {
				return hung
			}
			return load{}
		},
	},
	{
		name:    "unknown, target down",
		happens: "Busy, but the source cannot scrape the pods any more.",
		want:    signals.Unknown,
		script: func(m moment) load {
			l := busy.times(m.share)
			l.down = true
			return l
		},
	},
	{
		name:    "unknown, source down",
		happens: "Busy, but the source does not answer.",
		want:    signals.Unknown,
		script:  func(m moment) load { return busy.times(m.share) },
		source:  func(at time.Duration) bool { return at >= entered },
	},
}

// harm says of the rows in which replicas are taken away though the state is not idle why that is
// not for want of a better answer. A row that has a reason has to do so: none can go stale.
func harm(s state, m metric) string {
	if s.want == signals.Value && strings.HasPrefix(m.signal, "vllm_goodput") {
		return "goodput falls in an overload: it is no target"
	}
	return ""
}

// TestTable runs every state, signal and kind of metric through the HPA controller.
func TestTable(t *testing.T) {
	var doc strings.Builder
	for _, s := range states {
		fmt.Fprintf(&doc, "\n### %s\n\n%s\n\n", s.name, s.happens)
		doc.WriteString("| signal |")
		for _, k := range kinds {
			fmt.Fprintf(&doc, " %s |", k)
		}
		doc.WriteString("\n|---|---|---|---|\n")
		for _, target := range targets {
			fmt.Fprintf(&doc, "| `%s` |", target.signal)
			for _, k := range kinds {
				m := metric{target.signal, k, target.target}
				if k == objectAverage {
					m.target = target.average
				}
				t.Run(strings.Join([]string{s.name, m.signal, string(k)}, "/"), func(t *testing.T) {
					fmt.Fprintf(&doc, " %s |", s.row(t, m))
				})
			}
			doc.WriteString("\n")
		}
	}
	document(t, "table", doc.String())
}

// row runs one row, holds it to law one, and returns what it did as a cell of the table.
func (s state) row(t *testing.T, m metric) string {
	o := scenario{
		replicas: four,
		max:      10,
		metric:   m,
		lasts:    ended,
		script: func(at moment) load {
			if at.at >= entered {
				return s.script(at)
			}
			return busy.times(at.share)
		},
		sourceDown: s.source,
	}.run(t)

	if o.sawState != s.want {
		t.Errorf("the signal's state is %s, want %s", o.sawState, s.want)
	}
	if s.want == signals.Idle {
		if o.end() != 1 {
			t.Errorf("idle, and %d replicas are left: it has to scale in", o.end())
		}
	} else if least := o.least(0, ended); (least < four) != (harm(s, m) != "") {
		t.Errorf("%s is not idle, and replicas went from %d to %d at the least; harm says %q", s.name, four, least, harm(s, m))
	}
	if s.want == signals.Unknown {
		if len(o.changes) > 1 || o.active.Status != corev1.ConditionFalse {
			t.Errorf("unknown has to hold: replicas %v, %s=%s", o.changes, o.active.Type, o.active.Status)
		}
		for _, a := range o.answers {
			// Samples are fresh for ten seconds.
			if a.at > entered+15*time.Second && a.err == nil {
				t.Errorf("answered %s at %s, when the newest samples were stale", a, a.at)
				break
			}
		}
	}
	return cell(o)
}

// cell says what the adapter answered when replicas first changed, or at the end if they did not,
// and what became of them.
func cell(o outcome) string {
	decisive := o.answers[len(o.answers)-1]
	replicas := "held"
	for i, c := range o.changes[1:] {
		if i == 0 {
			replicas = fmt.Sprint(o.changes[0].replicas)
			decisive = o.answerAt(c.at)
		}
		replicas += fmt.Sprintf(" → %d", c.replicas)
	}
	if o.active.Status != corev1.ConditionTrue {
		replicas += fmt.Sprintf(" (%s)", o.active.Reason)
	}
	return fmt.Sprintf("%s: %s", decisive, replicas)
}
