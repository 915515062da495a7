package load

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	lengths := func(s Spec) Spec {
		s.Period, s.Duty, s.Speed = time.Minute, 0.5, 1
		if s.Prompt.Median == 0 {
			s.Prompt.Median, s.Output.Median = 512, 128
		}
		return s
	}
	for text, want := range map[string]Spec{
		"none":                  lengths(Spec{Kind: None}),
		"constant:rate=2":       lengths(Spec{Kind: Constant, Rate: 2}),
		" poisson: rate = 0.5 ": lengths(Spec{Kind: Poisson, Rate: 0.5}),
		"poisson:rate=5,prompt=lognormal(1000,0.8,16000),output=64,max_tokens=32": lengths(Spec{
			Kind: Poisson, Rate: 5, Prompt: Length{1000, 0.8, 16000}, Output: Length{Median: 64}, MaxTokens: 32}),
		"burst:low=1,high=30,period=20s,duty=0.25": {Kind: Burst, Low: 1, High: 30, Period: 20 * time.Second,
			Duty: 0.25, Speed: 1, Prompt: Length{Median: 512}, Output: Length{Median: 128}},
		"trace:file=a.csv,speed=10": {Kind: Trace, File: "a.csv", Speed: 10, Period: time.Minute, Duty: 0.5,
			Prompt: Length{Median: 512}, Output: Length{Median: 128}},
	} {
		got, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s: its text %s reads back as %+v, %v", text, got, again, err)
		}
	}
}

