package rules

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

const (
	// askedFor is how long a metric is queried after somebody asked for it.
	askedFor = 10 * time.Minute
	// maxAsks bounds what is queried because somebody asked: metric selectors are free.
	maxAsks = 5000
)

// ask is what somebody asks for, as far as it makes a difference to the query.
type ask struct {
	metricKey
	external bool
	// selector is the metric selector.
	selector string
	// namespace is where the objects are; "" for those in none.
	namespace string
	// name is an object's, and objects are chosen by a selector; both are "" where queries are about all.
	name, objects string
}

// wanted is an ask, and what it comes to.
type wanted struct {
	last time.Time
	// matching is the metric selector, and objects is that of objects; nil for none.
	matching []matching
	objects  labels.Selector
}

// demand is what is asked for. It is guarded by Rules.mu.
type demand map[ask]*wanted

// touch notes an ask, unless there are too many.
func (d demand) touch(a ask, w wanted) bool {
	if known := d[a]; known != nil {
		known.last = w.last
		return true
	}
	if len(d) >= maxAsks {
		return false
	}
	d[a] = &w
	return true
}

// expire forgets what nobody has asked for lately.
func (d demand) expire(now time.Time) (forgotten []ask) {
	for a, w := range d {
		if now.Sub(w.last) >= askedFor {
			delete(d, a)
			forgotten = append(forgotten, a)
		}
	}
	return forgotten
}
