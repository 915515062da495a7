package drills

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"k8s.io/metrics/pkg/client/custom_metrics"
)

// drillLoad asks what 2,000 HPAs would, each every 15 seconds, with their client and in protobuf: straight
// at the adapter, as a controller manager stops at fifty requests per second.
func drillLoad(t *testing.T, j *judge) {
	const hpas, cadence = 2000, 15 * time.Second
	during, drill := 30*time.Second, "2,000 HPAs for 30 s"
	if soak {
		during, drill = 10*time.Minute, "2,000 HPAs for ten minutes"
	}
	j.awaitRight(t, time.Minute)
	j.awaitWindow(t)
	config := directly(j.adapter)
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	pods := corev1.SchemeGroupVersion.WithKind("Pod")
	deployments := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{pods.GroupVersion(), deployments.GroupVersion()})
	mapper.Add(pods, meta.RESTScopeNamespace)
	mapper.Add(deployments, meta.RESTScopeNamespace)
	client, err := custom_metrics.NewForVersionForConfig(config, mapper, v1beta2.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	metrics := client.NamespacedMetrics(j.fleet.namespace)
	ask := []func() error{
		func() error {
			list, err := metrics.GetForObjects(pods.GroupKind(), labels.Set{"app": "vllm"}.AsSelector(), "vllm_queue_depth", labels.Everything())
			if err == nil && len(list.Items) != len(j.fleet.pods) {
				err = fmt.Errorf("%d values", len(list.Items))
			}
			return err
		},
		func() error {
			_, err := metrics.GetForObject(deployments.GroupKind(), "vllm", "vllm_queue_depth", labels.Everything())
			return err
		},
		func() error {
			_, err := metrics.GetForObjects(pods.GroupKind(), labels.Set{"app": "vllm"}.AsSelector(), "vllm_request_rate", labels.Everything())
			return err
		},
	}

	var mu sync.Mutex
	var took []time.Duration
	var failed []error
	var group sync.WaitGroup
	began := time.Now()
	for i := range hpas {
		group.Go(func() {
			time.Sleep(rand.N(cadence))
			for {
				asked := time.Now()
				err := ask[i%len(ask)]()
				mu.Lock()
				took = append(took, time.Since(asked))
				if err != nil {
					failed = append(failed, err)
				}
				mu.Unlock()
				if time.Since(began)+cadence > during {
					return
				}
				time.Sleep(cadence)
			}
		})
	}
	time.Sleep(during / 3) // what caches and pools there are is full
	early := residentMiB(t, j.adapter.Pid)
	group.Wait()
	late := residentMiB(t, j.adapter.Pid)

	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d requests in %s, %d failed; p50 %s, p99 %s; %d MiB a third through, %d at the end",
		len(took), time.Since(began).Round(time.Second), len(failed), took[len(took)/2], p99, early, late)
	if least := int(during/cadence) * hpas * 9 / 10; len(took) < least {
		t.Errorf("only %d requests were made, want %d: it cannot keep up", len(took), least)
	}
	for _, err := range failed[:min(len(failed), 5)] {
		t.Error(err)
	}
	if late > early+early/2+32 {
		t.Errorf("memory went from %d to %d MiB", early, late)
	}
	j.verdict(t)
	record(t, row{Part: "Load", Drill: drill, Done: "what they ask every 15 s, in protobuf, of one adapter",
		Observed: fmt.Sprintf("no errors, memory flat: p99 %s, %d MiB", p99.Round(time.Millisecond), late), HPA: true, Test: "test/cluster/drills/load_test.go"})
}
