package api

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestSecrets: with logs as verbose as they get, and a source that fails in ways that tempt to quote the
// request, no credential is in a log, an error, a metric or the debugging page.
func TestSecrets(t *testing.T) {
	const secret = "s3cr3tXYZZY"
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := func(text string) string { return "--prometheus-client-config=" + file("client.yaml", text) }

	servers := map[string]http.HandlerFunc{
		"answers": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"vector","result":[]}}`)
		},
		"unauthorized": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"hangs up":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1"+r.URL.RequestURI(), http.StatusTemporaryRedirect)
		},
		"garbage": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":`) },
	}
	for _, c := range []struct {
		name, server string
		args         func(url string) []string
	}{
		{"password in the URL", "unauthorized", func(url string) []string {
			return []string{"--prometheus-url=" + strings.Replace(url, "://", "://user:"+secret+"@", 1)}
		}},
		{"password in the URL of what hangs up", "hangs up", func(url string) []string {
			return []string{"--prometheus-url=" + strings.Replace(url, "://", "://user:"+secret+"@", 1)}
		}},
		{"token in the URL", "hangs up", func(url string) []string { return []string{"--prometheus-url=" + url + "/?token=" + secret} }},
		{"basic", "redirects", func(url string) []string {
			return []string{"--prometheus-url=" + url, config("basic_auth: {username: user, password: " + secret + "}\n")}
		}},
		{"bearer", "answers", func(url string) []string {
			return []string{"--prometheus-url=" + url, config("authorization: {credentials: " + secret + "}\n")}
		}},
		{"bearer file", "garbage", func(url string) []string {
			return []string{"--prometheus-url=" + url, config("authorization: {credentials_file: " + file("token", secret) + "}\n")}
		}},
		{"header", "unauthorized", func(url string) []string {
			return []string{"--prometheus-url=" + url, config("http_headers: {X-Scope: {secrets: [" + secret + "]}}\n")}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case asked <- struct{}{}:
				default:
				}
				servers[c.server](w, r)
			}))
			t.Cleanup(server.Close)
			a := startAdapter(t, append(c.args(server.URL), "--v=10")...)
			var seen []string
			for _, path := range []string{custom + "/v1beta2/namespaces/team-a/pods/*/vllm_queue_depth", custom + "/v1beta2/namespaces/team-a/deployments.apps/vllm/vllm_queue_depth", external + "/v1beta1/namespaces/team-a/vllm_queue_depth"} {
				seen = append(seen, string(ask(t, shared.Config, http.MethodGet, path, applicationJSON).body))
			}
			select {
			case <-asked:
			case <-time.After(time.Minute):
				t.Fatal("the source was never asked")
			}
			eventually(t, time.Minute, "the answer tells of the source", func() error {
				r := ask(t, shared.Config, http.MethodGet, custom+"/v1beta2/namespaces/team-a/pods/*/vllm_queue_depth", applicationJSON)
				seen = append(seen, string(r.body))
				if strings.Contains(string(r.body), "is warming up") || r.status == http.StatusOK {
					return fmt.Errorf("it says %s", r.body)
				}
				return nil
			})
			for _, path := range []string{"/metrics", "/debug/signals", "/debug/signals?format=json", "/readyz?verbose", "/livez?verbose", "/version", "/flagz", "/statusz", "/configz", "/debug/pprof/cmdline"} {
				seen = append(seen, string(ask(t, directly(a), http.MethodGet, path, "*/*").body))
			}
			log, err := os.ReadFile(a.Log)
			if err != nil {
				t.Fatal(err)
			}
			if len(log) < 10_000 {
				t.Errorf("the log has %d bytes: it is not verbose", len(log))
			}
			hidden(t, append(seen, string(log)), map[string]string{
				"the secret": secret, "the secret in base64": base64.StdEncoding.EncodeToString([]byte("user:" + secret)), "the adapter's token": adapterToken(t),
				"the asker's token": reader.BearerToken,
			})
		})
	}
}

// adapterToken is what the adapters are known to the API server by.
func adapterToken(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(shared.Dir, cluster.AdapterNamespace+"-"+cluster.AdapterName+".kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		if user.Token != "" {
			return user.Token
		}
	}
	t.Fatal("the adapter has no token")
	return ""
}

// hidden fails where one of the texts has a secret, or something that looks like one.
func hidden(t *testing.T, texts []string, secrets map[string]string) {
	t.Helper()
	for _, text := range texts {
		for what, secret := range secrets {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s is in ...%s", what, strings.ReplaceAll(text[max(0, i-200):min(len(text), i+100)], secret, "SECRET"))
			}
		}
		if found := privateKey.FindString(text); found != "" {
			t.Errorf("it has a private key: %.60s", found)
		}
	}
}

var privateKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)
