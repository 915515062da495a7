package provider

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapi "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalv1beta1 "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/cmd/options"
	openapicore "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/core"
	openapicustom "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/custommetrics"
	openapiexternal "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/externalmetrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
)

// serverName is what the API server calls itself.
const serverName = "inference-metrics-adapter"

// versions are served, the preferred one first.
var versions = []schema.GroupVersion{v1beta2.SchemeGroupVersion, v1beta1.SchemeGroupVersion}

var preferred = versions[0]

func versionPath(gv schema.GroupVersion) string {
	return genericapiserver.APIGroupPrefix + "/" + gv.String()
}

// external is the one version of the external metrics API.
var external = externalv1beta1.SchemeGroupVersion

// NewServer returns the API server of a provider, to be prepared and run by the caller. It asks the
// cluster behind client who may do what; client is not called, and may be empty, where the options
// have no authentication and no authorization.
func NewServer(p *Provider, o *options.CustomMetricsAdapterServerOptions, client *rest.Config) (*genericapiserver.GenericAPIServer, error) {
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	o.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openAPIDefinitions, namer)
	o.OpenAPIConfig.Info.Title = serverName
	o.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openAPIDefinitions, namer)
	o.OpenAPIV3Config.Info.Title = serverName

	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	config.ClientConfig = client
	if err := o.ApplyTo(config); err != nil {
		return nil, err
	}
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(checkSelectors(onlyValues(api)), c)
	}
	var ofNamespaces provider.ExternalMetricsProvider // a nil interface, as the library asks whether it is one
	if p.External {
		ofNamespaces = p
	}
	s, err := (&apiserver.Config{GenericConfig: &config.Config}).Complete(nil).New(serverName, p, ofNamespaces)
	if err != nil {
		return nil, err
	}
	custom := provider.NewCustomMetricResourceLister(p).ListAPIResources()
	if err := discoverable(s.GenericAPIServer, custom, versions...); err != nil {
		return nil, err
	}
	if p.External {
		if err := discoverable(s.GenericAPIServer, provider.NewExternalMetricResourceLister(p).ListAPIResources(), external); err != nil {
			return nil, err
		}
	}
	return s.GenericAPIServer, nil
}

func openAPIDefinitions(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
	all := openapicore.GetOpenAPIDefinitions(ref)
	maps.Copy(all, openapicustom.GetOpenAPIDefinitions(ref))
	maps.Copy(all, openapiexternal.GetOpenAPIDefinitions(ref))
	return all
}

// checkSelectors refuses selectors that do not parse, and says in which request. The library would answer a
// metricLabelSelector with a 500, though the fault is the asker's.
func checkSelectors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if ok && (info.APIGroup == custom_metrics.GroupName || info.APIGroup == external.Group) {
			query := r.URL.Query()
			for _, parameter := range []string{"labelSelector", "metricLabelSelector"} {
				if _, err := labels.Parse(query.Get(parameter)); err != nil {
					gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
					err = badRequest("%s: %s: %v; it is written as for kubectl get --selector", r.URL.Path, parameter, err)
					responsewriters.ErrorNegotiated(err, apiserver.Codecs, gv, w, r)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// onlyValues has external metrics answered as custom ones are, where a client asks for a table, or for the
// metadata of objects: there is neither. The library fails on the second with a 500.
func onlyValues(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if ok && info.IsResourceRequest && info.APIGroup == external.Group {
			accepted, _, err := negotiation.NegotiateOutputMediaType(r, apiserver.Codecs, negotiation.DefaultEndpointRestrictions)
			if err != nil {
				responsewriters.ErrorNegotiated(err, apiserver.Codecs, external, w, r)
				return
			}
			r = r.Clone(r.Context())
			r.Header.Set("Accept", accepted.Accepted.MediaType)
		}
		next.ServeHTTP(w, r)
	})
}

// discoverable puts a group into all documents that clients discover it by; its versions have the same
// resources, and the first is preferred. The library lists one version in some of them, and leaves the
// group out of the aggregated document: an empty answer there is final, so a client that talks to us
// directly would find nothing.
func discoverable(s *genericapiserver.GenericAPIServer, resources []metav1.APIResource, versions ...schema.GroupVersion) error {
	group := metav1.APIGroup{Name: versions[0].Group}
	for _, gv := range versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	group.PreferredVersion = group.Versions[0]
	s.DiscoveryGroupManager.AddGroup(group)

	container := s.Handler.GoRestfulContainer
	ours := discovery.NewAPIGroupHandler(s.Serializer, group).WebService()
	for _, theirs := range slices.Clone(container.RegisteredWebServices()) {
		if theirs.RootPath() == ours.RootPath() {
			if err := container.Remove(theirs); err != nil {
				return fmt.Errorf("replacing the document of group %s: %w", group.Name, err)
			}
		}
	}
	container.Add(ours)

	return aggregate(s, resources, versions...)
}

// Publish puts what is listed now into the aggregated discovery document, of which a copy is kept. It is called when
// rules serve other metrics than before.
func Publish(s *genericapiserver.GenericAPIServer, p *Provider) error {
	err := aggregate(s, provider.NewCustomMetricResourceLister(p).ListAPIResources(), versions...)
	if err == nil && p.External {
		err = aggregate(s, provider.NewExternalMetricResourceLister(p).ListAPIResources(), external)
	}
	return err
}

// aggregate puts versions into the aggregated document.
func aggregate(s *genericapiserver.GenericAPIServer, resources []metav1.APIResource, versions ...schema.GroupVersion) error {
	aggregated, err := genericapi.ConvertGroupVersionIntoToDiscovery(resources)
	if err != nil {
		return fmt.Errorf("making the aggregated discovery document of group %s: %w", versions[0].Group, err)
	}
	for i, gv := range versions {
		s.AggregatedDiscoveryGroupManager.AddGroupVersion(gv.Group, apidiscoveryv2.APIVersionDiscovery{
			Version:   gv.Version,
			Resources: aggregated,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		})
		s.AggregatedDiscoveryGroupManager.SetGroupVersionPriority(metav1.GroupVersion(gv), 100, 100*(len(versions)-i))
	}
	return nil
}
