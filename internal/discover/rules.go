package discover

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A look is how an engine looks in a pod: a container whose image, by the last elements of its name, or
// whose own name is one of these. A port alone is never enough: 8000 and 8080 are everybody's.
type look struct {
	engine   string
	exporter Exporter
	// image matches the name of an image without its tag; name, where it is set, that of a container.
	image, name *regexp.Regexp
	// ports are those that it serves metrics on when nobody says otherwise.
	ports []int
	path  string
}

// looks are tried in this order.
var looks = []look{
	// The frontend, and the workers, which pass through what the engine inside says. Its operator calls
	// each container main, and the port of a worker system.
	{"Dynamo", Engine, word("(ai-dynamo/.*|dynamo)"), word("dynamo"), []int{8000, 9090, 8081}, "/metrics"},
	// Before vLLM, as llm-d's images are of both.
	{"endpoint picker", Pool, word("(epp|endpoint-picker|inference-scheduler)"), nil, []int{9090}, "/metrics"},
	{"DCGM exporter", GPU, word("dcgm-exporter"), nil, []int{9400}, "/metrics"},
	// Also as KServe's huggingfaceserver, LMCache's vllm-openai, llm-d's images and their simulator.
	{"vLLM", Engine, word("(vllm|huggingfaceserver|llm-d(-(cuda|rocm|xpu|hpu|cpu|gb200|aws|inference-sim))?)"), word("vllm"), []int{8000, 8080, 8200}, "/metrics"},
	{"SGLang", Engine, word("sglang"), word("sglang"), []int{30000, 8000}, "/metrics"},
	{"TGI", Engine, word("(text-generation-inference|tgi)"), word("(text-generation-inference|tgi)"), []int{80, 8080, 3000}, "/metrics"},
	{"llama.cpp", Engine, word("(llama\\.cpp|llamacpp|llama-server)"), word("(llama-cpp|llamacpp|llama-server)"), []int{8080}, "/metrics"},
	{"LMDeploy", Engine, word("lmdeploy"), word("lmdeploy"), []int{23333}, "/metrics"},
	{"Triton", Engine, word("tritonserver"), word("tritonserver"), []int{8002}, "/metrics"},
	// Its /metrics is JSON.
	{"TensorRT-LLM", Engine, word("(tensorrt-llm/release|tensorrt-llm|trtllm)"), word("(tensorrt-llm|trtllm)"), []int{8000}, "/prometheus/metrics"},
	{"NIM", Engine, regexp.MustCompile("(^|/)nim/[^/]+/[^/]+$"), nil, []int{8000}, "/v1/metrics"},
}

// word matches a word, or several with hyphens, in the last element of a name: vllm in
// lmcache/vllm-openai, and not in vllm-project/router.
func word(w string) *regexp.Regexp {
	return regexp.MustCompile(`(^|/)([a-z0-9.]+[-_])*` + w + `([-_][a-z0-9._-]+)?$`)
}

// beside are words in the names of what stands beside engines and is named after them. Some repeat the
// engines' series, which would count twice.
var beside = regexp.MustCompile(`(^|[-_/.])(router|lmstack|gateway|proxy|operator|controller|manager|planner|webhook|bench|benchmark|client|loadgen|test|ui|dashboard|sidecar|agent|aibrix-runtime|downloader|cache|scheduler)([-_.]|$)`)

// A stack is a project whose controller or chart labels the pods of engines, whatever image they run. A
// port has to be declared there, by its name or as one of ports.
type stack struct {
	project string
	label   string
	values  []string // nil for any
	ports   []int
}

var stacks = []stack{
	{"llm-d", "llm-d.ai/inference-serving", []string{"true"}, []int{8200, 8000, 30000}},
	{"llm-d before 0.4", "llm-d.ai/inferenceServing", []string{"true"}, []int{8200, 8001, 8000}},
	{"KServe LLMInferenceService", "kserve.io/component", []string{"workload"}, []int{8001, 8000}},
	{"AIBrix", "model.aibrix.ai/name", nil, []int{8000, 30000}},
	{"Dynamo", dynamoType, dynamoServes, []int{9090, 8081, 8000}},
	{"a pod that is labelled as its engine", "app.kubernetes.io/name", []string{"vllm", "sglang", "text-generation-inference", "llama-cpp", "lmdeploy"}, []int{8000, 8080, 30000, 23333}},
}

// What Dynamo's operator labels the pods of a graph with.
const dynamoType = "nvidia.com/dynamo-component-type"

var dynamoServes = []string{"frontend", "worker", "prefill", "decode"}

// portNames are what a port for metrics is called, the surest first. The system port is Dynamo's.
var portNames = []string{"metrics", "http-metrics", "https-metrics", "prometheus", "prom", "system"}

