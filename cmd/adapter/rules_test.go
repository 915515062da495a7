package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRulesCheck: the command tells what each rule serves, and fails where one has a fault.
func TestRulesCheck(t *testing.T) {
	const good = `
rules:
- seriesQuery: 'http_requests_total{namespace!="",pod!=""}'
  resources: {template: <<.Resource>>}
  name: {matches: ^(.*)_total$, as: "${1}_per_second"}
  metricsQuery: sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)
`
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/labels" {
			_, _ = w.Write([]byte(`{"status":"success","data":["__name__","service"]}`))
			return
		}
		asked = append(asked, r.FormValue("match[]"))
		_, _ = w.Write([]byte(`{"status":"success","data":["http_requests_total"]}`))
	}))
	defer server.Close()
	for _, c := range []struct {
		name, text string
		args       []string
		code       int
		want       []string
	}{
		{"good", good, nil, 0, []string{
			"http_requests_total is served as http_requests_per_second\n",
			"    on pods, by label pod: one query for all of all namespaces asked for\n",
		}},
		{"asking a server", good, []string{"--prometheus-url=" + server.URL, `--prometheus-matcher=cluster="a"`}, 0, []string{
			"    on services, by label service: one query for all of all namespaces asked for\n",
		}},
		{"a fault", good + "- seriesQuery: a\n", nil, 1, []string{
			"http_requests_total is served as http_requests_per_second\n",
			"FAULT rules[1].resources: ",
			"adapter: rules.yaml has faults: 2\n",
		}},
		{"a signal's name", strings.ReplaceAll(good, `as: "${1}_per_second"`, "as: vllm_queue_depth"), nil, 1, []string{
			"FAULT rules[0].name: vllm_queue_depth is a signal of the adapter",
		}},
		{"no server there", good, []string{"--prometheus-url=http://127.0.0.1:1"}, 1, []string{
			"FAULT rules[0].seriesQuery: Prometheus at http://127.0.0.1:1: cannot be reached",
		}},
		{"no rules", "a: b", nil, 1, []string{
			`adapter: rules.yaml: unknown field "a": at the top there are rules, externalRules and resourceRules`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile(filepath.Base("rules.yaml"), []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			code := run(t.Context(), append([]string{"rules", "check", "rules.yaml"}, c.args...), &out, &out)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q, but:\n%s", want, &out)
				}
			}
		})
	}
	if want := `{namespace!="",pod!="",__name__="http_requests_total",cluster="a",service!=""}`; !strings.Contains(strings.Join(asked, "\n"), want) {
		t.Errorf("the server was asked for %q, want %s among it", asked, want)
	}
}
