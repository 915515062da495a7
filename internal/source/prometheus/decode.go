package prometheus

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	jsoniter "github.com/json-iterator/go"
)

// A point is one sample of a series: Unix milliseconds and a value.
type point struct {
	t int64
	v float64
}

// answer is what a query says besides its series.
type answer struct {
	Status    string
	ErrorType string
	Error     string
	Warnings  []string
	// Partial is VictoriaMetrics' word that some of its storage did not answer.
	Partial bool
}

var (
	errNotJSON = errors.New("the answer is not JSON")
	errSyntax  = errors.New("the answer is malformed or cut off")
)

// decode reads the answer of an instant query for a range selector and calls series for each of
// its series, in order, as they arrive: an answer about ten thousand replicas is hundreds of
// megabytes of text, and only one series of it is held at a time. metric is the raw JSON of the
// label set, so that the caller can recognise a known series by its bytes; points are only valid
// until series returns.
//
// What series has been told stands when decode fails later.
func decode(r io.Reader, series func(metric []byte, points []point) error) (answer, error) {
	d := &decoder{series: series}
	d.member, d.point = d.seriesMember, d.onePoint
	body := &errReader{r: r}
	it := jsoniter.Parse(jsoniter.ConfigDefault, body, 64<<10)
	if it.WhatIsNext() == jsoniter.ObjectValue {
		it.ReadObjectCB(d.field)
	} else {
		d.err = errNotJSON
	}
	switch {
	case body.err != nil: // the connection's fault, whatever the text looks like where it ends
		return d.ans, body.err
	case d.err != nil:
		return d.ans, d.err
	case it.Error != nil:
		return d.ans, fmt.Errorf("%w: %w", errSyntax, it.Error)
	case d.ans.Status == "success" && !d.complete:
		return d.ans, errors.New("the answer holds no series list")
	}
	return d.ans, nil
}

// errReader remembers why reading failed, which the iterator folds into what it says of the text.
type errReader struct {
	r   io.Reader
	err error
}

func (e *errReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		e.err = err
	}
	return n, err
}

type decoder struct {
	series func(metric []byte, points []point) error
	ans    answer
	// metric and points are the series that is being read.
	metric []byte
	points []point
	// member and point are methods, bound once and not for every series.
	member func(*jsoniter.Iterator, string) bool
	point  func(*jsoniter.Iterator) bool
	// complete is set when the list of series has been read.
	complete bool
	err      error // of the callback
}

// fail ends the iteration.
func (d *decoder) fail(err error) bool {
	d.err = err
	return false
}

func (d *decoder) field(it *jsoniter.Iterator, key string) bool {
	switch key {
	case "status":
		d.ans.Status = it.ReadString()
	case "errorType":
		d.ans.ErrorType = it.ReadString()
	case "error":
		d.ans.Error = it.ReadString()
	case "warnings":
		it.ReadVal(&d.ans.Warnings)
	case "isPartial":
		it.ReadVal(&d.ans.Partial)
	case "data":
		if it.WhatIsNext() == jsoniter.ObjectValue {
			return it.ReadObjectCB(d.data)
		}
		it.Skip() // null, beside an error
	default:
		it.Skip()
	}
	return it.Error == nil
}

func (d *decoder) data(it *jsoniter.Iterator, key string) bool {
	switch key {
	case "resultType":
		if kind := it.ReadString(); it.Error == nil && kind != "matrix" {
			return d.fail(fmt.Errorf("the answer is a %.20q, not a matrix", kind))
		}
	case "result":
		d.complete = it.ReadArrayCB(d.oneSeries)
	default:
		it.Skip()
	}
	return it.Error == nil && d.err == nil
}

func (d *decoder) oneSeries(it *jsoniter.Iterator) bool {
	d.metric, d.points = nil, d.points[:0]
	it.ReadObjectCB(d.member)
	if it.Error != nil || d.err != nil {
		return false
	}
	if err := d.series(d.metric, d.points); err != nil {
		return d.fail(err)
	}
	return true
}

func (d *decoder) seriesMember(it *jsoniter.Iterator, key string) bool {
	switch key {
	case "metric":
		d.metric = it.SkipAndReturnBytes()
	case "values":
		return it.ReadArrayCB(d.point)
	default: // native histograms
		it.Skip()
	}
	return it.Error == nil
}

func (d *decoder) onePoint(it *jsoniter.Iterator) bool {
	if !it.ReadArray() {
		return d.fail(errSyntax)
	}
	seconds := it.ReadFloat64()
	if !it.ReadArray() {
		return d.fail(errSyntax)
	}
	text := it.ReadStringAsSlice()
	v, err := strconv.ParseFloat(string(text), 64)
	switch {
	case it.Error != nil:
		return false
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return d.fail(fmt.Errorf("%.40q is not a value", text))
	case it.ReadArray():
		return d.fail(errSyntax)
	}
	if math.Abs(seconds) > math.MaxInt64/1e4 {
		return d.fail(fmt.Errorf("%g is not a time", seconds))
	}
	d.points = append(d.points, point{t: int64(math.Round(seconds * 1000)), v: v})
	return true
}
