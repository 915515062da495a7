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
	"unicode/utf8"
	"unsafe"
)

// maxValue bounds one JSON value that has to be held as a whole: a label set, a warning. What is
// longer is not an answer of a Prometheus.
const maxValue = 1 << 20

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

// decode reads the answer of an instant query for a range selector and calls series for each of
// its series, in order, as they arrive: an answer about ten thousand replicas is hundreds of
// megabytes of text, and only one series of it is held at a time. metric is the raw JSON of the
// label set, so that the caller can recognise a known series by its bytes; metric and points are
// only valid until series returns.
//
// What series has been told stands when decode fails later.
func decode(r io.Reader, series func(metric []byte, points []point) error) (answer, error) {
	d := decoder{scanner: scanner{r: r, buf: make([]byte, 0, 64<<10)}, series: series}
	d.answer()
	return d.ans, d.err
}

type decoder struct {
	scanner
	series func(metric []byte, points []point) error
	ans    answer
	metric []byte
	points []point
	// complete is set when the list of series has been read.
	complete bool
}

func (d *decoder) answer() {
	if d.peek() != '{' {
		d.fail(errNotJSON)
	}
	for it := d.begin('{'); it.next(); {
		switch string(d.key()) {
		case "status":
			d.unmarshal(&d.ans.Status)
		case "errorType":
			d.unmarshal(&d.ans.ErrorType)
		case "error":
			d.unmarshal(&d.ans.Error)
		case "data":
			d.data()
		case "warnings":
			d.unmarshal(&d.ans.Warnings)
		case "isPartial":
			d.unmarshal(&d.ans.Partial)
		default:
			d.skip()
		}
	}
	if d.ans.Status == "success" && !d.complete {
		d.fail(errors.New("the answer holds no series list"))
	}
}
func (d *decoder) data() {
	if d.peek() != '{' { // null, beside an error
		d.skip()
		return
	}
	for it := d.begin('{'); it.next(); {
		switch string(d.key()) {
		case "resultType":
			var kind string
			if d.unmarshal(&kind); kind != "matrix" {
				d.fail(fmt.Errorf("the answer is a %.20q, not a matrix", kind))
			}
		case "result":
			for it := d.begin('['); it.next(); {
				d.oneSeries()
			}
			d.complete = d.err == nil
		default:
			d.skip()
		}
	}
}

func (d *decoder) oneSeries() {
	d.metric, d.points = d.metric[:0], d.points[:0]
	for it := d.begin('{'); it.next(); {
		switch string(d.key()) {
		case "metric":
			// Copied: reading the points moves the buffer.
			d.metric = append(d.metric, d.raw()...)
		case "values":
			for it := d.begin('['); it.next(); {
				d.onePoint()
			}
		default: // native histograms
			d.skip()
		}
	}
	if d.err == nil {
		d.fail(d.series(d.metric, d.points))
	}
}

func (d *decoder) onePoint() {
	var p point
	var err error
	d.expect('[')
	if raw := d.number(); d.err == nil {
		p.t, err = parseTime(raw)
		d.fail(err)
	}
	d.expect(',')
	if raw := d.str(); d.err == nil {
		p.v, err = parseFloat(raw)
		d.fail(err)
	}
	if d.expect(']'); d.err == nil {
		d.points = append(d.points, p)
	}
}

// parseTime turns seconds with a fraction into milliseconds, without a detour through a float for
// the form that every server uses: 1764590400.125.
func parseTime(b []byte) (int64, error) {
	var ms int64
	digits, frac := 0, -1
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9' && digits < 15 && frac < 3:
			ms = ms*10 + int64(c-'0')
			digits++
			if frac >= 0 {
				frac++
			}
		case c == '.' && frac < 0:
			frac = 0
		default:
			return parseOddTime(b)
		}
	}
	for ; frac < 3; frac++ {
		if frac < 0 {
			frac = 0
		}
		ms *= 10
	}
	return ms, nil
}

func parseOddTime(b []byte) (int64, error) {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || math.Abs(f) > math.MaxInt64/1e4 {
		return 0, fmt.Errorf("%.40q is not a time", b)
	}
	return int64(math.Round(f * 1000)), nil
}

// parseFloat is strconv.ParseFloat with a short way for small whole numbers, which most samples of
// counters and buckets are.
func parseFloat(b []byte) (float64, error) {
	if n := len(b); n > 0 && n < 16 {
		var v int64
		for i, c := range b {
			if c < '0' || c > '9' {
				break
			}
			v = v*10 + int64(c-'0')
			if i == n-1 {
				return float64(v), nil
			}
		}
	}
	v, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(b), len(b)), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%.40q is not a value", b)
	}
	return v, nil
}

var (
	errNotJSON = errors.New("the answer is not JSON")
	errSyntax  = errors.New("the answer is malformed JSON")
)

// scanner walks over JSON text with a buffer that only grows for a single long value. After an
// error, err, its methods do nothing. A slice that it returns is valid until the next call.
type scanner struct {
	r       io.Reader
	buf     []byte // read and not yet passed over: buf[pos:]
	pos     int
	err     error
	readErr error // comes up when buf is used up
	lastKey []byte
}

