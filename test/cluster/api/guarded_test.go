package api

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const statusReader = "../../../deploy/manifests/components/status-reader/rbac.yaml"

// watchers may each read one of the pages that show all namespaces, and nothing else.
const watchers = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: inference-metrics-adapter-metrics-reader}
rules:
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: person, namespace: team-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper, namespace: team-a}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: person}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: inference-metrics-status-reader}
subjects: [{kind: ServiceAccount, name: person, namespace: team-a}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: inference-metrics-adapter-metrics-reader}
subjects: [{kind: ServiceAccount, name: scraper, namespace: team-a}]
`

// TestGuarded: the pages that show all namespaces are shown to those only whom the API server's roles let, in
// whatever way their addresses are written, and no longer than that.
func TestGuarded(t *testing.T) {
	role, err := os.ReadFile(statusReader)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Apply(t.Context(), string(role)+"\n---"+watchers); err != nil {
		t.Fatal(err)
	}
	a := startAdapter(t, "--prometheus-url="+shared.Prometheus.URL, "--expose-signals=vllm_queue_depth", "--authorization-webhook-cache-authorized-ttl=1s")
	awaitServed(t)
	as := func(name string) *rest.Config {
		t.Helper()
		account, err := shared.ServiceAccountConfig(t.Context(), teamA, name)
		if err != nil {
			t.Fatal(err)
		}
		config := rest.AnonymousClientConfig(directly(a))
		config.BearerToken = account.BearerToken
		return config
	}
	forged := rest.AnonymousClientConfig(directly(a))
	forged.BearerToken = reader.BearerToken[:len(reader.BearerToken)-10] + "AAAAAAAAAA"
	person, scraper, administrator := as("person"), as("scraper"), directly(a)
	const page, series = "/debug/signals", "/metrics"
	askers := []struct {
		name         string
		config       *rest.Config
		page, series int
	}{
		{"nobody", rest.AnonymousClientConfig(directly(a)), http.StatusForbidden, http.StatusForbidden},
		{"a forged token", forged, http.StatusUnauthorized, http.StatusUnauthorized},
		{"who may read a team's metrics", as("reader"), http.StatusForbidden, http.StatusForbidden},
		{"who may see the page", person, http.StatusOK, http.StatusForbidden},
		{"who may scrape", scraper, http.StatusForbidden, http.StatusOK},
		{"an administrator", administrator, http.StatusOK, http.StatusOK},
	}
	// What they show is worth to be guarded.
	eventually(t, time.Minute, "both show the other team", func() error {
		for _, path := range []string{page, series} {
			if r := ask(t, directly(a), http.MethodGet, path, "*/*"); !strings.Contains(string(r.body), pods[teamB][0]) {
				return fmt.Errorf("%s does not: %d %.300s", path, r.status, r.body)
			}
		}
		return nil
	})
	for _, asker := range askers {
		want := map[string]int{series: asker.series}
		for _, parameters := range []string{"", "?format=json", "?namespace=" + teamA, "?format=json&pods=1"} {
			want[page+parameters] = asker.page
		}
		for path, code := range want {
			r := ask(t, asker.config, http.MethodGet, path, "*/*")
			if err := statusIs(r, code); err != nil {
				t.Errorf("%s, %s: %v", asker.name, path, err)
			}
			if code != http.StatusOK && (strings.Contains(string(r.body), teamB) || strings.Contains(string(r.body), "<html")) {
				t.Errorf("%s, %s: it says %s", asker.name, path, r.body)
			}
		}
		if asker.config == administrator {
			continue
		}
		// Who may read may not do anything else.
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
			for _, path := range []string{page, series} {
				if r := ask(t, asker.config, method, path, "*/*"); r.status < 400 || strings.Contains(string(r.body), teamB) {
					t.Errorf("%s, %s %s: %d %.300s", asker.name, method, path, r.status, r.body)
				}
			}
		}
	}

	// Who may see one sees the other by no spelling of its address.
	spelt := func(allowed, other string) (all []string) {
		first, last, _ := strings.Cut(strings.TrimPrefix(other, "/"), "/")
		all = append(all, allowed+"/.."+other, allowed+"/%2e%2e"+other, allowed+"/..%2f"+other[1:], allowed+"%2f.."+other, allowed+"?"+other, allowed+"%3f/.."+other,
			allowed+"#"+other, allowed+";"+other, allowed+other, allowed+"/"+other, "/"+other, "//"+other, other+"/", other+"/.", other+"//", other+"%2f", other+"%00", other+";", other+"/../"+first,
			"/."+other, "/%2e"+other, "/"+first+"//"+last, "/"+first+"/./"+last, "/"+first+"%2f"+last, strings.ToUpper(other), "%2f"+other[1:])
		for i := 1; i < len(other); i++ {
			all = append(all, fmt.Sprintf("%s%%%02x%s", other[:i], other[i], other[i+1:]))
		}
		return all
	}
	for _, c := range []struct {
		asker *rest.Config
		paths []string
	}{{scraper, spelt(series, page)}, {person, spelt(page, series)}} {
		for _, path := range c.paths {
			r, err := request(t.Context(), c.asker, http.MethodGet, path, "*/*")
			if err != nil {
				continue // the client does not send it
			}
			shows := strings.Contains(string(r.body), pods[teamB][0])
			if own := strings.HasPrefix(path, "/metrics?") || strings.HasPrefix(path, "/debug/signals?") || strings.Contains(path, "#"); shows && !own {
				t.Errorf("%s shows the other team: %d", path, r.status)
			}
		}
	}

	// kube-apiserver passes neither on.
	for _, path := range []string{page, custom + page, custom + "/v1beta2" + page, custom + series, custom + "/v1beta2/.." + page} {
		if r := ask(t, shared.Config, http.MethodGet, path, "*/*"); strings.Contains(string(r.body), pods[teamB][0]) {
			t.Errorf("kube-apiserver passes %s on: %d", path, r.status)
		}
	}

	// Who may no longer is refused.
	if err := shared.Client.RbacV1().ClusterRoleBindings().Delete(t.Context(), "person", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the page is refused to whom the role was taken from", func() error {
		return statusIs(ask(t, person, http.MethodGet, page, "*/*"), http.StatusForbidden)
	})
}