// Loads of next to nothing: their arrivals come late or never, not at once, and are found in no time.
func TestNextToNoLoad(t *testing.T) {
	for _, text := range []string{
		"constant:rate=1e-300",
		"poisson:rate=1e-300",
		"burst:low=0,high=1e-9,period=1ms,duty=1e-9",
		"burst:low=0,high=1,duty=1e-320",
		"burst:low=0,high=5e-324,duty=1e-3",
	} {
		s, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		p, err := s.Start(1)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := p.Next(); err != io.EOF && (err != nil || a.At < time.Hour) {
			t.Errorf("%s: the first arrival at %s, %v", text, a.At, err)
		}
	}

	file := filepath.Join(t.TempDir(), "slow.csv")
	rows := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1,1\n2023-11-16 18:00:01,1,1\n"
	if err := os.WriteFile(file, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Spec{Kind: Trace, File: file, Speed: 1e-300}.Start(1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if a, err := p.Next(); err != nil || a.At != 0 {
		t.Errorf("the first row at %s, %v", a.At, err)
	}
	if a, err := p.Next(); err != io.EOF {
		t.Errorf("a row that is as good as never comes at %s, %v", a.At, err)
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                       {`unknown kind ""`},
		"steady:rate=1":                          {`unknown kind "steady"`, "want none, constant, poisson, burst or trace"},
		"constant":                               {"rate must be above 0"},
		"constant:rate=-1":                       {"rate must be above 0", "is -1"},
		"constant:rate=fast":                     {`rate: "fast" is not a number`},
		"constant:rate=NaN":                      {`rate: "NaN" is not a number`},
		"constant:rate":                          {`"rate" is not of the form key=value`},
		"constant:rate=1,rate=2":                 {"rate is given twice"},
		"constant:rate=1,duty=1,low=2":           {`constant has no "duty"`, `constant has no "low"`},
		"poisson:rate=1,prompt=0":                {"prompt: must be at least 1 token"},
		"poisson:rate=1,output=lognormal(9)":     {`output: "lognormal(9)" is not`},
		"poisson:rate=1,output=lognormal(9,0)":   {"sigma and max must be above 0"},
		"poisson:rate=1,output=lognormal(9,-1)":  {"output: sigma must be above 0"},
		"poisson:rate=1,output=lognormal(9,1,3)": {"max 3 is below the median 9"},
		"poisson:rate=1,max_tokens=-3":           {"max_tokens must be at least 0"},
		"poisson:rate=1,max_tokens=x":            {`"x" is not a whole number`},
		"burst:low=-1,high=0,period=-1s,duty=2":  {"low must", "high must", "period must", "duty must"},
		"constant:rate=1e300":                    {"rate must be at most 1e+06", "is 1e+300"},
		"burst:low=2e6,high=1":                   {"low and high must be at most 1e+06"},
		"burst:low=1,high=2,period=1ns":          {"period must be at least 1ms, is 1ns"},
		"burst:low=1,high=2,period=60":           {`period: "60" is not a duration such as 60s`},
		"trace:speed=0":                          {"file is missing", "speed must be above 0"},
		"trace:file=a.csv,prompt=3":              {`trace has no "prompt"`},
		"none:rate=1":                            {`none has no "rate"`},
	} {
		_, err := Parse(text)
		if err == nil {
			t.Errorf("%q was accepted", text)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: the error lacks %q: %v", text, w, err)
			}
		}
	}
}

// arrivals draws those of the first length of time.
func arrivals(t *testing.T, text string, seed uint64, length time.Duration) []Arrival {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Start(seed)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out []Arrival
	for {
		a, err := p.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if a.At >= length {
			return out
		}
		out = append(out, a)
	}
}

func TestConstant(t *testing.T) {
	got := arrivals(t, "constant:rate=4,prompt=7,output=9,max_tokens=5", 1, time.Second)
	want := []Arrival{}
	for _, ms := range []int{250, 500, 750} {
		want = append(want, Arrival{time.Duration(ms) * time.Millisecond, 7, 9, 5})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestNone(t *testing.T) {
	if got := arrivals(t, "none", 1, time.Hour); len(got) != 0 {
		t.Errorf("%d arrivals", len(got))
	}
}

// TestPoisson: the count has the rate's mean, and gaps are as spread as exponential ones.
func TestPoisson(t *testing.T) {
	got := arrivals(t, "poisson:rate=5", 1, 2000*time.Second)
	if n := float64(len(got)); math.Abs(n-10000) > 4*100 {
		t.Errorf("%g arrivals, want 10000 within four standard deviations", n)
	}
	var sum, squares float64
	last := time.Duration(0)
	for _, a := range got {
		gap := (a.At - last).Seconds()
		last = a.At
		sum += gap
		squares += gap * gap
	}
	n := float64(len(got))
	mean := sum / n
	cv := math.Sqrt(squares/n-mean*mean) / mean
	if cv < 0.95 || cv > 1.05 {
		t.Errorf("the gaps' coefficient of variation is %g, want 1", cv)
	}
}

func TestBurst(t *testing.T) {
	got := arrivals(t, "burst:low=1,high=30,period=60s,duty=0.25", 1, 100*time.Minute)
	var high, low float64
	for _, a := range got {
		if a.At%time.Minute < 15*time.Second {
			high++
		} else {
			low++
		}
	}
	if want := 30.0 * 15 * 100; math.Abs(high-want) > 4*math.Sqrt(want) {
		t.Errorf("%g arrivals in the bursts, want about %g", high, want)
	}
	if want := 1.0 * 45 * 100; math.Abs(low-want) > 4*math.Sqrt(want) {
		t.Errorf("%g arrivals between the bursts, want about %g", low, want)
	}
}

func TestBurstWithSilence(t *testing.T) {
	got := arrivals(t, "burst:low=0,high=10,period=10s,duty=0.1", 3, 10*time.Minute)
	if len(got) < 400 {
		t.Fatalf("%d arrivals, want about 600", len(got))
	}
	for _, a := range got {
		if a.At%(10*time.Second) >= time.Second {
			t.Fatalf("an arrival at %v, in the silence", a.At)
		}
	}
}

func TestLognormal(t *testing.T) {
	got := arrivals(t, "constant:rate=100,prompt=lognormal(1000,0.8,3000),output=lognormal(2,3)", 1, 100*time.Second)
	prompts := make([]int, len(got))
	for i, a := range got {
		prompts[i] = a.PromptTokens
		if a.PromptTokens > 3000 || a.OutputTokens < 1 {
			t.Fatalf("%+v: out of range", a)
		}
	}
	sort.Ints(prompts)
	at := func(q float64) int { return prompts[int(q*float64(len(prompts)))] }
	if m := at(0.5); m < 960 || m > 1040 {
		t.Errorf("the median is %d, want about 1000", m)
	}
	if q, want := at(0.1587), 1000*math.Exp(-0.8); math.Abs(float64(q)-want) > 25 {
		t.Errorf("one sigma below the median is %d, want about %.0f", q, want)
	}
}

func TestInTimeOrderAndSeeded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		text := rapid.SampledFrom([]string{
			"constant:rate=7,prompt=lognormal(100,1)", "poisson:rate=7", "burst:low=0.5,high=20,period=3s,duty=0.3",
			"burst:low=0,high=20,period=700ms,duty=1",
		}).Draw(rt, "spec")
		a, b := arrivals(t, text, seed, time.Minute), arrivals(t, text, seed, time.Minute)
		if d := cmp.Diff(a, b); d != "" {
			rt.Fatalf("equal seeds, different arrivals:\n%s", d)
		}
		for i := 1; i < len(a); i++ {
			if a[i].At < a[i-1].At {
				rt.Fatalf("%v after %v", a[i].At, a[i-1].At)
			}
		}
	})
	if a, b := arrivals(t, "poisson:rate=7", 1, time.Minute), arrivals(t, "poisson:rate=7", 2, time.Minute); cmp.Equal(a, b) {
		t.Error("different seeds, equal arrivals")
	}
}