// fail stops the scanner, unless err is nil.
func (s *scanner) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// more reads on, keeping buf[keep:], and returns how far what was kept moved towards the front.
func (s *scanner) more(keep int) (moved int, ok bool) {
	switch {
	case s.err != nil:
		return 0, false
	case s.readErr != nil:
		s.fail(s.readErr)
		return 0, false
	case len(s.buf)-keep > maxValue:
		s.fail(fmt.Errorf("%w: one value is longer than %d bytes", errSyntax, maxValue))
		return 0, false
	}
	if keep > 0 {
		n := copy(s.buf, s.buf[keep:])
		s.buf, s.pos, moved = s.buf[:n], s.pos-keep, keep
	}
	if len(s.buf) == cap(s.buf) {
		s.buf = append(make([]byte, 0, 2*cap(s.buf)), s.buf...)
	}
	for {
		n, err := s.r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		s.readErr = err
		if n > 0 {
			return moved, true
		}
		if err != nil {
			s.fail(err)
			return moved, false
		}
	}
}

// peek passes over white space and returns the byte that follows without passing over it, or 0.
func (s *scanner) peek() byte {
	for s.err == nil {
		for ; s.pos < len(s.buf); s.pos++ {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\n', '\r':
			default:
				return c
			}
		}
		s.more(s.pos)
	}
	return 0
}

func (s *scanner) expect(want byte) {
	if s.peek() == want {
		s.pos++
		return
	}
	s.fail(errSyntax)
}

// A list goes through the elements of an array or the members of an object.
type list struct {
	s     *scanner
	end   byte
	begun bool
}

// begin passes over the bracket that opens a list.
func (s *scanner) begin(open byte) list {
	s.expect(open)
	return list{s: s, end: open + 2} // as the brackets are in ASCII
}

// next goes to the next item, which the caller has to pass over, or past the end.
func (l *list) next() bool {
	if l.s.peek() == l.end {
		l.s.pos++
		return false
	}
	if l.begun {
		l.s.expect(',')
	}
	l.begun = true
	return l.s.err == nil
}

// key passes over a member's key and the colon after it.
func (s *scanner) key() []byte {
	s.lastKey = append(s.lastKey[:0], s.str()...)
	s.expect(':')
	return s.lastKey
}

// str passes over a string and returns what is between its quotes, as it is written.
func (s *scanner) str() []byte {
	s.expect('"')
	start := s.pos
	if !s.endOfString(&start) {
		return nil
	}
	return s.buf[start : s.pos-1]
}

// endOfString passes over the rest of a string, closing quote included, keeping everything from
// *start.
func (s *scanner) endOfString(start *int) bool {
	for s.err == nil {
	scan:
		for s.pos < len(s.buf) {
			switch s.buf[s.pos] {
			case '"':
				s.pos++
				return true
			case '\\':
				if s.pos+1 == len(s.buf) {
					break scan
				}
				s.pos += 2
			default:
				s.pos++
			}
		}
		moved, _ := s.more(*start)
		*start -= moved
	}
	return false
}

// number passes over a number and returns it as it is written.
func (s *scanner) number() []byte {
	s.peek()
	for start := s.pos; s.err == nil; {
		for ; s.pos < len(s.buf); s.pos++ {
			switch c := s.buf[s.pos]; {
			case c >= '0' && c <= '9', c == '.', c == '-', c == '+', c == 'e', c == 'E':
			case s.pos == start:
				s.fail(errSyntax)
				return nil
			default:
				return s.buf[start:s.pos]
			}
		}
		moved, _ := s.more(start)
		start -= moved
	}
	return nil
}

// raw passes over a value of any kind and returns it as it is written.
func (s *scanner) raw() []byte {
	s.peek()
	start := s.pos
	if !s.value(&start) {
		return nil
	}
	return s.buf[start:s.pos]
}

// skip passes over a value of any kind and size.
func (s *scanner) skip() {
	s.peek()
	s.value(nil)
}

// value passes over the value that begins at pos, keeping everything from *start unless start is
// nil. It counts brackets and does not check what is between them: what is used is parsed later.
func (s *scanner) value(start *int) bool {
	for depth, begun := 0, false; s.err == nil; begun = true {
		for s.pos == len(s.buf) {
			keep := s.pos
			if start != nil {
				keep = *start
			}
			moved, ok := s.more(keep)
			if start != nil {
				*start -= moved
			}
			if !ok {
				return false
			}
		}
		switch c := s.buf[s.pos]; {
		case depth == 0 && begun && strings.IndexByte("\"]},: \t\r\n", c) >= 0: // after a number or a word
			return true
		case c == '"':
			s.pos++
			from := s.pos
			if start != nil {
				from = *start
			}
			if !s.endOfString(&from) {
				return false
			}
			if start != nil {
				*start = from
			}
			if depth == 0 {
				return true
			}
			continue
		case c == '{', c == '[':
			depth++
		case c == '}', c == ']':
			if depth--; depth == 0 {
				s.pos++
				return true
			}
		}
		if s.pos++; depth < 0 {
			s.fail(errSyntax)
		}
	}
	return false
}

func (s *scanner) unmarshal(into any) {
	if raw := s.raw(); s.err == nil {
		if err := json.Unmarshal(raw, into); err != nil {
			s.fail(fmt.Errorf("%w: %w", errSyntax, err))
		}
	}
}

// isText says whether b could be a page meant for people, as a login page is.
func isText(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 0 && b[0] == '<' && utf8.Valid(b)
}
