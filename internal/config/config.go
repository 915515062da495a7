// Package config reads the configuration file of the adapter, strictly: what is not understood is an error
// that names the field.
package config

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/inference-metrics/adapter/internal/slo"
	"github.com/inference-metrics/adapter/pkg/signals"
)

// Config is what a file comes to.
type Config struct {
	Params signals.Params
	// Windows are those that may be asked for besides that of Params.
	Windows []time.Duration
	// Objectives are those of some pods; the first that matches holds.
	Objectives []slo.Rule
	// Kinds are the kinds of object that are served, besides pods.
	Kinds []schema.GroupResource
	// RoleLabels are labels of pods that tell their role, besides the well-known ones.
	RoleLabels []string
	// Scrape says what is read from the engines themselves.
	Scrape Scrape
}

// Default returns the configuration without a file; kinds are those that are served then.
func Default(kinds []schema.GroupResource) Config {
	return Config{Params: signals.DefaultParams(), Kinds: slices.Clone(kinds), Scrape: defaultScrape()}
}

// file is the file as written. docs/configuration.md describes its fields.
type file struct {
	Window     *duration   `json:"window"`
	Windows    []duration  `json:"windows"`
	SLO        *objectives `json:"slo"`
	Saturation *struct {
		Queue *float64 `json:"queue"`
		KV    *float64 `json:"kv"`
	} `json:"saturation"`
	Objectives []struct {
		Namespace string      `json:"namespace"`
		Selector  *selector   `json:"selector"`
		SLO       *objectives `json:"slo"`
	} `json:"objectives"`
	Kinds      *[]string `json:"kinds"`
	RoleLabels []string  `json:"roleLabels"`
	PodLabels  []struct {
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
	} `json:"podLabels"`
	Scrape *scrape `json:"scrape"`
}

type objectives struct {
	TTFT *duration `json:"ttft"`
	TPOT *duration `json:"tpot"`
	E2E  *duration `json:"e2e"`
}

// duration is the text of one, read later, where its field has a name.
type duration string

// UnmarshalJSON takes anything: a number is refused as any text without a unit is.
func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		s = string(b)
	}
	*d = duration(s)
	return nil
}

// selector is a label selector, read later, where its field has a name.
type selector json.RawMessage

func (s *selector) UnmarshalJSON(b []byte) error {
	*s = slices.Clone(b)
	return nil
}

// parse reads the two notations that Kubernetes has for selectors: a text, and an object.
func (s selector) parse() (labels.Selector, error) {
	var text string
	if json.Unmarshal(s, &text) == nil {
		return labels.Parse(text)
	}
	var object metav1.LabelSelector
	if err := yaml.UnmarshalStrict(s, &object); err != nil {
		return nil, errors.New("want a text such as app=vllm,tier in (gold), or matchLabels and matchExpressions")
	}
	return metav1.LabelSelectorAsSelector(&object)
}

