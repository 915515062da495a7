package drills

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"

	"github.com/inference-metrics/adapter/test/cluster"
)

// A question is what the judge asks, and what every value in the answer has to lie within.
type question struct {
	path      string
	low, high float64
}

// questions are about pods now, pods over a window, and all pods together.
func questions(pods int) []question {
	return []question{
		// One comes as one is served, so that at times a seat of the queue is free.
		{"pods/*/vllm_queue_depth", waiting - 2, waiting},
		{"deployments.apps/vllm/vllm_queue_depth", float64(pods * (waiting - 2)), float64(pods * waiting)},
		{"pods/*/vllm_request_rate", served * 0.75, served * 1.2},
	}
}

// A reply is what came of a question.
type reply struct {
	status int // 0: no answer at all
	values map[string]float64
	body   string
}

// A judge asks several times a second, and remembers whatever was wrong.
type judge struct {
	fleet *fleet
	// pods are the names of the fleet's, guarded by mu.
	pods []string
	// hpa says that the judge asks through the API server, and that the HPA follows what it is told.
	hpa bool
	// hurt are the pods whose queues may be anything, as their engines are restarted. So may be those of
	// pods that were not there when the fleet was.
	hurt map[string]bool

	adapter *cluster.Adapter
	client  *http.Client
	host    string

	mu    sync.Mutex
	last  []reply
	seen  map[string]int // kinds of replies to the first question, since mark
	wrong []string
}

// newJudge returns a judge of an adapter, which asks until the test ends. With hpa the adapter has to
// serve behind the API server.
func newJudge(t *testing.T, f *fleet, a *cluster.Adapter, hpa bool, hurt ...string) *judge {
	t.Helper()
	config := directly(a)
	if hpa {
		config = shared.Config
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout = 10 * time.Second
	j := &judge{fleet: f, pods: f.names(), hpa: hpa, hurt: map[string]bool{}, adapter: a, client: client, host: config.Host, seen: map[string]int{}}
	j.spare(hurt...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ; ctx.Err() == nil; time.Sleep(250 * time.Millisecond) {
			j.ask(ctx)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return j
}

// spare has the judge not look at the queues of some pods.
func (j *judge) spare(pods ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, pod := range pods {
		j.hurt[pod] = true
	}
}

// begin has the judge know the pods that the fleet has now.
func (j *judge) begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pods = j.fleet.names()
	clear(j.hurt)
}

// judges returns an error unless a value is true.
func (j *judge) judges(q question, kind, name string, v float64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	isPod := kind == "Pod"
	if isPod && (j.hurt[name] || !slices.Contains(j.pods, name)) || !isPod && len(j.hurt) > 0 {
		return nil
	}
	if v < q.low || v > q.high {
		return fmt.Errorf("%s: answered %g for %s; true is %g to %g", q.path, v, name, q.low, q.high)
	}
	return nil
}

func (j *judge) ask(ctx context.Context) {
	j.mu.Lock()
	pods := len(j.pods)
	j.mu.Unlock()
	all := questions(pods)
	replies := make([]reply, len(all))
	var wrong []string
	for i, q := range all {
		var faults []string
		replies[i], faults = j.put(ctx, q)
		wrong = append(wrong, faults...)
	}
	if ctx.Err() != nil {
		return
	}
	if j.hpa {
		d, err := shared.Client.AppsV1().Deployments(j.fleet.namespace).Get(ctx, "vllm", metav1.GetOptions{})
		if err == nil && int(*d.Spec.Replicas) != pods {
			wrong = append(wrong, fmt.Sprintf("the HPA has scaled from %d replicas to %d", pods, *d.Spec.Replicas))
		}
	}
	if j.adapter.Exited() {
		wrong = append(wrong, "the adapter has ended")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = replies
	j.seen[j.kind(replies[0])]++
	for _, w := range wrong {
		said := slices.ContainsFunc(j.wrong, func(before string) bool { return strings.HasSuffix(before, w) })
		if !said && len(j.wrong) < 50 {
			j.wrong = append(j.wrong, time.Now().Format("15:04:05.0 ")+w)
		}
	}
}

func (j *judge) put(ctx context.Context, q question) (r reply, wrong []string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("%s/apis/custom.metrics.k8s.io/v1beta2/namespaces/%s/%s", j.host, j.fleet.namespace, q.path), nil)
	if err != nil {
		panic(err) // the URL is ours
	}
	resp, err := j.client.Do(req)
	if err != nil {
		return reply{body: err.Error()}, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{body: err.Error()}, nil
	}
	r = reply{status: resp.StatusCode, body: string(body), values: map[string]float64{}}
	if r.status != http.StatusOK {
		// A client would wait for as long inside of one of the HPA controller's few workers.
		if after := resp.Header.Get("Retry-After"); after != "" && !j.hpa {
			wrong = append(wrong, fmt.Sprintf("%s: answered %d with Retry-After: %s", q.path, r.status, after))
		}
		return r, wrong
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal(body, &list); err != nil {
		return r, []string{fmt.Sprintf("%s: %v", q.path, err)}
	}
	for _, item := range list.Items {
		name, v := item.DescribedObject.Name, item.Value.AsApproximateFloat64()
		r.values[name] = v
		if err := j.judges(q, item.DescribedObject.Kind, name, v); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	return r, wrong
}

// Kinds of replies about the pods.
const (
	whole   = "the right values"
	part    = "the right values of what is left, the others left out"
	unknown = "unknown (503)"
	// notFound is what is answered where the server can be read, and has no number.
	notFound = "unknown (404)"
	other    = "no answer of the adapter"
)

// kind is called with mu held.
func (j *judge) kind(r reply) string {
	switch {
	case r.status == http.StatusOK && len(r.values) == len(j.pods):
		return whole
	case r.status == http.StatusOK && len(r.values) > 0:
		return part
	case r.status == http.StatusServiceUnavailable:
		return unknown
	case r.status == http.StatusNotFound:
		return notFound
	}
	return other
}

// is returns an error unless the newest replies about the pods are of a kind.
func (j *judge) is(kind string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.last) == 0 {
		return fmt.Errorf("nothing was asked yet")
	}
	if r := j.last[0]; j.kind(r) != kind {
		return fmt.Errorf("the answer is not of the kind %q: %d %.600s", kind, r.status, r.body)
	}
	return nil
}

// mark begins to count kinds of replies anew.
func (j *judge) mark() {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.seen)
}

// only returns an error unless all replies since mark are of a kind.
func (j *judge) only(kind string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.seen) != 1 || j.seen[kind] == 0 {
		return fmt.Errorf("the answers were %v, not only %q", j.seen, kind)
	}
	return nil
}

// said is what the newest answer says is wrong with the source, without addresses.
func (j *judge) said() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var status metav1.Status
	if len(j.last) == 0 || json.Unmarshal([]byte(j.last[0].body), &status) != nil {
		return ""
	}
	_, text, ok := strings.Cut(status.Message, "the source cannot be read: ")
	if !ok {
		text = status.Message
	}
	return excerpt(text)
}

