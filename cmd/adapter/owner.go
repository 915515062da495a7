package main

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// ownerTimeout bounds each of the two questions.
const ownerTimeout = 10 * time.Second

// checkExternalOwner looks once who serves external metrics in the cluster, and logs when it is not who
// serves custom metrics, which is us. The cluster need not let us look.
func checkExternalOwner(ctx context.Context, client dynamic.Interface) {
	log := klog.FromContext(ctx)
	const external, custom = "v1beta1.external.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"
	theirs, err := serviceOf(ctx, client, external)
	if err == nil {
		var ours string
		if ours, err = serviceOf(ctx, client, custom); err == nil && ours != theirs {
			log.Info("External metrics are on, but another server answers for them in the cluster; no HPA sees ours",
				"apiservice", external, "service", theirs, "serviceOfCustomMetrics", ours)
		}
	}
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		log.Info("External metrics are on, but an APIService is missing; no HPA sees them", "reason", err.Error())
	default:
		log.V(1).Info("Cannot tell who serves external metrics in the cluster", "reason", err.Error())
	}
}

// serviceOf returns the Service that an APIService sends requests to.
func serviceOf(ctx context.Context, client dynamic.Interface, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
	defer cancel()
	s, err := client.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	namespace, _, _ := unstructured.NestedString(s.Object, "spec", "service", "namespace")
	service, _, _ := unstructured.NestedString(s.Object, "spec", "service", "name")
	return klog.KRef(namespace, service).String(), nil
}
