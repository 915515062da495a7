package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/inference-metrics/adapter/internal/pods"
)

// variant is what says how fast a pod serves: the same model on the same hardware, from the same image,
// with the same arguments.
type variant struct {
	// Key is equal for pods of the same variant.
	Key string `json:"key"`
	// Seats and BatchTokens are the engine's limits on running requests and on the tokens of a step, as
	// its arguments have them; 0 where they do not.
	Seats       float64 `json:"seats,omitempty"`
	BatchTokens float64 `json:"batchTokens,omitempty"`
	// GPU says that it asks for an accelerator.
	GPU bool `json:"gpu,omitempty"`
}

// variantKey is where a variant is kept between trimming a pod, which drops its spec, and converting it.
// It has a character that no annotation of the cluster can have.
const variantKey = pods.AnnotationPrefix + "variant!"

// variantOf reads the spec. Only a digest of it is kept: environments hold secrets.
func variantOf(pod *corev1.Pod) variant {
	if text, ok := pod.Annotations[variantKey]; ok {
		var v variant
		_ = json.Unmarshal([]byte(text), &v) // written by keepVariant
		return v
	}
	type container struct {
		Image         string
		Command, Args []string
		Env           []corev1.EnvVar
		Resources     corev1.ResourceRequirements
	}
	of := struct {
		Containers   []container
		NodeSelector map[string]string
		Affinity     *corev1.Affinity
	}{NodeSelector: pod.Spec.NodeSelector}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		of.Affinity = &corev1.Affinity{NodeAffinity: a.NodeAffinity}
	}
	var v variant
	for _, c := range pod.Spec.Containers {
		of.Containers = append(of.Containers, container{c.Image, c.Command, c.Args, c.Env, c.Resources})
		v.GPU = v.GPU || accelerated(c.Resources)
		words := words(c.Command, c.Args)
		v.Seats = max(v.Seats, argument(words, "--max-num-seqs", "--max-running-requests", "--max_batch_size"))
		v.BatchTokens = max(v.BatchTokens, argument(words, "--max-num-batched-tokens", "--chunked-prefill-size", "--max_num_tokens"))
	}
	text, err := json.Marshal(of)
	if err != nil {
		return variant{} // of strings and numbers: it cannot
	}
	sum := sha256.Sum256(text)
	v.Key = hex.EncodeToString(sum[:8])
	return v
}

// accelerated reports whether a container asks for a device of those that models are served on: GPUs and
// parts of them, or others by the name of their kind.
func accelerated(r corev1.ResourceRequirements) bool {
	for name := range r.Limits { // devices have limits, as they cannot be shared
		domain, device, extended := strings.Cut(string(name), "/")
		if !extended || strings.HasSuffix(domain, "kubernetes.io") {
			continue
		}
		for _, kind := range []string{"gpu", "mig-", "tpu", "npu", "gaudi", "neuron"} {
			if strings.Contains(strings.ToLower(device), kind) {
				return true
			}
		}
	}
	return len(r.Claims) > 0 // dynamic resource allocation hands out the same devices
}

// keepVariant puts the variant where it outlives the spec.
func keepVariant(pod *corev1.Pod, v variant) {
	text, err := json.Marshal(v)
	if err != nil {
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[variantKey] = string(text)
}

// words splits a command line, also one that is given to a shell.
func words(lists ...[]string) []string {
	var out []string
	for _, list := range lists {
		for _, s := range list {
			out = append(out, strings.Fields(s)...)
		}
	}
	return out
}

// argument returns the number that follows one of the flags, or is joined to it; 0 without one.
func argument(words []string, flags ...string) float64 {
	for i, w := range words {
		for _, flag := range flags {
			text, joined := strings.CutPrefix(w, flag+"=")
			if w == flag && i+1 < len(words) {
				text, joined = words[i+1], true
			}
			if !joined {
				continue
			}
			if v, err := strconv.ParseFloat(strings.Trim(text, `"'`), 64); err == nil && v > 0 {
				return v
			}
		}
	}
	return 0
}
