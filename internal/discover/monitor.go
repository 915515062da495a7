package discover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The kinds of the Prometheus operator that say where pods serve their metrics.
const (
	podMonitor     = "PodMonitor"
	serviceMonitor = "ServiceMonitor"
)

// A monitor is what is kept of a PodMonitor or a ServiceMonitor. It does not change.
type monitor struct {
	metav1.ObjectMeta // name and version
	kind              string
	selector          labels.Selector // of pods, or of Services
	// any and names say in which namespaces it selects; without both, in its own.
	any       bool
	names     []string
	endpoints []endpoint
	// fault is why nothing of it can be followed.
	fault *Problem
}

// An endpoint is a port of the pods that a monitor selects.
type endpoint struct {
	field string // spec.endpoints[0]
	// port is the name of a container's port, or that of a Service's port where it is service; or number is one.
	port    string
	number  int
	service bool

	scheme, path, query string
	// keep are the relabelings that drop pods.
	keep []*relabel.Config
	// fault is why it is not followed.
	fault *Problem
}

// Problem is something of a monitor that is not followed.
type Problem struct {
	// Kind is PodMonitor or ServiceMonitor.
	Kind, Namespace, Name string
	// Field is the one that is at fault, such as spec.podMetricsEndpoints[0].port.
	Field  string
	Reason string
}

// String implements fmt.Stringer.
func (p Problem) String() string {
	return fmt.Sprintf("%s %s/%s: %s: %s", p.Kind, p.Namespace, p.Name, p.Field, p.Reason)
}

// What one monitor can make us keep and look at is bounded.
const (
	maxEndpoints   = 16
	maxRelabelings = 32
	maxQuery       = 1024 // bytes of the parameters of a request
)

// parsed reads an object of either kind.
func parsed(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	m := &monitor{kind: u.GetKind(), ObjectMeta: metav1.ObjectMeta{
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
	}}
	m.read(u.Object["spec"])
	return m, nil
}

// problem is one of the monitor.
func (m *monitor) problem(field, format string, args ...any) *Problem {
	reason := fmt.Sprintf(format, args...)
	if len(reason) > 300 {
		reason = strings.ToValidUTF8(reason[:300], "") + "…"
	}
	return &Problem{Kind: m.kind, Namespace: m.Namespace, Name: m.Name, Field: field, Reason: reason}
}

