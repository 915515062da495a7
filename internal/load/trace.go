package load

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// traceColumns are the columns a trace must have; it may have more.
var traceColumns = [3]string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// traceLayouts are the forms of time stamps seen: the trace of 2024 has a zone, that of 2023 has none.
var traceLayouts = []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05-07:00", time.RFC3339}

// traceReader reads a trace row by row: traces may be larger than memory.
type traceReader struct {
	csv     *csv.Reader
	columns [3]int
	started bool
	first   time.Time
	last    time.Time
}

func newTraceReader(r io.Reader) *traceReader {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	return &traceReader{csv: c}
}

// next returns the next row, with its time counted from that of the first.
func (t *traceReader) next() (Arrival, error) {
	if !t.started {
		if err := t.header(); err != nil {
			return Arrival{}, err
		}
		t.started = true
	}
	row, err := t.csv.Read()
	if err != nil {
		return Arrival{}, err // io.EOF, or one that names the line
	}
	a, err := t.row(row)
	if err != nil {
		line, _ := t.csv.FieldPos(0)
		return Arrival{}, fmt.Errorf("line %d: %w", line, err)
	}
	return a, nil
}

func (t *traceReader) header() error {
	row, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return errors.New("line 1: the file is empty; want a header")
	}
	if err != nil {
		return err
	}
	for i, want := range traceColumns {
		t.columns[i] = -1
		for j, have := range row {
			if have == want {
				t.columns[i] = j
			}
		}
		if t.columns[i] < 0 {
			return fmt.Errorf("line 1: no column %s among %q", want, row)
		}
	}
	return nil
}

func (t *traceReader) row(row []string) (Arrival, error) {
	at, err := parseTime(row[t.columns[0]])
	if err != nil {
		return Arrival{}, err
	}
	if t.first.IsZero() {
		t.first, t.last = at, at
	}
	if at.Before(t.last) {
		return Arrival{}, fmt.Errorf("%s goes back in time: sort the trace by %s", row[t.columns[0]], traceColumns[0])
	}
	t.last = at
	a := Arrival{At: at.Sub(t.first)}
	for i, into := range []*int{&a.PromptTokens, &a.OutputTokens} {
		text := row[t.columns[i+1]]
		if *into, err = strconv.Atoi(text); err != nil || *into < 1 {
			return Arrival{}, fmt.Errorf("%s %q is not a number of tokens of at least 1", traceColumns[i+1], text)
		}
	}
	return a, nil
}

func parseTime(text string) (time.Time, error) {
	for _, layout := range traceLayouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s %q is not a time such as 2023-11-16 18:15:46.6805900", traceColumns[0], text)
}
