package drills

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inference-metrics/adapter/test/cluster"
)

// TestCluster drills what goes through the API server and the HPA, one after the other.
func TestCluster(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "cluster", 3)
	f.autoscale(t, 6, tight)
	s, args := newServer(t, f, false)
	s.set(shifted(&s.shift))
	api := newCutter(t)
	a := startAdapter(t, append(args, api.flags(t)...)...)

	t.Run("served", func(t *testing.T) {
		serve(t, a)
		j := newJudge(t, f, a, true)
		defer j.verdict(t)
		j.awaitRight(t, time.Minute)
		j.awaitWindow(t)
		for _, d := range sourceDrills() {
			if d.hpa {
				t.Run(d.name, func(t *testing.T) {
					d.run(t, j, s)
					s.set(shifted(&s.shift)) // the clock stays as it was set
				})
			}
		}
		t.Run("API server", func(t *testing.T) { drillAPIServer(t, j) })
		t.Run("pods", func(t *testing.T) { drillPods(t, j, api) })
		t.Run("load", func(t *testing.T) { drillLoad(t, j) })
		// What was unknown over a window is known again, too.
		j.awaitWindow(t)
	})
	if !soak {
		return
	}
	a.Stop()
	for _, d := range sourceDrills() {
		if !d.hpa {
			t.Run(d.name, func(t *testing.T) {
				s, args := newServer(t, f, d.secure)
				a := startAdapter(t, args...)
				serve(t, a)
				d.run(t, newJudge(t, f, a, true), s)
				a.Stop() // and with it the API server's connections
			})
		}
	}
	t.Run("engines", func(t *testing.T) { testEngines(t, true) })
	for _, skew := range skews {
		t.Run(fmt.Sprintf("clock off by %s", skew), func(t *testing.T) { testSkew(t, f, skew, true) })
	}
}

// drillAPIServer kills kube-apiserver and starts it again after a while.
func drillAPIServer(t *testing.T, j *judge) {
	defer j.verdict(t)
	j.awaitRight(t, time.Minute)
	straight := newJudge(t, j.fleet, j.adapter, false)
	straight.awaitRight(t, time.Minute)
	straight.mark()
	shared.KillAPIServer()
	time.Sleep(hold)
	if err := straight.only(whole); err != nil {
		t.Errorf("asked directly, without the API server: %v", err)
	}
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if err := shared.AwaitAvailable(t.Context()); err != nil {
		t.Error(err)
	}
	j.awaitRight(t, 2*time.Minute)
	again := time.Since(started)
	time.Sleep(2 * hpaSync)
	straight.verdict(t)
	j.verdict(t)
	record(t, row{Part: "Kubernetes", Drill: "API server restarts", Done: "kube-apiserver is killed, and started again",
		Observed: "the adapter keeps the right values; replicas stay", Again: again, HPA: true, Test: "test/cluster/drills/cluster_test.go"})
}

// drillPods has thousands of pods come and go, while all watches of the adapter are cut again and again,
// and replaces one of the engines' pods in the middle of that.
func drillPods(t *testing.T, j *judge, api *cutter) {
	defer j.verdict(t)
	churned := 500
	if soak {
		churned = 5000
	}
	j.awaitRight(t, time.Minute)
	replaced := j.fleet.pods[0].Name
	before := residentMiB(t, j.adapter.Pid)
	namespace := anew("churn")
	if _, err := shared.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "pods can be made", func() error {
		_, err := shared.Client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				api.cut()
			}
		}
	})
	names := make(chan string)
	var lives sync.WaitGroup
	for range 16 {
		lives.Go(func() {
			for name := range names {
				if err := liveAndDie(t, namespace, name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range churned {
		names <- fmt.Sprintf("pod-%d", i)
		if i == churned/2 {
			j.spare(replaced) // the new one's queue is empty at first
			err := shared.Client.CoreV1().Pods(j.fleet.namespace).Delete(t.Context(), replaced, metav1.DeleteOptions{})
			if err != nil {
				t.Error(err)
			}
		}
	}
	close(names)
	lives.Wait()
	if n := api.count(); n == 0 {
		t.Error("no connection of the adapter was cut")
	}
	close(stop)
	cutting.Wait()
	ended := time.Now()
	eventually(t, time.Minute, "the new pod is answered, and not the old", func() error {
		j.mu.Lock()
		defer j.mu.Unlock()
		for pod := range j.last[0].values {
			if pod == replaced {
				return errors.New("the old one is there")
			}
		}
		if n := len(j.last[0].values); n != len(j.fleet.pods) {
			return fmt.Errorf("%d values", n)
		}
		return nil
	})
	again := time.Since(ended)
	if err := errors.Join(j.fleet.awaitReady(t.Context(), len(j.fleet.pods)), j.fleet.awaitFull(t.Context())); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second) // until what was scraped before that is replaced
	j.begin()
	j.awaitWindow(t)
	if after := residentMiB(t, j.adapter.Pid); after > before+100 {
		t.Errorf("the adapter grew from %d to %d MiB", before, after)
	}
	j.verdict(t)
	record(t, row{Part: "Kubernetes", Drill: fmt.Sprintf("%d pods churn, watches drop", churned),
		Done:     "so many pods come, run and go, all connections of the adapter to the API server are cut twice a second, and one of the engines' pods is replaced",
		Observed: "the right values; the new pod is answered and the old is not", Again: again, HPA: true, Test: "test/cluster/drills/cluster_test.go"})
}

// liveAndDie makes a pod, has it run and be Ready, and deletes it.
func liveAndDie(t *testing.T, namespace, name string) error {
	pods := shared.Client.CoreV1().Pods(namespace)
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "churn"}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", // so that neither the scheduler nor kwok has to do with it
			Containers:    []corev1.Container{{Name: "vllm", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "127.0.0.3"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		return err
	}
	now := int64(0)
	return pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// A cutter stands between an adapter and the API server, and can cut what there is of connections.
type cutter struct {
	address string
	server  string

	mu    sync.Mutex
	conns []net.Conn
	cuts  int
}

func newCutter(t *testing.T) *cutter {
	t.Helper()
	u, err := url.Parse(shared.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{address: l.Addr().String(), server: u.Host}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go c.forward(conn)
		}
	}()
	t.Cleanup(func() { l.Close(); c.cut() })
	return c
}

func (c *cutter) forward(conn net.Conn) {
	defer conn.Close()
	upstream, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer upstream.Close()
	c.mu.Lock()
	c.conns = append(c.conns, conn, upstream)
	c.mu.Unlock()
	go func() { _, _ = io.Copy(upstream, conn); upstream.Close() }()
	_, _ = io.Copy(conn, upstream)
}

// cut closes all connections.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.cuts += len(c.conns)
	c.conns = nil
}

// count is how many connections have been cut.
func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

// flags have an adapter reach the API server through the cutter.
func (c *cutter) flags(t *testing.T) []string {
	t.Helper()
	file, err := shared.ServiceAccountKubeconfig(t.Context(), cluster.AdapterNamespace, cluster.AdapterName)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "kubeconfig")
	replace(t, own, []byte(strings.ReplaceAll(string(text), c.server, c.address)))
	return []string{"--kubeconfig=" + own, "--authentication-kubeconfig=" + own, "--authorization-kubeconfig=" + own}
}
