package window

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"pgregory.net/rapid"
)

var stale = math.Float64frombits(value.StaleNaN)

// byPod groups by the label pod, and keeps series out that have none.
func byPod(ls labels.Labels) (string, bool) {
	pod := ls.Get("pod")
	return pod, pod != ""
}

func series(name, pod string) labels.Labels {
	return labels.FromStrings("__name__", name, "pod", pod)
}

func names(series []*Series) []string {
	out := []string{}
	for _, s := range series {
		out = append(out, s.Labels.Get("__name__"))
	}
	return out
}

func TestAppend(t *testing.T) {
	type heard struct {
		t int64
		v float64
	}
	tests := []struct {
		name  string
		heard []heard
		want  []Sample
		state state
	}{
		{"in order", []heard{{1, 10}, {2, 20}}, []Sample{{1, 10}, {2, 20}}, sampled},
		{"an overlapping fetch", []heard{{1, 10}, {2, 20}, {1, 10}, {2, 20}, {3, 30}}, []Sample{{1, 10}, {2, 20}, {3, 30}}, sampled},
		{"another value at the same time", []heard{{1, 10}, {1, 11}}, []Sample{{1, 10}}, sampled},
		{"a zero is a sample", []heard{{1, 0}}, []Sample{{1, 0}}, sampled},
		{"ended", []heard{{1, 10}, {2, stale}}, []Sample{{1, 10}}, ended},
		{"ended, and fetched again", []heard{{1, 10}, {2, stale}, {1, 10}, {2, 20}}, []Sample{{1, 10}}, ended},
		{"back after its end", []heard{{1, 10}, {2, stale}, {3, 30}}, []Sample{{1, 10}, {3, 30}}, sampled},
		{"a marker that came too late", []heard{{1, 10}, {2, 20}, {2, stale}}, []Sample{{1, 10}, {2, 20}}, sampled},
		{"NaN is no sample", []heard{{1, 10}, {2, math.NaN()}, {3, 20}}, []Sample{{1, 10}, {3, 20}}, sampled},
		{"NaN is the newest", []heard{{1, 10}, {2, math.NaN()}, {1, 10}}, []Sample{{1, 10}}, garbled},
		{"NaN after the end", []heard{{1, 10}, {2, stale}, {3, math.NaN()}}, []Sample{{1, 10}}, garbled},
		{"NaN, and the end", []heard{{1, 10}, {2, math.NaN()}, {3, stale}}, []Sample{{1, 10}}, ended},
		{"NaN from the beginning", []heard{{1, math.NaN()}}, []Sample{}, garbled},
		{"infinities are no samples", []heard{{1, math.Inf(-1)}, {2, 20}, {3, math.Inf(1)}}, []Sample{{2, 20}}, garbled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := New(time.Minute, byPod)
			for _, h := range test.heard {
				s.Append(series("m", "a"), h.t, h.v)
			}
			got := s.Group("a")
			if len(got) != 1 {
				t.Fatalf("%d series, want 1", len(got))
			}
			if diff := cmp.Diff(test.want, append([]Sample{}, got[0].Samples()...)); diff != "" {
				t.Errorf("samples (-want +got):\n%s", diff)
			}
			_, isGarbled := got[0].Garbled()
			if got[0].Ended() != (test.state == ended) || isGarbled != (test.state == garbled) {
				t.Errorf("ended %v and garbled %v, want the state %d", got[0].Ended(), isGarbled, test.state)
			}
		})
	}
}

func TestNothingIsKeptOfAnUnknownSeries(t *testing.T) {
	s := New(time.Minute, byPod)
	s.Append(series("m", "a"), 1, stale)
	if got := s.Group("a"); len(got) != 0 {
		t.Errorf("kept %v", names(got))
	}
}

func TestHold(t *testing.T) {
	s := New(10*time.Millisecond, byPod)
	s.Append(series("silent", "a"), 1, 1)
	for ts := int64(1); ts <= 100; ts++ {
		s.Append(series("goes on", "a"), ts, 1)
		s.Hold(ts)
	}
	got := s.Group("a")
	if len(got) != 2 {
		t.Fatalf("%d series, want both", len(got))
	}
	for _, one := range got {
		if n := len(one.Samples()); n > 11 {
			t.Errorf("%v has %d samples, want those of the retention", one.Labels, n)
		}
	}
	s.Advance(100)
	if got := s.Group("a"); len(got) != 1 {
		t.Errorf("%d series after the hold, want the one that goes on", len(got))
	}
}

