package api

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/inference-metrics/adapter/test/cluster"
)

// nasty are parts of paths, as they go over the wire.
var nasty = []string{
	"", "*", "%2A", "**", "*a", ".", "..", "%2e%2e", "..%2f..", "a%2Fb", "%2F", "%5C", "%00", "%0a", "%0d%0aX-Evil:1", "%7f", "%ff%fe", "%C3%28",
	"%F0%9F%92%A9", "%E2%80%AE", "%u0041", "%25", "%252F", "%252e%252e", ";", ":", ":80", "@", "~", "$", "$(id)", "%60id%60", "'", "%22", "%22%7D%20or%20%7B",
	"-1", "0", "null", "undefined", "NaN", "true", "status", "scale", "metrics", "namespaces", "pods", "proxy", "watch", "__name__", "%7B__name__=~%22.%2B%22%7D",
	strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("x", 5000), strings.Repeat("%F0%9F%98%80", 300), strings.Repeat("../", 40), strings.Repeat("a.", 500) + "a",
}

// plain are parts of paths that lead somewhere.
var plain = []string{
	"namespaces", "team-a", "team-b", "default", "kube-system", "none-such", "pods", "deployments.apps", "services", "metrics", "nodes", "replicasets.apps",
	"inferencepools.inference.networking.k8s.io", "vllm", "vllm_queue_depth", "vllm_ttft_seconds", "vllm_goodput", "inference_queue_depth", "pool_queue_depth", "vllm_made_up",
}

// selectors are values of the parameters that select.
var selectors = []string{
	"", "app=vllm", "app==vllm", "app!=vllm", "app in (vllm,other)", "app notin (vllm)", "app", "!app", "a in (", "in", "in in (in)", "notin", "=", "==", "!=", ",", ",,,", "a=b,", "a=b,,c=d",
	"()", "a in ()", "a in (,)", "a in (,,,,)", "app>1", "app<1", "app>x", "a=b c", "a\x00=b", "ä=ö", "a=\xff\xfe", "-a=b", "a=" + strings.Repeat("b", 64), strings.Repeat("a", 64) + "=b", strings.Repeat("a", 300) + "/b=c",
	"example.com/a=b", "../a=b", "a/b/c=d", "model=meta-llama/Llama-3", "model=Qwen_Qwen3-8B", "model in (a,b,c)", "quantile=0.95", "quantile=1e309", "quantile=-0", "quantile=0x1p-2", "quantile=NaN", "quantile=Inf", "quantile=0.5,quantile=0.9",
	"window=1m", "window=9223372036854775807s", "window=-1m", "window=1ns", "ttft=0s", "ttft=1e9h", "ttft=99999999999999999999h", "role=prefill", "role in (prefill,decode)", "role=", "namespace=team-b", "pod=vllm", "__name__=up", "le=+Inf", "le",
	`a="b"} or {x="y`, "a=b'", "metadata.name=vllm", "metadata.name==vllm,metadata.namespace=team-b", "metadata.namespace=team-b", "status.phase=Running",
}

// parameters are those of a list, and some that are not.
var parameters = []string{
	"labelSelector", "metricLabelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch", "limit", "continue", "watch", "allowWatchBookmarks", "sendInitialEvents",
	"timeoutSeconds", "timeout", "pretty", "metricName", "namespace", "name", "export", "exact", "dryRun", "fieldManager", "gracePeriodSeconds", "includeObject", "shardSelector", "LABELSELECTOR", "labelSelector[]", "",
}

var values = []string{"", "0", "1", "-1", "true", "false", "2", "NaN", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e3", "Exact", "NotOlderThan", "MostRecent", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTF9", "\x00", "ä", "*", "All"}

var methods = []string{"GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND", "get", "BREW"}

var accepts = []string{
	applicationJSON, protobuf, "application/yaml", "*/*", "", "text/html", "application/cbor", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
	"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", protobuf + ";as=Table;v=v1;g=meta.k8s.io", "application/json;stream=watch", "application/json;q=nonsense", ";;;", "application/json;as=;v=;g=",
	"application/vnd.kubernetes.protobuf;stream=watch", aggregated, strings.Repeat("a/b,", 500),
}

