package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

// Prometheus is a real Prometheus server that finds the engines' pods through the API server.
type Prometheus struct {
	// URL is where it listens, running or not.
	URL string

	cluster    *Cluster
	kubeconfig string
	process    *Process
	port       int
}

// prometheusConfig scrapes every port named "metrics" of a pod that has an address, as the usual
// pod discovery does: what a pod that is not Ready yet or any more exports is scraped too.
var prometheusConfig = template.Must(template.New("").Parse(`global:
  scrape_interval: {{.Interval}}
  scrape_timeout: {{.Interval}}
scrape_configs:
  - job_name: engines
    kubernetes_sd_configs:
      - role: pod
        kubeconfig_file: {{.Kubeconfig}}
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_container_port_name]
        regex: metrics
        action: keep
      - source_labels: [__meta_kubernetes_pod_phase]
        regex: Failed|Succeeded
        action: drop
      - source_labels: [__meta_kubernetes_namespace]
        target_label: namespace
      - source_labels: [__meta_kubernetes_pod_name]
        target_label: pod
      - source_labels: [__meta_kubernetes_pod_node_name]
        target_label: node
  # DCGM exporters say themselves which pod holds a GPU. A scrape that honours that keeps it in pod
  # and namespace; one that does not has the exporter's own pod there, and theirs in exported_pod
  # and exported_namespace.
  - job_name: dcgm
    honor_labels: true
    file_sd_configs: [{files: [{{.Dir}}/dcgm-honored.json]}]
  - job_name: dcgm-exported
    file_sd_configs: [{files: [{{.Dir}}/dcgm-exported.json]}]
`))

// ScrapeDCGM has Prometheus scrape the DCGM exporters at the addresses from now on, and no others.
// honorLabels is the setting of that name of the scrape.
func (p *Prometheus) ScrapeDCGM(honorLabels bool, addresses ...string) error {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := map[string][]group{"dcgm-honored.json": {}, "dcgm-exported.json": {}}
	file := "dcgm-exported.json"
	if honorLabels {
		file = "dcgm-honored.json"
	}
	if len(addresses) > 0 {
		groups[file] = []group{{addresses, map[string]string{"namespace": "gpu-operator", "pod": "dcgm-exporter"}}}
	}
	for name, content := range groups {
		data, err := json.Marshal(content)
		if err != nil {
			return err
		}
		// Replaced as a whole: Prometheus reads it as soon as it changes.
		path := p.cluster.path(name)
		if err := os.WriteFile(path+".new", data, 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

const prometheusRBAC = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: prometheus}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: prometheus}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: prometheus}]
`

func (c *Cluster) startPrometheus(ctx context.Context) (err error) {
	if err := c.Apply(ctx, prometheusRBAC); err != nil {
		return err
	}
	p := &Prometheus{cluster: c}
	if p.kubeconfig, err = c.userKubeconfig("prometheus"); err != nil {
		return err
	}
	if p.port, err = FreePort(); err != nil {
		return err
	}
	p.URL = "http://" + loopback(p.port)
	file, err := os.Create(c.path("prometheus.yaml"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := prometheusConfig.Execute(file, map[string]any{
		"Interval": c.options.ScrapeInterval, "Kubeconfig": p.kubeconfig, "Dir": c.Dir,
	}); err != nil {
		return err
	}
	c.Prometheus = p
	if err := p.ScrapeDCGM(true); err != nil {
		return err
	}
	return p.Start(ctx)
}

// Start starts the server, on the data that it had when it was stopped.
func (p *Prometheus) Start(ctx context.Context) (err error) {
	c := p.cluster
	p.process, err = c.processes.start("prometheus", filepath.Join(c.Bin, "prometheus"),
		"--config.file="+c.path("prometheus.yaml"),
		"--storage.tsdb.path="+c.path("prometheus"),
		"--storage.tsdb.retention.time=1d",
		"--web.listen-address="+loopback(p.port))
	if err != nil {
		return err
	}
	return await(ctx, p.process, "Prometheus to be ready", func(ctx context.Context) error {
		return getOK(ctx, http.DefaultClient, p.URL+"/-/ready")
	})
}

// Stop stops the server.
func (p *Prometheus) Stop() { p.process.Stop() }

// Kill ends the server without a chance to tidy up.
func (p *Prometheus) Kill() { p.process.Kill() }

// getOK fails unless the URL answers 200.
func getOK(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return nil
}
