package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func newPod(name, ip string, phase corev1.PodPhase, ready bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "serving", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"app": "vllm", "pod-template-hash": "abc12"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "llama-abc12", Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "server"}}},
	}
	setStatus(p, ip, phase, ready)
	return p
}

func setStatus(p *corev1.Pod, ip string, phase corev1.PodPhase, ready bool) {
	p.Status.PodIP, p.Status.Phase = ip, phase
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
}

// cluster is a fleet that watches a fake cluster.
type cluster struct {
	*harness
	client *fake.Clientset
}

func startCluster(t *testing.T, change func(*options), pods ...*corev1.Pod) *cluster {
	t.Helper()
	o := defaults(t)
	o.engine.MaxNumSeqs = 4
	o.selector, o.port = "app=vllm", 0
	if change != nil {
		change(&o)
	}
	c := &cluster{client: fake.NewClientset()}
	for _, p := range pods {
		c.create(t, p)
	}
	c.harness = startEmpty(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	if err := c.watchPods(ctx, c.client, o); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) create(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if _, err := c.client.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) update(p *corev1.Pod) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Pods(p.Namespace).Update(c.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// awaits waits until the replica of the name is as wanted; nil stands for none.
func (c *cluster) awaits(what, name string, ok func(*replicaState) bool) replicaState {
	c.t.Helper()
	var got *replicaState
	eventually(c.t, what, func() bool {
		got = nil
		for _, r := range c.getState().Replicas {
			if r.Name == name {
				got = &r
			}
		}
		return ok(got)
	})
	if got == nil {
		return replicaState{}
	}
	return *got
}

func listens(r *replicaState) bool { return r != nil && r.Address != "" }
func silent(r *replicaState) bool  { return r != nil && r.Address == "" }
func gone(r *replicaState) bool    { return r == nil }

func TestPodsLife(t *testing.T) {
	other := newPod("other", "127.77.0.9", corev1.PodRunning, true)
	other.Labels["app"] = "other"
	pod := newPod("a", "", corev1.PodPending, false)
	c := startCluster(t, nil, other, pod, newPod("b", "127.77.0.2", corev1.PodRunning, true))
	b := c.awaits("pod b, there from the start, is served", "b", listens)
	if !strings.HasPrefix(b.Address, "127.77.0.2:") || b.Deployment != "llama" {
		t.Errorf("%+v: want it on its pod's address, in Deployment llama", b)
	}
	if n := len(c.getState().Replicas); n != 1 {
		t.Errorf("%d replicas, want only pod b: one pod is Pending, one does not match", n)
	}

	setStatus(pod, "127.77.0.1", corev1.PodRunning, false)
	c.update(pod)
	c.awaits("pod a, not Ready yet, is there but silent", "a", silent)

	setStatus(pod, "127.77.0.1", corev1.PodRunning, true)
	c.update(pod)
	a := c.awaits("pod a, Ready, is served", "a", listens)
	if !strings.HasPrefix(a.Address, "127.77.0.1:") {
		t.Errorf("pod a is served on %s", a.Address)
	}

	c.putLoad("?deployment=llama&namespace=serving", "constant:rate=40,output=1000")
	c.putLoad("?deployment=qwen", "constant:rate=1")
	c.pass(2 * time.Second)
	s := c.getState()
	if s.Replicas[0].Offered == 0 || s.Replicas[0].Offered != s.Replicas[1].Offered || s.Loads[1].Dropped != s.Loads[1].Offered {
		t.Errorf("the load was not on the Deployment's pods alone: %+v", s)
	}
	generated := sum(c.scrape(a.Address), "vllm:generation_tokens_total")

	// Losing Ready closes the port and keeps the process.
	setStatus(pod, "127.77.0.1", corev1.PodRunning, false)
	c.update(pod)
	c.awaits("pod a, no longer Ready, is silent", "a", silent)
	setStatus(pod, "127.77.0.1", corev1.PodRunning, true)
	c.update(pod)
	a = c.awaits("pod a is served again", "a", listens)
	if got := sum(c.scrape(a.Address), "vllm:generation_tokens_total"); got < generated {
		t.Errorf("generated tokens fell from %g to %g: losing Ready is not a restart", generated, got)
	}

	// A container that restarts is a new process.
	inFlight := a.Waiting + a.Running
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1}}
	c.update(pod)
	a = c.awaits("pod a's restart drops its requests", "a", func(r *replicaState) bool { return listens(r) && r.Dropped == inFlight })
	if got := sum(c.scrape(a.Address), "vllm:generation_tokens_total"); got != 0 || inFlight == 0 {
		t.Errorf("generated tokens are %g after a restart that lost %d requests", got, inFlight)
	}

	// A pod that is being deleted takes its requests away.
	c.pass(time.Second)
	before := c.getState()
	pod.DeletionTimestamp = &metav1.Time{Time: t0}
	pod.Finalizers = []string{"test/keep"}
	c.update(pod)
	c.awaits("pod a, terminating, is gone", "a", gone)
	s = c.getState()
	if want := before.Totals.Dropped + before.Replicas[0].Waiting + before.Replicas[0].Running; s.Totals.Dropped != want || want == before.Totals.Dropped {
		t.Errorf("%d dropped, want %d: what was in flight on the pod", s.Totals.Dropped, want)
	}

	if err := c.client.CoreV1().Pods("serving").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaits("pod b, deleted, is gone", "b", gone)
	for _, r := range []replicaState{a, b} {
		if conn, err := net.Dial("tcp", r.Address); err == nil {
			conn.Close()
			t.Errorf("%s still listens on %s", r.Name, r.Address)
		}
	}
}

