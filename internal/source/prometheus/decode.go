package prometheus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
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
	if err := d.answer(); err != nil {
		return d.ans, err
	}
	return d.ans, nil
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

func (d *decoder) answer() error {
	c, err := d.peek()
	if err != nil {
		return err
	}
	if c != '{' {
		return errNotJSON
	}
	err = d.object(func(key []byte) error {
		switch string(key) {
		case "status":
			return d.text(&d.ans.Status)
		case "errorType":
			return d.text(&d.ans.ErrorType)
		case "error":
			return d.text(&d.ans.Error)
		case "data":
			return d.data()
		case "warnings":
			raw, err := d.raw()
			if err != nil {
				return err
			}
			return json.Unmarshal(raw, &d.ans.Warnings)
		case "isPartial":
			raw, err := d.raw()
			d.ans.Partial = string(raw) == "true"
			return err
		default:
			return d.skip()
		}
	})
	if err != nil {
		return err
	}
	if d.ans.Status == "success" && !d.complete {
		return errors.New("the answer holds no series list")
	}
	return nil
}

func (d *decoder) data() error {
	c, err := d.peek()
	if err != nil {
		return err
	}
	if c != '{' { // null, beside an error
		return d.skip()
	}
	return d.object(func(key []byte) error {
		switch string(key) {
		case "resultType":
			var kind string
			if err := d.text(&kind); err != nil {
				return err
			}
			if kind != "matrix" {
				return fmt.Errorf("the answer is a %.20q, not a matrix", kind)
			}
			return nil
		case "result":
			if err := d.array(d.oneSeries); err != nil {
				return err
			}
			d.complete = true
			return nil
		default:
			return d.skip()
		}
	})
}

func (d *decoder) oneSeries() error {
	d.metric, d.points = d.metric[:0], d.points[:0]
	err := d.object(func(key []byte) error {
		switch string(key) {
		case "metric":
			raw, err := d.raw()
			// The points are read next and move the buffer.
			d.metric = append(d.metric, raw...)
			return err
		case "values":
			return d.array(d.onePoint)
		default: // native histograms
			return d.skip()
		}
	})
	if err != nil {
		return err
	}
	return d.series(d.metric, d.points)
}

func (d *decoder) onePoint() error {
	var (
		p point
		i int
	)
	err := d.array(func() error {
		var err error
		switch i {
		case 0:
			var raw []byte
			if raw, err = d.number(); err == nil {
				p.t, err = parseTime(raw)
			}
		case 1:
			var raw []byte
			if raw, err = d.str(); err == nil {
				p.v, err = parseFloat(raw)
			}
		default:
			err = errSyntax
		}
		i++
		return err
	})
	if err != nil {
		return err
	}
	if i != 2 {
		return errSyntax
	}
	d.points = append(d.points, p)
	return nil
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

// scanner walks over JSON text with a buffer that only grows for a single long value.
type scanner struct {
	r   io.Reader
	buf []byte // read and not yet passed over: buf[pos:]
	pos int
	err error
	key []byte
}

// more reads on, keeping buf[keep:], and returns how far what was kept moved towards the front.
func (s *scanner) more(keep int) (moved int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	if len(s.buf)-keep > maxValue {
		return 0, fmt.Errorf("%w: one value is longer than %d bytes", errSyntax, maxValue)
	}
	if keep > 0 {
		n := copy(s.buf, s.buf[keep:])
		s.buf, moved = s.buf[:n], keep
		s.pos -= moved
	}
	if len(s.buf) == cap(s.buf) {
		s.buf = append(make([]byte, 0, 2*cap(s.buf)), s.buf...)
	}
	for {
		n, err := s.r.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			s.err = err
		}
		if n > 0 {
			return moved, nil
		}
		if s.err != nil {
			return moved, s.err
		}
	}
}

// peek passes over white space and returns the byte that follows, without passing over it.
func (s *scanner) peek() (byte, error) {
	for {
		for ; s.pos < len(s.buf); s.pos++ {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\n', '\r':
			default:
				return c, nil
			}
		}
		if _, err := s.more(s.pos); err != nil {
			return 0, err
		}
	}
}

func (s *scanner) expect(want byte) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != want {
		return errSyntax
	}
	s.pos++
	return nil
}