// parse reads the text of a file. A field that is not in it keeps its default; an slo that is there is all
// there is: an objective that it leaves out does not exist.
func parse(text []byte, kinds []schema.GroupResource) (Config, error) {
	c := Default(kinds)
	if err := oneDocument(text); err != nil {
		return Config{}, err
	}
	var f file
	if err := unmarshal(text, &f); err != nil {
		return Config{}, err
	}

	var faults faults
	faults.duration("window", f.Window, &c.Params.Window)
	if f.SLO != nil {
		c.Params.SLO = faults.slo("slo", f.SLO)
	}
	if s := f.Saturation; s != nil {
		if s.Queue != nil {
			c.Params.Full.Queue = *s.Queue
		}
		if s.KV != nil {
			c.Params.Full.KV = *s.KV
		}
	}
	for i, w := range f.Windows {
		field := fmt.Sprintf("windows[%d]", i)
		d := c.Params.Window // in the place of what cannot be read
		if !faults.duration(field, &w, &d) {
			continue
		}
		switch {
		case d < signals.MinWindow || d > signals.MaxWindow:
			faults.add(field, "%s is outside %s to %s", d, signals.MinWindow, signals.MaxWindow)
		case d == c.Params.Window || slices.Contains(c.Windows, d):
			faults.add(field, "%s is there already", d)
		default:
			c.Windows = append(c.Windows, d)
		}
	}
	for i, o := range f.Objectives {
		field := fmt.Sprintf("objectives[%d]", i)
		r := slo.Rule{Namespace: o.Namespace}
		if o.Namespace != "" {
			faults.invalid(field+".namespace", o.Namespace, validation.IsDNS1123Label(o.Namespace))
		}
		if o.Selector != nil {
			var err error
			if r.Selector, err = o.Selector.parse(); err != nil {
				faults.add(field+".selector", "%v", err)
			}
		}
		if i > 0 && f.Objectives[i-1].Namespace == "" && f.Objectives[i-1].Selector == nil {
			faults.add(field, "the one before it is for all pods, so that this one never holds: put that last")
		}
		if o.SLO == nil {
			faults.add(field+".slo", "it is missing: set at least one of ttft, tpot, e2e")
			continue
		}
		n := len(faults.errs)
		r.SLO = faults.slo(field+".slo", o.SLO)
		if len(faults.errs) == n {
			for _, err := range apart(ofRule(r).Validate()) {
				faults.errs = append(faults.errs, fmt.Errorf("%s.%w", field, err))
			}
		}
		c.Objectives = append(c.Objectives, r)
	}
	if f.Kinds != nil {
		c.Kinds = nil
		for i, text := range *f.Kinds {
			field := fmt.Sprintf("kinds[%d]", i)
			kind := schema.ParseGroupResource(text)
			if why := kindFault(kind, kinds); why != "" {
				faults.add(field, "%q %s", text, why)
			} else if slices.Contains(c.Kinds, kind) {
				faults.add(field, "%s is there already", text)
			}
			c.Kinds = append(c.Kinds, kind)
		}
	}
	for i, l := range f.RoleLabels {
		field := fmt.Sprintf("roleLabels[%d]", i)
		faults.invalid(field, l, validation.IsQualifiedName(l))
		if slices.Contains(f.RoleLabels[:i], l) {
			faults.add(field, "%s is there already", l)
		}
	}
	c.RoleLabels = f.RoleLabels
	for i, p := range f.PodLabels {
		for _, l := range []struct{ field, name string }{{"namespace", p.Namespace}, {"pod", p.Pod}} {
			if !model.UTF8Validation.IsValidLabelName(l.name) {
				faults.add(fmt.Sprintf("podLabels[%d].%s", i, l.field), "%q is no name of a label: give both, as the series have them", l.name)
			}
		}
		if slices.Contains(f.PodLabels[:i], p) {
			faults.add(fmt.Sprintf("podLabels[%d]", i), "%s and %s are there already", p.Namespace, p.Pod)
		}
		c.Params.PodLabels = append(c.Params.PodLabels, signals.PodLabels(p))
	}
	if f.Scrape != nil {
		c.Scrape = faults.scrape(f.Scrape)
	}
	if len(faults.errs) == 0 {
		faults.errs = apart(c.Params.Validate())
	}
	if err := errors.Join(faults.errs...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// ofRule returns parameters with the objectives of a rule, to check these.
func ofRule(r slo.Rule) signals.Params {
	p := signals.DefaultParams()
	p.SLO = r.SLO
	return p
}

// Warnings says which objectives lie off the edges of an engine's buckets.
func (c Config) Warnings() []string {
	out := c.Params.Warnings()
	for i, r := range c.Objectives {
		for _, w := range ofRule(r).Warnings() {
			out = append(out, fmt.Sprintf("objectives[%d].%s", i, w))
		}
	}
	return out
}

// kindFault says why an entry of the field kinds is none; "" when it is one. Any kind with a scale subresource may
// be meant, but misspelt ones are told where that can be.
func kindFault(kind schema.GroupResource, kinds []schema.GroupResource) string {
	known := append(slices.Clone(kinds), schema.GroupResource{Resource: "replicationcontrollers"})
	ofGroup := func(k schema.GroupResource) bool { return k.Group == kind.Group }
	version, _, _ := strings.Cut(kind.Group, ".")
	switch {
	case slices.Contains(known, kind):
		return ""
	case kind == schema.GroupResource{Resource: "pods"}:
		return "need not be allowed: pods are served always"
	case len(validation.IsDNS1123Label(kind.Resource)) > 0 || kind.Group != "" && len(validation.IsDNS1123Subdomain(kind.Group)) > 0,
		slices.ContainsFunc(known, ofGroup), // none of those of a group that is known
		!strings.Contains(kind.Group, "."),  // a group of Kubernetes' own
		version == "v1" || strings.HasPrefix(version, "v1alpha") || strings.HasPrefix(version, "v1beta"):
		var names []string
		for _, k := range known {
			names = append(names, k.String())
		}
		return "is no kind with pods: write PLURAL.GROUP, without a version; built in are " + strings.Join(names, ", ")
	}
	return ""
}

// faults are what is wrong with a configuration.
type faults struct{ errs []error }

func (f *faults) add(field, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

func (f *faults) invalid(field, value string, why []string) {
	if len(why) > 0 {
		f.add(field, "%q: %s", value, why[0])
	}
}

// duration reports whether there was one to be read.
func (f *faults) duration(field string, from *duration, to *time.Duration) bool {
	if from == nil {
		return false
	}
	d, err := time.ParseDuration(string(*from))
	if err != nil {
		f.add(field, "%.40q is no duration: write a number and a unit, such as 2.5s or 100ms", *from)
		return false
	}
	if d == 0 {
		f.add(field, "%q is nothing: leave it out", *from)
		return false
	}
	*to = d
	return true
}

func (f *faults) slo(field string, from *objectives) (out signals.SLO) {
	f.duration(field+".ttft", from.TTFT, &out.TTFT)
	f.duration(field+".tpot", from.TPOT, &out.TPOT)
	f.duration(field+".e2e", from.E2E, &out.E2E)
	return out
}

// apart returns the errors that were joined.
func apart(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// maxConfig bounds the file: one that is larger was not meant, and a device has no end.
const maxConfig = 1 << 20

func readSmall(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxConfig>>20)
	}
	return text, err
}

// oneDocument refuses what would be dropped in silence: the documents after the first.
func oneDocument(text []byte) error {
	documents := kubeyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	n := 0
	for {
		doc, err := documents.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		var content any
		if err := yaml.Unmarshal(doc, &content); err != nil || content != nil {
			n++
		}
		if n > 1 {
			return errors.New("there is more than one document in it: leave out the lines ---")
		}
	}
}

// unmarshal reads a file strictly, also in the case of letters, and says what is wrong in the file's own words.
func unmarshal(text []byte, f *file) error {
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(object, f)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: want %s, and not a %s", cmp.Or(wrong.Field, "the whole file"), wanted(wrong.Type), given(wrong.Value))
	case err != nil:
		return err
	case len(strict) > 0:
		_, field, _ := strings.Cut(strict[0].Error(), "unknown field ")
		all := fields(reflect.TypeFor[file](), "")
		return fmt.Errorf("unknown field %s: there are %s", field, strings.Join(all, ", "))
	}
	return nil
}

// given says in YAML's words what a value is.
func given(value string) string {
	switch kind, _, _ := strings.Cut(value, " "); kind {
	case "array":
		return "list"
	case "object":
		return "mapping"
	case "string":
		return "text"
	default:
		return kind
	}
}

// wanted says in YAML's words what a field takes.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a mapping of fields to values"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	}
	return "a text"
}

// fields lists the fields of the file by their paths.
func fields(of reflect.Type, path string) []string {
	list := ""
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice && of != reflect.TypeFor[selector]() {
		if of.Kind() == reflect.Slice {
			list = "[]"
		}
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return []string{path}
	}
	if path != "" {
		path += list + "."
	}
	var out []string
	for f := range of.Fields() {
		out = append(out, fields(f.Type, path+f.Tag.Get("json"))...)
	}
	return out
}
