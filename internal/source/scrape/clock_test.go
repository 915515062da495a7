package scrape

import (
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// TestClockIsNotSet: samples are a scrape interval apart whatever happens to the wall clock between, and
// the time that Fetch tells goes on as evenly.
func TestClockIsNotSet(t *testing.T) {
	start := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	var elapsed, set time.Duration
	c := clock{
		now:  func() time.Time { return start.Add(elapsed) },
		wall: func() time.Time { return start.Add(elapsed + set) },
	}
	s := &Source{buffer: newBuffer([]string{"x"}, 10*time.Minute, c), down: map[uint64]bool{}, metrics: newMetrics()}
	scrape := func(stamped time.Time) {
		a := s.buffer.AppenderV2(t.Context())
		_, _ = a.Append(0, labels.FromStrings("__name__", "x"), 0, stamped.UnixMilli(), 1, nil, nil, storage.AOptions{})
		_ = a.Commit()
	}
	var want []int64
	for _, step := range []time.Duration{0, 0, time.Hour, 0, -2 * time.Hour, 0, time.Hour + 300*time.Millisecond, 0} {
		elapsed += 5 * time.Second
		before := c.wall()
		set += step
		// Set back, Prometheus's scrape stamps with the time it expected until that comes.
		stamped := c.wall()
		if before.After(stamped) {
			stamped = before
		}
		scrape(stamped)
		want = append(want, c.now().UnixMilli())
	}
	// The markers that end a removed target's series are stamped with the time of the scrape that did not
	// take place: before those of the target that may have taken its place.
	scrape(c.wall().Add(-7 * time.Second))
	want = append(want, c.now().Add(-7*time.Second).UnixMilli())

	var got sink
	now, err := s.Fetch(t.Context(), nil, 0, &got)
	if err != nil {
		t.Fatal(err)
	}
	if !now.Equal(c.now()) {
		t.Errorf("it is %s, want %s", now, c.now())
	}
	for i, x := range got {
		if x.t != want[i] {
			t.Errorf("sample %d is stamped %s, want %s", i, time.UnixMilli(x.t).UTC(), time.UnixMilli(want[i]).UTC())
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d samples, want %d", len(got), len(want))
	}
}

// TestNewClock starts at the wall clock's time, and does not carry it along.
func TestNewClock(t *testing.T) {
	before := time.Now()
	now := newClock().now()
	if now.Before(before.Round(0)) || now.After(time.Now()) {
		t.Errorf("it shows %s at %s", now, before)
	}
}
