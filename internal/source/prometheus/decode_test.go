package prometheus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type decoded struct {
	Metric map[string]string
	Points []point
}

func decodeAll(r io.Reader) ([]decoded, answer, error) {
	var all []decoded
	ans, err := decode(r, func(metric []byte, points []point) error {
		var m map[string]string
		if err := json.Unmarshal(metric, &m); err != nil {
			return fmt.Errorf("%w: %w", errSyntax, err)
		}
		all = append(all, decoded{m, append([]point(nil), points...)})
		return nil
	})
	return all, ans, err
}

var comparePoints = cmp.Options{cmp.AllowUnexported(point{}), cmpopts.EquateNaNs()}

func TestDecode(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []decoded
		answer     answer
		err        string
	}{
		{
			name: "as Prometheus writes it",
			text: `{"status":"success","data":{"resultType":"matrix","result":[
				{"metric":{"__name__":"a","le":"+Inf"},"values":[[1764590400.125,"1"],[1764590401,"1.5"],[1764590402.1,"NaN"]]},
				{"metric":{"__name__":"b"},"values":[[1764590400.05,"+Inf"],[1764590400.5,"-Inf"],[1764590401.007,"1e-300"]]}]}}`,
			want: []decoded{
				{map[string]string{"__name__": "a", "le": "+Inf"}, []point{{1764590400125, 1}, {1764590401000, 1.5}, {1764590402100, math.NaN()}}},
				{map[string]string{"__name__": "b"}, []point{{1764590400050, math.Inf(1)}, {1764590400500, math.Inf(-1)}, {1764590401007, 1e-300}}},
			},
			answer: answer{Status: "success"},
		},
		{
			name:   "nothing matches",
			text:   `{"status":"success","data":{"resultType":"matrix","result":[]}}`,
			answer: answer{Status: "success"},
		},
		{
			name: "other order, unknown members, odd times",
			text: `{"infos":[],"data":{"result":[{"values":[[1.7645904e9,"-0"],[-1,"12345678901234567890"],[1764590400.1256,"3"]],
				"histograms":[[1,{"count":"3"}]],"metric":{"q":"\"}],[{ \u2028"}}],"stats":{"a":[1,{"b":null}]},"resultType":"matrix"},
				"isPartial":true,"warnings":["w1","w\"2"],"status":"success"}`,
			want: []decoded{
				{map[string]string{"q": "\"}],[{ \u2028"}, []point{{1764590400000, math.Copysign(0, -1)}, {-1000, 12345678901234567890}, {1764590400126, 3}}},
			},
			answer: answer{Status: "success", Warnings: []string{"w1", `w"2`}, Partial: true},
		},
		{
			name:   "an error",
			text:   `{"status":"error","errorType":"bad_data","error":"1:2: parse \"error\"","data":null}`,
			answer: answer{Status: "error", ErrorType: "bad_data", Error: `1:2: parse "error"`},
		},
		{name: "not a matrix", text: `{"status":"success","data":{"resultType":"vector","result":[]}}`, answer: answer{Status: "success"}, err: `"vector", not a matrix`},
		{name: "no series list", text: `{"status":"success","data":{}}`, answer: answer{Status: "success"}, err: "no series list"},
		{name: "a page", text: `<html>`, err: errNotJSON.Error()},
		{name: "a list", text: `[]`, err: errNotJSON.Error()},
		{name: "nothing", text: ``, err: errNotJSON.Error()},
		{name: "a value that is a number", text: `{"data":{"result":[{"metric":{},"values":[[1,2]]}]}}`, err: "malformed"},
		{name: "a time that is a string", text: `{"data":{"result":[{"metric":{},"values":[["1","2"]]}]}}`, err: "malformed"},
		{name: "half a sample", text: `{"data":{"result":[{"metric":{},"values":[[1]]}]}}`, err: "malformed"},
		{name: "a sample and a half", text: `{"data":{"result":[{"metric":{},"values":[[1,"2",3]]}]}}`, err: "malformed"},
		{name: "a value that is a word", text: `{"data":{"result":[{"metric":{},"values":[[1,"two"]]}]}}`, err: `"two" is not a value`},
		{name: "a time beyond time", text: `{"data":{"result":[{"metric":{},"values":[[1e300,"2"]]}]}}`, err: "is not a time"},
		{name: "labels that are a list", text: `{"data":{"result":[{"metric":[],"values":[]}]}}`, err: "malformed"},
		{name: "a label set without end", text: `{"data":{"result":[{"metric":{"a":"` + strings.Repeat("x", 1<<20), err: "malformed"},
		{
			name: "cut off",
			text: `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1,"2"]]},{"metric":{"a":"c"},"val`,
			// What came before stands.
			want:   []decoded{{map[string]string{"a": "b"}, []point{{1000, 2}}}},
			answer: answer{Status: "success"},
			err:    "cut off",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, r := range map[string]io.Reader{
				"at once":      strings.NewReader(c.text),
				"byte by byte": iotest.OneByteReader(strings.NewReader(c.text)),
			} {
				got, ans, err := decodeAll(r)
				if diff := cmp.Diff(c.want, got, comparePoints); diff != "" {
					t.Errorf("%s: series (-want +got):\n%s", name, diff)
				}
				if diff := cmp.Diff(c.answer, ans); diff != "" {
					t.Errorf("%s: answer (-want +got):\n%s", name, diff)
				}
				if text := fmt.Sprint(err); (err == nil) != (c.err == "") || !strings.Contains(text, c.err) {
					t.Errorf("%s: error %v, want %q", name, err, c.err)
				}
			}
		})
	}
}