func TestAGarbledSeriesIsForgottenToo(t *testing.T) {
	s := New(time.Minute, byPod)
	s.Append(series("m", "a"), 1, math.NaN())
	s.Advance(60_001)
	if got := s.Group("a"); len(got) != 1 {
		t.Fatalf("%d series, want 1", len(got))
	}
	s.Advance(60_002)
	if got := s.Group("a"); len(got) != 0 {
		t.Errorf("kept %v", names(got))
	}
}

func TestGroups(t *testing.T) {
	s := New(time.Minute, byPod)
	for _, name := range []string{"c", "a", "b"} {
		s.Append(series(name, "one"), 1, 0)
	}
	s.Append(series("a", "two"), 1, 0)
	s.Append(labels.FromStrings("__name__", "a"), 1, 0)

	if diff := cmp.Diff([]string{"a", "b", "c"}, names(s.Group("one"))); diff != "" {
		t.Errorf("group one (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a"}, names(s.Group("two"))); diff != "" {
		t.Errorf("group two (-want +got):\n%s", diff)
	}
	if got := s.Group("three"); got != nil {
		t.Errorf("group three is %v", names(got))
	}
	if series, samples := s.Stats(); series != 4 || samples != 4 {
		t.Errorf("%d series, %d samples; want 4 and 4", series, samples)
	}

	// The order holds when a series comes later, and the caller's tag stays with its series.
	s.Group("one")[1].Tag = "the b"
	s.Append(series("aa", "one"), 2, 0)
	if diff := cmp.Diff([]string{"a", "aa", "b", "c"}, names(s.Group("one"))); diff != "" {
		t.Errorf("group one (-want +got):\n%s", diff)
	}
	if tag := s.Group("one")[2].Tag; tag != "the b" {
		t.Errorf("tag = %v", tag)
	}
}

func TestSeriesWithOneHash(t *testing.T) {
	// From https://github.com/pstibrany/labels_hash_collisions.
	a := labels.FromStrings("__name__", "metric", "lbl", "HFnEaGl")
	b := labels.FromStrings("__name__", "metric", "lbl", "RqcXatm")
	if a.Hash() != b.Hash() {
		t.Fatal("these labels no longer have one hash: find others")
	}
	all := func(labels.Labels) (string, bool) { return "g", true }
	for _, first := range []labels.Labels{a, b} {
		s := New(10*time.Millisecond, all)
		s.Append(a, 1, 1)
		s.Append(b, 1, 2)
		if n, _ := s.Stats(); n != 2 {
			t.Fatalf("%d series, want 2", n)
		}
		// One of them goes; the other is still found.
		s.Append(first, 100, 3)
		s.Advance(100)
		if n, samples := s.Stats(); n != 1 || samples != 1 {
			t.Fatalf("%d series, %d samples; want 1 and 1", n, samples)
		}
		s.Append(first, 101, 4)
		if n, samples := s.Stats(); n != 1 || samples != 2 {
			t.Fatalf("%d series, %d samples; want 1 and 2", n, samples)
		}
		check(t, s)
	}
}