func writeTrace(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTrace(t *testing.T) {
	path := writeTrace(t, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"+
		"2023-11-16 23:59:59.5000000,374,44\r\n2023-11-17 00:00:00.2500000,396,109\r\n2023-11-17 00:00:00.2500000,1,1")
	want := []Arrival{{0, 374, 44, 0}, {75 * time.Millisecond, 396, 109, 0}, {75 * time.Millisecond, 1, 1, 0}}
	if d := cmp.Diff(want, arrivals(t, "trace:speed=10,file="+path, 1, time.Hour)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// Other columns, another order, times with a zone.
	path = writeTrace(t, "GeneratedTokens,Extra,TIMESTAMP,ContextTokens\n44,x,2024-05-10 00:00:00.009930+00:00,374\n45,y,2024-05-10T00:00:01.009930Z,375\n")
	want = []Arrival{{0, 374, 44, 9}, {time.Second, 375, 45, 9}}
	if d := cmp.Diff(want, arrivals(t, "trace:max_tokens=9,file="+path, 1, time.Hour)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTraceErrors(t *testing.T) {
	const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	const good = "2023-11-16 18:15:46,374,44\n"
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty":       {"", []string{"line 1", "empty"}},
		"no header":   {good, []string{"line 1", "no column TIMESTAMP"}},
		"time":        {header + good + "yesterday,1,1\n", []string{"line 3", `TIMESTAMP "yesterday"`}},
		"tokens":      {header + good + good + "2023-11-16 18:15:47,many,1\n", []string{"line 4", `ContextTokens "many"`}},
		"zero tokens": {header + "2023-11-16 18:15:47,1,0\n", []string{"line 2", `GeneratedTokens "0"`}},
		"columns":     {header + good + "2023-11-16 18:15:47,1\n", []string{"line 3"}},
		"order":       {header + good + "2023-11-16 18:15:45,1,1\n", []string{"line 3", "goes back in time"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeTrace(t, tt.text)
			p, err := Spec{Kind: Trace, File: path, Speed: 1}.Start(1)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			for err == nil {
				_, err = p.Next()
			}
			for _, w := range append(tt.want, path) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error lacks %q: %v", w, err)
				}
			}
		})
	}
	if _, err := (Spec{Kind: Trace, File: "does-not-exist.csv", Speed: 1}).Start(1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestAzureTrace reads the published conversation trace where somebody has put it beside the repository.
func TestAzureTrace(t *testing.T) {
	path, err := filepath.Abs("../../../shared/traces/AzureLLMInferenceTrace_conv_2023.csv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("no trace beside the repository")
	}
	got := arrivals(t, "trace:file="+path, 1, 24*time.Hour)
	if len(got) != 19366 {
		t.Errorf("%d arrivals, want 19366", len(got))
	}
	if last := got[len(got)-1]; last.At.Round(time.Minute) != 58*time.Minute || last.PromptTokens != 197 {
		t.Errorf("the last arrival is %+v", last)
	}
}