// hostile is a request of a random kind.
type hostile struct{ method, path, accept string }

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func randomRequest(r *rand.Rand) hostile {
	h := hostile{method: pick(r, methods), accept: pick(r, accepts)}
	bases := []string{custom + "/v1beta2", custom + "/v1beta1", external + "/v1beta1", custom, external, custom + "/v1", external + "/v1beta2", "/openapi/v3" + custom + "/v1beta2"}
	path := []string{bases[min(r.IntN(12), len(bases)-1)]}
	if r.IntN(8) > 0 {
		path[0] = bases[r.IntN(3)]
	}
	// Mostly near to what is right: else the router answers all.
	shape := pick(r, [][]string{
		{"namespaces", "team-a", "pods", "*", "vllm_queue_depth"},
		{"namespaces", "team-a", "deployments.apps", "vllm", "vllm_queue_depth"},
		{"namespaces", "team-a", "services", "*", "vllm_goodput"},
		{"namespaces", "team-a", "metrics", "vllm_queue_depth"},
		{"namespaces", "team-a", "vllm_queue_depth"},
		{"namespaces", "team-a", "metrics", "vllm_queue_depth"},
		{"nodes", "*", "vllm_queue_depth"},
		{},
	})
	for _, part := range shape {
		switch r.IntN(6) {
		case 0:
			part = pick(r, nasty)
		case 1:
			part = pick(r, plain)
		}
		path = append(path, part)
		if r.IntN(12) == 0 {
			path = append(path, pick(r, nasty))
		}
	}
	h.path = strings.Join(path, "/")
	var query []string
	for range r.IntN(4) {
		name, value := pick(r, parameters), pick(r, values)
		if r.IntN(2) == 0 {
			name = parameters[r.IntN(3)]
		}
		if strings.HasSuffix(name, "Selector") {
			value = pick(r, selectors)
		}
		if r.IntN(10) > 0 {
			value = url.QueryEscape(value)
		} else {
			value = strings.Map(func(c rune) rune {
				if c <= ' ' || c == 0x7f {
					return -1
				}
				return c
			}, value)
		}
		query = append(query, name+"="+value)
	}
	if len(query) > 0 {
		h.path += "?" + strings.Join(query, "&")
	}
	return h
}

// corpus are requests of every kind that has to be tried in any case.
func corpus() []hostile {
	var all []hostile
	for _, base := range []string{custom + "/v1beta2", custom + "/v1beta1"} {
		for _, n := range nasty {
			for _, path := range []string{"/namespaces/" + n + "/pods/*/vllm_queue_depth", "/namespaces/team-a/" + n + "/*/vllm_queue_depth",
				"/namespaces/team-a/pods/" + n + "/vllm_queue_depth", "/namespaces/team-a/pods/*/" + n, "/namespaces/team-a/pods/*/vllm_queue_depth/" + n, "/" + n + "/x/vllm_queue_depth", "/namespaces/" + n + "/metrics/vllm_queue_depth", "/" + n} {
				all = append(all, hostile{"GET", base + path, applicationJSON}, hostile{"GET", base + path, protobuf})
			}
		}
	}
	for _, n := range nasty {
		all = append(all, hostile{"GET", external + "/v1beta1/namespaces/" + n + "/vllm_queue_depth", applicationJSON}, hostile{"GET", external + "/v1beta1/namespaces/team-a/" + n, protobuf})
	}
	lists := []string{custom + "/v1beta2/namespaces/team-a/pods/*/vllm_queue_depth", custom + "/v1beta2/namespaces/team-a/deployments.apps/vllm/vllm_ttft_seconds", external + "/v1beta1/namespaces/team-a/vllm_queue_depth"}
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf("key%d in (a%d,b%d)", i, i, i)
	}
	set := make([]string, 5000)
	for i := range set {
		set[i] = fmt.Sprintf("v%d", i)
	}
	for _, list := range lists {
		for _, s := range append([]string{strings.Join(many, ","), "model in (" + strings.Join(set, ",") + ")", "model notin (" + strings.Join(set, ",") + ")", strings.Repeat("(", 20000), strings.Repeat("a=b,", 20000)}, selectors...) {
			for _, parameter := range parameters[:3] {
				all = append(all, hostile{"GET", list + "?" + parameter + "=" + url.QueryEscape(s), applicationJSON})
			}
		}
		for _, p := range parameters {
			for _, v := range values {
				all = append(all, hostile{"GET", list + "?" + p + "=" + url.QueryEscape(v), applicationJSON})
			}
		}
		for _, m := range methods {
			all = append(all, hostile{m, list, applicationJSON}, hostile{m, list + "?watch=true", applicationJSON})
		}
		for _, a := range accepts {
			all = append(all, hostile{"GET", list, a}, hostile{"GET", list + "?watch=1&timeoutSeconds=1", a})
		}
		all = append(all, hostile{"GET", list + "?%zz=%&&&;;;===", applicationJSON}, hostile{"GET", list + "?" + strings.Repeat("a=b&", 20000), applicationJSON})
	}
	return all
}