func TestAdvance(t *testing.T) {
	s := New(10*time.Millisecond, byPod)
	s.Append(series("old", "a"), 1, 1)
	s.Append(series("both", "a"), 1, 1)
	s.Append(series("both", "a"), 10, 2)
	s.Append(series("old", "b"), 1, 1)
	s.Append(series("old", "b"), 15, stale)

	s.Advance(11) // 1 is just young enough
	if series, samples := s.Stats(); series != 3 || samples != 4 {
		t.Fatalf("%d series, %d samples; want 3 and 4", series, samples)
	}
	s.Advance(12)
	if series, samples := s.Stats(); series != 1 || samples != 2 {
		t.Fatalf("%d series, %d samples; want 1 and 2", series, samples)
	}
	// The other one goes on, and is read rarely.
	if diff := cmp.Diff([]Sample{{1, 1}, {10, 2}}, s.Group("a")[0].Samples()); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	for i := range int64(minSamples) {
		s.Append(series("both", "a"), 11+i, 3)
	}
	s.Advance(21)
	if got := s.Group("a")[0].Samples(); len(got) != minSamples || got[0].T != 11 {
		t.Errorf("samples %v, want those from 11 on", got)
	}
	s.Append(series("both", "a"), 51, 3)
	s.Advance(55)
	if got := s.Group("a")[0].Samples(); len(got) != 7 || got[0].T != 15 {
		t.Errorf("samples %v, want those of four retentions", got)
	}
	if len(s.groups) != 1 || len(s.index) != 1 {
		t.Errorf("%d groups, %d indexed; want 1 and 1", len(s.groups), len(s.index))
	}
}

