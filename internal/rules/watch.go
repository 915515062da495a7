package rules

import (
	"context"
	"crypto/sha256"
	"os"
	"time"

	"k8s.io/klog/v2"
)

// watchEvery is the time between two looks at the file. It is looked at, and not watched: what Kubernetes swaps is
// a symbolic link two directories up.
const watchEvery = 2 * time.Second

// Watch reads the file again when it changes, until ctx ends. One that cannot be read as a whole changes nothing,
// and is logged once.
func (r *Rules) Watch(ctx context.Context, name string) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	w := watching{name: name, seen: look(name)}
	w.judged = w.seen
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.again(ctx, &w)
		}
	}
}

// watching is what was seen of a file: at the last look, and when it was last taken or refused.
type watching struct {
	name         string
	seen, judged [sha256.Size]byte
}

// look returns what tells one text of a file from another. A file that cannot be read is empty.
func look(name string) [sha256.Size]byte {
	data, _ := os.ReadFile(name)
	return sha256.Sum256(data)
}

// again takes the file if it has changed. A text counts once two looks have seen it: the first may have seen half
// of what somebody is writing.
func (r *Rules) again(ctx context.Context, w *watching) {
	now := look(w.name)
	settled := now == w.seen
	w.seen = now
	if !settled || now == w.judged {
		return
	}
	w.judged = now
	f, err := Read(w.name)
	if err != nil {
		r.metrics.refused.Set(1)
		klog.FromContext(ctx).Error(err, "Cannot take the rules as they are now; those before hold", "file", w.name)
		return
	}
	r.metrics.refused.Set(0)
	r.Apply(f)
	klog.FromContext(ctx).Info("Rules were read again", "file", w.name, "rules", len(f.Rules), "faults", len(f.Faults))
}
