package discover

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/util/strutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// pod is what Prometheus's discovery tells of one.
type pod struct {
	types.NamespacedName
	meta model.LabelSet
	ip   string
	node string
	// host says that it has the network of its node, where ports belong to others, too.
	host bool
	// running says that its address is its own: one that has ended may have left it to another.
	running    bool
	containers []container
}

type container struct {
	name, image string
	ports       []port
	// helper says that it runs before the others, or beside them as a sidecar of Kubernetes.
	helper bool
	// accelerated says that it holds a GPU or the like.
	accelerated bool
}

type port struct {
	name   string
	number int
}

const meta = model.MetaLabelPrefix + "kubernetes_"

func read(g *targetgroup.Group) *pod {
	get := func(ls model.LabelSet, name string) string { return string(ls[model.LabelName(meta+name)]) }
	p := &pod{
		NamespacedName: types.NamespacedName{Namespace: get(g.Labels, "namespace"), Name: get(g.Labels, "pod_name")},
		meta:           g.Labels,
		ip:             get(g.Labels, "pod_ip"),
		node:           get(g.Labels, "pod_node_name"),
		host:           get(g.Labels, "pod_ip") == get(g.Labels, "pod_host_ip"),
		running:        get(g.Labels, "pod_phase") == string(corev1.PodRunning) && ordinary(get(g.Labels, "pod_ip")),
	}
	for _, t := range g.Targets { // each is a port of a container, those of one container together
		name := get(t, "pod_container_name")
		if n := len(p.containers); n == 0 || p.containers[n-1].name != name {
			p.containers = append(p.containers, container{
				name: name, image: get(t, "pod_container_image"), helper: get(t, "pod_container_init") == "true",
			})
		}
		number, err := strconv.Atoi(get(t, "pod_container_port_number"))
		if err != nil || get(t, "pod_container_port_protocol") == string(corev1.ProtocolUDP) {
			continue // it declares none
		}
		c := &p.containers[len(p.containers)-1]
		c.ports = append(c.ports, port{get(t, "pod_container_port_name"), number})
	}
	return p
}

// ordinary reports whether an address may be that of a pod, whoever wrote it into its status: neither the
// adapter's own loopback, nor where clouds serve the credentials of machines. Of the rest of 127.0.0.0/8
// nothing can be reached there that cannot be at the adapter's own address.
func ordinary(ip string) bool {
	a, err := netip.ParseAddr(ip)
	a = a.Unmap()
	return err == nil && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast() &&
		a != netip.AddrFrom4([4]byte{127, 0, 0, 1}) && a != netip.IPv6Loopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// devices reads from the pod itself what discovery does not tell: which containers hold an accelerator.
func (p *pod) devices(of cache.Store) {
	object, _, _ := of.GetByKey(p.String())
	from, ok := object.(*corev1.Pod)
	if !ok {
		return // it is gone again
	}
	for _, from := range from.Spec.Containers {
		if i := slices.IndexFunc(p.containers, func(c container) bool { return c.name == from.Name }); i >= 0 {
			p.containers[i].accelerated = accelerated(from)
		}
	}
}

// accelerator matches the resources that stand for GPUs and the like: nvidia.com/gpu, nvidia.com/mig-1g.5gb,
// amd.com/gpu, google.com/tpu, aws.amazon.com/neuron, habana.ai/gaudi, gpu.intel.com/xe, huawei.com/Ascend910.
var accelerator = regexp.MustCompile(`(?i)^(gpu\.intel\.com/|[^/]+/(gpu|mig-|tpu|neuron|gaudi|npu|ascend))`)

// accelerated reports whether a container holds an accelerator, by a plugin of devices or by a claim.
func accelerated(c corev1.Container) bool {
	for name := range c.Resources.Limits {
		if accelerator.MatchString(string(name)) {
			return true
		}
	}
	return len(c.Resources.Claims) > 0
}

// annotation returns an annotation, or "".
func (p *pod) annotation(key string) string {
	return string(p.meta[model.LabelName(meta+"pod_annotation_"+strutil.SanitizeLabelName(key))])
}

// labels are those of a pod. Discovery writes _ for what the name of its own labels cannot hold.
type podLabels struct{ of *pod }

// Lookup implements labels.Labels.
func (l podLabels) Lookup(key string) (string, bool) {
	value, ok := l.of.meta[model.LabelName(meta+"pod_label_"+strutil.SanitizeLabelName(key))]
	return string(value), ok
}

// Has implements labels.Labels.
func (l podLabels) Has(key string) bool {
	_, ok := l.Lookup(key)
	return ok
}

// Get implements labels.Labels.
func (l podLabels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}

func (p *pod) label(key string) string { return podLabels{p}.Get(key) }

// declared returns the container of the pod that says that it listens on a port, or nil.
func (p *pod) declared(number int) (*container, port) {
	for i, c := range p.containers {
		for _, x := range c.ports {
			if x.number == number {
				return &p.containers[i], x
			}
		}
	}
	return nil, port{}
}

// ports returns the declared ports of a name, or the declared port of a number.
func (p *pod) ports(name string, number int) []int {
	var out []int
	for _, c := range p.containers {
		for _, x := range c.ports {
			if (name != "" && x.name == name || name == "" && x.number == number) && !slices.Contains(out, x.number) {
				out = append(out, x.number)
			}
		}
	}
	return out
}