func TestClockSetBack(t *testing.T) {
	s := New(time.Minute, byPod)
	hour := time.Hour.Milliseconds()
	s.Append(series("m", "a"), 2*hour, 7)
	s.Advance(hour)
	s.Append(series("m", "a"), hour, 1)
	if diff := cmp.Diff([]Sample{{hour, 1}}, s.Group("a")[0].Samples()); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

func TestRestart(t *testing.T) {
	s := New(time.Minute, byPod)
	s.Append(series("m", "a"), 1000, 7)
	s.Append(series("m", "b"), 1000, 7)
	s.Restart(1010)
	if series, samples := s.Stats(); series != 0 || samples != 0 || s.Group("a") != nil {
		t.Errorf("%d series and %d samples after a restart, want none", series, samples)
	}
	s.Append(series("m", "a"), 1000, 7) // delivered again
	s.Append(series("n", "a"), 1010, 7) // not seen before, and no newer
	s.Append(series("m", "a"), 1011, 1)
	s.Restart(500) // a clock that is set back twice has been further ahead before
	s.Append(series("m", "a"), 1010, 7)
	s.Append(series("m", "a"), 1012, 2)
	if got := s.Group("a"); len(got) != 1 || !slices.Equal(got[0].Samples(), []Sample{{1012, 2}}) {
		t.Errorf("%v, want one series with what came after", names(got))
	}
	check(t, s)
}

func TestBounds(t *testing.T) {
	t.Run("samples of a series", func(t *testing.T) {
		s := New(time.Hour, byPod)
		for i := range int64(5 * maxSamples) {
			s.Append(series("m", "a"), i, float64(i))
		}
		got := s.Group("a")[0]
		samples := got.Samples()
		if len(samples) != maxSamples || samples[0].T != 4*maxSamples || samples[maxSamples-1].T != 5*maxSamples-1 {
			t.Errorf("%d samples, %d to %d; want the newest %d", len(samples), samples[0].T, samples[len(samples)-1].T, maxSamples)
		}
		if _, n := s.Stats(); n != maxSamples {
			t.Errorf("counted %d samples, want %d", n, maxSamples)
		}
		if cap(got.buf) > 3*maxSamples/2 {
			t.Errorf("room for %d samples, want at most half more than %d", cap(got.buf), maxSamples)
		}
	})
	t.Run("series of a group", func(t *testing.T) {
		s := New(time.Hour, byPod)
		for i := range maxSeriesPerGroup + 5 {
			s.Append(series(fmt.Sprint("m", i), "hostile"), 1, 1)
		}
		s.Append(series("m", "friendly"), 1, 1)
		if n := len(s.Group("hostile")); n != maxSeriesPerGroup {
			t.Errorf("%d series, want %d", n, maxSeriesPerGroup)
		}
		if s.Whole("hostile", 1) || !s.Whole("hostile", 2) || !s.Whole("friendly", 0) {
			t.Errorf("whole: since the refusal %v, after it %v, another group %v", s.Whole("hostile", 1), s.Whole("hostile", 2), s.Whole("friendly", 0))
		}
		if s.Dropped() != 5 {
			t.Errorf("dropped %d, want 5", s.Dropped())
		}
		if n := len(s.Group("friendly")); n != 1 {
			t.Errorf("another group has %d series, want 1", n)
		}
		// Series that are kept go on, and room comes back when some end.
		s.Append(series("m0", "hostile"), 2, 1)
		s.Advance(2 + time.Hour.Milliseconds())
		s.Append(series("new", "hostile"), 3, 1)
		if diff := cmp.Diff([]string{"m0", "new"}, names(s.Group("hostile"))); diff != "" {
			t.Errorf("group (-want +got):\n%s", diff)
		}
	})
}

func TestLabelsAreCopied(t *testing.T) {
	ls := series("m", "a")
	s := New(time.Minute, byPod)
	s.Append(ls, 1, 1)
	if unsafe.StringData(s.Group("a")[0].Labels.Get("pod")) == unsafe.StringData(ls.Get("pod")) {
		t.Error("the store keeps the source's memory alive")
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	s := New(time.Minute, byPod)
	var all []labels.Labels
	for i := range 50 {
		all = append(all, series(fmt.Sprint("m", i), "a"))
	}
	now := int64(0)
	tick := func() {
		now += 1000
		for _, ls := range all {
			s.Append(ls, now, float64(now))
		}
		s.Advance(now)
		s.Group("a")
	}
	for range 200 {
		tick()
	}
	if n := testing.AllocsPerRun(500, tick); n != 0 {
		t.Errorf("%v allocations a tick of %d samples, want 0", n, len(all))
	}
	if _, samples := s.Stats(); samples != 50*61 {
		t.Errorf("%d samples, want %d", samples, 50*61)
	}
}

// TestStoreAgainstModel: whatever is appended, the store holds what a plain reading of its rules
// does.
func TestStoreAgainstModel(t *testing.T) {
	const retention = 50
	type model struct {
		samples []Sample
		heard   int64
		state   state
	}
	rapid.Check(t, func(t *rapid.T) {
		s := New(retention*time.Millisecond, byPod)
		want := map[string]*model{} // by pod/name
		now, after := int64(1000), int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
				pod := rapid.SampledFrom([]string{"x", "y", ""}).Draw(t, "pod")
				ts := now + rapid.Int64Range(-60, 5).Draw(t, "age")
				v := rapid.SampledFrom([]float64{0, 1, -1, stale, math.NaN(), math.Inf(1)}).Draw(t, "v")
				s.Append(series(name, pod), ts, v)
				if pod == "" || ts <= after {
					return
				}
				m := want[pod+"/"+name]
				switch {
				case m == nil && value.IsStaleNaN(v):
				case m == nil && !isFinite(v):
					want[pod+"/"+name] = &model{heard: ts, state: garbled}
				case m == nil:
					want[pod+"/"+name] = &model{samples: []Sample{{ts, v}}, heard: ts}
				case ts <= m.heard:
				case value.IsStaleNaN(v):
					m.heard, m.state = ts, ended
				case !isFinite(v):
					m.heard, m.state = ts, garbled
				default:
					m.samples, m.heard, m.state = append(m.samples, Sample{ts, v}), ts, sampled
				}
			},
			"advance": func(t *rapid.T) {
				now += rapid.Int64Range(-100, 30).Draw(t, "step")
				s.Advance(now)
				for key, m := range want {
					goesOn := len(m.samples) > 0 && m.samples[len(m.samples)-1].T >= now-retention
					spared := m.samples[max(0, len(m.samples)-minSamples):]
					m.samples = slices.DeleteFunc(slices.Clone(m.samples), func(s Sample) bool {
						return s.T < now-retention && !(goesOn && s.T >= now-slowRetention*retention && slices.Contains(spared, s))
					})
					nothing := len(m.samples) == 0 && (m.state != garbled || m.heard < now-retention)
					if nothing || m.heard > now+retention {
						delete(want, key)
					}
				}
			},
			"restart": func(t *rapid.T) {
				until := now + rapid.Int64Range(-20, 20).Draw(t, "until")
				s.Restart(until)
				after = max(after, until)
				clear(want)
			},
			"": func(t *rapid.T) {
				check(t, s)
				seen, samples := 0, 0
				for _, pod := range []string{"x", "y"} {
					for _, got := range s.Group(pod) {
						m := want[pod+"/"+got.Labels.Get("__name__")]
						if m == nil {
							t.Fatalf("%v is still there", got.Labels)
						}
						if diff := cmp.Diff(append([]Sample{}, m.samples...), append([]Sample{}, got.Samples()...)); diff != "" || got.state != m.state {
							t.Fatalf("%v: state %d, want %d; samples (-want +got):\n%s", got.Labels, got.state, m.state, diff)
						}
						seen++
						samples += len(m.samples)
					}
				}
				if seen != len(want) {
					t.Fatalf("%d series, want %d", seen, len(want))
				}
				if n, m := s.Stats(); n != seen || m != samples {
					t.Fatalf("counted %d series and %d samples, want %d and %d", n, m, seen, samples)
				}
			},
		})
	})
}

