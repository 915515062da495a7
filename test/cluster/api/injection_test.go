package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// marker is in the names, labels and selectors of everything hostile here, and in nothing else.
const marker = "zqxmark"

// marked is a namespace all names of which are hostile, as far as Kubernetes lets them be.
const marked = `
apiVersion: v1
kind: Namespace
metadata: {name: zqxmark, labels: {zqxmark: zqxmark}, annotations: {zqxmark: '"} or vector(1) #'}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: a.b-zqxmark.or.up
  namespace: zqxmark
  labels: {zqxmark: zqxmark}
  annotations: {inference-metrics.github.io/slo-ttft: '1s"} or zqxmark #'}
spec:
  replicas: 1
  selector: {matchLabels: {zqxmark: zqxmark}}
  template:
    metadata: {labels: {zqxmark: zqxmark, app: zqxmark, llm-d.ai/role: zqxmark, model: zqxmark}, annotations: {prometheus.io/path: '/zqxmark"}', inference-metrics.github.io/slo-tpot: 'zqxmark'}}
    spec: {containers: [{name: zqxmark, image: zqxmark, ports: [{name: metrics, containerPort: 8000}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: svc-zqxmark, namespace: zqxmark}
spec: {selector: {zqxmark: zqxmark}, ports: [{port: 80}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: zqxmark, namespace: zqxmark}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a.b-zqxmark.or.up}
  maxReplicas: 1
  metrics:
    - type: Pods
      pods: {metric: {name: vllm_request_rate, selector: {matchLabels: {model: zqxmark_or_up}}}, target: {type: AverageValue, averageValue: "5"}}
    - type: External
      external: {metric: {name: vllm_goodput, selector: {matchExpressions: [{key: model_name, operator: NotIn, values: [zqxmark]}]}}, target: {type: AverageValue, averageValue: "5"}}
    - type: Pods
      pods: {metric: {name: 'vllm_queue_depth{zqxmark="1"}'}, target: {type: AverageValue, averageValue: "5"}}
`

// TestInjection: of names, namespaces and selectors nothing gets into what the adapter asks its source, whether
// a request or an HPA brings them, so that there is nothing to break out of.
func TestInjection(t *testing.T) {
	front := newRecorder(t)
	a := startAdapter(t, "--prometheus-url="+front.URL)
	awaitServed(t)
	if err := shared.Apply(t.Context(), marked); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _, _ = kubectl(t, "delete", "namespace", marker, "--wait=false")
	})

	var hostile []string
	for _, text := range []string{
		marker, `zqxmark"} or vector(0) #`, `zqxmark|.*`, `.*zqxmark`, "a.b-zqxmark.or.up", `zqxmark\`, "zqxmark`", "zqxmark'", "zqxmark\n", `{__name__=~"zqxmark.+"}`, "zqxmark[5m]", "zqxmark)", "$zqxmark", "${zqxmark}",
	} {
		e, q := url.PathEscape(text), url.QueryEscape(text)
		for _, base := range []string{custom + "/v1beta2/namespaces/", custom + "/v1beta1/namespaces/"} {
			hostile = append(hostile,
				base+e+"/pods/*/vllm_queue_depth", base+e+"/metrics/vllm_queue_depth", base+"team-a/pods/"+e+"/vllm_queue_depth", base+"zqxmark/pods/"+e+"/vllm_queue_depth",
				base+"zqxmark/deployments.apps/"+e+"/vllm_queue_depth", base+"zqxmark/services/*/vllm_queue_depth?labelSelector="+q, base+"zqxmark/"+e+"/*/vllm_queue_depth",
				base+"zqxmark/pods/*/"+e, base+"zqxmark/pods/*/vllm_queue_depth"+e)
		}
		hostile = append(hostile, external+"/v1beta1/namespaces/"+e+"/vllm_queue_depth", external+"/v1beta1/namespaces/zqxmark/"+e)
		for _, selector := range []string{text, "model=" + text, "model!=" + text, "model in (a," + text + ")", text + "=a", "engine=" + text, "quantile=" + text, "ttft=" + text, "finished_reason=" + text, "role=" + text, "le=" + text, "__name__=" + text} {
			s := url.QueryEscape(selector)
			hostile = append(hostile,
				custom+"/v1beta2/namespaces/team-a/pods/*/vllm_request_rate?metricLabelSelector="+s, custom+"/v1beta2/namespaces/team-a/pods/*/vllm_ttft_seconds?labelSelector="+s,
				custom+"/v1beta2/namespaces/team-a/deployments.apps/vllm/vllm_goodput?metricLabelSelector="+s, external+"/v1beta1/namespaces/team-a/vllm_queue_depth?labelSelector="+s)
		}
	}
	taken := 0
	for _, path := range hostile {
		resp, err := request(t.Context(), shared.Config, http.MethodGet, path, applicationJSON)
		if err == nil && (resp.status == http.StatusOK || resp.status == http.StatusServiceUnavailable) {
			taken++
		}
	}
	if taken < 20 {
		t.Errorf("only %d of %d requests were taken: it proves nothing", taken, len(hostile))
	}
	// What was asked for is collected from now on; so is what the HPA names, once it is known.
	eventually(t, time.Minute, "the HPA of the hostile namespace is answered, and not with a value", func() error {
		out, _, err := kubectl(t, "describe", "hpa", "--namespace", marker)
		if err == nil && !strings.Contains(out, "FailedGet") {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	for _, name := range []string{"vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket"} {
		eventually(t, time.Minute, name+" is collected", func() error {
			if !strings.Contains(strings.Join(front.seen(), "\n"), name) {
				return fmt.Errorf("asked so far: %v", front.seen())
			}
			return nil
		})
	}
	from := front.count()
	eventually(t, time.Minute, "a few collections more", func() error {
		if n := front.count(); n < from+30 {
			return fmt.Errorf("%d requests since", n-from)
		}
		return nil
	})
	asked := front.seen()
	for _, text := range asked {
		if strings.Contains(text, marker) || strings.Contains(text, teamA) || strings.Contains(text, teamB) || strings.Contains(text, pods[teamA][0]) {
			t.Errorf("the source was asked %s", text)
		}
	}
	t.Logf("the source was asked %d different things in %d requests", len(asked), front.count())
	if a.Exited() {
		t.Error("the adapter has ended")
	}
}

// recorder stands before Prometheus and keeps what it is asked.
type recorder struct {
	*httptest.Server
	mu    sync.Mutex
	asked map[string]int
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	behind, err := url.Parse(shared.Prometheus.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	r := &recorder{asked: map[string]int{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return // the adapter is gone
		}
		// Everything but the time.
		form, _ := url.ParseQuery(string(body)) // a body that is none is kept as it is, below
		form.Del("time")
		text := req.Method + " " + req.URL.Path + " " + fmt.Sprint(form)
		if len(form) == 0 {
			text += string(body)
		}
		query := req.URL.Query()
		query.Del("time")
		text += " " + fmt.Sprint(query)
		r.mu.Lock()
		r.asked[text]++
		r.mu.Unlock()
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *recorder) count() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.asked {
		n += times
	}
	return n
}

// seen are the different things that were asked.
func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for text := range r.asked {
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}
