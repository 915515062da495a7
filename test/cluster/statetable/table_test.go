package statetable

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// row is a signal of the table. Its HPAs have targets that busy meets: with it, replicas stay what
// they are.
type row struct {
	signal string
	// target is for one pod.
	target float64
	// added says that the Deployment has the sum of its pods; otherwise it has what they have together.
	added bool
	// states are those in which the signal is not in the state of the engines, and why.
	states map[string]exception
}

type exception struct {
	want signals.State
	why  string
}

// of returns the metric of a row. An Object's value is compared with the target, and with
// AverageValue it is first divided by the replicas.
func (r row) of(k kind) metric {
	target := r.target
	switch {
	case k == objectValue && r.added:
		target *= four
	case k == objectAverage && !r.added:
		target /= four
	}
	return metric{signal: r.signal, kind: k, target: fmt.Sprintf("%g", target)}
}

var (
	isFree    = exception{signals.Value, "what is free is a value"}
	unlearned = exception{signals.Unknown, "what a replica can do takes busy windows of different kinds to learn, and the script has one"}
	noneIn    = exception{signals.Unknown, "no prompt is looked up, so there is no ratio"}
)

var rows = []row{
	{signal: "vllm_queue_depth", target: 5, added: true},
	{signal: "vllm_running_requests", target: 8, added: true},
	{signal: "vllm_inflight_requests", target: 13, added: true},
	{signal: "vllm_prefill_backlog_seconds", target: 5, added: true},
	{signal: "vllm_kv_cache_usage", target: 0.8},
	{signal: "vllm_kv_cache_tokens_free", target: 3200, added: true, states: map[string]exception{"idle": isFree}},
	{signal: "vllm_saturation", target: 1},
	{signal: "vllm_ttft_seconds", target: 2.5},
	{signal: "vllm_ttft_p50_seconds", target: 2.5},
	{signal: "vllm_ttft_p90_seconds", target: 2.5},
	{signal: "vllm_ttft_p95_seconds", target: 2.5},
	{signal: "vllm_ttft_p99_seconds", target: 2.5},
	{signal: "vllm_queue_time_p99_seconds", target: 2},
	{signal: "vllm_tpot_p99_seconds", target: 0.025},
	{signal: "vllm_itl_p99_seconds", target: 0.025},
	{signal: "vllm_e2e_latency_p99_seconds", target: 15},
	{signal: "vllm_arrival_rate", target: 1, added: true},
	{signal: "vllm_demand_replicas", target: 0.85, added: true, states: map[string]exception{"value": unlearned}},
	{signal: "vllm_request_rate", target: 1, added: true},
	{signal: "vllm_prompt_tokens_rate", target: promptTokens, added: true},
	{signal: "vllm_generation_tokens_rate", target: outputTokens, added: true},
	{signal: "vllm_preemption_rate", target: 0.1, added: true},
	{signal: "vllm_prefix_cache_hit_ratio", target: 0.5, states: map[string]exception{"idle": noneIn, "stalled": noneIn}},
	{signal: "vllm_goodput", target: 1, added: true},
	{signal: "vllm_goodput_upper", target: 1, added: true},
	{signal: "vllm_slo_attainment", target: 1},
	{signal: "vllm_slo_miss_rate", target: 0.5, added: true},
}

// TestTableIsWhole keeps a signal of vLLM from being added without its rows.
func TestTableIsWhole(t *testing.T) {
	has := map[string]bool{}
	for _, r := range rows {
		has[r.signal] = true
		if signals.Lookup(r.signal) == nil {
			t.Errorf("%s has rows, and is not in the catalogue", r.signal)
		}
	}
	for _, s := range signals.Catalogue() {
		if strings.HasPrefix(s.Name, "vllm_") && !has[s.Name] && !asAnother(s) {
			t.Errorf("%s has no rows", s.Name)
		}
	}
}

