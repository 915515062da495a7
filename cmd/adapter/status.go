package main

import (
	"os"

	"github.com/inference-metrics/adapter/internal/collect"
	"github.com/inference-metrics/adapter/internal/config"
	"github.com/inference-metrics/adapter/internal/discover"
	"github.com/inference-metrics/adapter/internal/source"
	"github.com/inference-metrics/adapter/internal/source/scrape"
	"github.com/inference-metrics/adapter/internal/status"
	"github.com/inference-metrics/adapter/pkg/provider"
)

// showStatus serves the status page where the API is served, so that who may see it is decided in the same
// way.
func (a *adapter) showStatus(c *completed, src source.Source, collector *collect.Collector, served *provider.Provider) {
	show := status.Config{Version: buildVersion(), Collector: collector, Pods: served.Pods, Groups: served.Groups, Objects: served}
	show.Host, _ = os.Hostname() // in a pod it is the pod's name
	if s, ok := src.(*scrape.Source); ok {
		show.Targets = func() []status.Target { return targetsOf(s.Status()) }
	}
	if a.found != nil {
		show.Monitors = func() []status.Monitor { return monitorsOf(a.found.Problems()) }
	}
	if c.file != nil {
		show.File = func() status.File { return fileOf(c.file.Status()) }
	}
	a.server.Handler.NonGoRestfulMux.Handle(status.Path, status.New(show))
}

func targetsOf(all []scrape.TargetStatus) []status.Target {
	out := make([]status.Target, len(all))
	for i, t := range all {
		out[i] = status.Target(t)
	}
	return out
}

func monitorsOf(all []discover.Problem) []status.Monitor {
	out := make([]status.Monitor, len(all))
	for i, p := range all {
		out[i] = status.Monitor(p)
	}
	return out
}

func fileOf(s config.Status) status.File {
	return status.File{Name: s.Name, Hash: s.Hash, Taken: s.Taken, Err: s.Err, Restart: s.Restart}
}
