package status

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// page is what is shown; docs/status-page.md describes it as JSON. All texts of others are clean.
type page struct {
	Adapter   adapterView   `json:"adapter"`
	Filter    filter        `json:"filter"`
	Source    sourceView    `json:"source"`
	Config    *configView   `json:"config,omitempty"`
	Targets   targetsView   `json:"targets"`
	Monitors  monitorsView  `json:"monitors"`
	Queries   queriesView   `json:"queries"`
	Workloads workloadsView `json:"workloads"`
	Pods      podsView      `json:"pods"`

	Style template.CSS `json:"-"`
	JSON  string       `json:"-"` // the address of the same as JSON
}

type adapterView struct {
	Version string    `json:"version"`
	Host    string    `json:"host"`
	Now     time.Time `json:"now"`
}

type sourceView struct {
	Name               string    `json:"name"`
	State              string    `json:"state"` // up, down, or waiting for the first collection
	Error              string    `json:"error,omitempty"`
	Collected          time.Time `json:"collected,omitzero"`
	AgeSeconds         float64   `json:"ageSeconds"`
	TookSeconds        float64   `json:"tookSeconds"`
	ClockOffsetSeconds float64   `json:"clockOffsetSeconds"`
	Series             int       `json:"series"`
	Samples            int       `json:"samples"`
}

type configView struct {
	File    string    `json:"file"`
	Hash    string    `json:"sha256"`
	Taken   time.Time `json:"taken"`
	Error   string    `json:"error,omitempty"`
	Restart []string  `json:"restart,omitempty"`
}

type targetsView struct {
	// Scraped says that the adapter scrapes.
	Scraped bool        `json:"scraped"`
	Up      int         `json:"up"`
	Down    int         `json:"down"`
	Rows    []targetRow `json:"rows"`
	Pages
}

type targetRow struct {
	Namespace   string    `json:"namespace"`
	Pod         string    `json:"pod"`
	URL         string    `json:"url"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty"`
	Scraped     bool      `json:"-"`
	At          time.Time `json:"scraped,omitzero"`
	AgeSeconds  float64   `json:"ageSeconds"`
	TookSeconds float64   `json:"tookSeconds"`
}

// monitorsView holds what of monitors is not followed.
type monitorsView struct {
	Total int          `json:"total"`
	Rows  []monitorRow `json:"rows"`
	Pages
}

type monitorRow struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Field     string `json:"field"`
	Reason    string `json:"reason"`
}

type queriesView struct {
	Total int        `json:"total"`
	Rows  []queryRow `json:"rows"`
	Pages
}

type queryRow struct {
	Query string `json:"query"`
	// HPA says that an HPA names it, and Asked that somebody asked, so that it is collected until Until.
	HPA   bool      `json:"hpa"`
	Asked bool      `json:"asked"`
	Until time.Time `json:"until,omitzero"`
}

type workloadsView struct {
	Rows []valueRow `json:"rows"`
	// Cut says that not all objects were looked at.
	Cut bool `json:"cut,omitempty"`
	Pages
}

type podsView struct {
	// Total is how many pods have an engine.
	Total int        `json:"total"`
	Rows  []valueRow `json:"rows"`
	Pages
}

// valueRow is a signal of a pod or an object.
type valueRow struct {
	Kind       string    `json:"kind,omitempty"` // "" for a pod
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	Query      string    `json:"query,omitempty"`
	State      string    `json:"state"`
	Value      *float64  `json:"value,omitempty"`
	LowerBound bool      `json:"lowerBound,omitempty"`
	Unit       string    `json:"unit,omitempty"`
	Time       time.Time `json:"time,omitzero"`
	AgeSeconds float64   `json:"ageSeconds,omitempty"`
	Window     float64   `json:"windowSeconds,omitempty"`
	Reason     string    `json:"reason,omitempty"`
}

