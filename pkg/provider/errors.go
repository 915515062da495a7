package provider

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inference-metrics/adapter/internal/collect"
)

// None of these sets retryAfterSeconds: client-go would sleep on it inside one of the HPA
// controller's few workers, and hold up HPAs that have nothing to do with this one.

// more is where to look when data is missing: the page of package internal/status.
const more = "; /debug/signals of the adapter shows more"

func notFound(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotFound,
		Reason:  metav1.StatusReasonNotFound,
		Message: fmt.Sprintf(format, args...),
	}}
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}

func unavailable(format string, args ...any) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf(format, args...))
}

// reasons counts why pods have no value.
type reasons struct {
	counts map[string]int
	// data says that at least one lacks it for want of data.
	data bool
}

func (r *reasons) add(a absence) {
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[a.reason]++
	r.data = r.data || a.data
}

// maxReasons is how many reasons a message spells out: those of ages and times differ by pod.
const maxReasons = 3

func (r *reasons) String() string {
	type counted struct {
		reason string
		n      int
	}
	var all []counted
	total := 0
	for reason, n := range r.counts {
		all = append(all, counted{reason, n})
		total += n
	}
	if total == 1 {
		return all[0].reason
	}
	slices.SortFunc(all, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.reason, b.reason))
	})
	var parts []string
	for _, c := range all[:min(len(all), maxReasons)] {
		parts = append(parts, fmt.Sprintf("%d %s", c.n, c.reason))
		total -= c.n
	}
	if total > 0 {
		parts = append(parts, fmt.Sprintf("%d for other reasons", total))
	}
	return strings.Join(parts, ", ")
}

// err returns the error of a request that none of the asked-for pods has a value for. It is the
// source's fault where that cannot be read and data is what is missing.
func (r *reasons) err(what string, snapshot *collect.Snapshot) error {
	if r.data && snapshot.Err != nil {
		return unavailable("%s: %s; the source cannot be read: %v%s", what, r, snapshot.Err, more)
	}
	return notFound("%s: %s%s", what, r, more)
}
