package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"github.com/inference-metrics/adapter/test/cluster"
)

const externalGroup = "external.metrics.k8s.io"

// startExternal puts an adapter that serves external metrics too behind the Service, and has the API
// server ask it for them until the test ends.
func startExternal(t *testing.T) *cluster.Adapter {
	t.Helper()
	a := startAdapters(t, 1, "--external-metrics")[0]
	t.Cleanup(func() {
		if err := shared.UninstallExternal(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := shared.InstallExternal(t.Context(), service.Address); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "external metrics are served", func() error {
		if resp := get(t, shared.Config, "/apis/"+externalGroup+"/v1beta1", "application/json"); resp.status != http.StatusOK {
			return &answerError{resp.status, string(resp.body)}
		}
		return nil
	})
	return a
}

// external asks for the value of an external metric as somebody.
func external(t *testing.T, asker *rest.Config, ns, metric, selector string) (v1beta1.ExternalMetricValue, error) {
	t.Helper()
	path := fmt.Sprintf("/apis/%s/v1beta1/namespaces/%s/%s", externalGroup, ns, metric)
	if selector != "" {
		path += "?labelSelector=" + url.QueryEscape(selector)
	}
	resp := get(t, asker, path, "application/json")
	if resp.status != http.StatusOK {
		return v1beta1.ExternalMetricValue{}, &answerError{resp.status, string(resp.body)}
	}
	return onlyExternal(resp.body)
}

// warm asks again while the adapter begins to collect what it was not asked for before.
func warm[T any](t *testing.T, ask func() (T, error)) (v T, err error) {
	t.Helper()
	eventually(t, time.Minute, "the answer is warm", func() error {
		if v, err = ask(); err != nil && strings.Contains(err.Error(), "is warming up, as") {
			return err
		}
		return nil
	})
	return v, err
}

func onlyExternal(body []byte) (v1beta1.ExternalMetricValue, error) {
	var list v1beta1.ExternalMetricValueList
	if err := json.Unmarshal(body, &list); err != nil {
		return v1beta1.ExternalMetricValue{}, err
	}
	if len(list.Items) != 1 {
		return v1beta1.ExternalMetricValue{}, errors.New("not one item: " + string(body))
	}
	return list.Items[0], nil
}

// TestScaleOnExternal: an HPA on the queue of one of two models in a namespace scales its Deployment out
// under load and back in after it, holds in between while Prometheus is down, and heeds neither the
// other model nor the same one in another namespace.
func TestScaleOnExternal(t *testing.T) {
	ns := namespace(t)
	elsewhere := namespaceNamed(t, ns+"-elsewhere")
	// The same model in both namespaces, and another one beside it.
	const model, selected = "Qwen/Qwen3-8B", "Qwen_Qwen3-8B"
	engines := startEmulator(t, ns, "--selector=app=vllm", "--model-name="+model)
	beside := startEmulator(t, ns, "--selector=app=small", "--model-name=Qwen/Qwen3-0.6B")
	others := startEmulator(t, elsewhere, "--model-name="+model)
	startExternal(t)
	deploy(t, ns, workload{name: "vllm", replicas: 1})
	deploy(t, ns, workload{name: "small", replicas: 1})
	deploy(t, elsewhere, workload{name: "vllm", replicas: 1})
	awaitReady(t, ns, 2)
	awaitReady(t, elsewhere, 1)
	replicas := follow(t, ns, "vllm")
	setLoad(t, engines, "vllm", requests(2)) // half of what one replica serves
	setLoad(t, beside, "small", requests(8)) // twice that
	setLoad(t, others, "vllm", requests(8))

	const stabilization = 10 * time.Second
	_, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "vllm"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "vllm"},
			MinReplicas:    new(int32(1)), MaxReplicas: 5,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ExternalMetricSourceType,
				External: &autoscalingv2.ExternalMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "vllm_queue_depth", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"model": selected}}},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("5"))},
				},
			}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{
				StabilizationWindowSeconds: new(int32(stabilization.Seconds())),
				Policies:                   []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 5}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitActive(t, ns, "vllm")
	for _, crowded := range []struct {
		engines    *cluster.Emulator
		deployment string
	}{{beside, "small"}, {others, "vllm"}} {
		eventually(t, time.Minute, "another queue is there", func() error {
			if n := waiting(t, crowded.engines, crowded.deployment); n < 20 {
				return fmt.Errorf("%d requests wait", n)
			}
			return nil
		})
	}
	throughout(t, 4*hpaSync, "the queues of others are none of its business", func() error {
		if n := replicas.now(); n != 1 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})

	setLoad(t, engines, "vllm", requests(14)) // needs four
	replicas.await(t, 2*time.Minute, "it scales out", func(n int) bool { return n >= 4 })
	m := hpa(t, ns, "vllm").Status.CurrentMetrics
	if len(m) != 1 || m[0].External == nil || m[0].External.Metric.Name != "vllm_queue_depth" || m[0].External.Current.AverageValue == nil {
		t.Errorf("the status of the HPA shows %+v", m)
	}

	// More load than all of them serve, so that there is nothing to scale in for.
	setLoad(t, engines, "vllm", requests(30))
	replicas.await(t, 2*time.Minute, "it scales out to its maximum", func(n int) bool { return n == 5 })
	eventually(t, time.Minute, "a queue is there", func() error {
		if n := waiting(t, engines, "vllm"); n < 50 {
			return fmt.Errorf("%d requests wait", n)
		}
		return nil
	})
	start := stopPrometheus(t)
	died := time.Now()
	eventually(t, time.Minute, "the HPA says that Prometheus is down", func() error {
		c := scalingActive(hpa(t, ns, "vllm"))
		if c.Status != corev1.ConditionFalse || c.Reason != "FailedGetExternalMetric" || !strings.Contains(c.Message, shared.Prometheus.URL) {
			return fmt.Errorf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
	throughout(t, stabilization+testWindow, "with Prometheus down", func() error {
		for _, selector := range []string{"", "model=" + selected} {
			v, err := external(t, shared.Config, ns, "vllm_queue_depth", selector)
			if err == nil {
				return fmt.Errorf("%q: answered %s", selector, v.Value.String())
			}
			if !isStatus(err, http.StatusServiceUnavailable) || !strings.Contains(err.Error(), shared.Prometheus.URL) {
				return fmt.Errorf("%q: no 503 that names Prometheus: %w", selector, err)
			}
		}
		return nil
	})
	if seen := replicas.since(died); len(seen) != 1 || seen[0] != 5 {
		t.Errorf("with Prometheus down, replicas went %v", seen)
	}
	start()
	awaitActive(t, ns, "vllm")

	setLoad(t, engines, "vllm", requests(0))
	replicas.await(t, 3*time.Minute, "it scales in when it is idle", func(n int) bool { return n == 1 })
	if n := waiting(t, others, "vllm"); n < 20 {
		t.Errorf("only %d requests wait in the other namespace: it proved nothing", n)
	}
}

// TestExternal asks for external metrics through the API server.
func TestExternal(t *testing.T) {
	// Off, there is no trace of it: in the cluster, or in the adapter.
	off := startAdapters(t, 1)[0]
	for whose, asker := range map[string]*rest.Config{"the API server": shared.Config, "the adapter": directly(off)} {
		eventually(t, time.Minute, whose+" knows the administrator", func() error { return lists(t, asker, group) })
		if err := lists(t, asker, externalGroup); err == nil {
			t.Errorf("%s lists external metrics while they are off", whose)
		}
		if resp := get(t, asker, "/apis/"+externalGroup+"/v1beta1", "application/json"); resp.status != http.StatusNotFound {
			t.Errorf("%s answers %d while external metrics are off: %.200s", whose, resp.status, resp.body)
		}
	}

	service.Remove(off.Address)

	ns := namespace(t)
	elsewhere := namespaceNamed(t, ns+"-elsewhere")
	engines := startEmulator(t, ns)
	others := startEmulator(t, elsewhere)
	startExternal(t)
	eventually(t, time.Minute, "the API server lists external metrics", func() error { return lists(t, shared.Config, externalGroup) })
	var list metav1.APIResourceList
	getJSON(t, "/apis/"+externalGroup+"/v1beta1", &list)
	listed := map[string]bool{}
	for _, r := range list.APIResources {
		listed[r.Name] = r.Namespaced && r.Kind == "ExternalMetricValueList"
	}
	for _, name := range vllmMetrics {
		if !listed[name] {
			t.Errorf("%s is not listed: %v", name, list.APIResources)
		}
	}

	// Queues that stand still, and differ.
	deploy(t, ns, workload{name: "vllm", replicas: 2})
	deploy(t, elsewhere, workload{name: "vllm", replicas: 1})
	here, there := awaitReady(t, ns, 2), awaitReady(t, elsewhere, 1)
	freeze := func(e *cluster.Emulator, pods []corev1.Pod, atLeast int) (queue float64) {
		setLoad(t, e, "vllm", requests(10*float64(len(pods))))
		for _, pod := range pods {
			eventually(t, time.Minute, "requests wait at "+pod.Name, func() error {
				if n := replica(t, e, pod.Name).Waiting; n < atLeast {
					return fmt.Errorf("%d requests wait", n)
				}
				return nil
			})
		}
		setLoad(t, e, "vllm", requests(0))
		for i := range pods {
			act(t, e, pods[i].Name, "freeze")
			queue += exported(t, &pods[i], "vllm:num_requests_waiting")
		}
		return queue
	}
	mine, theirs := freeze(engines, here, 5), freeze(others, there, 50)
	if mine == theirs || mine == 0 {
		t.Fatalf("%g requests wait here, and %g there", mine, theirs)
	}
	settled := func(ns string, want float64) {
		t.Helper()
		eventually(t, time.Minute, "the value of namespace "+ns+" is what its engines export", func() error {
			v, err := external(t, shared.Config, ns, "vllm_queue_depth", "")
			if err == nil && v.Value.AsApproximateFloat64() != want {
				err = fmt.Errorf("%s answered, %g exported", v.Value.String(), want)
			}
			return err
		})
	}
	settled(ns, mine)
	settled(elsewhere, theirs)

	t.Run("namespaces are apart", func(t *testing.T) {
		ask := func(ns, selector string) (v1beta1.ExternalMetricValue, error) {
			return warm(t, func() (v1beta1.ExternalMetricValue, error) {
				return external(t, shared.Config, ns, "vllm_queue_depth", selector)
			})
		}
		for _, selector := range []string{
			"model=Qwen_Qwen3-8B", "model in (Qwen_Qwen3-8B,other)", "model!=other", "model", "!nothing", "engine=0", "role!=prefill",
			"namespace=" + elsewhere, "namespace in (" + ns + "," + elsewhere + ")", "namespace", "namespace!=" + ns,
			"exported_namespace=" + elsewhere, "kubernetes_namespace=" + elsewhere, "pod_namespace=" + elsewhere,
			"pod=" + there[0].Name, "pod!=" + here[0].Name, "exported_pod=" + there[0].Name, "instance=" + there[0].Status.PodIP,
			"__name__=vllm_queue_depth",
		} {
			v, err := ask(ns, selector)
			switch {
			case err == nil && v.Value.AsApproximateFloat64() != mine:
				t.Errorf("%q answers %s for %s: %g wait there, and %g in %s", selector, v.Value.String(), ns, mine, theirs, elsewhere)
			case err != nil && !isStatus(err, http.StatusBadRequest):
				t.Errorf("%q: %v, want the namespace's own value or a 400", selector, err)
			case err == nil && strings.HasPrefix(selector, "namespace"):
				t.Errorf("%q is taken for a selector", selector)
			}
		}
		if v, err := ask(ns, "model=other"); !isStatus(err, http.StatusNotFound) {
			t.Errorf("a model that nobody serves: %s %v, want 404", v.Value.String(), err)
		}
		for _, ns := range []string{"*", "default", "none-such"} {
			if v, err := ask(ns, ""); !isStatus(err, http.StatusNotFound) {
				t.Errorf("namespace %s: %s %v, want 404", ns, v.Value.String(), err)
			}
		}
	})

	t.Run("rbac", func(t *testing.T) {
		reader := newReader(t, ns)
		if v, err := external(t, reader, ns, "vllm_queue_depth", ""); !isStatus(err, http.StatusForbidden) {
			t.Errorf("who may not view the namespace reads %s %v, want 403", v.Value.String(), err)
		}
		letView(t, ns)
		eventually(t, time.Minute, "who may view the namespace reads its value", func() error {
			v, err := external(t, reader, ns, "vllm_queue_depth", "")
			if err == nil && v.Value.AsApproximateFloat64() != mine {
				t.Errorf("he reads %s, want %g", v.Value.String(), mine)
			}
			return err
		})
		for _, ns := range []string{elsewhere, "*"} {
			if v, err := external(t, reader, ns, "vllm_queue_depth", ""); !isStatus(err, http.StatusForbidden) {
				t.Errorf("he reads namespace %s: %s %v, want 403", ns, v.Value.String(), err)
			}
		}
	})

	t.Run("kubectl", func(t *testing.T) {
		for _, path := range []string{
			"/apis/" + externalGroup + "/v1beta1/namespaces/" + ns + "/vllm_queue_depth",
			"/apis/" + externalGroup + "/v1beta1/namespaces/" + ns + "/vllm_queue_depth?labelSelector=model=Qwen_Qwen3-8B",
			"/apis/" + externalGroup + "/v1beta1/namespaces/" + ns + "/vllm_queue_depth?labelSelector=model%3DQwen_Qwen3-8B%2Cengine%3D0",
			"/apis/" + externalGroup + "/v1beta1/namespaces/" + ns + "/inference_queue_depth",
		} {
			text, err := warm(t, func() (string, error) { return shared.Kubectl(t.Context(), "get", "--raw", path) })
			if err != nil {
				t.Error(err)
				continue
			}
			if v, err := onlyExternal([]byte(text)); err != nil || v.Value.AsApproximateFloat64() != mine || !strings.HasSuffix(strings.SplitN(path, "?", 2)[0], "/"+v.MetricName) {
				t.Errorf("%s: %s (%v), want %g", path, text, err, mine)
			}
		}
		for path, want := range map[string]string{
			"/namespaces/" + ns + "/vllm_made_up":                                "there is no metric vllm_made_up",
			"/namespaces/" + ns + "/vllm_queue_depth?labelSelector=colour%3Dred": "colour: vllm_queue_depth has neither a parameter nor a label of that name",
		} {
			if text, err := shared.Kubectl(t.Context(), "get", "--raw", "/apis/"+externalGroup+"/v1beta1"+path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s %v, want %q", path, text, err, want)
			}
		}
	})
}

// lists returns an error unless discovery lists a group.
func lists(t *testing.T, asker *rest.Config, name string) error {
	t.Helper()
	resp := get(t, asker, "/apis", "application/json")
	if resp.status != http.StatusOK {
		return &answerError{resp.status, string(resp.body)}
	}
	var all metav1.APIGroupList
	if err := json.Unmarshal(resp.body, &all); err != nil {
		return err
	}
	if !slices.ContainsFunc(all.Groups, func(g metav1.APIGroup) bool { return g.Name == name }) {
		return fmt.Errorf("%s is not in %s", name, resp.body)
	}
	return nil
}
