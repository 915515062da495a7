package config

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/inference-metrics/adapter/internal/discover"
)

// Scrape says what is read from the engines themselves, where no Prometheus server is.
type Scrape struct {
	// Given says that the file speaks of it.
	Given bool
	// Interval and Timeout are those of every target that has none of its own; 0 for those of the flags.
	Interval, Timeout time.Duration
	// Discovery says which pods are targets.
	Discovery discover.Config
	// Pods says of each of Discovery's entries how its pods are scraped.
	Pods []Access
}

// Access says how pods are scraped that the file names.
type Access struct {
	Interval, Timeout time.Duration
	Credentials       Credentials
}

// Credentials are what the adapter and a target know each other by, all but ServerName in files.
type Credentials struct {
	CAFile, ServerName string
	InsecureSkipVerify bool
	CertFile, KeyFile  string
	BearerTokenFile    string
}

func defaultScrape() Scrape {
	return Scrape{Discovery: discover.Config{GPUNamespaces: discover.DefaultGPUNamespaces}}
}

// scrape is its section in the file.
type scrape struct {
	Interval  *duration `json:"interval"`
	Timeout   *duration `json:"timeout"`
	Discovery *struct {
		Enabled           *bool     `json:"enabled"`
		Namespaces        []string  `json:"namespaces"`
		Selector          *selector `json:"selector"`
		GPUNamespaces     *[]string `json:"gpuNamespaces"`
		MonitorNamespaces []string  `json:"monitorNamespaces"`
	} `json:"discovery"`
	Pods []struct {
		Namespace       string    `json:"namespace"`
		Selector        *selector `json:"selector"`
		Port            *portText `json:"port"`
		Path            string    `json:"path"`
		Scheme          string    `json:"scheme"`
		Exporter        string    `json:"exporter"`
		Interval        *duration `json:"interval"`
		Timeout         *duration `json:"timeout"`
		BearerTokenFile string    `json:"bearerTokenFile"`
		TLS             *struct {
			CAFile             string `json:"caFile"`
			ServerName         string `json:"serverName"`
			CertFile           string `json:"certFile"`
			KeyFile            string `json:"keyFile"`
			InsecureSkipVerify bool   `json:"insecureSkipVerify"`
		} `json:"tls"`
	} `json:"pods"`
}

// portText is a number, or the name of a port.
type portText string

// UnmarshalJSON takes anything, which is read later, where its field has a name.
func (p *portText) UnmarshalJSON(b []byte) error {
	*p = portText(strings.Trim(string(b), `"`))
	return nil
}

// The bounds of what may be scraped how often.
const (
	minScrape = 100 * time.Millisecond
	maxScrape = time.Minute
)

