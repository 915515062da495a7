package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Emulator is a running cmd/engine-emulator, which serves for the pods of one namespace.
type Emulator struct {
	*Process
	// Control is the URL of its control API, DCGM the address of its DCGM exporter.
	Control, DCGM string

	namespace string
}

// StartEmulator starts the engine emulator's program for the Ready pods of a namespace that have
// the label app (of all namespaces, if it is empty). It returns once the emulator answers.
func (c *Cluster) StartEmulator(ctx context.Context, program, namespace string, args ...string) (*Emulator, error) {
	control, err := FreePort()
	if err != nil {
		return nil, err
	}
	dcgm, err := FreePort()
	if err != nil {
		return nil, err
	}
	e := &Emulator{Control: "http://" + loopback(control), DCGM: loopback(dcgm), namespace: namespace}
	e.Process, err = c.processes.start("engine-emulator", program, append([]string{"cluster",
		"--kubeconfig=" + c.Kubeconfig, "--namespace=" + namespace, "--selector=app",
		"--control-address=" + loopback(control), "--dcgm-address=" + e.DCGM,
	}, args...)...)
	if err != nil {
		return nil, err
	}
	return e, await(ctx, e.Process, "the engine emulator to answer", func(ctx context.Context) error {
		return getOK(ctx, http.DefaultClient, e.Control+"/state")
	})
}

// Replica is what the emulator knows of a replica: of the engine itself, not of what it exports.
type Replica struct {
	Name       string `json:"name"`
	Deployment string `json:"deployment"`
	Address    string `json:"address"`
	Waiting    int    `json:"waiting"`
	Running    int    `json:"running"`
	Offered    int    `json:"offered"`
	Finished   int    `json:"finished"`
	Dropped    int    `json:"dropped"`
}

// Replicas returns the state of every replica.
func (e *Emulator) Replicas(ctx context.Context) ([]Replica, error) {
	answer, err := e.call(ctx, http.MethodGet, "/state", "")
	if err != nil {
		return nil, err
	}
	var state struct {
		Replicas []Replica `json:"replicas"`
	}
	if err := json.Unmarshal(answer, &state); err != nil {
		return nil, fmt.Errorf("reading the emulator's state: %w", err)
	}
	return state.Replicas, nil
}

// Load replaces the load on a Deployment: a line as the emulator documents it. Each request goes to
// the replica with the fewest.
func (e *Emulator) Load(ctx context.Context, deployment, spec string) error {
	body, err := json.Marshal(map[string]string{
		"namespace": e.namespace, "deployment": deployment, "spec": spec, "routing": "least-requests",
	})
	if err != nil {
		return err
	}
	_, err = e.call(ctx, http.MethodPut, "/load", string(body))
	return err
}

// Act has a replica do something: restart, freeze, unfreeze, down, up, spelling?to=old.
func (e *Emulator) Act(ctx context.Context, pod, action string) error {
	_, err := e.call(ctx, http.MethodPost, "/replicas/"+e.namespace+"/"+pod+"/"+action, "")
	return err
}

func (e *Emulator) call(ctx context.Context, method, path, body string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.Control+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s answered %s: %s", method, path, resp.Status, answer)
	}
	return answer, nil
}