// page makes one, of one snapshot.
func (h *handler) page(f filter, now time.Time) page {
	snapshot := h.Collector.Snapshot()
	p := page{
		Adapter:  adapterView{Version: clean(h.Version), Host: clean(h.Host), Now: now.UTC()},
		Filter:   f,
		Source:   sourceOf(snapshot, now),
		Targets:  h.targets(f, now),
		Monitors: h.monitors(f),
		Queries:  h.queries(f),
		Style:    template.CSS(styleText),
		JSON:     f.query("format", "json"),
	}
	if h.File != nil {
		c := h.File()
		p.Config = &configView{File: clean(c.Name), Hash: c.Hash, Taken: c.Taken.UTC(), Restart: c.Restart}
		if c.Err != nil {
			p.Config.Error = clean(c.Err.Error())
		}
	}
	v := values{filter: f, snapshot: snapshot, now: now.Add(snapshot.Source().ClockOffset)}
	engines, namespaces := h.engines(f, snapshot)
	p.Pods = v.pods(engines)
	p.Workloads = v.workloads(h, namespaces)
	return p
}

func sourceOf(s *collect.Snapshot, now time.Time) sourceView {
	from := s.Source()
	v := sourceView{Name: clean(from.Name), State: "waiting", Series: from.Series, Samples: from.Samples}
	if s.Taken.IsZero() {
		return v
	}
	v.State = "up"
	v.Collected, v.AgeSeconds, v.TookSeconds = s.Taken.UTC(), seconds(now.Sub(s.Taken)), seconds(from.Took)
	v.ClockOffsetSeconds = seconds(from.ClockOffset)
	if s.Err != nil {
		v.State, v.Error = "down", clean(s.Err.Error())
	}
	return v
}

func (h *handler) targets(f filter, now time.Time) targetsView {
	v := targetsView{Scraped: h.Targets != nil, Rows: []targetRow{}}
	if !v.Scraped {
		return v
	}
	w := f.window("targets")
	for _, t := range h.Targets() {
		if !f.of(t.Namespace) {
			continue
		}
		state := "up"
		if v.Up++; !t.Up {
			v.Up--
			v.Down++
			state = "down"
		}
		if !w.takes() {
			continue
		}
		row := targetRow{Namespace: word(t.Namespace), Pod: word(t.Pod), URL: clean(t.URL), State: state, Reason: clean(t.Reason)}
		if row.Scraped = !t.Scraped.IsZero(); row.Scraped {
			row.At, row.AgeSeconds, row.TookSeconds = t.Scraped.UTC(), seconds(now.Sub(t.Scraped)), seconds(t.Took)
		}
		v.Rows = append(v.Rows, row)
	}
	v.Pages = f.around("targets", w)
	return v
}

func (h *handler) monitors(f filter) monitorsView {
	v := monitorsView{Rows: []monitorRow{}}
	if h.Config.Monitors == nil {
		return v
	}
	w := f.window("monitors")
	for _, m := range h.Config.Monitors() {
		if !f.of(m.Namespace) {
			continue
		}
		v.Total++
		if w.takes() {
			v.Rows = append(v.Rows, monitorRow{Kind: word(m.Kind), Namespace: word(m.Namespace), Name: word(m.Name), Field: clean(m.Field), Reason: clean(m.Reason)})
		}
	}
	v.Pages = f.around("monitors", w)
	return v
}

func (h *handler) queries(f filter) queriesView {
	v := queriesView{Rows: []queryRow{}}
	w := f.window("queries")
	for _, d := range h.Collector.Demands() {
		if f.Signal != "" && f.Signal != d.Plan.Query.Signal {
			continue
		}
		v.Total++
		if w.takes() {
			v.Rows = append(v.Rows, queryRow{Query: written(d.Plan.Query), HPA: d.Standing, Asked: !d.Until.IsZero(), Until: d.Until.UTC()})
		}
	}
	v.Pages = f.around("queries", w)
	return v
}

