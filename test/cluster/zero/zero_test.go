package zero

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// quick is how long the HPA waits before it scales in, where the test waits for it: the example's own ten
// minutes are for people.
const quick = time.Second

// TestScaleToZero takes the example from one replica to none and back, loses the picker's metrics at one
// and at none, and replaces the picker at none. The parts go on where the one before has ended.
func TestScaleToZero(t *testing.T) {
	w := begin(t)
	w.awaitReady(1)

	part(t, w, "a request that runs keeps its replica", func(t *testing.T) {
		w.awaitQueue(0)
		w.awaitKnown()
		long := w.ask(int(5 * *hpaSync / (20 * time.Millisecond))) // the HPA looks at it several times
		w.awaitInflight(1)                                         // what the HPA is told is a scrape and a collection old
		w.stabilize(quick)
		<-long.done
		if long.err != nil {
			t.Errorf("the request was not answered: %v", long.err)
		}
		if left := w.replicas.now(); left != 1 && w.replicas.changed().Before(long.answered) {
			t.Errorf("with a request running, replicas went %s", w.replicas)
		}
		w.awaitReplicas(0)
		w.awaitReady(0)
	})

	part(t, w, "the first request at zero is answered", func(t *testing.T) {
		w.awaitQueue(0)
		w.stays(0, 2**hpaSync, "with nobody there")
		first := w.ask(1)
		seen := make(chan time.Time, 1)
		go func() {
			for {
				if n, err := w.queue(t.Context()); err == nil && n > 0 || t.Context().Err() != nil {
					seen <- time.Now()
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
		w.awaitReplicas(1)
		wrote := w.replicas.changed()
		ready := w.awaitReady(1)
		w.await(first)
		record(t, []stage{
			{"the request waits in the picker's queue", first.sent},
			{"the adapter answers with it", <-seen},
			{"the HPA has written replicas: 1", wrote},
			{"the pod is Ready", ready},
			{"the first token is there", first.answered},
		})
		w.awaitReplicas(0)
		w.awaitReady(0)
	})

	part(t, w, "lost at one, the picker's metrics let nobody go", func(t *testing.T) {
		w.stabilize(time.Hour) // until the idle replica has lost the picker
		w.await(w.ask(1))
		w.awaitReady(1)
		w.awaitQueue(0)
		w.picker("down")
		w.awaitUnknown()
		w.stabilize(quick)
		// Longer than the window, after which the last that the picker has said is forgotten.
		w.stays(1, window+2**hpaSync, "with the picker's metrics lost")
		if says := w.scaling(); !strings.HasPrefix(says, "False FailedGetObjectMetric") || !strings.Contains(says, "pool_queue_depth") {
			t.Errorf("the HPA says %s", says)
		}
		w.picker("up")
		w.awaitReplicas(0)
		w.awaitReady(0)
	})

	part(t, w, "lost at zero, the picker's metrics wake the pool as they are back", func(t *testing.T) {
		w.awaitQueue(0)
		w.picker("down")
		w.awaitUnknown()
		held := w.ask(1)
		w.stays(0, 2**hpaSync, "with the picker's metrics lost")
		w.picker("up")
		w.await(held)
		w.awaitReplicas(0)
		w.awaitReady(0)
	})

	part(t, w, "a picker that is replaced at zero starts empty, and wakes the pool", func(t *testing.T) {
		w.replacePicker()
		w.awaitQueue(0)
		w.stays(0, 2**hpaSync, "with a new picker that holds nothing")
		w.await(w.ask(1))
	})
	t.Logf("replicas went %s", w.replicas)
}

// part runs a part of the test, and ends the test with it when it fails.
func part(t *testing.T, w *world, name string, run func(*testing.T)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) {
		of := w.t
		w.t = t
		defer func() { w.t = of }()
		run(t)
	}) {
		t.FailNow()
	}
}

// stage is something that happened on the way from the first request to its first token.
type stage struct {
	what string
	at   time.Time
}

// record writes what the way took to artifacts/scale-from-zero.txt.
func record(t *testing.T, stages []stage) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "Emulated engines. HPA sync %s, scrape 1s, collection 1s, %s from running to Ready.\n\n", *hpaSync, *coldStart)
	fmt.Fprintf(&b, "%8s  %8s\n", "seconds", "of that")
	for i, s := range stages {
		since := stages[max(i-1, 0)].at
		fmt.Fprintf(&b, "%8.1f  %8.1f  %s\n", s.at.Sub(stages[0].at).Seconds(), s.at.Sub(since).Seconds(), s.what)
	}
	t.Log("\n" + b.String())
	dir := filepath.Join("..", "..", "..", "artifacts")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "scale-from-zero.txt"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