// check asserts what must hold of every store.
func check(t interface {
	Helper()
	Fatalf(string, ...any)
}, s *Store) {
	t.Helper()
	series, samples, indexed := 0, 0, 0
	for name := range s.groups {
		group := s.Group(name)
		if len(group) == 0 || len(group) > maxSeriesPerGroup {
			t.Fatalf("group %q has %d series", name, len(group))
		}
		if !slices.IsSortedFunc(group, func(a, b *Series) int { return labels.Compare(a.Labels, b.Labels) }) {
			t.Fatalf("group %q is not sorted: %v", name, names(group))
		}
		for _, one := range group {
			got := one.Samples()
			if len(got) == 0 && one.state == sampled || len(got) > maxSamples {
				t.Fatalf("%v has %d samples", one.Labels, len(got))
			}
			for i, sample := range got {
				if !isFinite(sample.V) {
					t.Fatalf("%v holds %v", one.Labels, sample)
				}
				if i > 0 && got[i-1].T >= sample.T {
					t.Fatalf("%v: %v after %v", one.Labels, sample, got[i-1])
				}
			}
			if s.find(one.Labels.Hash(), one.Labels) != one {
				t.Fatalf("%v is not found", one.Labels)
			}
			samples += len(got)
		}
		series += len(group)
	}
	for _, head := range s.index {
		for one := head; one != nil; one = one.next {
			indexed++
		}
	}
	if n, m := s.Stats(); n != series || m != samples || indexed != series {
		t.Fatalf("counted %d series (%d indexed) and %d samples, there are %d and %d", n, indexed, m, series, samples)
	}
}

// FuzzAppend reads a sequence of operations of eight bytes each: which series, what to do, by how
// much time moves, and a value. A hundred of them reach every state.
func FuzzAppend(f *testing.F) {
	op := func(series, kind byte, step int16, v float32) []byte {
		b := binary.LittleEndian.AppendUint16([]byte{series, kind}, uint16(step))
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	f.Add(slices.Concat(op(0, 0, 1, 1), op(1, 0, 0, 2), op(0, 1, 5, 0), op(0, 2, 100, 0)))
	f.Add(slices.Concat(op(3, 0, -5, 1), op(3, 0, 5, float32(math.NaN())), op(3, 3, 0, 0), op(7, 0, 30000, 9)))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := New(10*time.Second, byPod)
		now := int64(1_700_000_000_000)
		data = data[:min(len(data), 100*8)]
		for ; len(data) >= 8; data = data[8:] {
			ls := series(string('a'+rune(data[0]%5)), []string{"x", "y", ""}[data[0]%3])
			now += int64(int16(binary.LittleEndian.Uint16(data[2:])))
			v := float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4:])))
			switch data[1] % 4 {
			case 0:
				s.Append(ls, now, v)
			case 1:
				s.Append(ls, now, stale)
			case 2:
				s.Advance(now)
			case 3: // a burst that fills the series
				for range maxSamples {
					now++
					s.Append(ls, now, v)
				}
			}
		}
		check(t, s)
		for _, pod := range []string{"x", "y"} {
			var buckets []BucketSeries
			for i, one := range s.Group(pod) {
				samples := one.Samples()
				Increase(samples)
				LastIncrease(samples)
				if Interval(samples) < 0 {
					t.Fatalf("%v: negative interval", one.Labels)
				}
				buckets = append(buckets, BucketSeries{LE: float64(i / 2), Samples: samples})
			}
			if n := len(buckets); n > 0 {
				buckets[n-1].LE = math.Inf(1)
			}
			hist, _, ok := Increases(buckets, now-5000)
			if !ok {
				continue
			}
			if q := Quantile(0.9, hist); math.IsInf(q, 0) {
				t.Fatalf("infinite quantile of %v", hist)
			}
			if lower, upper := AtMost(hist, 1); !(lower <= upper) {
				t.Fatalf("at most 1 of %v: %v..%v", hist, lower, upper)
			}
		}
	})
}