// Annotations that say where a pod serves its metrics. Those of KServe come from its runtimes. Istio
// rewrites the first to where its agent serves the metrics of both, outside of mutual TLS.
const (
	annotationScrape = "prometheus.io/scrape"
	annotationScheme = "prometheus.io/scheme"
)

var (
	annotationsPort = []string{"prometheus.io/port", "prometheus.kserve.io/port"}
	annotationsPath = []string{"prometheus.io/path", "prometheus.kserve.io/path"}
	annotationsRead = slices.Concat([]string{annotationScrape, annotationScheme}, annotationsPort, annotationsPath)
)

// plainPath is what a path may be made of that somebody else than the configuration names.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9._~/-]*$`)

// A candidate is a pod that may be scraped.
type candidate struct {
	*pod
	// named are the targets of entries, which have the only say in a pod that they name.
	named []Target
	// found are the engines that it looks like.
	found []finding
	// open says that monitors may say where its engines serve their metrics.
	open bool
}

// candidate returns what is to be known of a pod, or nil if it is not to be scraped.
func (c *Config) candidate(p *pod) *candidate {
	var out []Target
	named := false
	for i, e := range c.Entries {
		if e.Namespace != "" && e.Namespace != p.Namespace || e.Selector != nil && !e.Selector.Matches(podLabels{p}) {
			continue
		}
		named = true
		if port, ok := e.port(p); ok {
			out = add(out, p, Target{Exporter: e.Exporter, Entry: i}, e.Scheme, port, e.Path)
		}
	}
	switch {
	case named && len(out) > 0:
		return &candidate{pod: p, named: out}
	case named, c.Off, p.annotation(annotationScrape) == "false", bystander(p):
		return nil
	}
	k := &candidate{pod: p, found: discovered(p)}
	k.open = p.annotated() == 0 && slices.ContainsFunc(p.containers, p.mayServe)
	if len(k.found) == 0 && !k.open {
		return nil
	}
	return k
}

// targets returns where to scrape a pod.
func (c *Config) targets(k *candidate, s *said) []Target {
	if k.named != nil {
		return k.named
	}
	found := k.found
	if k.open {
		found = k.monitored(s.of(k.pod))
	}
	var out []Target
	for _, f := range found {
		switch {
		case f.exporter == GPU && !slices.Contains(c.GPUNamespaces, k.Namespace),
			f.exporter != GPU && c.Namespaces != nil && !slices.Contains(c.Namespaces, k.Namespace),
			f.exporter != GPU && c.Selector != nil && !c.Selector.Matches(podLabels{k.pod}):
			continue
		}
		out = add(out, k.pod, Target{Exporter: f.exporter, Entry: -1}, f.scheme, f.port, f.path+f.query)
	}
	return out
}

// mayServe reports whether a container may be an engine: it looks like one, or it holds an accelerator or
// is in a pod of a stack, and is not called like what stands beside engines. A monitor alone is not enough,
// as in a cluster that has monitors most pods have one.
func (p *pod) mayServe(c container) bool {
	return lookOf(c) != nil || !c.helper && !beside.MatchString(c.name) && (c.accelerated || stackOf(p) != nil)
}

// monitored returns the engines of a pod as monitors say: their ports take the place of the one that was
// found in the same container. What they say of other containers is not about engines.
func (k *candidate) monitored(hints []hint) []finding {
	var serving []string
	for _, c := range k.containers {
		if k.mayServe(c) {
			serving = append(serving, c.name)
		}
	}
	said := map[string][]finding{}
	for _, h := range hints {
		var name string
		switch c, _ := k.declared(h.number); {
		case c != nil && slices.Contains(serving, c.name):
			name = c.name
		case c == nil && len(serving) == 1:
			name = serving[0]
		default:
			continue
		}
		f := finding{container: name, exporter: Engine, scheme: h.scheme, port: h.number, path: h.path}
		if h.query != "" {
			f.query = "?" + h.query
		}
		if i := slices.IndexFunc(k.found, func(f finding) bool { return f.container == name }); i >= 0 {
			f.exporter = k.found[i].exporter // what it may speak for is not the monitor's to say
		}
		said[name] = append(said[name], f)
	}
	var out []finding
	for _, f := range k.found {
		if said[f.container] == nil {
			out = append(out, f)
		}
	}
	for _, name := range serving {
		out = append(out, said[name]...)
	}
	return out
}

// add completes a target. On the network of a node only what the pod declares is its own.
func add(to []Target, p *pod, t Target, scheme string, port int, path string) []Target {
	if port < 1 || port > 65535 {
		return to
	}
	if c, _ := p.declared(port); p.host && c == nil {
		return to
	}
	path, query, _ := strings.Cut(path, "?")
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(p.ip, strconv.Itoa(port)), Path: path, RawQuery: query}
	t.Namespace, t.Pod, t.URL = p.Namespace, p.Name, u.String()
	if slices.ContainsFunc(to, func(x Target) bool { return sameAddress(x.URL, u.Host) }) {
		return to // the entry before holds
	}
	return append(to, t)
}

