package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watchPods keeps the fleet the same as the cluster's pods that match, until the context ends. It
// returns when the pods that are there now are in.
func (f *fleet) watchPods(ctx context.Context, client kubernetes.Interface, o options) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(o.namespace),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = o.selector }))
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { f.podChanged(obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { f.podChanged(obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				f.podGone(pod)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("list pods that match %q: %w", o.selector, context.Cause(ctx))
	}
	return nil
}

// podChanged adds, changes or removes the pod's replica. There is one from when the pod's containers
// run until it is being deleted, or ends.
func (f *fleet) podChanged(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" {
		f.podGone(pod)
		return
	}
	m := f.memberOf(pod)
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.findLocked(m.id)
	if r != nil && (r.uid != m.uid || r.address != m.address) {
		f.removeLocked(r) // another pod of the same name
		r = nil
	}
	if r == nil {
		if _, err := f.addLocked(m); err != nil {
			f.logger.Error(err, "Replica not added", "replica", m.id)
		}
		return
	}
	restarted := m.restarts > r.restarts
	r.member = m
	if restarted {
		if err := r.restart(0); err != nil {
			f.logger.Error(err, "Replica not restarted", "replica", m.id)
		}
	}
	f.reconcile(r)
}

func (f *fleet) podGone(pod *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.findLocked(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}); r != nil {
		f.removeLocked(r)
	}
}

func (f *fleet) memberOf(pod *corev1.Pod) member {
	m := member{
		id:      types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		uid:     pod.UID,
		labels:  pod.Labels,
		node:    pod.Spec.NodeName,
		address: net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(f.opts.port)),
	}
	if len(pod.Spec.Containers) > 0 {
		m.container = pod.Spec.Containers[0].Name
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			m.ready = true
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		m.restarts += c.RestartCount
	}
	m.serve = m.ready || f.opts.serveBeforeReady
	// A Deployment owns its pods through a ReplicaSet that is named after it and the pods' hash.
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ReplicaSet" {
		if d, ok := strings.CutSuffix(owner.Name, "-"+pod.Labels["pod-template-hash"]); ok {
			m.deployment = d
		}
	}
	return m
}
