package status

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// pageRows is how many rows of each table there are at a time.
const pageRows = 100

// maxPage bounds the number of a page.
const maxPage = 1_000_000

var states = []string{"value", "idle", "stalled", "unknown"}

// The tables, each of which has pages of its own.
var tables = []string{"targets", "monitors", "queries", "workloads", "pods"}

// filter says what is shown of everything.
type filter struct {
	Namespace string `json:"namespace,omitempty"`
	Signal    string `json:"signal,omitempty"`
	State     string `json:"state,omitempty"`

	format string
	pages  map[string]int // from 0
}

// Set reports whether anything is left out.
func (f filter) Set() bool { return f.Namespace != "" || f.Signal != "" || f.State != "" }

func (f filter) of(namespace string) bool { return f.Namespace == "" || f.Namespace == namespace }

// parseFilter reads the parameters of a request.
func parseFilter(q url.Values) (filter, error) {
	f := filter{Namespace: strings.TrimSpace(q.Get("namespace")), Signal: strings.TrimSpace(q.Get("signal")), State: q.Get("state"), format: q.Get("format"), pages: map[string]int{}}
	known := append([]string{"namespace", "signal", "state", "format"}, tables...)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("%.40q is no parameter: there are %s", name, strings.Join(known, ", ")))
		}
	}
	if f.Namespace != "" && len(validation.IsDNS1123Label(f.Namespace)) > 0 {
		errs = append(errs, fmt.Errorf("namespace: %.40q is no name of a namespace", f.Namespace))
	}
	if f.Signal != "" && len(validation.IsCIdentifier(f.Signal)) > 0 {
		errs = append(errs, fmt.Errorf("signal: %.40q is no name of a signal, such as vllm_queue_depth", f.Signal))
	}
	if f.State != "" && !slices.Contains(states, f.State) {
		errs = append(errs, fmt.Errorf("state: %.40q is none of %s", f.State, strings.Join(states, ", ")))
	}
	if f.format != "" && f.format != "json" && f.format != "html" {
		errs = append(errs, fmt.Errorf("format: %.40q is neither html nor json", f.format))
	}
	for _, table := range tables {
		text := q.Get(table)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			errs = append(errs, fmt.Errorf("%s: %.40q is no number of a page, from 1 to %d", table, text, maxPage))
			continue
		}
		f.pages[table] = n - 1
	}
	return f, errors.Join(errs...)
}

// query is the address of what f shows, with changes: pairs of a name and a value.
func (f filter) query(changes ...string) string {
	q := url.Values{}
	set := func(name, value string) {
		if q.Del(name); value != "" {
			q.Set(name, value)
		}
	}
	set("namespace", f.Namespace)
	set("signal", f.Signal)
	set("state", f.State)
	for table, n := range f.pages {
		set(table, strconv.Itoa(n+1))
	}
	for i := 0; i < len(changes); i += 2 {
		set(changes[i], changes[i+1])
	}
	return "?" + q.Encode()
}

// Pages are the addresses of the rows around those that are shown.
type Pages struct {
	Previous string `json:"previous,omitempty"`
	Next     string `json:"next,omitempty"`
}

// window takes the rows of one page, and counts all that come by.
type window struct {
	from, seen int
}

func (f filter) window(table string) window { return window{from: f.pages[table] * pageRows} }

// takes reports whether the next row is on the page.
func (w *window) takes() bool {
	w.seen++
	return w.seen > w.from && w.seen <= w.from+pageRows
}

// full reports whether it is known that there is a page after it.
func (w *window) full() bool { return w.seen > w.from+pageRows }

func (f filter) around(table string, w window) Pages {
	var p Pages
	n := f.pages[table]
	if n > 0 {
		p.Previous = f.query(table, strconv.Itoa(n)) + "#" + table
	}
	if w.full() {
		p.Next = f.query(table, strconv.Itoa(n+2)) + "#" + table
	}
	return p
}
