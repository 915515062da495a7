package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestBadCertificateFlags(t *testing.T) {
	const source = "--prometheus-url=http://127.0.0.1:9090 "
	for _, tc := range []struct{ name, args, want string }{
		{"no namespace", source + "--serving-cert-service=adapter",
			`--serving-cert-service: "adapter" is no Service: want NAMESPACE/NAME, such as inference-metrics/inference-metrics-adapter`},
		{"no name", source + "--serving-cert-service=metrics/", `--serving-cert-service: "metrics/" is no Service`},
		{"too many", source + "--serving-cert-service=a/b/c", `--serving-cert-service: "a/b/c" is no Service`},
		{"too short", source + "--serving-cert-service=a/b --serving-cert-lifetime=1s",
			"--serving-cert-lifetime: 1s is outside 1m0s to 19800h0m0s"},
		{"too long", source + "--serving-cert-service=a/b --serving-cert-lifetime=87600h",
			"--serving-cert-lifetime: 87600h0m0s is outside 1m0s to 19800h0m0s"},
		{"about nothing", source + "--serving-cert-lifetime=24h",
			"--serving-cert-lifetime: it is about certificates of --serving-cert-service, which is not given"},
		{"somebody else's as well", source + "--serving-cert-service=a/b --tls-cert-file=x --tls-private-key-file=y",
			"--tls-cert-file: the certificate is made for --serving-cert-service: leave one of them out"},
		{"standalone", "--standalone " + vllm0 + " --serving-cert-service=a/b",
			"--serving-cert-service: --standalone runs without Kubernetes: leave one of them out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), strings.Fields(tc.args), &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("ended with %d and %q, want 1 and %q in it", code, &stderr, tc.want)
			}
		})
	}
}