// read takes what is followed of a spec, and nothing else: what it does not know can do no harm.
func (m *monitor) read(spec any) {
	var s struct {
		Selector          *metav1.LabelSelector `json:"selector"`
		NamespaceSelector struct {
			Any        bool     `json:"any"`
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		PodMetricsEndpoints []any `json:"podMetricsEndpoints"`
		Endpoints           []any `json:"endpoints"`
	}
	if field, err := decode(spec, &s); err != nil {
		m.fault = m.problem(join("spec", field), "%v", err)
		return
	}
	if s.Selector == nil {
		m.fault = m.problem("spec.selector", "it is missing: {} is for all")
		return
	}
	var err error
	if m.selector, err = metav1.LabelSelectorAsSelector(s.Selector); err != nil {
		m.fault = m.problem("spec.selector", "%v", err)
		return
	}
	m.any, m.names = s.NamespaceSelector.Any, s.NamespaceSelector.MatchNames
	name, all := "spec.podMetricsEndpoints", s.PodMetricsEndpoints
	if m.kind == serviceMonitor {
		name, all = "spec.endpoints", s.Endpoints
	}
	for i, from := range all {
		e := endpoint{field: fmt.Sprintf("%s[%d]", name, i)}
		if i == maxEndpoints {
			e.fault = m.problem(e.field, "of one monitor the first %d endpoints are followed", maxEndpoints)
			m.endpoints = append(m.endpoints, e)
			return
		}
		e.read(m, from)
		m.endpoints = append(m.endpoints, e)
	}
}

// decode reads an object into fields, and says which does not fit.
func decode(from, into any) (field string, err error) {
	text, err := json.Marshal(from)
	if err != nil {
		return "", err
	}
	err = json.Unmarshal(text, into)
	var misfit *json.UnmarshalTypeError
	if errors.As(err, &misfit) {
		return misfit.Field, fmt.Errorf("want %s, got %s", misfit.Type, misfit.Value)
	}
	return "", err
}

func join(field, below string) string { return strings.TrimSuffix(field+"."+below, ".") }

// endpointSpec is what is read of an endpoint.
type endpointSpec struct {
	Port       string              `json:"port"`
	PortNumber int                 `json:"portNumber"`
	TargetPort any                 `json:"targetPort"` // a number or a name
	Path       string              `json:"path"`
	Scheme     string              `json:"scheme"`
	Params     map[string][]string `json:"params"`
	Relabels   []relabeling        `json:"relabelings"`

	// Of these it is only read that they are there.
	BasicAuth            any `json:"basicAuth"`
	Authorization        any `json:"authorization"`
	OAuth2               any `json:"oauth2"`
	BearerTokenSecret    any `json:"bearerTokenSecret"`
	BearerTokenFile      any `json:"bearerTokenFile"`
	TLSConfig            any `json:"tlsConfig"`
	ProxyURL             any `json:"proxyUrl"`
	ProxyFromEnvironment any `json:"proxyFromEnvironment"`
}

type relabeling struct {
	Action       string   `json:"action"`
	SourceLabels []string `json:"sourceLabels"`
	Separator    *string  `json:"separator"`
	Regex        *string  `json:"regex"`
	TargetLabel  string   `json:"targetLabel"`
}

const insteadNamed = "name the pods in scrape.pods of the adapter's configuration"

// paramName is a parameter's name that Prometheus's scrape can carry as a label.
var paramName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (e *endpoint) read(m *monitor, from any) {
	fault := func(field, format string, args ...any) {
		if e.fault == nil {
			e.fault = m.problem(join(e.field, field), format, args...)
		}
	}
	var s endpointSpec
	if field, err := decode(from, &s); err != nil {
		fault(field, "%v", err)
		return
	}
	// A secret of the namespace is neither read nor sent: the adapter could be led to show it to a pod.
	for _, x := range []struct {
		field string
		value any
	}{
		{"basicAuth", s.BasicAuth}, {"authorization", s.Authorization}, {"oauth2", s.OAuth2},
		{"bearerTokenSecret", s.BearerTokenSecret}, {"bearerTokenFile", s.BearerTokenFile}, {"tlsConfig", s.TLSConfig},
	} {
		if !empty(x.value) {
			fault(x.field, "needs credentials, which are taken from no monitor: %s", insteadNamed)
		}
	}
	for field, value := range map[string]any{"proxyUrl": s.ProxyURL, "proxyFromEnvironment": s.ProxyFromEnvironment} {
		if !empty(value) {
			fault(field, "pods are asked directly only: %s", insteadNamed)
		}
	}
	e.readPort(m.kind, s, fault)
	switch e.scheme = strings.ToLower(s.Scheme); e.scheme {
	case "":
		e.scheme = "http"
	case "http", "https":
	default:
		fault("scheme", "%.40q is neither http nor https", s.Scheme)
	}
	if e.path = s.Path; s.Path == "" {
		e.path = "/metrics"
	} else if !plainPath.MatchString(s.Path) {
		fault("path", "%.80q is no path of plain characters, such as /metrics", s.Path)
	}
	e.readParams(s.Params, fault)
	e.readRelabelings(s.Relabels, fault)
}

// empty reports whether a field says nothing: the operator's own libraries write empty ones.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case map[string]any:
		for _, x := range v {
			if !empty(x) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	}
	return false
}

type faulter func(field, format string, args ...any)

// readPort takes one of the three ways to name a port, in the operator's order.
func (e *endpoint) readPort(kind string, s endpointSpec, fault faulter) {
	field := "port"
	switch {
	case s.Port != "":
		e.port, e.service = s.Port, kind == serviceMonitor
		return
	case s.PortNumber != 0 && kind == podMonitor:
		field, e.number = "portNumber", s.PortNumber
	case s.TargetPort != nil:
		field = "targetPort"
		var port intstr.IntOrString
		if _, err := decode(s.TargetPort, &port); err != nil {
			fault(field, "%v", err)
			return
		}
		if e.port, e.number = port.StrVal, port.IntValue(); port.Type == intstr.String {
			e.number = 0
		}
	}
	switch {
	case e.port == "" && e.number == 0:
		fault("port", "it is missing, and of a pod not all ports are asked: name one")
	case e.port == "" && (e.number < 1 || e.number > 65535):
		fault(field, "%d is outside 1 to 65535", e.number)
	}
}

