package kube

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A kind that is refused is told of, and one that the cluster does not have is not: nothing is missed.
func TestMetrics(t *testing.T) {
	server, client, dynamicClient := newAPIServer(t)
	server.fail("/deployments", apierrors.NewInternalError(errors.New("etcd has no leader")))
	server.fail("/inference.networking.k8s.io", apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no discovery")))
	mirror, lister := NewPods(client)
	g := NewGroups(client, dynamicClient, mirror, lister, append(DefaultKinds(), fleets))
	metrics := NewMetrics(mirror, g)

	told := func(want string) func() bool {
		const help = `
# HELP inference_metrics_adapter_kubernetes_failing 1 while the Kubernetes API refuses or fails the newest request for the objects of a kind, 0 when not: what was read before stays in use.
# TYPE inference_metrics_adapter_kubernetes_failing gauge
# HELP inference_metrics_adapter_kubernetes_synced 1 when all objects of a kind have been read once, 0 while not. A kind that the cluster does not have is not told of.
# TYPE inference_metrics_adapter_kubernetes_synced gauge
`
		return func() bool { return testutil.CollectAndCompare(metrics, strings.NewReader(help+want)) == nil }
	}
	const before = `
inference_metrics_adapter_kubernetes_failing{objects="deployments.apps"} 0
inference_metrics_adapter_kubernetes_failing{objects="fleets.example.com"} 0
inference_metrics_adapter_kubernetes_failing{objects="inferencepools.inference.networking.k8s.io"} 0
inference_metrics_adapter_kubernetes_failing{objects="inferencepools.inference.networking.x-k8s.io"} 0
inference_metrics_adapter_kubernetes_failing{objects="leaderworkersets.leaderworkerset.x-k8s.io"} 0
inference_metrics_adapter_kubernetes_failing{objects="pods"} 0
inference_metrics_adapter_kubernetes_failing{objects="replicasets.apps"} 0
inference_metrics_adapter_kubernetes_failing{objects="services"} 0
inference_metrics_adapter_kubernetes_failing{objects="statefulsets.apps"} 0
`
	if !told(before + strings.ReplaceAll(before, "_failing", "_synced"))() {
		t.Error("before anything was read, not all kinds are told to be neither synced nor failing")
	}

	g.again = 1 << 40 // whoever is refused is not asked again in this test
	run(t, mirror)
	runGroups(t, g)
	const rest = `
inference_metrics_adapter_kubernetes_failing{objects="pods"} 0
inference_metrics_adapter_kubernetes_failing{objects="replicasets.apps"} 0
inference_metrics_adapter_kubernetes_failing{objects="services"} 0
inference_metrics_adapter_kubernetes_failing{objects="statefulsets.apps"} 0
inference_metrics_adapter_kubernetes_failing{objects="inferencepools.inference.networking.k8s.io"} 1
inference_metrics_adapter_kubernetes_synced{objects="pods"} 1
inference_metrics_adapter_kubernetes_synced{objects="replicasets.apps"} 1
inference_metrics_adapter_kubernetes_synced{objects="services"} 1
inference_metrics_adapter_kubernetes_synced{objects="statefulsets.apps"} 1
inference_metrics_adapter_kubernetes_synced{objects="inferencepools.inference.networking.k8s.io"} 0
`
	eventually(t, told(rest+`
inference_metrics_adapter_kubernetes_failing{objects="deployments.apps"} 1
inference_metrics_adapter_kubernetes_synced{objects="deployments.apps"} 0
`))
	server.fail("/deployments", nil)
	eventually(t, told(rest+`
inference_metrics_adapter_kubernetes_failing{objects="deployments.apps"} 0
inference_metrics_adapter_kubernetes_synced{objects="deployments.apps"} 1
`))
}
