package main

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// target is an engine to scrape, as given by --target.
type target struct {
	podLabels
	url string
}

// podLabels is a pod that is known by a target.
type podLabels struct {
	types.NamespacedName
	labels labels.Set
}

// parseTarget reads NAMESPACE/POD{LABEL=VALUE,...}=URL, where the labels are optional.
func parseTarget(text string) (target, error) {
	var t target
	namespace, rest, ok := strings.Cut(text, "/")
	if !ok {
		return t, errors.New("want NAMESPACE/POD=URL")
	}
	end := strings.IndexAny(rest, "{=")
	if end < 0 {
		return t, errors.New("want NAMESPACE/POD=URL")
	}
	t.Namespace, t.Name, rest = namespace, rest[:end], rest[end:]
	if errs := validation.IsDNS1123Label(t.Namespace); len(errs) > 0 {
		return t, fmt.Errorf("namespace %q: %s", t.Namespace, errs[0])
	}
	if errs := validation.IsDNS1123Subdomain(t.Name); len(errs) > 0 {
		return t, fmt.Errorf("pod %q: %s", t.Name, errs[0])
	}
	if set, found := strings.CutPrefix(rest, "{"); found {
		set, rest, ok = strings.Cut(set, "}")
		if !ok {
			return t, errors.New("the labels have no closing }")
		}
		var err error
		if t.labels, err = parseLabels(set); err != nil {
			return t, err
		}
	}
	if t.url, ok = strings.CutPrefix(rest, "="); !ok {
		return t, errors.New("want =URL after the pod")
	}
	u, err := url.Parse(t.url)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return t, fmt.Errorf("%q is no URL to scrape, such as http://127.0.0.1:8000/metrics", t.url)
	}
	return t, nil
}

func parseLabels(text string) (labels.Set, error) {
	set := labels.Set{}
	if text == "" {
		return set, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("label %q: want LABEL=VALUE", pair)
		}
		if errs := validation.IsQualifiedName(name); len(errs) > 0 {
			return nil, fmt.Errorf("label %q: %s", name, errs[0])
		}
		if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
			return nil, fmt.Errorf("value %q of label %s: %s", value, name, errs[0])
		}
		if _, twice := set[name]; twice {
			return nil, fmt.Errorf("label %s is there twice", name)
		}
		set[name] = value
	}
	return set, nil
}

// podsOf returns the pods of targets. One pod may have several: an engine behind each port.
func podsOf(targets []target) ([]podLabels, error) {
	var out []podLabels
	seen := map[types.NamespacedName]labels.Set{}
	var errs []error
	for _, t := range targets {
		before, ok := seen[t.NamespacedName]
		switch {
		case !ok:
			seen[t.NamespacedName] = t.labels
			out = append(out, t.podLabels)
		case !maps.Equal(before, t.labels):
			errs = append(errs, fmt.Errorf("two targets of pod %s give it other labels", t.NamespacedName))
		}
	}
	return out, errors.Join(errs...)
}