// object calls member for each member of the object that follows; member must pass over the
// member's value. The key is only valid until it does.
func (s *scanner) object(member func(key []byte) error) error {
	return s.list('{', '}', func() error {
		key, err := s.str()
		if err != nil {
			return err
		}
		// Passing over the colon may move the buffer.
		s.key = append(s.key[:0], key...)
		if err := s.expect(':'); err != nil {
			return err
		}
		return member(s.key)
	})
}

// array calls element for each element of the array that follows; element must pass over it.
func (s *scanner) array(element func() error) error { return s.list('[', ']', element) }

func (s *scanner) list(begin, end byte, item func() error) error {
	if err := s.expect(begin); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, err := s.peek()
		if err != nil {
			return err
		}
		if c == end {
			s.pos++
			return nil
		}
		if !first {
			if err := s.expect(','); err != nil {
				return err
			}
		}
		if err := item(); err != nil {
			return err
		}
	}
}

// str passes over a string and returns what is between its quotes, as it is written.
func (s *scanner) str() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	start := s.pos
	if err := s.endOfString(&start); err != nil {
		return nil, err
	}
	return s.buf[start : s.pos-1], nil
}

// endOfString passes over the rest of a string, closing quote included, keeping everything from
// start.
func (s *scanner) endOfString(start *int) error {
	for {
	scan:
		for s.pos < len(s.buf) {
			switch s.buf[s.pos] {
			case '"':
				s.pos++
				return nil
			case '\\':
				if s.pos+1 == len(s.buf) {
					break scan
				}
				s.pos += 2
			default:
				s.pos++
			}
		}
		moved, err := s.more(*start)
		if err != nil {
			return err
		}
		*start -= moved
	}
}

// number passes over a number and returns it as it is written.
func (s *scanner) number() ([]byte, error) {
	if _, err := s.peek(); err != nil {
		return nil, err
	}
	start := s.pos
	for {
		for ; s.pos < len(s.buf); s.pos++ {
			switch c := s.buf[s.pos]; {
			case c >= '0' && c <= '9', c == '.', c == '-', c == '+', c == 'e', c == 'E':
			case s.pos == start:
				return nil, errSyntax
			default:
				return s.buf[start:s.pos], nil
			}
		}
		moved, err := s.more(start)
		if err != nil {
			return nil, err
		}
		start -= moved
	}
}

// raw passes over a value of any kind and returns it as it is written.
func (s *scanner) raw() ([]byte, error) {
	if _, err := s.peek(); err != nil {
		return nil, err
	}
	start := s.pos
	if err := s.value(&start); err != nil {
		return nil, err
	}
	return s.buf[start:s.pos], nil
}

// skip passes over a value of any kind and size.
func (s *scanner) skip() error {
	if _, err := s.peek(); err != nil {
		return err
	}
	return s.value(nil)
}

// value passes over a value that begins at pos, keeping everything from *start if start is not nil.
// It counts brackets and does not check what is between them: what is used is parsed afterwards.
func (s *scanner) value(start *int) error {
	for depth, begun := 0, false; ; {
		if s.pos >= len(s.buf) {
			keep := s.pos
			if start != nil {
				keep = *start
			}
			moved, err := s.more(keep)
			if err != nil {
				return err
			}
			if start != nil {
				*start -= moved
			}
			continue
		}
		switch c := s.buf[s.pos]; c {
		case '"':
			if begun && depth == 0 {
				return nil
			}
			s.pos++
			from := s.pos
			if start == nil {
				start = &from // one string is held: bounded by maxValue
			}
			if err := s.endOfString(start); err != nil {
				return err
			}
			if start == &from {
				start = nil
			}
			if depth == 0 {
				return nil
			}
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			if depth == 0 {
				if !begun {
					return errSyntax
				}
				return nil
			}
			depth--
			s.pos++
			if depth == 0 {
				return nil
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				if !begun {
					return errSyntax
				}
				return nil
			}
			s.pos++
		default:
			s.pos++
		}
		begun = true
	}
}

func (s *scanner) text(into *string) error {
	raw, err := s.raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// isText says whether b could be a page meant for people, as a login page is.
func isText(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 0 && b[0] == '<' && utf8.Valid(b)
}
