package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	kubeyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/inference-metrics/adapter/pkg/signals"
)

// configFile is the file of --config.
type configFile struct {
	Window *duration `json:"window"`
	SLO    *struct {
		TTFT *duration `json:"ttft"`
		TPOT *duration `json:"tpot"`
		E2E  *duration `json:"e2e"`
	} `json:"slo"`
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

// readConfig reads the parameters of signals. A field that is not in the file keeps its default; an
// slo that is there is all there is: an objective that it leaves out does not exist.
func readConfig(name string) (signals.Params, error) {
	p := signals.DefaultParams()
	text, err := readSmall(name)
	if err != nil {
		return p, fmt.Errorf("--config: %w", err)
	}
	if err := oneDocument(text); err != nil {
		return p, fmt.Errorf("--config %s: %w", name, err)
	}
	var f configFile
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return p, fmt.Errorf("--config %s: %w", name, explained(err))
	}

	var errs []error
	set := func(field string, from *duration, to *time.Duration) {
		if from == nil {
			return
		}
		d, err := time.ParseDuration(string(*from))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is no duration: write a number and a unit, such as 2.5s or 100ms", field, *from))
			return
		}
		*to = d
	}
	set("window", f.Window, &p.Window)
	if f.SLO != nil {
		p.SLO = signals.SLO{}
		set("slo.ttft", f.SLO.TTFT, &p.SLO.TTFT)
		set("slo.tpot", f.SLO.TPOT, &p.SLO.TPOT)
		set("slo.e2e", f.SLO.E2E, &p.SLO.E2E)
	}
	if len(errs) == 0 {
		errs = append(errs, p.Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return p, fmt.Errorf("--config %s: %w", name, err)
	}
	return p, nil
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

// explained says in the file's own words what Go found in it.
func explained(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s: this cannot be of type %s", cmp.Or(wrong.Field, "the whole file"), wrong.Value)
	}
	if _, field, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return fmt.Errorf("unknown field %s: there are window, slo.ttft, slo.tpot and slo.e2e", field)
	}
	return err
}
