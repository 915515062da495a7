package scrape

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/scrape"
)

// TargetStatus is what is known of a target, for people.
type TargetStatus struct {
	Namespace, Pod string
	// URL is where it is scraped, without a user or parameters, which may be secrets.
	URL string
	// Up says that the last scrape succeeded.
	Up bool
	// Reason says why it is not up; "" when it is.
	Reason string
	// Scraped is when the last scrape began, and Took how long it took; zero before the first.
	Scraped time.Time
	Took    time.Duration
}

// Status returns all targets, sorted by namespace, pod and URL.
func (s *Source) Status() []TargetStatus {
	var all []TargetStatus
	for _, job := range s.manager.TargetsActive() {
		for _, t := range job {
			all = append(all, statusOf(t))
		}
	}
	slices.SortFunc(all, func(a, b TargetStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.URL, b.URL))
	})
	return all
}

func statusOf(t *scrape.Target) TargetStatus {
	u := *t.URL()
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	st := TargetStatus{
		Namespace: t.GetValue("namespace"), Pod: t.GetValue("pod"), URL: u.String(),
		Up: t.Health() == scrape.HealthGood, Scraped: t.LastScrape(), Took: t.LastScrapeDuration(),
	}
	switch err := t.LastError(); {
	case err != nil:
		st.Reason = reasonOf(err)
	case !st.Up:
		st.Reason = "not scraped yet"
	}
	return st
}

// reasonOf says why a scrape failed, without the address and its parameters, which may be secrets.
func reasonOf(err error) string {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	why := err.Error()
	if len(why) > 300 {
		why = strings.ToValidUTF8(why[:300], "") + "…"
	}
	return why
}
