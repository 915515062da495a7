package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// metricsGroups have resources that are no objects, by the names of those of others.
var metricsGroups = []string{"custom.metrics.k8s.io", "external.metrics.k8s.io", "metrics.k8s.io"}

// Resources asks the cluster for the kinds of object that it has, each in its preferred version, in the order in
// which the cluster prefers their groups. Groups that do not answer are left out, and are the error.
func Resources(client discovery.DiscoveryInterface) ([]metav1.APIResource, error) {
	lists, err := client.ServerPreferredResources()
	if err != nil && len(lists) == 0 {
		return nil, fmt.Errorf("asking the cluster for its kinds of object: %w", err)
	}
	var all []metav1.APIResource
	for _, list := range lists {
		gv, parsed := schema.ParseGroupVersion(list.GroupVersion)
		if parsed != nil || slices.Contains(metricsGroups, gv.Group) {
			continue
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") {
				continue
			}
			r.Group, r.Version = gv.Group, gv.Version
			if r.SingularName == "" {
				r.SingularName = strings.ToLower(r.Kind)
			}
			all = append(all, r)
		}
	}
	if failed := new(discovery.ErrGroupDiscoveryFailed); errors.As(err, &failed) {
		for _, gv := range metricsGroups { // of which one may be ours, that is not up yet
			for of := range failed.Groups {
				if of.Group == gv {
					delete(failed.Groups, of)
				}
			}
		}
		if len(failed.Groups) == 0 {
			err = nil
		}
	}
	if err != nil {
		err = fmt.Errorf("asking the cluster for its kinds of object: %w", err)
	}
	return all, err
}

// Names asks the cluster for the names of objects whose labels match, sorted.
func Names(ctx context.Context, client metadata.Interface, of schema.GroupVersionResource, namespace string, selector labels.Selector) ([]string, error) {
	names := []string{}
	options := metav1.ListOptions{LabelSelector: selector.String(), Limit: 500}
	for {
		list, err := client.Resource(of).Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", of.GroupResource(), err)
		}
		for _, o := range list.Items {
			names = append(names, o.Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			slices.Sort(names)
			return names, nil
		}
	}
}