func (e *endpoint) readParams(params map[string][]string, fault faulter) {
	query := url.Values{}
	for name, values := range params {
		switch {
		case !paramName.MatchString(name):
			fault("params", "%.40q is no name of letters, digits and _", name)
		case len(values) > 1:
			fault("params", "%.40q is there twice", name)
		case len(values) == 1:
			query.Set(name, values[0])
		}
	}
	if e.query = query.Encode(); len(e.query) > maxQuery {
		fault("params", "they are longer than %d bytes", maxQuery)
		e.query = ""
	}
}

// knownLabel is a label of Prometheus's discovery that is known here: less is kept of a pod than it has.
var knownLabel = regexp.MustCompile("^" + meta + "(namespace|pod_(name|ip|host_ip|node_name|phase|uid|label_.+|labelpresent_.+|container_(name|image|init|port_(name|number|protocol))))$")

// readRelabelings takes those that drop pods. The others change labels, and labels come from nobody but
// Kubernetes: they change nothing.
func (e *endpoint) readRelabelings(all []relabeling, fault faulter) {
	if len(all) > maxRelabelings {
		fault("relabelings", "there are more than %d", maxRelabelings)
		return
	}
	for i, r := range all {
		action := relabel.Action(strings.ToLower(r.Action))
		if !slices.Contains([]relabel.Action{relabel.Keep, relabel.Drop, relabel.KeepEqual, relabel.DropEqual}, action) {
			continue
		}
		field := fmt.Sprintf("relabelings[%d]", i)
		c := relabel.DefaultRelabelConfig
		c.Action, c.NameValidationScheme = action, model.UTF8Validation
		read := r.SourceLabels
		if action == relabel.KeepEqual || action == relabel.DropEqual {
			c.TargetLabel = r.TargetLabel
			read = append(slices.Clone(read), r.TargetLabel)
		}
		for _, name := range read {
			if !knownLabel.MatchString(name) {
				fault(field, "it drops pods by %.80q, which is not known here: %s", name, insteadNamed)
			}
		}
		for _, name := range r.SourceLabels {
			c.SourceLabels = append(c.SourceLabels, model.LabelName(name))
		}
		if r.Separator != nil {
			c.Separator = *r.Separator
		}
		if r.Regex != nil {
			regex, err := relabel.NewRegexp(*r.Regex)
			if err != nil {
				fault(field+".regex", "%v", err)
				continue
			}
			c.Regex = regex
		}
		e.keep = append(e.keep, &c)
	}
}

// in reports whether a monitor selects in a namespace.
func (m *monitor) in(namespace string) bool {
	switch {
	case m.any:
		return true
	case len(m.names) > 0:
		return slices.Contains(m.names, namespace)
	}
	return m.Namespace == namespace
}

// wide reports whether it may select in a namespace that is not its own.
func (m *monitor) wide() bool {
	return m.any || slices.ContainsFunc(m.names, func(n string) bool { return n != m.Namespace })
}

// keeps reports whether the relabelings of an endpoint keep a port of a pod.
func (e *endpoint) keeps(p *pod, number int) bool {
	if len(e.keep) == 0 {
		return true
	}
	b := promlabels.NewBuilder(promlabels.EmptyLabels())
	for name, value := range p.meta {
		b.Set(string(name), string(value))
	}
	if c, x := p.declared(number); c != nil {
		b.Set(meta+"pod_container_name", c.name)
		b.Set(meta+"pod_container_image", c.image)
		b.Set(meta+"pod_container_port_name", x.name)
		b.Set(meta+"pod_container_port_number", fmt.Sprint(number))
		b.Set(meta+"pod_container_port_protocol", "TCP")
		b.Set(meta+"pod_container_init", fmt.Sprint(c.helper))
	}
	return relabel.ProcessBuilder(b, e.keep...)
}
