package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

const vllm0 = "--target=default/vllm-0{app=vllm}=http://127.0.0.1:8000/metrics"

// Each set of flags is refused, before anything runs, with this on stderr.
func TestBadFlags(t *testing.T) {
	for _, tc := range []struct {
		name string
		args string
		want []string
	}{
		{"no such flag", "--targets=x", []string{
			"unknown flag: --targets"}},
		{"argument", "serve", []string{
			`unknown command "serve" for "adapter"`}},
		{"two sources", "--prometheus-url=http://127.0.0.1:9090 --target=default/vllm-0=http://127.0.0.1:8000/metrics", []string{
			"--target: samples come either from the engines or from --prometheus-url: leave one of them out"}},
		{"about a server that is not there", "--target=default/vllm-0=http://127.0.0.1:8000/metrics --prometheus-client-config=x.yaml --prometheus-matcher=cluster=\"a\" --prometheus-replica-label=replica", []string{
			"--prometheus-client-config: it is about the server of --prometheus-url, which is not given",
			"--prometheus-matcher: it is about the server of --prometheus-url, which is not given",
			"--prometheus-replica-label: it is about the server of --prometheus-url, which is not given"}},
		{"bad replica label", "--prometheus-url=http://127.0.0.1:9090 --prometheus-replica-label=", []string{
			`--prometheus-replica-label: "" is no name of a label`}},
		{"bad matchers", "--prometheus-url=http://127.0.0.1:9090 --prometheus-matcher=cluster=a --prometheus-matcher=up{}", []string{
			`--prometheus-matcher cluster=a: want a label and a value in quotes, such as cluster="a"`,
			`--prometheus-matcher up{}: want a label and a value in quotes, such as cluster="a"`}},
		{"interval of nothing", "--prometheus-url=http://127.0.0.1:9090 --scrape-interval=1s", []string{
			"--scrape-interval: nothing is scraped with --prometheus-url"}},
		{"intervals", "--standalone " + vllm0 + " --scrape-interval=1ms --collect-interval=1h", []string{
			"--scrape-interval: 1ms is outside 100ms to 1m0s",
			"--collect-interval: 1h0m0s is outside 100ms to 1m0s"}},
		{"interval without a unit", "--scrape-interval=5", []string{
			`invalid argument "5" for "--scrape-interval" flag: time: missing unit in duration "5"`}},
		{"port", "--standalone " + vllm0 + " --secure-port=0", []string{
			"--secure-port 0 must be between 1 and 65535, inclusive. It cannot be turned off with 0"}},
		{"labels in a cluster", vllm0, []string{
			"--target default/vllm-0{app=vllm}=http://127.0.0.1:8000/metrics: in a cluster a pod has labels already: {...} is for --standalone"}},
		{"signals that are not there", "--standalone " + vllm0 + " --expose-signals=inference_queue_depth,vllm_queue,llamacpp_goodput", []string{
			`--expose-signals: there is no signal "vllm_queue": docs/signals.md lists those there are`,
			"--expose-signals: llamacpp_goodput is not computable on llama.cpp, because llama.cpp exports no histograms"}},
		{"no cluster", "--target=default/vllm-0=http://127.0.0.1:8000/metrics", []string{
			"--kubeconfig is not given, and this is no pod of a cluster (unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined): give it, or run with --standalone"}},
		{"kubeconfig that is not there", "--target=default/vllm-0=http://127.0.0.1:8000/metrics --kubeconfig=testdata/none", []string{
			"--kubeconfig testdata/none: stat testdata/none: no such file or directory"}},
		{"standalone without targets", "--standalone", []string{
			"--target: --standalone takes its pods from targets: give at least one, such as --target 'default/vllm-0{app=vllm}=http://127.0.0.1:8000/metrics'"}},
		{"standalone beyond loopback", "--standalone " + vllm0 + " --bind-address=0.0.0.0", []string{
			"--bind-address: --standalone serves anybody who can reach it, so it binds loopback addresses only, not 0.0.0.0: use 127.0.0.1 or leave it out"}},
		{"standalone beyond loopback, IPv6", "--standalone " + vllm0 + " --bind-address=::", []string{
			"--bind-address: --standalone serves anybody who can reach it, so it binds loopback addresses only, not ::: use 127.0.0.1 or leave it out"}},
		{"standalone with a cluster", "--standalone --kubeconfig=x --authentication-kubeconfig=y --authorization-kubeconfig=z --prometheus-url=http://127.0.0.1:9090", []string{
			"--target: --standalone takes its pods from targets: give at least one, such as --target 'default/vllm-0{app=vllm}=http://127.0.0.1:8000/metrics'",
			"--prometheus-url: --standalone takes its pods from the targets that it scrapes: leave one of them out",
			"--kubeconfig: --standalone runs without Kubernetes: leave one of them out",
			"--authentication-kubeconfig: --standalone has no authentication and no authorization: leave it out",
			"--authorization-kubeconfig: --standalone has no authentication and no authorization: leave it out"}},
		{"a password is not shown", "--standalone --target=default/vllm-0=ftp://me:secret@127.0.0.1/metrics", []string{
			`--target default/vllm-0=ftp://...@127.0.0.1/metrics: "ftp://...@127.0.0.1/metrics" is no URL to scrape, such as http://127.0.0.1:8000/metrics`}},
		{"nor is one that breaks the URL", "--standalone --target=default/vllm-0=http://me:se/cr@t@127.0.0.1/metrics", []string{
			`--target default/vllm-0=http://...@127.0.0.1/metrics: "http://...@127.0.0.1/metrics" is no URL to scrape, such as http://127.0.0.1:8000/metrics`}},
		{"labels that differ", "--standalone " + vllm0 + " --target=default/vllm-0{app=other}=http://127.0.0.1:8001/metrics", []string{
			"--target: two targets of pod default/vllm-0 give it other labels"}},
		{"one engine twice", "--standalone " + vllm0 + " " + vllm0, []string{
			"target default/vllm-0: two targets on 127.0.0.1:8000: their series could not be told apart"}},
		{"config", "--standalone " + vllm0 + " --config=../../internal/config/testdata/bad/out-of-bounds.yaml", []string{
			"--config: ../../internal/config/testdata/bad/out-of-bounds.yaml: window: 1s is outside 10s to 10m0s",
			"slo.ttft: -1s is negative; leave it out for no objective"}},
		{"scrape in vain", "--prometheus-url=http://127.0.0.1:9090 --config=testdata/scrape.yaml", []string{
			"--config: testdata/scrape.yaml: scrape: it says what to find and to scrape in a cluster: leave it out, or leave out --prometheus-url, --target and --standalone"}},
		{"labels that a pod could set", "--config=testdata/pod-labels.yaml", []string{
			"--config: testdata/pod-labels.yaml: podLabels: what the adapter scrapes carries the pod that it was found in, and a pod could say that it is another: leave it out, or give --prometheus-url"}},
		{"no cluster to discover in", "", []string{
			"--kubeconfig is not given, and this is no pod of a cluster (unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined): give it, or run with --standalone"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			ctx, stop := context.WithCancel(t.Context())
			stop() // what is not refused ends at once
			var stdout, stderr bytes.Buffer
			if code := run(ctx, strings.Fields(tc.args), &stdout, &stderr); code != 1 {
				t.Errorf("exit code %d", code)
			}
			want := "adapter: " + strings.Join(tc.want, "\nadapter: ") + "\n"
			if diff := cmp.Diff(want, stderr.String()); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout: %s", &stdout)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	version = "v1.2.3"
	t.Cleanup(func() { version = "" })
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--version"}, &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %s", code, &stderr)
	}
	if diff := cmp.Diff("adapter version v1.2.3\n", stdout.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseTarget(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "vllm-0"}
	for _, tc := range []struct {
		text string
		want target
		err  string
	}{
		{text: "default/vllm-0=http://127.0.0.1:8000/metrics",
			want: target{podLabels{name, nil}, "http://127.0.0.1:8000/metrics"}},
		{text: "default/vllm-0{}=https://vllm-0.vllm:8000/metrics?a=b{c}",
			want: target{podLabels{name, labels.Set{}}, "https://vllm-0.vllm:8000/metrics?a=b{c}"}},
		{text: "default/vllm-0{app=vllm,app.kubernetes.io/part-of=chat,empty=}=http://[::1]:8000/metrics",
			want: target{podLabels{name, labels.Set{"app": "vllm", "app.kubernetes.io/part-of": "chat", "empty": ""}}, "http://[::1]:8000/metrics"}},
		{text: "", err: "want NAMESPACE/POD=URL"},
		{text: "vllm-0=http://127.0.0.1:8000/metrics", err: "want NAMESPACE/POD=URL"},
		{text: "default/vllm-0", err: "want NAMESPACE/POD=URL"},
		{text: "Default/vllm-0=http://127.0.0.1:8000", err: `namespace "Default": a lowercase RFC 1123 label`},
		{text: "default/vllm_0=http://127.0.0.1:8000", err: `pod "vllm_0": a lowercase RFC 1123 subdomain`},
		{text: "default/=http://127.0.0.1:8000", err: `pod "": `},
		{text: "default/vllm-0{app=vllm=http://127.0.0.1:8000", err: "the labels have no closing }"},
		{text: "default/vllm-0{app}=http://127.0.0.1:8000", err: `label "app": want LABEL=VALUE`},
		{text: "default/vllm-0{a b=c}=http://127.0.0.1:8000", err: `label "a b": `},
		{text: "default/vllm-0{model=meta-llama/Llama-3}=http://127.0.0.1:8000", err: `value "meta-llama/Llama-3" of label model: `},
		{text: "default/vllm-0{a=b,a=c}=http://127.0.0.1:8000", err: "label a is there twice"},
		{text: "default/vllm-0{a=b}http://127.0.0.1:8000", err: "want =URL after the pod"},
		{text: "default/vllm-0=127.0.0.1:8000", err: `"127.0.0.1:8000" is no URL to scrape, such as http://127.0.0.1:8000/metrics`},
		{text: "default/vllm-0=ftp://127.0.0.1/metrics", err: `"ftp://127.0.0.1/metrics" is no URL to scrape`},
		{text: "default/vllm-0=", err: `"" is no URL to scrape`},
	} {
		got, err := parseTarget(tc.text)
		if tc.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tc.err) {
				t.Errorf("%s: got %v, want an error that begins with %q", tc.text, err, tc.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(target{}, podLabels{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.text, diff)
		}
	}
}

// parse returns what good flags come to.
func parse(t *testing.T, args ...string) *completed {
	t.Helper()
	o := newOptions()
	for _, fs := range o.flags().FlagSets {
		fs.ParseErrorsAllowlist.UnknownFlags = true
		if err := fs.Parse(args); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	c, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestComplete(t *testing.T) {
	for address, args := range map[string][]string{
		"127.0.0.1": {"--standalone", vllm0},
		"127.0.0.9": {"--standalone", vllm0, "--bind-address=127.0.0.9"},
		"::1":       {"--standalone", vllm0, "--bind-address=::1"},
	} {
		c := parse(t, args...)
		if got := c.server.SecureServing.BindAddress; !got.Equal(net.ParseIP(address)) {
			t.Errorf("%v binds %s, want %s", args, got, address)
		}
		if c.server.Authentication != nil || c.server.Authorization != nil {
			t.Errorf("%v asks a cluster who may ask", args)
		}
	}

	one, two := kubeconfig(t, "https://127.0.0.1:1"), kubeconfig(t, "https://127.0.0.1:2")
	c := parse(t, "--prometheus-url=http://127.0.0.1:9090", "--kubeconfig="+one, "--authorization-kubeconfig="+two, `--prometheus-matcher=cluster="a",zone=~"b|c"`)
	if c.client.Host != "https://127.0.0.1:1" {
		t.Errorf("the cluster is %s", c.client.Host)
	}
	if got := c.server.Authentication.RemoteKubeConfigFile; got != one {
		t.Errorf("authentication asks the cluster of %q", got)
	}
	if got := c.server.Authorization.RemoteKubeConfigFile; got != two {
		t.Errorf("authorization asks the cluster of %q", got)
	}
	if !c.server.SecureServing.BindAddress.Equal(net.IPv4zero) {
		t.Errorf("in a cluster it binds %s", c.server.SecureServing.BindAddress)
	}
	if len(c.matchers) != 2 || c.matchers[0].String() != `cluster="a"` || c.matchers[1].String() != `zone=~"b|c"` {
		t.Errorf("matchers %v", c.matchers)
	}
}