// seriesPerReplica is about what the catalogue keeps of a vLLM replica's exposition.
const seriesPerReplica = 150

func replicas(n int) (all []labels.Labels) {
	for r := range n {
		for i := range seriesPerReplica {
			all = append(all, labels.FromStrings(
				"__name__", "vllm:time_to_first_token_seconds_bucket",
				"engine", "0",
				"le", fmt.Sprint(float64(i)/8),
				"model_name", "meta-llama/Llama-3.1-8B-Instruct",
				"namespace", "inference",
				"pod", fmt.Sprintf("llama-7d9c5b6f4d-%05d", r),
			))
		}
	}
	return all
}

// BenchmarkAppend is one sample, Advance once a tick included.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprintf("replicas=%d", n), func(b *testing.B) {
			all := replicas(n)
			s := New(5*time.Minute, byPod)
			now := int64(0)
			i := 0
			tick := func() {
				now += 5000
				s.Advance(now)
				i = 0
			}
			for range 70 {
				tick()
				for _, ls := range all {
					s.Append(ls, now, 1)
				}
			}
			i = len(all)
			b.ReportAllocs()
			for b.Loop() {
				if i == len(all) {
					tick()
				}
				s.Append(all[i], now, 1)
				i++
			}
		})
	}
}

// BenchmarkAdvance is a tick that forgets one sample of every series.
func BenchmarkAdvance(b *testing.B) {
	all := replicas(100)
	s := New(5*time.Minute, byPod)
	now := int64(0)
	for b.Loop() {
		b.StopTimer()
		now += 5000
		for _, ls := range all {
			s.Append(ls, now, 1)
		}
		b.StartTimer()
		s.Advance(now)
	}
}

// BenchmarkMemory reports what a series of 60 samples (five minutes at five seconds) takes.
func BenchmarkMemory(b *testing.B) {
	all := replicas(100)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var bytes float64
	for b.Loop() {
		before := heap()
		s := New(5*time.Minute, byPod)
		// Twice the retention: buffers have their final size, and move samples down.
		for now := int64(5000); now <= 120*5000; now += 5000 {
			for _, ls := range all {
				s.Append(ls, now, 1)
			}
			s.Advance(now + 1) // 60 samples, not the one of five minutes ago
		}
		bytes = float64(heap()-before) / float64(len(all))
		if n, samples := s.Stats(); samples != 60*n {
			b.Fatalf("%d samples of %d series", samples, n)
		}
	}
	b.ReportMetric(bytes, "B/series")
}

// What is kept stays when more is to be kept, and goes at the next Advance when less is.
func TestRetain(t *testing.T) {
	s := New(time.Minute, func(labels.Labels) (string, bool) { return "g", true })
	ls := labels.FromStrings("__name__", "x")
	kept := func() int { return len(s.Group("g")[0].Samples()) }
	for i := range int64(600) {
		if i == 60 {
			s.Retain(5 * time.Minute)
		}
		s.Append(ls, i*1000, float64(i))
		s.Advance(i * 1000)
		if want := int(i) + 1; i < 200 && kept() != want {
			t.Fatalf("after %d s there are %d samples, want %d", i, kept(), want)
		}
	}
	if n := kept(); n != 301 {
		t.Errorf("%d samples of five minutes, want 301", n)
	}
	s.Retain(time.Minute)
	s.Advance(599_000)
	if n := kept(); n != 61 {
		t.Errorf("%d samples of a minute, want 61", n)
	}
}
