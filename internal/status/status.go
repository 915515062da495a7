// Package status shows people what the adapter knows: its source and targets, what is asked for, and every
// signal with its state, its age and why it has no value.
//
// The page is read-only, and asks for nothing: looking at it changes no demand. It is one document without
// scripts or other files, so that it can be saved and sent. What others wrote is escaped, shortened and
// rid of credentials; and there are so many rows at a time, however large the fleet.
package status

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/pods"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Path is where the page is served.
const Path = "/debug/signals"

// Target is an engine that the adapter reads itself.
type Target struct {
	Namespace, Pod string
	URL            string
	Up             bool
	Reason         string    // why it is not up
	Scraped        time.Time // zero before the first scrape
	Took           time.Duration
}

// Monitor is something that a PodMonitor or a ServiceMonitor says, and that is not followed.
type Monitor struct {
	Kind, Namespace, Name string
	Field                 string // which says it
	Reason                string // why it is not followed
}

// File is the configuration file.
type File struct {
	Name, Hash string
	Taken      time.Time
	Err        error    // why the file as it is now was refused
	Restart    []string // fields that hold after a restart only
}

// Collector is what is needed of a collector.
type Collector interface {
	Snapshot() *collect.Snapshot
	Demands() []collect.Demand
}

// Objects are those that stand for groups of pods.
type Objects interface {
	// Shown are the kinds of object to look at.
	Shown() []schema.GroupResource
	// Result returns a signal of an object; not ok where nobody would expect one.
	Result(*collect.Snapshot, pods.Object, *signals.Plan) (r signals.Result, ok bool)
}

// Config is what is shown.
type Config struct {
	Version, Host string
	Collector     Collector
	Pods          pods.Lister
	Groups        pods.Groups
	Objects       Objects
	// Targets returns the targets of a source that scrapes; nil for another source.
	Targets func() []Target
	// Monitors returns what of monitors is not followed; nil for a source that finds no targets itself.
	Monitors func() []Monitor
	// File returns what became of the configuration file; nil without one.
	File func() File
}

//go:embed page.html
var pageText string

//go:embed style.css
var styleText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"states":  func() []string { return states },
	"join":    func(s []string) string { return strings.Join(s, ", ") },
	"stamp":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") },
	"seconds": func(s float64) string { return strconv.FormatFloat(s, 'f', decimals(s), 64) + " s" },
	"signed":  func(s float64) string { return fmt.Sprintf("%+.1f s", s) },
	// A fraction needs no unit.
	"unit":   func(u string) string { return strings.TrimPrefix(u, "0..1") },
	"number": func(v *float64) string { return strconv.FormatFloat(*v, 'g', 6, 64) },
}).Parse(pageText))

func decimals(seconds float64) int {
	switch {
	case seconds < 1:
		return 3
	case seconds < 100:
		return 1
	}
	return 0
}

// policy lets the page load nothing, and have its own style.
var policy = func() string {
	sum := sha256.Sum256([]byte(styleText))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

type handler struct {
	Config
	// one makes pages one by one: of a large fleet each costs some time and memory.
	one chan struct{}
}

// New returns the page. Who may see it is for the server around it to decide.
func New(c Config) http.Handler {
	return &handler{Config: c, one: make(chan struct{}, 1)}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this page can only be read", http.StatusMethodNotAllowed)
		return
	}
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case h.one <- struct{}{}:
		defer func() { <-h.one }()
	case <-r.Context().Done():
		return
	}
	p := h.page(f, time.Now())
	var body bytes.Buffer
	header := w.Header()
	if f.json(r.Header.Get("Accept")) {
		header.Set("Content-Type", "application/json")
		encoder := json.NewEncoder(&body)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(p)
	} else {
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", policy)
		err = pageTemplate.Execute(&body, p)
	}
	if err != nil {
		http.Error(w, "making the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	_, _ = w.Write(body.Bytes()) // whoever asked may be gone
}

// json reports whether the answer is to be JSON.
func (f filter) json(accept string) bool {
	if f.format != "" {
		return f.format == "json"
	}
	return goautoneg.Negotiate(accept, []string{"text/html", "application/json"}) == "application/json"
}