// scrape reads the section.
func (f *faults) scrape(from *scrape) Scrape {
	s := defaultScrape()
	s.Given = true
	s.Interval, s.Timeout = f.times("scrape", from.Interval, from.Timeout)
	if d := from.Discovery; d != nil {
		s.Discovery.Off = d.Enabled != nil && !*d.Enabled
		s.Discovery.Namespaces = d.Namespaces
		f.namespaces("scrape.discovery.namespaces", d.Namespaces)
		if d.Selector != nil {
			var err error
			if s.Discovery.Selector, err = d.Selector.parse(); err != nil {
				f.add("scrape.discovery.selector", "%v", err)
			}
		}
		if d.GPUNamespaces != nil {
			s.Discovery.GPUNamespaces = *d.GPUNamespaces
			f.namespaces("scrape.discovery.gpuNamespaces", *d.GPUNamespaces)
		}
		s.Discovery.MonitorNamespaces = d.MonitorNamespaces
		f.namespaces("scrape.discovery.monitorNamespaces", d.MonitorNamespaces)
	}
	for i, p := range from.Pods {
		field := fmt.Sprintf("scrape.pods[%d]", i)
		e := discover.Entry{Namespace: p.Namespace, Path: "/metrics", Scheme: "http", Exporter: discover.Engine}
		if p.Namespace != "" {
			f.invalid(field+".namespace", p.Namespace, validation.IsDNS1123Label(p.Namespace))
		}
		if p.Selector == nil && p.Namespace == "" {
			f.add(field, "it is for all pods of the cluster: give a namespace, a selector, or both")
		}
		if p.Selector != nil {
			var err error
			if e.Selector, err = p.Selector.parse(); err != nil {
				f.add(field+".selector", "%v", err)
			}
		}
		if p.Port == nil {
			f.add(field+".port", "it is missing: give the number, or the name that the container gives it")
		} else {
			e.Port = f.port(field+".port", string(*p.Port))
		}
		if p.Path != "" {
			if e.Path = p.Path; !plainPath(p.Path) {
				f.add(field+".path", "%q is no path, such as /metrics", p.Path)
			}
		}
		switch p.Scheme {
		case "":
			if p.TLS != nil {
				e.Scheme = "https"
			}
		case "http", "https":
			if e.Scheme = p.Scheme; p.TLS != nil && p.Scheme == "http" {
				f.add(field+".scheme", "tls is for https: leave one of them out")
			}
		default:
			f.add(field+".scheme", "%q is neither http nor https", p.Scheme)
		}
		switch x := discover.Exporter(p.Exporter); x {
		case "":
		case discover.Engine, discover.GPU, discover.Pool:
			e.Exporter = x
		default:
			f.add(field+".exporter", "%q is none of %s, %s, %s", p.Exporter, discover.Engine, discover.GPU, discover.Pool)
		}
		a := Access{Credentials: Credentials{BearerTokenFile: p.BearerTokenFile}}
		a.Interval, a.Timeout = f.times(field, p.Interval, p.Timeout)
		if t := p.TLS; t != nil {
			c := &a.Credentials
			c.CAFile, c.ServerName, c.CertFile, c.KeyFile, c.InsecureSkipVerify = t.CAFile, t.ServerName, t.CertFile, t.KeyFile, t.InsecureSkipVerify
			if (c.CertFile == "") != (c.KeyFile == "") {
				f.add(field+".tls", "certFile and keyFile belong together: give both, or none")
			}
			if c.InsecureSkipVerify && (c.CAFile != "" || c.ServerName != "") {
				f.add(field+".tls.insecureSkipVerify", "it takes any certificate, so that caFile and serverName check nothing: leave it out")
			}
		}
		s.Discovery.Entries = append(s.Discovery.Entries, e)
		s.Pods = append(s.Pods, a)
	}
	if s.Discovery.Off && len(from.Pods) == 0 {
		f.add("scrape.discovery.enabled", "nothing is scraped without it: name pods in scrape.pods, or leave it on")
	}
	return s
}

// times reads an interval and a timeout, and holds them to each other where both are there.
func (f *faults) times(field string, interval, timeout *duration) (i, t time.Duration) {
	for _, x := range []struct {
		name string
		from *duration
		to   *time.Duration
	}{{field + ".interval", interval, &i}, {field + ".timeout", timeout, &t}} {
		if f.duration(x.name, x.from, x.to) && (*x.to < minScrape || *x.to > maxScrape) {
			f.add(x.name, "%s is outside %s to %s", *x.to, minScrape, maxScrape)
		}
	}
	if i > 0 && t > i {
		f.add(field+".timeout", "%s is longer than the interval, %s", t, i)
	}
	return i, t
}

func (f *faults) namespaces(field string, names []string) {
	for i, n := range names {
		f.invalid(fmt.Sprintf("%s[%d]", field, i), n, validation.IsDNS1123Label(n))
	}
}

// port reads a number, or the name of a port.
func (f *faults) port(field, text string) string {
	number, err := strconv.Atoi(text)
	switch {
	case err == nil && (number < 1 || number > 65535):
		f.add(field, "%d is outside 1 to 65535", number)
	case err != nil:
		f.invalid(field, text, validation.IsValidPortName(text))
	}
	return text
}

// plainPath reports whether a text is a path, with or without a query that has each parameter once, and
// nothing else of a URL.
func plainPath(text string) bool {
	u, err := url.Parse(text)
	if err != nil || !strings.HasPrefix(text, "/") || u.Host != "" || u.Fragment != "" || u.RawPath != "" {
		return false
	}
	query, err := url.ParseQuery(u.RawQuery)
	for _, values := range query {
		if len(values) > 1 {
			return false
		}
	}
	return err == nil
}