func TestServeBeforeReady(t *testing.T) {
	c := startCluster(t, func(o *options) { o.serveBeforeReady = true }, newPod("a", "127.77.0.1", corev1.PodRunning, false))
	a := c.awaits("the pod is served before it is Ready", "a", listens)
	c.putLoad("", "constant:rate=10")
	c.pass(time.Second)
	if s := c.replica(0); s.Offered != 0 {
		t.Errorf("%d requests were routed to a pod that is not Ready", s.Offered)
	}
	if got := sum(c.scrape(a.Address), "vllm:num_requests_running"); got != 0 {
		t.Errorf("it runs %g requests", got)
	}
}

func TestReplacedUnderTheSameName(t *testing.T) {
	pod := newPod("a", "127.77.0.1", corev1.PodRunning, true)
	c := startCluster(t, nil, pod)
	c.awaits("the pod is served", "a", listens)
	c.putLoad("", "constant:rate=20,output=1000")
	c.pass(time.Second)
	pod.UID = "uid-other"
	c.update(pod)
	c.awaits("the new pod starts with nothing", "a", func(r *replicaState) bool { return listens(r) && r.Offered == 0 })

	pod.UID = "uid-third"
	setStatus(pod, "", corev1.PodPending, false)
	c.update(pod)
	c.awaits("a pending pod of the same name ends the old one", "a", gone)
}

func TestPodOffLoopbackIsNotServed(t *testing.T) {
	c := startCluster(t, nil, newPod("a", "10.0.0.7", corev1.PodRunning, true))
	r := c.awaits("the pod's replica is there", "a", silent)
	if !strings.Contains(r.Problem, "loopback") {
		t.Errorf("problem is %q", r.Problem)
	}
	c.putLoad("", "constant:rate=10")
	c.pass(time.Second)
	if s := c.getState(); s.Totals.Dropped != s.Totals.Offered || s.Totals.Offered == 0 {
		t.Errorf("%+v: want all requests dropped", s.Totals)
	}
}

func TestAddressInUseIsTriedAgain(t *testing.T) {
	blocker, err := listen("127.77.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Close()
	pod := newPod("a", "127.77.0.1", corev1.PodRunning, true)
	c := startCluster(t, func(o *options) {
		_, port, _ := strings.Cut(blocker.address, ":")
		for _, d := range port {
			o.port = o.port*10 + int(d-'0')
		}
	}, pod)
	r := c.awaits("the pod waits for its address", "a", silent)
	if !strings.Contains(r.Problem, "in use") {
		t.Errorf("problem is %q", r.Problem)
	}
	blocker.Close()
	c.pass(2 * time.Second)
	if r := c.awaits("the pod is served", "a", listens); r.Address != blocker.address || r.Problem != "" {
		t.Errorf("%+v", r)
	}
}
