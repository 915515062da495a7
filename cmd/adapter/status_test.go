package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Standalone the page is open, on loopback as all is. No credential is on it.
func TestStatusStandalone(t *testing.T) {
	e := newEngine(t, 7)
	c := start(t, "--standalone", "--scrape-interval=100ms", "--collect-interval=100ms",
		"--target=default/vllm-0="+e.URL+"/metrics?token=s3cret",
		"--target=default/vllm-1=http://127.0.0.1:1/metrics?token=s3cret")
	c.eventually("vllm-0=7", "vllm_queue_depth", "")
	var page string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if page = c.await("/debug/signals"); strings.Contains(page, "1 up, 1 down") && strings.Contains(page, "connection refused") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page does not come to say that a target is down: %s", page)
		}
	}
	asJSON := c.await("/debug/signals?format=json")
	for _, text := range []string{page, asJSON} {
		if strings.Contains(text, "s3cret") || !strings.Contains(text, "vllm_queue_depth") {
			t.Errorf("the page has a secret, or not the signal: %s", text)
		}
	}
	var read struct {
		Pods struct {
			Rows []struct {
				Name  string
				Value *float64
			}
		}
	}
	if err := json.Unmarshal([]byte(asJSON), &read); err != nil || len(read.Pods.Rows) == 0 || read.Pods.Rows[0].Name != "vllm-0" || *read.Pods.Rows[0].Value != 7 {
		t.Errorf("%v in %s", err, asJSON)
	}
}

// In a cluster whoever may see the page is the cluster's word, as of the API.
func TestStatusIsGuarded(t *testing.T) {
	api := newCluster(t)
	api.pods.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm-0"}}}
	e := newEngine(t, 7)
	c := start(t, "--kubeconfig="+kubeconfig(t, api.URL), "--authentication-skip-lookup", "--bind-address=127.0.0.1",
		"--target=default/vllm-0="+e.URL+"/metrics")
	for token, want := range map[string]int{"": http.StatusForbidden, "forged": http.StatusUnauthorized, "nobody-token": http.StatusForbidden, "hpa-token": http.StatusOK} {
		c.token = token
		for _, path := range []string{"/debug/signals", "/debug/signals?format=json", "/debug/signals?pods=0"} {
			want := want
			if want == http.StatusOK && strings.HasSuffix(path, "pods=0") {
				want = http.StatusBadRequest
			}
			code, body := c.get(path)
			if code != want {
				t.Errorf("%s with the token %q: a %d, want a %d: %s", path, token, code, want, body)
			}
			if code >= 401 && (strings.Contains(body, "vllm-0") || strings.Contains(body, "<html")) {
				t.Errorf("%s with the token %q says: %s", path, token, body)
			}
		}
	}
}