// asked is what of a message only says what was asked, and changes with addresses.
var asked = regexp.MustCompile(`(Prometheus at )?https?://[^\s:]+(:\d+)?(: )?|(dial|read|write) tcp [\d.:>-]+: |` +
	`^no value of .*?: \d+ |\d+ of \d+ queries failed: |reading [\w:]+( and \d+ more)?: |; /debug/signals of the adapter shows more`)

// excerpt is what a message has to say, for the table.
func excerpt(message string) string {
	text := strings.ReplaceAll(asked.ReplaceAllString(message, ""), "|", "/")
	if r := []rune(text); len(r) > 200 {
		text = string(r[:200]) + "…"
	}
	return "“" + strings.TrimSpace(text) + "”"
}

// awaitRight waits until everything is answered rightly again, and the HPA has a value.
func (j *judge) awaitRight(t *testing.T, within time.Duration) {
	t.Helper()
	eventually(t, within, "the right values are answered", func() error {
		if err := j.is(whole); err != nil {
			return err
		}
		if j.hpa {
			if c := j.condition(t); c.Status != corev1.ConditionTrue {
				return fmt.Errorf("the HPA: %s: %s", c.Reason, c.Message)
			}
		}
		return nil
	})
}

// awaitWindow waits until the rates over a window are answered, too.
func (j *judge) awaitWindow(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, "rates are answered", func() error {
		j.mu.Lock()
		defer j.mu.Unlock()
		r := j.last[len(j.last)-1]
		if j.kind(r) != whole {
			return fmt.Errorf("%d %.600s", r.status, r.body)
		}
		return nil
	})
}

// condition is what the HPA says of its metric.
func (j *judge) condition(t *testing.T) autoscalingv2.HorizontalPodAutoscalerCondition {
	t.Helper()
	h, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(j.fleet.namespace).Get(t.Context(), "vllm", metav1.GetOptions{})
	if err != nil {
		return autoscalingv2.HorizontalPodAutoscalerCondition{Reason: "NotRead", Message: err.Error()}
	}
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			return c
		}
	}
	return autoscalingv2.HorizontalPodAutoscalerCondition{Reason: "None"}
}

// verdict fails the test if anything was wrong since the last verdict.
func (j *judge) verdict(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, w := range j.wrong {
		t.Error(w)
	}
	j.wrong = nil
}