// asAnother reports whether a signal is a quantile of a latency that has a row for its P99. For the
// time to first token there are rows for all of them.
func asAnother(s *signals.Signal) bool {
	latency, _, fixed := strings.Cut(strings.TrimSuffix(s.Name, "_seconds"), "_p")
	if !fixed && !s.HasQuantile() {
		return false
	}
	return latency != "vllm_ttft" && slices.ContainsFunc(rows, func(r row) bool { return r.signal == latency+"_p99_seconds" })
}

var kinds = []kind{podsAverage, objectValue, objectAverage}

const (
	four    = 4
	most    = 10
	needed  = 7               // for 1.6 times as much load as four can do
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

// harm says why a signal is no target: in an overload an HPA on it takes replicas away, sooner or
// later. Each of them has to do so with every kind of metric, so that the list cannot go stale.
var harm = map[string]string{
	"vllm_goodput":                "falls in an overload",
	"vllm_goodput_upper":          "falls in an overload",
	"vllm_slo_attainment":         "falls in an overload",
	"vllm_kv_cache_tokens_free":   "falls as load rises",
	"vllm_prefix_cache_hit_ratio": "falls as requests leave the cache no room",
}

// swings are signals that are 0 with enough replicas, so that an HPA on them alone takes these away
// again, and brings them back, for as long as the load lasts.
var swings = []string{"vllm_preemption_rate", "vllm_slo_miss_rate"}

// rests says of the signals that do not scale in when idle where they leave the four replicas.
var rests = map[string]int32{
	"vllm_slo_attainment":         four, // 1: all that was asked for was met
	"vllm_kv_cache_tokens_free":   most, // all of the cache is free
	"vllm_prefix_cache_hit_ratio": four, // unknown, which holds
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
		for _, r := range rows {
			fmt.Fprintf(&doc, "| `%s` |", r.signal)
			for _, k := range kinds {
				t.Run(strings.Join([]string{s.name, r.signal, string(k)}, "/"), func(t *testing.T) {
					fmt.Fprintf(&doc, " %s |", s.run(t, r, k))
				})
			}
			doc.WriteString("\n")
		}
	}
	document(t, "table", doc.String())
}

// run runs one row, holds it to law one, and returns what it did as a cell of the table.
func (s state) run(t *testing.T, r row, k kind) string {
	o := scenario{
		replicas: four,
		max:      most,
		metric:   r.of(k),
		lasts:    ended,
		script: func(at moment) load {
			if at.at >= entered {
				return s.script(at)
			}
			return busy.times(at.share)
		},
		sourceDown: s.source,
	}.run(t)

	want, why := s.want, "as the engines are"
	if e, ok := r.states[s.name]; ok {
		want, why = e.want, e.why
	}
	last := o.answers[len(o.answers)-1]
	if k != podsAverage && want == signals.Stalled && last.err != nil {
		want, why = signals.Unknown, "none of the pods has a value"
	}
	if o.sawState != want {
		t.Errorf("the signal's state is %s, want %s: %s", o.sawState, want, why)
	}
	if (want == signals.Unknown) != (last.err != nil) && want != signals.Stalled {
		t.Errorf("the signal is %s, and the last answer is %s", want, last)
	}
	switch least := o.least(0, ended); s.want {
	case signals.Idle:
		if rest := cmp.Or(rests[r.signal], 1); o.end() != rest {
			t.Errorf("idle, and %d replicas are left, want %d", o.end(), rest)
		}
	case signals.Value:
		if slices.Contains(swings, r.signal) {
			if after := o.leastAfterMost(); after >= needed {
				t.Errorf("%d replicas are enough, and it kept %d: it is no signal that swings", needed, after)
			}
		} else if (least < four) != (harm[r.signal] != "") {
			t.Errorf("replicas went from %d to %d at the least, under load; harm says %q", four, least, harm[r.signal])
		}
	default:
		if least < four {
			t.Errorf("%s is not idle, and replicas went from %d to %d at the least", s.name, four, least)
		}
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
