package signals

import (
	"fmt"
	"time"

	"github.com/inference-metrics/adapter/internal/window"
)

var prefixCacheHitRatio = definition{
	name:    "prefix_cache_hit_ratio",
	unit:    "0..1",
	help:    "Part of the prompt tokens of the window that the engine's own prefix cache held.",
	formula: "Δ prefix_hits / Δ prefix_queries; over engines and pods the sum of the one over that of the other. Without a look-up in the window there is none",
	needs:   []Canonical{PrefixQueries, PrefixHits},
	says: map[State]string{
		Idle:    "does not occur: without a look-up there is no ratio",
		Stalled: "does not occur: it is of the look-ups that there were",
	},
	eval:     evalPrefixCacheHitRatio,
	merge:    divided(0),
	roles:    prefillRole, // decode's look-ups say nothing of what is computed
	overload: "falls where the requests that run leave the cache no room",
	target:   "no: it says how well requests are spread, and nothing of how many there are",
}

func evalPrefixCacheHitRatio(r *replica, _ args) Measure {
	queries, reason := r.get(PrefixQueries)
	if reason != "" {
		return unknown(reason)
	}
	hits, reason := r.get(PrefixHits)
	if reason != "" {
		return unknown(reason)
	}
	out := Measure{Result: Result{State: Value, Time: readAt(queries, hits), Window: queries.window}}
	for _, joint := range queries.joints() {
		asked, found := queries.joint(joint), hits.joint(joint)
		if len(found) == 0 {
			return unknown(fmt.Sprintf("%s is missing for a part of the replica", hits.name))
		}
		// They may have been fetched one scrape apart: compare them over the same stretch.
		read, until := asked[0].newest, asked[0].newest
		for _, p := range asked {
			read, until = max(read, p.newest), min(until, p.newest)
		}
		for _, h := range found {
			until = min(until, h.newest)
		}
		from := read - queries.window.Milliseconds()
		for _, sum := range []struct {
			into  *float64
			parts []*part
		}{{&out.weight, asked}, {&out.sum, found}} {
			for _, p := range sum.parts {
				for _, samples := range p.series {
					d, ok := window.Increase(between(samples, from, until))
					if !ok {
						return unknown(queries.tooFew())
					}
					*sum.into += d
				}
			}
		}
	}
	if out.weight == 0 {
		out.State, out.none = Unknown, true
		out.Reason = fmt.Sprintf("no prompt was looked up in the prefix cache for %s", queries.window.Round(time.Second))
		return out
	}
	out.sum = min(out.sum, out.weight)
	out.HasValue, out.Value = true, out.sum/out.weight
	return out
}
