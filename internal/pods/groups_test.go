package pods

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestExports(t *testing.T) {
	for _, tc := range []struct {
		name string
		pod  Pod
		want bool
	}{
		{"plain", Pod{Labels: labels.Set{"app": "vllm"}}, true},
		{"without labels", Pod{}, true},
		{"gone", Pod{Gone: true}, false},
		{"not Ready, which is for the signals to weigh", Pod{Ready: false}, true},
		{"leader of a LeaderWorkerSet", Pod{Labels: labels.Set{"leaderworkerset.sigs.k8s.io/worker-index": "0"}}, true},
		{"worker of a LeaderWorkerSet", Pod{Labels: labels.Set{"leaderworkerset.sigs.k8s.io/worker-index": "10"}}, false},
		{"first of an AIBrix pod group", Pod{Labels: labels.Set{"stormservice.orchestration.aibrix.ai/pod-group-index": "0"}}, true},
		{"second of an AIBrix pod group", Pod{Labels: labels.Set{"stormservice.orchestration.aibrix.ai/pod-group-index": "1"}}, false},
		{"Ray head", Pod{Labels: labels.Set{"ray.io/node-type": "head"}}, true},
		{"Ray worker", Pod{Labels: labels.Set{"ray.io/node-type": "worker"}}, false},
		{"worker of Ray on a LeaderWorkerSet", Pod{Labels: labels.Set{"leaderworkerset.sigs.k8s.io/worker-index": "0", "ray.io/node-type": "worker"}}, false},
	} {
		if got := tc.pod.Exports(); got != tc.want {
			t.Errorf("%s: got %t, want %t", tc.name, got, tc.want)
		}
	}
}

func TestRole(t *testing.T) {
	for _, tc := range []struct {
		name   string
		labels labels.Set
		keys   []string
		want   string
	}{
		{"no labels", nil, nil, ""},
		{"llm-d prefill", labels.Set{"llm-d.ai/role": "prefill"}, nil, RolePrefill},
		{"llm-d decode", labels.Set{"llm-d.ai/role": "decode"}, nil, RoleDecode},
		{"llm-d both", labels.Set{"llm-d.ai/role": "both"}, nil, ""},
		{"llm-d both, under its newer name", labels.Set{"llm-d.ai/role": "prefill-decode"}, nil, ""},
		{"llm-d encoder and prefill", labels.Set{"llm-d.ai/role": "encode-prefill"}, nil, RolePrefill},
		{"llm-d encoder and decode", labels.Set{"llm-d.ai/role": "encode-decode"}, nil, RoleDecode},
		{"llm-d all three", labels.Set{"llm-d.ai/role": "encode-prefill-decode"}, nil, ""},
		{"DisaggregatedSet", labels.Set{"disaggregatedset.x-k8s.io/role": "decode"}, nil, RoleDecode},
		{"Dynamo", labels.Set{"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": "prefill"}, nil, RolePrefill},
		{"Dynamo aggregated", labels.Set{"nvidia.com/dynamo-component-type": "worker"}, nil, ""},
		{"Dynamo frontend", labels.Set{"nvidia.com/dynamo-component-type": "frontend"}, nil, ""},
		{"Dynamo v1beta1", labels.Set{"nvidia.com/dynamo-component-type": "decode"}, nil, RoleDecode},
		{"AIBrix", labels.Set{"role-name": "prefill", "roleset-name": "a"}, nil, RolePrefill},
		{"a role-name of something else", labels.Set{"role-name": "router"}, nil, ""},
		{"RoleBasedGroup", labels.Set{"rbg.workloads.x-k8s.io/role-name": "decode"}, nil, RoleDecode},
		{"both of a known label is an answer", labels.Set{"llm-d.ai/role": "both", "role-name": "prefill"}, nil, ""},
		{"a value that says nothing leaves it to the next", labels.Set{"llm-d.ai/role": "leader", "role-name": "prefill"}, nil, RolePrefill},
		{"configured", labels.Set{"stage": "decode"}, []string{"phase", "stage"}, RoleDecode},
		{"configured first", labels.Set{"stage": "decode", "llm-d.ai/role": "prefill"}, []string{"stage"}, RoleDecode},
		{"configured, but not there", labels.Set{"llm-d.ai/role": "prefill"}, []string{"stage"}, RolePrefill},
	} {
		if got := Role(&Pod{Labels: tc.labels}, tc.keys); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestOverlay(t *testing.T) {
	near, far := map[string]string{"a": "near"}, map[string]string{"a": "far", "b": "far"}
	for _, tc := range []struct {
		name            string
		near, far, want map[string]string
	}{
		{"the nearest wins, key by key", near, far, map[string]string{"a": "near", "b": "far"}},
		{"no near", nil, far, far},
		{"no far", near, nil, near},
		{"none", nil, nil, nil},
	} {
		before := [2]map[string]string{maps.Clone(tc.near), maps.Clone(tc.far)}
		if diff := cmp.Diff(tc.want, Overlay(tc.near, tc.far)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
		if diff := cmp.Diff(before, [2]map[string]string{tc.near, tc.far}); diff != "" {
			t.Errorf("%s: it changed what it was given (-before +after):\n%s", tc.name, diff)
		}
	}
}

func TestNoGroups(t *testing.T) {
	var g Groups = NoGroups{}
	object := Object{GroupResource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Namespace: "serving", Name: "vllm"}
	_, membersErr := g.Members(object)
	_, objectsErr := g.Objects(object.GroupResource, "serving", labels.Everything())
	for _, err := range []error{membersErr, objectsErr} {
		var why *GroupError
		if !errors.As(err, &why) || why.Why != NotServed {
			t.Errorf("got %v, want that the kind is not served", err)
		}
	}
	own := map[string]string{AnnotationPrefix + "ttft": "1s"}
	if diff := cmp.Diff(own, g.Annotations(&Pod{Annotations: own})); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if len(g.Kinds()) != 0 {
		t.Errorf("kinds %v", g.Kinds())
	}
}