// engines returns the pods of the filter that have an engine, sorted, and the namespaces to look for objects in:
// those where there are pods at all, as a pool may be at zero.
func (h *handler) engines(f filter, s *collect.Snapshot) (engines []*pods.Pod, namespaces []string) {
	inhabited := map[string]bool{}
	h.Config.Pods.All(func(p *pods.Pod) {
		if !f.of(p.Namespace) {
			return
		}
		inhabited[p.Namespace] = true
		if p.Exports() && s.Exports(p) {
			engines = append(engines, p)
		}
	})
	slices.SortFunc(engines, func(a, b *pods.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for namespace := range inhabited {
		namespaces = append(namespaces, namespace)
	}
	slices.Sort(namespaces)
	return engines, namespaces
}

// values makes rows of one snapshot.
type values struct {
	filter   filter
	snapshot *collect.Snapshot
	now      time.Time // on the source's clock
}

func (v values) pods(engines []*pods.Pod) podsView {
	out := podsView{Total: len(engines), Rows: []valueRow{}}
	w := v.filter.window("pods")
	for _, p := range engines {
		if w.full() {
			break
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		if !p.WasReady {
			r := signals.Result{Reason: "warming up: it has never been Ready"}
			if v.filter.Signal == "" && v.wanted(r) && w.takes() {
				out.Rows = append(out.Rows, v.row("", name, nil, r))
			}
			continue
		}
		for _, plan := range v.snapshot.Plans() {
			if plan.Signal().OfPool() || !v.of(plan) {
				continue
			}
			m := v.snapshot.Measure(plan.Query, p)
			if !m.Foreign() && v.wanted(m.Result) && w.takes() {
				out.Rows = append(out.Rows, v.row("", name, plan, m.Result))
			}
		}
	}
	out.Pages = v.filter.around("pods", w)
	return out
}

// maxLooks is how many signals of objects are computed for a page at the most, with those that come to
// nothing, and those on the pages before it.
const maxLooks = 5000

// workloads makes rows of objects. What a pool's gateway tells is there without pods, too.
func (v values) workloads(h *handler, namespaces []string) workloadsView {
	out := workloadsView{Rows: []valueRow{}}
	w := v.filter.window("workloads")
	looks := 0
	for _, namespace := range namespaces {
		for _, kind := range h.Objects.Shown() {
			objects, err := h.Groups.Objects(kind, namespace, labels.Everything())
			if err != nil {
				continue // the kind is not there, or not read, which other metrics tell
			}
			for _, o := range objects {
				for _, plan := range v.snapshot.Plans() {
					if !v.of(plan) {
						continue
					}
					if looks++; looks > maxLooks {
						out.Cut = true
					}
					if w.full() || out.Cut {
						out.Pages = v.filter.around("workloads", w)
						return out
					}
					r, ok := h.Objects.Result(v.snapshot, o, plan)
					if ok && v.wanted(r) && w.takes() {
						out.Rows = append(out.Rows, v.row(o.GroupResource.String(), types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, plan, r))
					}
				}
			}
		}
	}
	out.Pages = v.filter.around("workloads", w)
	return out
}

func (v values) of(plan *signals.Plan) bool {
	return v.filter.Signal == "" || v.filter.Signal == plan.Query.Signal
}

func (v values) wanted(r signals.Result) bool {
	return v.filter.State == "" || v.filter.State == r.State.String()
}

// row makes a row; plan is nil for what is so of every signal.
func (v values) row(kind string, of types.NamespacedName, plan *signals.Plan, r signals.Result) valueRow {
	row := valueRow{Kind: word(kind), Namespace: word(of.Namespace), Name: word(of.Name), State: r.State.String(), Reason: clean(r.Reason)}
	if plan != nil {
		row.Query = written(plan.Query)
	}
	if !r.HasValue || math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
		return row
	}
	row.Value, row.LowerBound, row.Unit = &r.Value, r.LowerBound, plan.Signal().Unit
	row.Time, row.AgeSeconds, row.Window = r.Time.UTC(), seconds(v.now.Sub(r.Time)), r.Window.Seconds()
	return row
}

// written writes a query as its asker did, or would have.
func written(q signals.Query) string {
	var of []string
	add := func(key string, d time.Duration) {
		if d != 0 {
			of = append(of, fmt.Sprintf("%s=%s", key, d))
		}
	}
	if q.Quantile != 0 {
		of = append(of, fmt.Sprintf("quantile=%g", q.Quantile))
	}
	add("window", q.Window)
	add("ttft", q.SLO.TTFT)
	add("tpot", q.SLO.TPOT)
	add("e2e", q.SLO.E2E)
	if q.Where != "" {
		of = append(of, q.Where)
	}
	if len(of) == 0 {
		return clean(q.Signal)
	}
	return clean(q.Signal + "{" + strings.Join(of, ",") + "}")
}

// seconds are rounded to what is worth reading.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
