package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// cluster is as much of a kube-apiserver as the adapter talks to: one that streams no lists, so that
// plain ones are tested here too.
type cluster struct {
	*httptest.Server
	t    *testing.T
	pods corev1.PodList
	hpas autoscalingv2.HorizontalPodAutoscalerList
	// deployments own the pods themselves here: what is between is of no interest.
	deployments appsv1.DeploymentList

	mu     sync.Mutex
	hidden bool // lists are refused
	agents map[string]bool
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, agents: map[string]bool{}}
	mux := http.NewServeMux()
	c.serve(mux, "/api/v1/pods", &c.pods)
	c.serve(mux, "/apis/autoscaling/v2/horizontalpodautoscalers", &c.hpas)
	c.serve(mux, "/apis/apps/v1/deployments", &c.deployments)
	c.serve(mux, "/apis/apps/v1/statefulsets", &appsv1.StatefulSetList{})
	c.serve(mux, "/apis/apps/v1/replicasets", &appsv1.ReplicaSetList{})
	c.serve(mux, "/api/v1/services", &corev1.ServiceList{})
	// It has no other kind: whoever looks for one gets a 404.
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		c.read(r, &review)
		if user, ok := strings.CutSuffix(review.Spec.Token, "-token"); ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: user}}
		}
		c.answer(w, http.StatusCreated, review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		c.read(r, &review)
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "hpa" && (a == nil || a.Group == "custom.metrics.k8s.io" && (a.Resource == "pods" || a.Resource == "deployments.apps"))
		c.answer(w, http.StatusCreated, review)
	})
	c.Server = httptest.NewServer(mux)
	// Watches do not end by themselves; whoever watches is stopped before.
	t.Cleanup(c.Close)
	return c
}

func (c *cluster) serve(mux *http.ServeMux, path string, list any) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		hidden := c.hidden
		c.agents[r.UserAgent()] = true
		c.mu.Unlock()
		q := r.URL.Query()
		switch {
		case hidden:
			c.answer(w, http.StatusForbidden, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
		case q.Get("sendInitialEvents") != "":
			c.answer(w, http.StatusUnprocessableEntity, metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case q.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			c.answer(w, http.StatusOK, list)
		}
	})
}

func (c *cluster) hide(hidden bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hidden = hidden
}

func (c *cluster) read(r *http.Request, v any) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		c.t.Errorf("%s: %v", r.URL, err)
	}
}

func (c *cluster) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		c.t.Error(err)
	}
}

// A cluster of two vLLM pods, one of which has never been Ready, their Deployment, and an HPA.
func TestInCluster(t *testing.T) {
	one, two := newEngine(t, 3), newEngine(t, 9)
	api := newCluster(t)
	// Samples of a pod that has been Ready for long would have to cover a whole window first.
	born := metav1.NewTime(time.Now().Truncate(time.Second))
	for i, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse} {
		api.pods.Items = append(api.pods.Items, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("vllm-%d", i), UID: types.UID(fmt.Sprint("u", i)), Labels: map[string]string{"app": "vllm"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "vllm", UID: "d", Controller: new(true)}}},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, StartTime: &born,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: born}},
			},
		})
	}
	api.deployments.Items = []appsv1.Deployment{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", UID: "d",
			Annotations: map[string]string{"inference-metrics.github.io/slo-ttft": "fast"}},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "vllm"}}},
	}}
	api.hpas.Items = []autoscalingv2.HorizontalPodAutoscaler{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{{
			Type: autoscalingv2.PodsMetricSourceType,
			Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "vllm_queue_depth"}},
		}}},
	}}
	api.hide(true)

	c := start(t, "--kubeconfig="+kubeconfig(t, api.URL), "--authentication-skip-lookup", "--bind-address=127.0.0.1",
		"--scrape-interval=100ms", "--collect-interval=100ms",
		"--target=default/vllm-0="+one.URL+"/metrics", "--target=default/vllm-1="+two.URL+"/metrics")

	// Not Ready before the cluster's objects are known, but alive, as start saw.
	if code, body := c.get("/readyz"); code != http.StatusInternalServerError ||
		!strings.Contains(body, "[-]pods-synced failed") || !strings.Contains(body, "[-]horizontalpodautoscalers-synced failed") ||
		!strings.Contains(body, "groups-synced") {
		t.Errorf("readyz is a %d while the cluster refuses: %s", code, body)
	}
	api.hide(false)
	c.await("/readyz")

	// Who may ask is the cluster's word.
	const path = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/pods/*/vllm_queue_depth"
	if code, body := c.get(path); code != http.StatusForbidden {
		t.Errorf("a stranger got a %d: %s", code, body)
	}
	c.token = "nobody-token"
	if code, body := c.get(path); code != http.StatusForbidden {
		t.Errorf("a user without rights got a %d: %s", code, body)
	}
	c.token = "forged"
	if code, body := c.get(path); code != http.StatusUnauthorized {
		t.Errorf("a forged token got a %d: %s", code, body)
	}
	c.token = "hpa-token"
	// The HPA's metric is collected before anybody was allowed to ask.
	for deadline := time.Now().Add(time.Minute); !strings.Contains(c.await("/metrics"), `replicas{signal="vllm_queue_depth"`); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what the HPA names is not collected within a minute")
		}
	}
	// Labels and readiness are the pods'.
	c.eventually("vllm-0=3", "vllm_queue_depth", "app=vllm")
	if code, body := c.get(strings.Replace(path, "*", "vllm-1", 1)); code != http.StatusNotFound || !strings.Contains(body, "never Ready") {
		t.Errorf("a pod that was never Ready got a %d: %s", code, body)
	}

	// The Deployment stands for its pods, of which one counts; its annotations hold for them.
	if got := valueOf(t, c.await(strings.Replace(path, "pods/*", "deployments.apps/vllm", 1))); got != "vllm=3" {
		t.Errorf("the Deployment has %s, want vllm=3", got)
	}
	if _, metrics := c.get("/metrics"); !strings.Contains(metrics, `inference_metrics_adapter_unreadable_objectives{namespace="default"} 1`) {
		t.Error("/metrics does not count the pod whose Deployment has an annotation that cannot be read")
	}

	api.mu.Lock()
	defer api.mu.Unlock()
	if len(api.agents) != 1 || !api.agents["inference-metrics-adapter/"+buildVersion()] {
		t.Errorf("the cluster was asked by %v", api.agents)
	}
}

func TestSourceIsAsChosen(t *testing.T) {
	for want, args := range map[string][]string{
		"Prometheus at http://127.0.0.1:9090": {"--prometheus-url=http://127.0.0.1:9090/", "--kubeconfig=" + kubeconfig(t, "http://127.0.0.1:1")},
		"scraping the engines":                {"--standalone", vllm0},
	} {
		c := parse(t, args...)
		src, _, err := new(adapter).newSource(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := src.String(); got != want {
			t.Errorf("%v: the source is %s, want %s", args, got, want)
		}
	}
}
