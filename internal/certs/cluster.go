package certs

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// How the leader is elected. Nothing it does is urgent, so that a follower asks seldom.
const (
	leaseDuration = 30 * time.Second
	renewDeadline = 20 * time.Second
	retryPeriod   = 5 * time.Second
)

// Config is what a Keeper is made from.
type Config struct {
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Service is how kube-apiserver reaches the adapter. The Secret and the Lease are in its namespace,
	// and called after it, with "-tls" at the end.
	Service types.NamespacedName
	// APIServices are those that lead to the Service, unless another server has taken them.
	APIServices []string
	// Lifetime is how long a certificate is valid.
	Lifetime time.Duration
	// Identity tells the replica from the others.
	Identity string
	// Clock is the system's when nil.
	Clock clock.Clock
}

// New returns a Keeper, which does nothing until it runs.
func New(c Config) *Keeper {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	api := &cluster{Config: c}
	return &Keeper{
		host:     c.Service.Name + "." + c.Service.Namespace + ".svc",
		lifetime: c.Lifetime,
		clock:    c.Clock,
		cluster:  api,
		store:    api,
		metrics:  newMetrics(),
		changed:  make(chan struct{}, 1),
		faults:   map[string]string{},
	}
}

// cluster is the store that the Kubernetes API is.
type cluster struct{ Config }

// name is that of the Secret and of the Lease.
func (c *cluster) name() string { return c.Service.Name + "-tls" }

func (c *cluster) secret(ctx context.Context) (map[string][]byte, string, error) {
	s, err := c.Client.CoreV1().Secrets(c.Service.Namespace).Get(ctx, c.name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading the Secret of the serving certificate: %w", err)
	}
	return s.Data, s.ResourceVersion, nil
}

func (c *cluster) write(ctx context.Context, data map[string][]byte, version string) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Service.Namespace, Name: c.name()},
		Data:       data,
	}
	var err error
	if secrets := c.Client.CoreV1().Secrets(c.Service.Namespace); version == "" {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		// Not a patch, which would leave keys that are not ours; and labels are not ours to drop.
		var old *corev1.Secret
		if old, err = secrets.Get(ctx, secret.Name, metav1.GetOptions{}); err == nil {
			old.Data, old.ResourceVersion = data, version
			_, err = secrets.Update(ctx, old, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("writing the Secret of the serving certificate: %w", err)
	}
	return nil
}

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

func (c *cluster) services(ctx context.Context) ([]apiService, error) {
	var all []apiService
	for _, name := range c.APIServices {
		o, err := c.Dynamic.Resource(apiServices).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			all = append(all, apiService{name: name})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading APIService %s: %w", name, err)
		}
		text := func(field ...string) string {
			s, _, _ := unstructured.NestedString(o.Object, append([]string{"spec"}, field...)...)
			return s
		}
		owner := types.NamespacedName{Namespace: text("service", "namespace"), Name: text("service", "name")}
		bundle, err := base64.StdEncoding.DecodeString(text("caBundle"))
		if err != nil {
			return nil, fmt.Errorf("reading APIService %s: spec.caBundle: %w", name, err)
		}
		all = append(all, apiService{name: name, version: o.GetResourceVersion(), owner: owner.String(), mine: owner == c.Service, bundle: bundle})
	}
	return all, nil
}

func (c *cluster) publish(ctx context.Context, s apiService, bundle []byte) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": s.version},
		"spec":     map[string]any{"caBundle": bundle},
	})
	if err != nil {
		return err
	}
	if _, err := c.Dynamic.Resource(apiServices).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("publishing CAs in APIService %s: %w", s.name, err)
	}
	return nil
}

// watch calls seen with the data of the Secret, and again with each change, until ctx ends.
func (c *cluster) watch(ctx context.Context, seen func(context.Context, map[string][]byte)) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0,
		informers.WithNamespace(c.Service.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			// So that the right to read this one Secret is enough.
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.name()).String()
		}))
	informer := factory.Core().V1().Secrets().Informer()
	one := func(o any) {
		if s, ok := o.(*corev1.Secret); ok && s.Name == c.name() {
			seen(ctx, s.Data)
		}
	}
	// It fails for informers that were stopped only.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    one,
		UpdateFunc: func(_, o any) { one(o) },
		DeleteFunc: func(any) { seen(ctx, nil) },
	})
	informer.RunWithContext(ctx)
}

// elect calls lead whenever this replica is the leader, until ctx ends.
func (c *cluster) elect(ctx context.Context, lead func(context.Context)) {
	elector := leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Service.Namespace, Name: c.name()},
			Client:     c.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
		},
		Name:          c.name(),
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
		ReleaseOnCancel: true,
	}
	// It returns when another replica leads.
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if e, err := leaderelection.NewLeaderElector(elector); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot elect who makes certificates")
		} else {
			e.Run(ctx)
		}
	}, retryPeriod)
}

// overtaken tells that somebody else has written what was to be written.
func overtaken(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