func sameAddress(target, host string) bool {
	u, err := url.Parse(target)
	return err == nil && u.Host == host
}

// port returns the port that an entry means.
func (e Entry) port(p *pod) (int, bool) {
	if number, err := strconv.Atoi(e.Port); err == nil {
		return number, true
	}
	for _, c := range p.containers {
		for _, x := range c.ports {
			if x.name == e.Port {
				return x.number, true
			}
		}
	}
	return 0, false
}

// bystander reports whether labels say that a pod, which may run an engine's image, serves no requests: in
// a group of a LeaderWorkerSet only the leader does, and Dynamo's planner none.
func bystander(p *pod) bool {
	if index := p.label("leaderworkerset.sigs.k8s.io/worker-index"); index != "" && index != "0" {
		return true
	}
	kind := p.label(dynamoType)
	return kind != "" && !slices.Contains(dynamoServes, kind)
}

// finding is an engine in a pod.
type finding struct {
	container string
	exporter  Exporter
	scheme    string
	port      int
	path      string
	query     string // with its ?
}

// discovered returns the engines that a pod looks like. One that says which port is the one has one.
func discovered(p *pod) []finding {
	var out []finding
	for _, c := range p.containers {
		if l := lookOf(c); l != nil {
			out = append(out, p.found(c, l.exporter, l.ports, l.path, true))
		}
	}
	if len(out) == 0 {
		if s := stackOf(p); s != nil {
			for _, c := range p.containers {
				if f := p.found(c, Engine, s.ports, "/metrics", false); !c.helper && !beside.MatchString(c.name) && f.port != 0 {
					out = append(out, f)
				}
			}
		}
	}
	if number := p.annotated(); len(out) > 0 && number != 0 {
		out[0].port = number
		out = out[:1]
	}
	for i := range out {
		out[i].refine(p)
	}
	return out
}

func lookOf(c container) *look {
	image := imageName(c.image)
	_, last, _ := cutLast(image)
	if c.helper {
		return nil
	}
	for i, l := range looks {
		if l.exporter == Engine && (beside.MatchString(last) || beside.MatchString(c.name)) {
			continue
		}
		if l.image.MatchString(image) || l.name != nil && l.name.MatchString(c.name) {
			return &looks[i]
		}
	}
	return nil
}

// imageName is an image without its registry's port, tag and digest.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	path, last, found := cutLast(image)
	last, _, _ = strings.Cut(last, ":")
	if !found {
		return last
	}
	return path + "/" + last
}

func cutLast(image string) (path, last string, found bool) {
	if i := strings.LastIndexByte(image, '/'); i >= 0 {
		return image[:i], image[i+1:], true
	}
	return "", image, false
}

func stackOf(p *pod) *stack {
	for i, s := range stacks {
		if value := p.label(s.label); value != "" && (s.values == nil || slices.Contains(s.values, value)) {
			return &stacks[i]
		}
	}
	return nil
}

// found chooses the port of a container: one that is called so, else one of those that are usual, else,
// where it is sure that it is an engine, the only one that it declares, or the usual one that it does
// not declare. Without any it is 0.
func (p *pod) found(c container, exporter Exporter, usual []int, path string, sure bool) finding {
	f := finding{container: c.name, exporter: exporter, scheme: "http", path: path}
	of := func(x port) finding {
		f.port = x.number
		if strings.HasPrefix(x.name, "https") {
			f.scheme = "https"
		}
		return f
	}
	for _, name := range portNames {
		if i := slices.IndexFunc(c.ports, func(x port) bool { return x.name == name }); i >= 0 {
			return of(c.ports[i])
		}
	}
	for _, number := range usual {
		if i := slices.IndexFunc(c.ports, func(x port) bool { return x.number == number }); i >= 0 {
			return of(c.ports[i])
		}
	}
	switch {
	case !sure:
	case len(c.ports) == 1:
		return of(c.ports[0])
	case len(c.ports) == 0:
		return of(port{number: usual[0]})
	}
	return f
}

// annotated returns the port that the pod names itself, or 0.
func (p *pod) annotated() int {
	for _, key := range annotationsPort {
		if number, err := strconv.Atoi(p.annotation(key)); err == nil {
			return number
		}
	}
	// AIBrix names it in labels.
	if number, err := strconv.Atoi(p.label("model.aibrix.ai/metric-port")); err == nil {
		return number
	}
	return 0
}

// refine takes the path and the scheme that the pod names itself, of its own address.
func (f *finding) refine(p *pod) {
	for _, key := range annotationsPath {
		if path := p.annotation(key); plainPath.MatchString(path) {
			f.path = path
			break
		}
	}
	if scheme := p.annotation(annotationScheme); scheme == "http" || scheme == "https" {
		f.scheme = scheme
	}
}
