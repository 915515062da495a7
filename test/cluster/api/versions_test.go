package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// followers are scaled by HPAs on the engines of teamA: one by its own pods, one by another object.
const followers = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: vllm, namespace: team-a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm}
  minReplicas: 2
  maxReplicas: 2
  metrics:
    - type: Pods
      pods: {metric: {name: vllm_queue_depth}, target: {type: AverageValue, averageValue: "5"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: follower, namespace: team-a, labels: {app: follower}}
spec:
  replicas: 1
  selector: {matchLabels: {app: follower}}
  template:
    metadata: {labels: {app: follower}}
    spec: {containers: [{name: any, image: emulated}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: follower, namespace: team-a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: follower}
  maxReplicas: 3
  metrics:
    - type: Object
      object:
        describedObject: {apiVersion: apps/v1, kind: Deployment, name: vllm}
        metric: {name: vllm_queue_depth}
        target: {type: AverageValue, averageValue: "1"}
`

// TestOldVersion: where v1beta1 is all there is of the API, the HPA controller scales on it, and asks for
// nothing else.
func TestOldVersion(t *testing.T) {
	a := startAdapter(t, "--prometheus-url="+shared.Prometheus.URL)
	awaitServed(t)
	// An aggregator that asks for the beta of the aggregated document reads those of each version instead.
	if r := ask(t, directly(a), http.MethodGet, "/apis", strings.Replace(aggregated, "v=v2", "v=v2beta1", 1)); r.status != http.StatusNotAcceptable {
		t.Errorf("the aggregated document in its beta: %d %.300s", r.status, r.body)
	}
	if _, errs, err := kubectl(t, "delete", "apiservice", "v1beta2.custom.metrics.k8s.io"); err != nil {
		t.Fatal(errs)
	}
	t.Cleanup(func() {
		_, _, _ = kubectl(t, "delete", "--namespace", teamA, "hpa/vllm", "hpa/follower", "deployment/follower")
	})
	t.Cleanup(func() {
		if err := shared.Install(context.WithoutCancel(t.Context()), service.Address); err != nil {
			t.Error(err)
		}
	})
	eventually(t, time.Minute, "the newer version is gone", func() error {
		r := ask(t, shared.Config, http.MethodGet, custom, applicationJSON)
		if err := statusIs(r, http.StatusOK); err != nil || strings.Contains(string(r.body), "v1beta2") {
			return fmt.Errorf("%v: %s", err, r.body)
		}
		return nil
	})
	if err := shared.Apply(t.Context(), followers); err != nil {
		t.Fatal(err)
	}
	hpas := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(teamA)
	sum := 0
	for _, n := range queues[teamA] {
		sum += n
	}
	for _, name := range []string{"vllm", "follower"} {
		eventually(t, 2*time.Minute, "the HPA "+name+" has the value", func() error {
			h, err := hpas.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range h.Status.Conditions {
				if c.Type == autoscalingv2.ScalingActive && c.Status != corev1.ConditionTrue {
					return fmt.Errorf("%s: %s", c.Reason, c.Message)
				}
			}
			if len(h.Status.CurrentMetrics) != 1 {
				return fmt.Errorf("it has %d metrics", len(h.Status.CurrentMetrics))
			}
			m := h.Status.CurrentMetrics[0]
			switch {
			case m.Pods != nil:
				if got, want := m.Pods.Current.AverageValue.MilliValue(), int64(sum)*1000/int64(len(queues[teamA])); got != want {
					return fmt.Errorf("its pods have %d milli each, want %d", got, want)
				}
			case m.Object != nil:
				if got, want := m.Object.Current.AverageValue.MilliValue(), int64(sum)*1000/3; h.Status.CurrentReplicas != 3 || got < want || got > want+1 {
					return fmt.Errorf("at %d replicas it has %d milli each, want 3 with %d", h.Status.CurrentReplicas, got, want)
				}
			}
			return nil
		})
	}
	if r := ask(t, shared.Config, http.MethodGet, custom+"/v1beta2/namespaces/team-a/pods/*/vllm_queue_depth", applicationJSON); r.status != http.StatusNotFound {
		t.Errorf("the newer version is there: %d %.300s", r.status, r.body)
	}
}
