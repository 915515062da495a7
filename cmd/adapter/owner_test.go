package main

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
)

func TestExternalOwner(t *testing.T) {
	const external, custom = "v1beta1.external.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"
	service := func(name, namespace, service string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": name},
			"spec":     map[string]any{"service": map[string]any{"namespace": namespace, "name": service}},
		}}
	}
	ours := service(custom, "inference-metrics", "inference-metrics-adapter")
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		refused bool
		want    []string // "" for silence
	}{
		{name: "it is us", objects: []runtime.Object{ours, service(external, "inference-metrics", "inference-metrics-adapter")}},
		{name: "it is another", objects: []runtime.Object{ours, service(external, "keda", "keda-operator-metrics-apiserver")},
			want: []string{"another server answers", `"service"="keda/keda-operator-metrics-apiserver"`, `"serviceOfCustomMetrics"="inference-metrics/inference-metrics-adapter"`}},
		{name: "it is nobody", objects: []runtime.Object{ours}, want: []string{"an APIService is missing", external}},
		{name: "custom metrics are nobody's", objects: []runtime.Object{service(external, "a", "b")}, want: []string{"an APIService is missing", custom}},
		{name: "it is a secret", objects: []runtime.Object{ours}, refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fake.NewSimpleDynamicClient(runtime.NewScheme(), tc.objects...)
			if tc.refused {
				client.PrependReactor("get", "apiservices", func(kubetesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(apiServices.GroupResource(), external, nil)
				})
			}
			var logged strings.Builder
			logger := funcr.New(func(_, args string) { logged.WriteString(args) }, funcr.Options{})
			checkExternalOwner(klog.NewContext(t.Context(), logger), client)
			for _, w := range tc.want {
				if !strings.Contains(logged.String(), w) {
					t.Errorf("logged %q, want %q in it", &logged, w)
				}
			}
			if tc.want == nil && logged.Len() > 0 {
				t.Errorf("logged %q, want silence", &logged)
			}
		})
	}
}
