package statetable

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A story is a scenario that people meet, and what has to hold in it.
type story struct {
	name string
	// happens is the scenario in words, and why it ends as it does.
	happens string
	scenario
	// detail shows every change of the answers.
	detail bool
	// holds are the bounds of the replicas over a stretch of it.
	holds []bound
}

type bound struct {
	from, to    time.Duration
	least, most int32
}

var stories = []story{
	{
		name:    "From idle to the first request",
		happens: "One idle replica gets a single request after five minutes, whose first token takes 7 s. There is an answer at every instant: 0, then the time without a first token, then the time to first token, and 0 again.",
		detail:  true,
		scenario: scenario{
			replicas: 1, max: 10, metric: metric{signal: "vllm_ttft_p99_seconds", kind: podsAverage, target: "7.5"}, lasts: 10 * time.Minute,
			script: func(m moment) load {
				const came = 5*time.Minute + 9*time.Second
				const first = came + 7*time.Second
				switch {
				case between(came, first)(m.at):
					return load{running: 1, kv: 0.01}
				case between(first, first+scrapeInterval)(m.at):
					return load{running: 1, kv: 0.01, tokens: 40, rate: 1 / scrapeInterval.Seconds(), ttft: 7}
				}
				return load{}
			},
		},
		holds: []bound{{0, 10 * time.Minute, 1, 1}},
	},
	{
		name:    "From idle to a burst",
		happens: "One idle replica gets 40 requests at once. The first sync that sees them scales out.",
		scenario: scenario{
			replicas: 1, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 10 * time.Minute,
			script: func(m moment) load {
				if m.at < 5*time.Minute {
					return load{}
				}
				return busy.times(6 * m.share)
			},
		},
		holds: []bound{{0, 5 * time.Minute, 1, 1}, {5*time.Minute + 10*time.Second, 6 * time.Minute, 4, 6}, {7 * time.Minute, 10 * time.Minute, 6, 7}},
	},
	{
		name:    "One hung pod of five, averaged",
		happens: "Four pods are busy, the fifth makes no progress for ten minutes. Its bound on the latency is capped at twice the objective. Here the others are just at the target and stay there, so that nothing but the hung pod counts, and that is the worst case: its excess drives the fleet until it is a tenth of the average, which is within the HPA's tolerance. Five replicas become ten, and no more.",
		scenario: scenario{
			replicas: 5, max: 20, metric: metric{signal: "vllm_ttft_p99_seconds", kind: podsAverage, target: "2.5"}, lasts: 15 * time.Minute,
			script: oneHung,
		},
		holds: []bound{{0, 15 * time.Minute, 5, 10}},
	},
	{
		name:    "One hung pod of five, hidden",
		happens: "The same, and the other pods are fast. Their average is below the target, and the HPA scales in, after its stabilization window and as far as the average allows. A latency averaged over pods hides the slow one: the hung pod is for an alert, not for the HPA.",
		scenario: scenario{
			replicas: 5, max: 20, metric: metric{signal: "vllm_ttft_p99_seconds", kind: podsAverage, target: "2.5"}, lasts: 15 * time.Minute,
			script: func(m moment) load {
				l := oneHung(m)
				l.ttft /= 2.5
				return l
			},
		},
		holds: []bound{{0, 5 * time.Minute, 5, 5}, {0, 15 * time.Minute, 4, 5}},
	},
	{
		name:    "One hung pod of five, in the P99 of all",
		happens: "A limit. The same four busy pods and one that hangs, as the Deployment's own P99, with Value. The requests that are stuck are two in a hundred, so the P99 is theirs, and it is true: the objective is missed. But no number of replicas relieves them. The bound stays at twice the target, the HPA doubles, and doubles again, until the maximum. A P99 hands a fleet to its worst pod; what the HPA may spend on that is maxReplicas.",
		scenario: scenario{
			replicas: 5, max: 20, metric: metric{signal: "vllm_ttft_p99_seconds", kind: objectValue, target: "2.5"}, lasts: 15 * time.Minute,
			script: oneHung,
		},
		holds: []bound{{0, 3 * time.Minute, 5, 5}, {0, 15 * time.Minute, 5, 20}, {5 * time.Minute, 15 * time.Minute, 20, 20}},
	},
	{
		name:    "One hung pod of five, in the P90 of all",
		happens: "The same, as the P90, which vllm_ttft_seconds answers unless quantile=… says otherwise. Two stuck requests in a hundred do not move it, and no replica is added for a pod that hangs.",
		scenario: scenario{
			replicas: 5, max: 20, metric: metric{signal: "vllm_ttft_seconds", kind: objectValue, target: "2.5"}, lasts: 15 * time.Minute,
			script: oneHung,
		},
		holds: []bound{{0, 15 * time.Minute, 5, 5}},
	},
	{
		name:    "All pods hung, with a target above the cap",
		happens: "A limit, and the adapter's own doing. The target is 7.5 s, and the objective is left at 2.5 s, so the bound of a hung pod stays at 5 s: below the target, however long nobody gets a first token. The HPA takes replicas away from a service that has stopped. Set the objective in the adapter's configuration to no less than half of the HPA's target, better to the same.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_ttft_p99_seconds", kind: podsAverage, target: "7.5"}, lasts: 30 * time.Minute,
			script: func(m moment) load {
				if m.at >= 3*time.Minute {
					return hung
				}
				l := busy.times(m.share)
				l.ttft = 7
				return l
			},
		},
		holds: []bound{{0, 8 * time.Minute, 4, 4}, {30 * time.Minute, 30 * time.Minute, 2, 2}},
	},
	{
		name:    "One hung pod of five, its queue",
		happens: "Four busy pods and one that hangs, on the queue. What the hung pod says is a lower bound, and the others' value is known.",
		scenario: scenario{
			replicas: 5, max: 20, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 15 * time.Minute,
			script: oneHung,
		},
		holds: []bound{{0, 15 * time.Minute, 5, 6}},
	},
	{
		name:    "One hung pod of five, its rate",
		happens: "The same, on the rate of finished requests. The hung pod has no rate; the HPA takes it to be at its target.",
		scenario: scenario{
			replicas: 5, max: 20, metric: metric{signal: "vllm_request_rate", kind: podsAverage, target: "1"}, lasts: 15 * time.Minute,
			script: oneHung,
		},
		holds: []bound{{0, 15 * time.Minute, 5, 6}},
	},
	{
		name:    "One of three pods missing",
		happens: "All three are busy; one of them cannot be scraped any more. It is left out, and the HPA takes it to be at its target. As a 0 it would have taken a replica away.",
		scenario: scenario{
			replicas: 3, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 15 * time.Minute,
			script: func(m moment) load {
				l := busy.times(m.share)
				l.down = m.pod == 2 && m.at >= 3*time.Minute
				return l
			},
		},
		holds: []bound{{0, 15 * time.Minute, 3, 3}},
	},
	{
		name:    "Three of four pods missing",
		happens: "A limit. The three cannot be scraped and are busy; the fourth is idle, and its 0 is true. To the HPA the others are at their target, so one replica is too many, and five minutes later again one: with most pods unknown, an average over the others says little. Alert on replicas that are unknown.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 30 * time.Minute,
			script: threeMissing(load{}),
		},
		holds: []bound{{0, 8 * time.Minute, 4, 4}, {30 * time.Minute, 30 * time.Minute, 1, 1}},
	},
	{
		name:    "One of three pods missing, in the sum",
		happens: "Three busy pods, one of which cannot be scraped any more, and the HPA asks for the Deployment's queue with AverageValue. The two that are known stand for the third: the sum stays 15.",
		scenario: scenario{
			replicas: 3, max: 10, metric: metric{signal: "vllm_queue_depth", kind: objectAverage, target: "5"}, lasts: 15 * time.Minute,
			script: func(m moment) load {
				l := busy.times(m.share)
				l.down = m.pod == 2 && m.at >= 3*time.Minute
				return l
			},
		},
		holds: []bound{{0, 15 * time.Minute, 3, 3}},
	},
	{
		name:    "Three of four pods missing, in the sum",
		happens: "As above, where an average over pods scaled in: three are busy and cannot be scraped, and the fourth has a single request in its queue. That says nothing of the others: a Deployment of which less than half is known has no value, and the HPA holds.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_queue_depth", kind: objectAverage, target: "5"}, lasts: 30 * time.Minute,
			script: threeMissing(busy.times(0.2)),
		},
		holds: []bound{{0, 30 * time.Minute, 4, 4}},
	},
	{
		name:    "Nothing waits, and one of four pods is unknown",
		happens: "Four pods without a request; one of them cannot be scraped from the third minute to the twelfth. The sum over the other three is 0, and 0 is answered only if every pod is known. The HPA holds until that is so, and scales in then.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_queue_depth", kind: objectAverage, target: "5"}, lasts: 20 * time.Minute,
			script: func(m moment) load {
				return load{down: m.pod == 3 && between(3*time.Minute, 12*time.Minute)(m.at)}
			},
		},
		holds: []bound{{0, 12 * time.Minute, 4, 4}, {20 * time.Minute, 20 * time.Minute, 1, 1}},
	},
	{
		name:    "Prefill and decode in one Deployment, a rate",
		happens: "Two pods prefill, two decode, and each pair counts the same two requests per second. They are counted once: the Deployment's rate is that of its decode pods, 2 and not 4.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_request_rate", kind: objectAverage, target: "0.5"}, lasts: 8 * time.Minute,
			role: byTurns, script: func(m moment) load { return busy },
		},
		holds: []bound{{0, 8 * time.Minute, 4, 4}},
	},
	{
		name:    "Prefill and decode in one Deployment, a latency",
		happens: "The same, for the time to first token. What a prefill pod and what a decode pod measures are two things, of which there is no common quantile. The HPA holds, and the answer says to choose role=prefill or role=decode.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_ttft_seconds", kind: objectValue, target: "2.5"}, lasts: 8 * time.Minute,
			role: byTurns, script: func(m moment) load { return busy.times(1.6) },
		},
		holds: []bound{{0, 8 * time.Minute, 4, 4}},
	},
	{
		name:    "Prefill and decode in one Deployment, the latency of one role",
		happens: "The same with matchLabels role: prefill in the HPA's metric. The prefill pods are slow, the decode pods are not, and the answer is of the first alone.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_ttft_seconds", kind: objectValue, target: "2.5", role: "prefill"}, lasts: 4 * time.Minute,
			role: byTurns,
			script: func(m moment) load {
				if m.at >= 3*time.Minute && byTurns(m.pod) == "prefill" {
					return busy.times(1.6)
				}
				return busy
			},
		},
		holds: []bound{{0, 3 * time.Minute, 4, 4}, {3*time.Minute + 45*time.Second, 4 * time.Minute, 5, 10}},
	},
	{
		name:    "An outage of the source, and a dip as it ends",
		happens: "Eight busy replicas; the source is down for eight minutes, longer than the HPA remembers what it recommended. For 45 s after it the queues are empty, as clients come back. Signals are unknown until they cover a whole window again, so nobody sees the dip.",
		scenario: scenario{
			replicas: 8, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 25 * time.Minute,
			sourceDown: between(3*time.Minute, 11*time.Minute),
			script: func(m moment) load {
				if between(11*time.Minute, 11*time.Minute+45*time.Second)(m.at) {
					return load{}
				}
				return busy.times(m.share)
			},
		},
		holds: []bound{{0, 25 * time.Minute, 8, 8}},
	},
	{
		name:    "An outage of the source, with a queue that comes and goes",
		happens: "The same outage, over a queue that is empty for half of every minute. An HPA that remembers is used to that. One that has forgotten would scale in on the first empty queue it sees, so after the outage the answer is the highest queue of a window.",
		scenario: scenario{
			replicas: 8, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 25 * time.Minute,
			sourceDown: between(3*time.Minute, 11*time.Minute),
			script: func(m moment) load {
				l := busy.times(m.share)
				if m.at.Truncate(time.Second)%time.Minute < 30*time.Second {
					l.waiting = 0
				}
				return l
			},
		},
		holds: []bound{{0, 25 * time.Minute, 8, 8}},
	},
	{
		name:    "An outage of the source, and less load after it",
		happens: "The same outage, and half of the load is gone when it ends. The replicas follow, but not before the signals cover a whole window.",
		scenario: scenario{
			replicas: 8, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 25 * time.Minute,
			sourceDown: between(3*time.Minute, 11*time.Minute),
			script: func(m moment) load {
				if m.at >= 11*time.Minute {
					return busy.times(m.share / 2)
				}
				return busy.times(m.share)
			},
		},
		holds: []bound{{0, 11*time.Minute + 45*time.Second, 8, 8}, {25 * time.Minute, 25 * time.Minute, 4, 4}},
	},
	{
		name:    "A stall, and the requests after it",
		happens: "Four replicas make no progress for seven minutes, then go on as before. An HPA has no rate in a stall and forgets its recommendations, so the first answer after it must not be that of a window which is mostly stall: there is none until a whole window has come.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_request_rate", kind: podsAverage, target: "1"}, lasts: 20 * time.Minute,
			script: func(m moment) load {
				if between(3*time.Minute, 10*time.Minute)(m.at) {
					return hung
				}
				return busy.times(m.share)
			},
		},
		holds: []bound{{0, 20 * time.Minute, 4, 4}},
	},
	{
		name:    "A cold start longer than the stabilization window",
		happens: "Two replicas are overloaded by far, and new ones take seven minutes to be Ready; until then their engines answer that they have nothing to do. They are left out: those zeros are not load that is shared. The HPA counts them as coming, so it neither runs away nor takes them back.",
		scenario: scenario{
			replicas: 2, max: 20, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 20 * time.Minute,
			coldStart: 7 * time.Minute,
			script: func(m moment) load {
				switch {
				case m.at < 3*time.Minute:
					return busy.times(m.share)
				case m.at < 4*time.Minute:
					return busy.times(2.4 * m.share)
				default:
					return busy.times(1.6 * m.share)
				}
			},
		},
		holds: []bound{{4 * time.Minute, 10 * time.Minute, 5, 5}, {0, 20 * time.Minute, 2, 5}},
	},
	{
		name:    "A cold start longer than the stabilization window, in the sum",
		happens: "The same, and the HPA asks for the Deployment's queue with AverageValue; the new engines are not there to be scraped before they are Ready. They are no part of the sum, and no reason to scale it up: they have none of the load yet.",
		scenario: scenario{
			replicas: 2, max: 20, metric: metric{signal: "vllm_queue_depth", kind: objectAverage, target: "5"}, lasts: 20 * time.Minute,
			coldStart: 7 * time.Minute,
			script: func(m moment) load {
				l := busy.times(1.6 * m.share)
				switch {
				case m.at < 3*time.Minute:
					l = busy.times(m.share)
				case m.at < 4*time.Minute:
					l = busy.times(2.4 * m.share)
				}
				l.down = !m.ready
				return l
			},
		},
		holds: []bound{{4 * time.Minute, 8 * time.Minute, 5, 5}, {0, 20 * time.Minute, 2, 5}},
	},
	{
		name:    "A pod that loses its readiness under load",
		happens: "One of three pods is so full that its readiness probe fails. It was Ready before, so its samples count: to leave out the busiest pod would hide the fire.",
		scenario: scenario{
			replicas: 3, max: 10, metric: metric{signal: "vllm_queue_depth", kind: podsAverage, target: "5"}, lasts: 6 * time.Minute,
			script: func(m moment) load {
				if m.pod == 0 && m.at >= 3*time.Minute {
					l := busy.times(5)
					l.unready = true
					return l
				}
				return busy
			},
		},
		holds: []bound{{0, 3 * time.Minute, 3, 3}, {4 * time.Minute, 6 * time.Minute, 6, 10}},
	},
	{
		name:    "Requests run, and none finishes",
		happens: "Four replicas decode long answers: tokens come, and for ten minutes nothing finishes. That is no rate of 0. The HPA holds, and says why.",
		scenario: scenario{
			replicas: 4, max: 10, metric: metric{signal: "vllm_request_rate", kind: podsAverage, target: "1"}, lasts: 13 * time.Minute,
			script: func(m moment) load {
				l := busy.times(m.share)
				if m.at >= 3*time.Minute {
					l.rate = 0
				}
				return l
			},
		},
		holds: []bound{{0, 13 * time.Minute, 4, 4}},
	},
}

