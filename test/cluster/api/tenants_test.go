package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// strangers are a team's attempts to have a Service of its own lead to the engines of another.
const strangers = `
apiVersion: v1
kind: Service
metadata: {name: stranger, namespace: team-a, labels: {app: vllm}}
spec: {type: ExternalName, externalName: vllm.team-b.svc.cluster.local, selector: {app: vllm}}
---
apiVersion: v1
kind: Endpoints
metadata: {name: stranger, namespace: team-a}
subsets: [{addresses: [{ip: 198.51.100.7, targetRef: {kind: Pod, namespace: team-b, name: POD}}], ports: [{port: 8000}]}]
`

// TestTenants: who has all rights on metrics in one namespace reads nothing of another one, by any route and
// spelling, through the API server or past it; not even whether something is there.
func TestTenants(t *testing.T) {
	if err := shared.Apply(t.Context(), strings.ReplaceAll(strangers, "POD", pods[teamB][0])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _, _ = kubectl(t, "delete", "service,endpoints", "stranger", "--ignore-not-found", "--namespace", teamA)
	})
	a := startAdapter(t, "--prometheus-url="+shared.Prometheus.URL, "--expose-signals=vllm_queue_depth")
	awaitServed(t)
	past := rest.AnonymousClientConfig(directly(a))
	past.BearerToken = reader.BearerToken
	askers := map[string]*rest.Config{"through the API server": reader, "past it": past}

	theirs := pods[teamB][0]
	var routes []string
	for _, v := range served["custom.metrics.k8s.io"] {
		base := custom + "/" + v
		for _, ns := range []string{teamB, "team-a/../team-b", "team-a%2F..%2Fteam-b", "./team-b", "%2e/team-b", "team%2Db", "/team-b", "Team-B", "team-b%20", "team-b%00", "team-b.", "*", "%2A", ""} {
			for _, of := range []string{
				"pods/*", "pods/%2A", "pods/" + theirs, "pods/nobody", "deployments.apps/vllm", "deployments.apps/*", "services/vllm", "services/*",
				"replicasets.apps/*", "inferencepools.inference.networking.k8s.io/vllm", "metrics", "namespaces/" + teamB,
			} {
				routes = append(routes, base+"/namespaces/"+ns+"/"+of+"/vllm_queue_depth")
			}
		}
		routes = append(routes,
			// Objects that are in no namespace, and namespaces as objects.
			base+"/namespaces/"+teamB+"/vllm_queue_depth", base+"/namespaces/*/vllm_queue_depth", base+"/namespaces/*/metrics/vllm_queue_depth",
			base+"/pods/*/vllm_queue_depth", base+"/pods/"+theirs+"/vllm_queue_depth", base+"/deployments.apps/vllm/vllm_queue_depth", base+"/nodes/*/vllm_queue_depth",
			base+"/metrics/"+teamB+"/vllm_queue_depth",
		)
		// From within the own namespace.
		own := base + "/namespaces/" + teamA
		for _, of := range []string{
			"namespaces/" + teamB, "namespaces/*", "pods/" + theirs, "pods/" + teamB + "%2F" + theirs, "pods/../../" + teamB + "/pods/*", "pods/..%2F..%2F" + teamB + "%2Fpods%2F*",
			"deployments.apps/" + teamB + "%2Fvllm", "services/stranger", "services/*", "deployments.apps/*", "pods/*", "metrics", "nodes/*",
		} {
			routes = append(routes, own+"/"+of+"/vllm_queue_depth")
			for _, q := range smuggled() {
				routes = append(routes, own+"/"+of+"/vllm_queue_depth?"+q)
			}
		}
	}
	for _, ns := range []string{teamB, "*", "team-a%2F..%2Fteam-b", "team-a/../team-b", "", "."} {
		routes = append(routes, external+"/v1beta1/namespaces/"+ns+"/vllm_queue_depth")
	}
	routes = append(routes, external+"/v1beta1/vllm_queue_depth")
	for _, q := range smuggled() {
		routes = append(routes, external+"/v1beta1/namespaces/"+teamA+"/vllm_queue_depth?"+q)
	}
	// The debugging page shows all namespaces.
	routes = append(routes, "/debug/signals", "/debug/signals?format=json&namespace="+teamB, "/metrics")

	// Random mixtures of all that.
	seed, n := uint64(1), 1500
	if os.Getenv("IMA_SOAK") != "" {
		seed, n = rand.Uint64(), 50_000
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	parts := slices.Concat(plain, nasty, []string{teamB, teamB, teamA, teamA, theirs, "*", "vllm", "vllm_queue_depth"})
	for range n {
		h := randomRequest(r)
		path := strings.Split(strings.SplitN(h.path, "?", 2)[0], "/")
		for i := range path {
			if i > 3 && r.IntN(3) == 0 { // behind the version
				path[i] = pick(r, parts)
			}
		}
		route := strings.Join(path, "/")
		if r.IntN(2) == 0 {
			route += "?" + pick(r, smuggled())
		}
		routes = append(routes, route)
	}

	var mu sync.Mutex
	answered := map[string]int{}
	next := make(chan string)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for route := range next {
				for how, asker := range askers {
					resp, err := request(t.Context(), asker, http.MethodGet, route, applicationJSON)
					if err != nil {
						continue // the client does not send it
					}
					if err := betrays(route, resp); err != nil {
						t.Errorf("%s, %.300s: %v", how, route, err)
					}
					if resp.status == http.StatusOK {
						mu.Lock()
						answered[how]++
						mu.Unlock()
					}
				}
			}
		})
	}
	for _, route := range routes {
		next <- route
	}
	close(next)
	all.Wait()
	t.Logf("of %d requests were answered %v", len(routes), answered)
	for how := range askers {
		if answered[how] < 50 {
			t.Errorf("%s, only %d were answered: it proves nothing", how, answered[how])
		}
	}

	// What is there is refused like what is not.
	for how, asker := range askers {
		said := map[string]bool{}
		for _, of := range []string{"pods/" + theirs, "pods/nobody"} {
			resp := ask(t, asker, http.MethodGet, custom+"/v1beta2/namespaces/"+teamB+"/"+of+"/vllm_queue_depth", applicationJSON)
			if resp.status != http.StatusForbidden {
				t.Errorf("%s, %s: %d %s", how, of, resp.status, resp.body)
			}
			said[strings.ReplaceAll(strings.ReplaceAll(string(resp.body), theirs, "X"), "nobody", "X")] = true
		}
		if len(said) != 1 {
			t.Errorf("%s, what is there can be told from what is not: %v", how, said)
		}
	}

	// Nobody at all gets nothing, and neither does somebody without a role.
	for how, config := range map[string]*rest.Config{"through the API server": rest.AnonymousClientConfig(shared.Config), "past it": rest.AnonymousClientConfig(directly(a))} {
		for _, path := range []string{custom + "/v1beta2/namespaces/team-a/pods/*/vllm_queue_depth", external + "/v1beta1/namespaces/team-a/vllm_queue_depth", "/debug/signals", "/metrics"} {
			if resp := ask(t, config, http.MethodGet, path, applicationJSON); resp.status != http.StatusForbidden && resp.status != http.StatusUnauthorized {
				t.Errorf("anonymously %s, %s: %d %.200s", how, path, resp.status, resp.body)
			}
		}
		// A header that only the API server may send makes nobody somebody.
		if resp := ask(t, config, http.MethodGet, custom+"/v1beta2/namespaces/team-b/pods/*/vllm_queue_depth", applicationJSON,
			"X-Remote-User", "admin", "X-Remote-Group", "system:masters"); resp.status == http.StatusOK {
			t.Errorf("%s, a header makes anybody an administrator: %s", how, resp.body)
		}
	}
}

