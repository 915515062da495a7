package api

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what is answered into docs/api.md, instead of comparing it")

// document is the guide, seen from here.
const document = "../../../docs/api.md"

// TestDocument runs each command of the guide, and holds it to what the guide says is answered. The guide's
// teams, pods and queues have names and lengths of their own.
func TestDocument(t *testing.T) {
	startAdapter(t, "--prometheus-url="+shared.Prometheus.URL)
	awaitServed(t)
	if err := shared.Apply(t.Context(), autoscaler); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = kubectl(t, "delete", "hpa", "--namespace", teamA, "vllm") })
	for _, path := range []string{
		custom + "/v1beta2/namespaces/team-a/deployments.apps/vllm/vllm_queue_depth",
		custom + "/v1beta2/namespaces/team-a/pods/*/vllm_queue_depth?metricLabelSelector=model%3DQwen_Qwen3-8B",
		external + "/v1beta1/namespaces/team-a/vllm_queue_depth",
	} {
		eventually(t, time.Minute, path+" has been asked for", func() error {
			return statusIs(ask(t, shared.Config, http.MethodGet, path, applicationJSON), http.StatusOK)
		})
	}
	eventually(t, time.Minute, "the HPA has looked", func() error {
		out, _, err := kubectl(t, "describe", "hpa", "--namespace", teamA, "vllm")
		if err == nil && !strings.Contains(out, "ValidMetricFound") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})

	guide, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	got := regexp.MustCompile("(?s)```console\n.*?```").ReplaceAllFunc(guide, func(block []byte) []byte {
		out := []byte("```console\n")
		for line := range bytes.Lines(block) {
			if command, ok := bytes.CutPrefix(line, []byte("$ ")); ok {
				commands++
				out = fmt.Appendf(out, "%s%s\n", line, told(says(t, string(bytes.TrimSpace(command)))))
			}
		}
		return append(out, "```"...)
	})
	switch {
	case commands < 5:
		t.Errorf("the guide has %d commands", commands)
	case *rewrite:
		if err := os.WriteFile(document, got, 0o644); err != nil {
			t.Fatal(err)
		}
	case !bytes.Equal(got, guide):
		was, is := strings.Split(string(guide), "\n"), strings.Split(string(got), "\n")
		for i := range max(len(was), len(is)) {
			var a, b string
			if i < len(was) {
				a = was[i]
			}
			if i < len(is) {
				b = is[i]
			}
			if a != b {
				t.Fatalf("from line %d %s does not say what is answered; run this test with -rewrite:\n-%s\n+%s", i+1, document, a, b)
			}
		}
	}
}

// names are what the guide calls what is in this cluster.
func names() *strings.Replacer {
	var pairs []string
	sum := 0
	for i, pod := range slices.Sorted(slices.Values(pods[teamA])) {
		pairs = append(pairs, pod, []string{"vllm-7d4b9c6f5-q4m7z", "vllm-7d4b9c6f5-x8k2p"}[i])
		sum += queues[teamA][pod]
	}
	return strings.NewReplacer(append(pairs, fmt.Sprintf(`"value":"%d"`, sum), `"value":"21"`, teamA, "chat", teamB, "search")...)
}

// says runs a command of the guide in this cluster, and returns all that it says.
func says(t *testing.T, command string) string {
	t.Helper()
	command = strings.NewReplacer("chat", teamA, "vllm-7d4b9c6f5-q4m7z", slices.Min(pods[teamA])).Replace(command)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig, "KUBECACHEDIR="+t.TempDir(), "PATH="+shared.Bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if len(out) == 0 {
		t.Errorf("%s says nothing (%v)", command, err)
	}
	return strings.TrimSpace(string(out))
}

var (
	stamps  = regexp.MustCompile(`"timestamp":"[^"]*"`)
	seconds = regexp.MustCompile(`ask again in \d+ s`)
	items   = regexp.MustCompile(`(?s)"items":\[(.*)\]\}`)
	ofPods  = regexp.MustCompile(`("name":"vllm-7d4b9c6f5-(q4m7z|x8k2p)".*?"value":)"\d+"`)
	average = regexp.MustCompile(`\d+m? / 5`)
)

// told is an output as the guide shows it: with its names and figures, and each item on lines of its own.
func told(out string) string {
	out = names().Replace(out)
	out = stamps.ReplaceAllString(out, `"timestamp":"2026-12-07T10:27:30Z"`)
	out = seconds.ReplaceAllString(out, "ask again in 5 s")
	out = average.ReplaceAllString(out, "10500m / 5")
	out = ofPods.ReplaceAllStringFunc(out, func(s string) string {
		m := ofPods.FindStringSubmatch(s)
		return m[1] + map[string]string{"q4m7z": `"12"`, "x8k2p": `"9"`}[m[2]]
	})
	if m := items.FindStringSubmatch(out); m != nil {
		all := strings.ReplaceAll(strings.ReplaceAll(m[1], `},{"describedObject"`, "},\n  {\"describedObject\""), `},"metric`, "},\n   \"metric")
		out = strings.Replace(out, m[0], `"items":[`+cmp.Or("\n  "+all, "")+"]}", 1)
	}
	return out
}
