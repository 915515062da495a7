package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/inference-metrics/adapter/internal/certs"
)

// certificateOptions are the flags about certificates that the adapter makes itself.
type certificateOptions struct {
	// service is how kube-apiserver reaches us, as NAMESPACE/NAME; empty where somebody else makes them.
	service  string
	lifetime time.Duration
}

func newCertificateOptions() certificateOptions {
	return certificateOptions{lifetime: certs.DefaultLifetime}
}

func (o *certificateOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.service, "serving-cert-service", o.service, "Service by which kube-apiserver reaches the adapter, as NAMESPACE/NAME. The adapter then makes its serving certificate itself, keeps it in the Secret NAME-tls, replaces it in time, and has the APIServices that lead to the Service trust it. Instead of --tls-cert-file.")
	fs.DurationVar(&o.lifetime, "serving-cert-lifetime", o.lifetime, "Time for which a certificate of --serving-cert-service is valid. It is replaced after two thirds of it.")
}

// parse returns the Service of the flag.
func (o *certificateOptions) parse() (types.NamespacedName, error) {
	namespace, name, _ := strings.Cut(o.service, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0 {
		return types.NamespacedName{}, fmt.Errorf("%q is no Service: want NAMESPACE/NAME, such as inference-metrics/inference-metrics-adapter", o.service)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

func (o *options) validateCertificates() error {
	if o.certificates.service == "" {
		if o.given(sectionServing, "serving-cert-lifetime") {
			return errors.New("--serving-cert-lifetime: it is about certificates of --serving-cert-service, which is not given")
		}
		return nil
	}
	var errs []error
	if _, err := o.certificates.parse(); err != nil {
		errs = append(errs, fmt.Errorf("--serving-cert-service: %w", err))
	}
	if l := o.certificates.lifetime; l < certs.MinLifetime || l > certs.MaxLifetime {
		errs = append(errs, fmt.Errorf("--serving-cert-lifetime: %s is outside %s to %s", l, certs.MinLifetime, certs.MaxLifetime))
	}
	if o.standalone {
		errs = append(errs, errors.New("--serving-cert-service: --standalone runs without Kubernetes: leave one of them out"))
	}
	for _, name := range []string{"tls-cert-file", "tls-private-key-file"} {
		if o.given(sectionServing, name) {
			errs = append(errs, fmt.Errorf("--%s: the certificate is made for --serving-cert-service: leave one of them out", name))
		}
	}
	return errors.Join(errs...)
}

// keepCertificates has the server serve with certificates of our own making, and be Ready when it does.
func (a *adapter) keepCertificates(c *completed, client kubernetes.Interface) error {
	service, err := c.certificates.parse()
	if err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(c.client)
	if err != nil {
		return fmt.Errorf("making a client of the cluster: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("telling this replica from the others: %w", err)
	}
	apis := []string{"v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"}
	if c.external {
		apis = append(apis, "v1beta1.external.metrics.k8s.io")
	}
	keeper := certs.New(certs.Config{
		Client: client, Dynamic: dynamicClient,
		Service: service, APIServices: apis, Lifetime: c.certificates.lifetime,
		Identity: host + "_" + string(uuid.NewUUID()),
	})
	a.server.SecureServingInfo.Cert = &servingCertificate{Keeper: keeper, before: a.server.SecureServingInfo.Cert}
	a.feeds = append(a.feeds, keeper.Run)
	a.metrics = append(a.metrics, keeper.Collectors()...)
	err = a.server.AddReadyzChecks(healthz.NamedCheck("serving-certificate", func(*http.Request) error { return keeper.Ready() }))
	if err != nil {
		return fmt.Errorf("adding a readiness check: %w", err)
	}
	return nil
}

// servingCertificate is what the keeper has, in the terms of the server.
type servingCertificate struct {
	*certs.Keeper
	// before is served until the keeper has any, so that kubelets see that the adapter lives.
	before dynamiccertificates.CertKeyContentProvider
}

var _ dynamiccertificates.CertKeyContentProvider = (*servingCertificate)(nil)

func (s *servingCertificate) Name() string { return "serving-certificate" }

func (s *servingCertificate) CurrentCertKeyContent() (certificate, key []byte) {
	if certificate, key = s.Current(); certificate == nil {
		return s.before.CurrentCertKeyContent()
	}
	return certificate, key
}

func (s *servingCertificate) AddListener(l dynamiccertificates.Listener) { s.OnChange(l.Enqueue) }