// smuggled are queries that name what the path does not.
func smuggled() []string {
	var all []string
	for _, s := range []string{
		"namespace=" + teamB, "namespace in (team-a,team-b)", "namespace", "namespace!=team-a", "exported_namespace=" + teamB, "pod_namespace=" + teamB, "kubernetes_namespace=" + teamB,
		"pod=" + pods[teamB][0], "exported_pod=" + pods[teamB][0], "app=vllm", "", "model!=x", "metadata.namespace=" + teamB, "metadata.name=" + pods[teamB][0], "metadata.name=*", "metadata.name!=x",
	} {
		for _, p := range []string{"labelSelector", "metricLabelSelector", "fieldSelector"} {
			all = append(all, p+"="+escaped(s))
		}
	}
	return append(all, "namespace="+teamB, "namespaces="+teamB, "metricName=vllm_queue_depth&namespace="+teamB, "name="+pods[teamB][0], "continue="+teamB, "resourceVersion=0&limit=1")
}

// betrays returns an error where an answer has something of the other team in it.
func betrays(route string, r response) error {
	body := string(r.body)
	for _, pod := range pods[teamB] {
		if strings.Contains(body, pod) && !strings.Contains(route, pod) {
			return fmt.Errorf("it names a pod of the other team: %d %.500s", r.status, body)
		}
	}
	if r.status != http.StatusOK || !strings.Contains(body, "MetricValueList\"") {
		if strings.HasPrefix(route, "/debug") || strings.HasPrefix(route, "/metrics") {
			return statusIs(r, http.StatusForbidden)
		}
		return nil
	}
	values, err := valuesOf(r.body)
	if err != nil {
		return nil // a list of resources
	}
	sum := 0
	mine := map[string]string{"": ""}
	for pod, n := range queues[teamA] {
		mine[teamA+"/"+pod] = fmt.Sprint(n)
		sum += n
	}
	for name, v := range values {
		want := fmt.Sprint(sum) // of an object, or of the namespace
		if n, ok := mine[name]; ok {
			want = n
		} else if ns, _, ok := strings.Cut(name, "/"); ok && ns != teamA && name != "/"+teamA {
			return fmt.Errorf("it has a value of %s", name)
		}
		if strings.Contains(body, "vllm_queue_depth") && v != want {
			return fmt.Errorf("%s has %s, and the team has %s", name, v, want)
		}
	}
	return nil
}
