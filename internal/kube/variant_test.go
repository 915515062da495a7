package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inference-metrics/adapter/internal/pods"
)

func engine(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "a", Labels: map[string]string{"pod-template-hash": "1"}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"gpu": "h100"},
			Containers: []corev1.Container{{
				Image:     "vllm:1",
				Args:      []string{"--model=m", "--max-num-seqs", "64", "--max-num-batched-tokens=8192"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": apiresource.MustParse("1")}},
			}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

// A variant is what makes a pod fast or slow, and nothing else.
func TestVariant(t *testing.T) {
	want := convert(engine(nil)).Variant
	if want == "" {
		t.Fatal("a pod has no variant")
	}
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod)
		same   bool
	}{
		{"another name and rollout", func(p *corev1.Pod) { p.Name, p.Labels = "b", nil }, true},
		{"another node", func(p *corev1.Pod) { p.Spec.NodeName = "n" }, true},
		{"another image", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "vllm:2" }, false},
		{"another model", func(p *corev1.Pod) { p.Spec.Containers[0].Args[0] = "--model=n" }, false},
		{"another GPU", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"gpu": "a100"} }, false},
		{"more GPUs", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = apiresource.MustParse("8")
		}, false},
		{"another environment", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VLLM_ATTENTION_BACKEND", Value: "FLASHINFER"}}
		}, false},
	} {
		if got := convert(engine(tc.change)).Variant; (got == want) != tc.same {
			t.Errorf("%s: variant %s beside %s; the same: %v", tc.name, got, want, tc.same)
		}
	}
}

// The spec is dropped before the pod is kept, and what was read of it is not.
func TestVariantOutlivesTheSpec(t *testing.T) {
	whole := convert(engine(nil))
	trimmed := engine(func(p *corev1.Pod) {
		p.Annotations = map[string]string{"other": "x", pods.AnnotationPrefix + "slo-ttft": "1s"}
	})
	podObjects{}.trim(trimmed)
	podObjects{}.trim(trimmed) // a second time changes nothing
	got := convert(trimmed)
	if got.Variant != whole.Variant || got.Seats != 64 || got.BatchTokens != 8192 || !got.GPU {
		t.Errorf("variant %q, %g seats, %g tokens, GPU %v", got.Variant, got.Seats, got.BatchTokens, got.GPU)
	}
	if len(got.Annotations) != 1 || got.Annotations[pods.AnnotationPrefix+"slo-ttft"] != "1s" {
		t.Errorf("annotations %v", got.Annotations)
	}
	if bare := convert(engine(nil)); bare.Annotations != nil {
		t.Errorf("annotations %v of a pod without any", bare.Annotations)
	}
}

func TestAccelerated(t *testing.T) {
	for name, want := range map[corev1.ResourceName]bool{
		"nvidia.com/gpu": true, "nvidia.com/mig-1g.5gb": true, "amd.com/gpu": true, "gpu.intel.com/i915_gpu": true,
		"google.com/tpu": true, "habana.ai/gaudi": true, "aws.amazon.com/neuron": true,
		"cpu": false, "memory": false, "ephemeral-storage": false, "hugepages-2Mi": false, "rdma/hca": false,
	} {
		r := corev1.ResourceRequirements{Limits: corev1.ResourceList{name: apiresource.MustParse("1")}}
		if got := accelerated(r); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !accelerated(corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}) {
		t.Error("a claim on a device is none")
	}
}

func TestArguments(t *testing.T) {
	for _, tc := range []struct {
		command []string
		want    float64
	}{
		{[]string{"--max-num-seqs", "64"}, 64},
		{[]string{"--max-num-seqs=64"}, 64},
		{[]string{"sh", "-c", "exec vllm serve m --max-num-seqs '64' --port 8000"}, 64},
		{[]string{"--max-num-seqs"}, 0},
		{[]string{"--max-num-seqs", "many"}, 0},
		{[]string{"--max-num-seqs-x", "64"}, 0},
		{[]string{"--max-num-seqs=-1"}, 0},
		{nil, 0},
	} {
		if got := argument(words(tc.command), "--max-num-seqs"); got != tc.want {
			t.Errorf("%q: %g, want %g", tc.command, got, tc.want)
		}
	}
}
