package load

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Spec describes a load. Its textual form is in the package's documentation.
type Spec struct {
	Kind Kind

	Rate      float64       // of Constant and Poisson
	Low, High float64       // of Burst
	Period    time.Duration // of Burst
	Duty      float64       // of Burst

	File  string  // of Trace
	Speed float64 // of Trace

	Prompt, Output Length
	// MaxTokens cuts the outputs; 0 leaves them as they are.
	MaxTokens int
}

// Kind is the kind of arrival process.
type Kind string

// The kinds of arrival processes.
const (
	None     Kind = "none"
	Constant Kind = "constant"
	Poisson  Kind = "poisson"
	Burst    Kind = "burst"
	Trace    Kind = "trace"
)

// keys lists what each kind of load is described by.
var keys = map[Kind][]string{
	None:     {},
	Constant: {"rate", "prompt", "output", "max_tokens"},
	Poisson:  {"rate", "prompt", "output", "max_tokens"},
	Burst:    {"low", "high", "period", "duty", "prompt", "output", "max_tokens"},
	Trace:    {"file", "speed", "max_tokens"},
}

// Parse reads the textual form and validates it.
func Parse(text string) (Spec, error) {
	kind, rest, _ := strings.Cut(strings.TrimSpace(text), ":")
	s := Spec{
		Kind:   Kind(kind),
		Period: time.Minute, Duty: 0.5, Speed: 1,
		Prompt: Length{Median: 512}, Output: Length{Median: 128},
	}
	known, ok := keys[s.Kind]
	if !ok {
		return Spec{}, fmt.Errorf("load %q: unknown kind %q: want none, constant, poisson, burst or trace", text, kind)
	}
	var errs []error
	seen := map[string]bool{}
	for _, field := range fields(rest) {
		key, value, ok := strings.Cut(field, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%q is not of the form key=value", field))
		case !slices.Contains(known, key):
			errs = append(errs, fmt.Errorf("%s has no %q: it has %s", kind, key, strings.Join(known, ", ")))
		case seen[key]:
			errs = append(errs, fmt.Errorf("%s is given twice", key))
		default:
			if err := s.set(key, value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", key, err))
			}
		}
		seen[key] = true
	}
	if len(errs) == 0 {
		errs = append(errs, s.Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return Spec{}, fmt.Errorf("load %q: %w", text, err)
	}
	return s, nil
}

// fields splits at the commas that are not in parentheses.
func fields(text string) []string {
	var out []string
	depth, start := 0, 0
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth <= 0:
			out = append(out, text[start:i])
			start = i + 1
		}
	}
	if start < len(text) {
		out = append(out, text[start:])
	}
	return out
}

func (s *Spec) set(key, value string) (err error) {
	switch key {
	case "rate":
		s.Rate, err = parseNumber(value)
	case "low":
		s.Low, err = parseNumber(value)
	case "high":
		s.High, err = parseNumber(value)
	case "duty":
		s.Duty, err = parseNumber(value)
	case "speed":
		s.Speed, err = parseNumber(value)
	case "period":
		if s.Period, err = time.ParseDuration(value); err != nil {
			err = fmt.Errorf("%q is not a duration such as 60s", value)
		}
	case "file":
		s.File = value
	case "prompt":
		s.Prompt, err = parseLength(value)
	case "output":
		s.Output, err = parseLength(value)
	case "max_tokens":
		if s.MaxTokens, err = strconv.Atoi(value); err != nil {
			err = fmt.Errorf("%q is not a whole number", value)
		}
	}
	return err
}

func parseNumber(value string) (float64, error) {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not a number", value)
	}
	return v, nil
}

// What is beyond these is a slip of the pen, and would keep a machine busy with arrivals alone.
const (
	maxRate   = 1e6
	minPeriod = time.Millisecond
)

// Validate returns every fault of the spec.
func (s Spec) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	switch s.Kind {
	case None:
		return nil
	case Constant, Poisson:
		check(s.Rate > 0, "rate must be above 0 requests per second, is %g (use none for no load)", s.Rate)
		check(s.Rate <= maxRate, "rate must be at most %g requests per second, is %g", maxRate, s.Rate)
	case Burst:
		check(s.Low >= 0, "low must be at least 0 requests per second, is %g", s.Low)
		check(s.High > 0, "high must be above 0 requests per second, is %g", s.High)
		check(max(s.Low, s.High) <= maxRate, "low and high must be at most %g requests per second, are %g and %g", maxRate, s.Low, s.High)
		check(s.Period >= minPeriod, "period must be at least %v, is %v", minPeriod, s.Period)
		check(s.Duty > 0 && s.Duty <= 1, "duty must be above 0 and at most 1, is %g", s.Duty)
	case Trace:
		check(s.File != "", "file is missing")
		check(s.Speed > 0, "speed must be above 0, is %g", s.Speed)
	default:
		return fmt.Errorf("unknown kind %q", s.Kind)
	}
	check(s.MaxTokens >= 0, "max_tokens must be at least 0 (no limit), is %d", s.MaxTokens)
	if s.Kind != Trace {
		if err := s.Prompt.validate(); err != nil {
			errs = append(errs, fmt.Errorf("prompt: %w", err))
		}
		if err := s.Output.validate(); err != nil {
			errs = append(errs, fmt.Errorf("output: %w", err))
		}
	}
	return errors.Join(errs...)
}

// String returns the textual form, which Parse reads back.
func (s Spec) String() string {
	var b strings.Builder
	b.WriteString(string(s.Kind))
	sep := byte(':')
	add := func(key, value string) {
		b.WriteByte(sep)
		b.WriteString(key + "=" + value)
		sep = ','
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for _, key := range keys[s.Kind] {
		switch key {
		case "rate":
			add(key, number(s.Rate))
		case "low":
			add(key, number(s.Low))
		case "high":
			add(key, number(s.High))
		case "period":
			add(key, s.Period.String())
		case "duty":
			add(key, number(s.Duty))
		case "file":
			add(key, s.File)
		case "speed":
			add(key, number(s.Speed))
		case "prompt":
			add(key, s.Prompt.String())
		case "output":
			add(key, s.Output.String())
		case "max_tokens":
			if s.MaxTokens > 0 {
				add(key, strconv.Itoa(s.MaxTokens))
			}
		}
	}
	return b.String()
}
