package rules

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxFile bounds a file of rules: a ConfigMap holds no more.
const maxFile = 1 << 20

// file is a configuration file of prometheus-adapter. Each rule is read by itself, so that one with a fault
// leaves the others alone.
type file struct {
	Rules         []json.RawMessage `json:"rules"`
	ExternalRules []json.RawMessage `json:"externalRules"`
	ResourceRules json.RawMessage   `json:"resourceRules"`
}

// text is one rule as it stands in the file.
type text struct {
	SeriesQuery   string       `json:"seriesQuery"`
	SeriesFilters []textFilter `json:"seriesFilters"`
	Resources     struct {
		Template   string                  `json:"template"`
		Overrides  map[string]textResource `json:"overrides"`
		Namespaced *bool                   `json:"namespaced"`
	} `json:"resources"`
	Name struct {
		Matches string `json:"matches"`
		As      string `json:"as"`
	} `json:"name"`
	MetricsQuery string `json:"metricsQuery"`
}

type textFilter struct {
	Is    string `json:"is"`
	IsNot string `json:"isNot"`
}

type textResource struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
}

// A Fault is what is wrong with one field of one rule.
type Fault struct {
	// Path is where: rules[3].metricsQuery.
	Path string
	Err  error
}

func (f Fault) Error() string { return f.Path + ": " + f.Err.Error() }

// Unwrap returns the fault without its place.
func (f Fault) Unwrap() error { return f.Err }

// A File is what a configuration file of prometheus-adapter says.
type File struct {
	// Rules are those without a fault, in the order of the file.
	Rules []*Rule
	// Faults are what is wrong with the others.
	Faults []Fault
	// ResourceRules says that the file has resourceRules too, which are not served.
	ResourceRules bool
}

// Read reads a file. It fails only when the file as a whole cannot be read.
func Read(name string) (*File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", name, maxFile>>20)
	}
	parsed, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return parsed, nil
}

// Parse reads the text of a file.
func Parse(data []byte) (*File, error) {
	object, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(object, []byte("{")) {
		return nil, errors.New("it is no object with rules and externalRules")
	}
	var about struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(object, &about) == nil && about.Kind == "ConfigMap" {
		return nil, errors.New(`it is a ConfigMap, and not the file in it: kubectl get configmap NAME -o jsonpath='{.data.config\.yaml}' prints that`)
	}
	var all file
	if err := strictly(object, &all, "rules, externalRules and resourceRules"); err != nil {
		return nil, err
	}
	f := &File{ResourceRules: len(all.ResourceRules) > 0 && string(all.ResourceRules) != "null"}
	for i, raw := range all.Rules {
		f.add(raw, fmt.Sprintf("rules[%d]", i), false)
	}
	for i, raw := range all.ExternalRules {
		f.add(raw, fmt.Sprintf("externalRules[%d]", i), true)
	}
	return f, nil
}

func (f *File) add(raw json.RawMessage, path string, external bool) {
	var t text
	if err := strictly(raw, &t, "seriesQuery, seriesFilters, resources, name and metricsQuery"); err != nil {
		f.Faults = append(f.Faults, Fault{path, err})
		return
	}
	rule, faults := compile(t, path, external)
	if len(faults) > 0 {
		f.Faults = append(f.Faults, faults...)
		return
	}
	f.Rules = append(f.Rules, rule)
}

// strictly decodes an object, also in the case of letters; known are the fields at its top.
func strictly(object []byte, into any, known string) error {
	strict, err := kjson.UnmarshalStrict(object, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return fmt.Errorf("%s: what stands there is of another kind: %s", cmp.Or(wrong.Field, "the whole"), wrong.Value)
	case err != nil:
		return err
	case len(strict) > 0:
		_, field, _ := strings.Cut(strict[0].Error(), "unknown field ")
		return fmt.Errorf("unknown field %s: at the top there are %s", field, known)
	}
	return nil
}