// TestDecodeReadError: wherever reading fails, that is the error, and not what the text looks like.
func TestDecodeReadError(t *testing.T) {
	text := `{"status":"success","warnings":["w"],"data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[[1764590400.125,"1"],[2,"NaN"]]}]}}`
	broken := errors.New("broken")
	for n := range len(text) {
		_, _, err := decodeAll(io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) {
			t.Errorf("after %s: %v", text[:n], err)
		}
	}
}

// FuzzDecode compares the decoder with encoding/json: whatever that reads as an answer, the decoder
// reads alike. The decoder is laxer about what it passes over, never about what it delivers.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"a"},"values":[[1764590400.125,"1"],[1764590401,"NaN"]]}]}}`,
		`{"data":{"result":[{"values":[[1e3,"-1.5e-7"]],"metric":{"a\\":"\"}\u00e9"}}],"resultType":"matrix"},"warnings":["x"],"status":"success"}`,
		`{"status":"error","error":"no"}`,
		`{"status":"success","data":{"resultType":"matrix","result":[]},"extra":[[{"a":"]"}],1.5,true,null]}`,
	} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, chunk uint8) {
		got, ans, err := decodeAll(&chunks{text, max(1, int(chunk))})

		var want struct {
			Status string
			Data   struct {
				ResultType string
				Result     []struct {
					Metric map[string]string
					Values [][2]any
				}
			}
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err != nil || d.Decode(&want) != nil || ans.Status != "success" {
			return // it does not crash, and what it refuses nobody uses
		}
		// encoding/json merges repeated members and folds their case; servers do neither.
		if len(got) != len(want.Data.Result) || bytes.Count(text, []byte(`"values"`)) != len(got) || bytes.Count(text, []byte(`"metric"`)) != len(got) {
			return
		}
		for i, series := range want.Data.Result {
			if len(series.Values) != len(got[i].Points) {
				t.Fatalf("series %d: %d samples, want %d", i, len(got[i].Points), len(series.Values))
			}
			for k, v := range series.Metric {
				if got[i].Metric[k] != v {
					t.Errorf("series %d: label %q is %q, want %q", i, k, got[i].Metric[k], v)
				}
			}
			for j, pair := range series.Values {
				at, ok1 := pair[0].(json.Number)
				text, ok2 := pair[1].(string)
				if !ok1 || !ok2 {
					t.Fatalf("series %d: sample %v was taken", i, pair)
				}
				seconds, _ := at.Float64()
				if got := got[i].Points[j].t; math.Abs(float64(got)-seconds*1000) > 1+math.Abs(seconds)*1e-12 {
					t.Errorf("%s became %d ms", at, got)
				}
				v, err := strconv.ParseFloat(text, 64)
				if err != nil && !errors.Is(err, strconv.ErrRange) {
					t.Errorf("%q was taken for a value", text)
				} else if got := got[i].Points[j].v; got != v && !(math.IsNaN(got) && math.IsNaN(v)) {
					t.Errorf("%q became %v", text, got)
				}
			}
		}
	})
}

type chunks struct {
	text []byte
	size int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.text[:min(c.size, len(c.text))])
	c.text = c.text[n:]
	return n, nil
}