// oneHung is five busy pods, of which the last makes no progress from three minutes on.
func oneHung(m moment) load {
	if m.pod == 4 && m.at >= 3*time.Minute {
		return hung
	}
	return busy.times(m.share)
}

// threeMissing is four busy pods, of which three cannot be scraped from three minutes on; then the
// first has another load.
func threeMissing(first load) func(moment) load {
	return func(m moment) load {
		l := busy.times(m.share)
		switch {
		case m.at < 3*time.Minute:
			return l
		case m.pod == 0:
			return first
		}
		l.down = true
		return l
	}
}

// byTurns has every second pod prefill, and the others decode.
func byTurns(pod int) string {
	if pod%2 == 0 {
		return "prefill"
	}
	return "decode"
}

func between(from, to time.Duration) func(time.Duration) bool {
	return func(at time.Duration) bool { return from <= at && at < to }
}

// TestStories runs every story through the HPA controller.
func TestStories(t *testing.T) {
	var doc strings.Builder
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			o := s.run(t)
			for _, b := range s.holds {
				for at := b.from; at <= b.to; at += time.Second {
					if n := o.replicasAt(at); n < b.least || n > b.most {
						t.Errorf("%d replicas at %s, want %d to %d from %s to %s", n, at, b.least, b.most, b.from, b.to)
						break
					}
				}
			}
			fmt.Fprintf(&doc, "\n### %s\n\n%s\n\n```\n%d replicas, HPA: %s, at most %d\n%s```\n",
				s.name, s.happens, s.replicas, s.metric, s.max, timeline(o, s.detail))
		})
	}
	document(t, "scenarios", doc.String())
}

// timeline lists what the controller was answered when that turned from values into an error or
// back, and when it changed the replicas; in detail, whenever the answer changed.
func timeline(o outcome, detail bool) string {
	var out strings.Builder
	last := answer{}
	replicas := int32(0)
	for i, a := range o.answers {
		until := a.at + time.Second // the sync that asked for it is through
		n := o.replicasAt(until)
		same := n == replicas && (a.err == nil) == (last.err == nil) && (!detail || a.String() == last.String())
		if i > 0 && same && i < len(o.answers)-1 {
			continue
		}
		fmt.Fprintf(&out, "%7s  %-30s  %d\n", a.at.Truncate(time.Second), a, n)
		last, replicas = a, n
	}
	return out.String()
}