// TestHostile: nothing that can be asked is a fault of the server, has an asker sleep, or makes it grow. The requests are the same
// at every run; IMA_SOAK makes them other ones, and many more.
func TestHostile(t *testing.T) {
	seed, n := uint64(1), 1500
	if os.Getenv("IMA_SOAK") != "" {
		seed, n = rand.Uint64(), 100_000
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	requests := corpus()
	for range n {
		requests = append(requests, randomRequest(r))
	}

	a := startAdapter(t, "--prometheus-url="+shared.Prometheus.URL)
	awaitServed(t)
	flood(t, a, requests[:200]) // connections and caches
	before := residentMiB(t, a)
	flood(t, a, requests)
	awaitServed(t)
	if after := residentMiB(t, a); after > before+100 {
		t.Errorf("the adapter holds %d MiB after them, and %d MiB before", after, before)
	}
	log, err := os.ReadFile(a.Log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(log) {
		if l := bytes.ToLower(line); bytes.Contains(l, []byte("panic")) || bytes.Contains(l, []byte("goroutine ")) {
			t.Errorf("the adapter logs %.500s", line)
			break
		}
	}
	if a.Exited() {
		t.Error("the adapter has ended")
	}
}

// flood makes requests of the API server and of the adapter itself, as somebody who may do everything.
func flood(t *testing.T, a *cluster.Adapter, requests []hostile) {
	t.Helper()
	next := make(chan hostile)
	codes := map[int]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for h := range next {
				for whose, config := range map[string]*rest.Config{"the API server": shared.Config, "the adapter": directly(a)} {
					r, err := request(t.Context(), config, h.method, h.path, h.accept)
					if err != nil {
						// The client refuses to send it, or its connection was ended: whether the server still
						// answers shows with the next.
						continue
					}
					mu.Lock()
					codes[r.status]++
					mu.Unlock()
					if err := errors.Join(served5xx(r), asksAgain(r)); err != nil {
						t.Errorf("%s answers %s %.300s (%.100s): %v", whose, h.method, h.path, h.accept, err)
					}
				}
			}
		})
	}
	for _, h := range requests {
		next <- h
	}
	close(next)
	all.Wait()
	t.Logf("answers by code: %v", codes)
	if codes[http.StatusOK] < len(requests)/20 {
		t.Errorf("of %d requests next to none is answered with a value: %v", len(requests), codes)
	}
}

// served5xx returns an error where a request is answered as a fault of the server, but for what the adapter
// does not collect, and for paths that end where Kubernetes wants more: all its servers answer that so, before
// any API is asked.
func served5xx(r response) error {
	if r.status < 500 {
		return nil
	}
	if r.status == http.StatusServiceUnavailable && (bytes.Contains(r.body, []byte("is warming up")) || bytes.Contains(r.body, []byte("ask with fewer"))) ||
		r.status == http.StatusInternalServerError && bytes.Contains(r.body, []byte("failed to create RequestInfo: unable to determine kind and namespace from url")) {
		return nil
	}
	return fmt.Errorf("%d %.300s", r.status, r.body)
}

// asksAgain returns an error where an answer asks to be asked again, on which client-go would sleep.
func asksAgain(r response) error {
	if after := r.header.Get("Retry-After"); after != "" || r.status >= 400 && bytes.Contains(r.body, []byte("retryAfterSeconds")) {
		return fmt.Errorf("it asks to be asked again: %d, %q, %.300s", r.status, after, r.body)
	}
	return nil
}

// residentMiB is the memory that an adapter holds.
func residentMiB(t *testing.T, a *cluster.Adapter) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb >> 10
		}
	}
	t.Fatalf("process %d has no VmRSS", a.Pid)
	return 0
}
