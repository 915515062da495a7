package discover

import (
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/util/strutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
		running:        get(g.Labels, "pod_phase") == string(corev1.PodRunning),
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

// declares reports whether a container of the pod says that it listens on a port.
func (p *pod) declares(number int) bool {
	for _, c := range p.containers {
		for _, x := range c.ports {
			if x.number == number {
				return true
			}
		}
	}
	return false
}
