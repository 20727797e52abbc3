package apiserver

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"github.com/nkp-proxy/nkp/k8s"
)

// trim removes unused fields from an object decoded from a list or a watch, and shares values that many
// objects repeat. It may be called again for the same object.
func trim(o any) {
	switch o := o.(type) {
	case *v1.Service:
		unknown := k8s.UnknownAnnotations(o.Annotations)
		trimMeta(&o.ObjectMeta, k8s.LabelServiceProxyName)
		for _, name := range unknown { // their names are for a warning
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, name, "")
		}
		if len(o.Spec.Selector) > 0 {
			o.Spec.Selector = someSelector
		}
		o.Status.Conditions = nil
	case *discoveryv1.EndpointSlice:
		trimMeta(&o.ObjectMeta, k8s.LabelServiceProxyName, discoveryv1.LabelServiceName, v1.IsHeadlessService)
		o.Endpoints = slices.Clone(o.Endpoints) // decoding leaves spare capacity
		for i := range o.Endpoints {
			trimEndpoint(&o.Endpoints[i], o.Namespace)
		}
	case *v1.Node:
		trimMeta(&o.ObjectMeta, v1.LabelTopologyZone)
		o.Spec = v1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Taints: o.Spec.Taints}
		o.Status = v1.NodeStatus{Addresses: o.Status.Addresses}
	case *networkingv1.ServiceCIDR:
		trimMeta(&o.ObjectMeta)
		o.Status = networkingv1.ServiceCIDRStatus{}
	}
}

// someSelector stands for any selector: the model needs to know only whether a Service has one.
var someSelector = map[string]string{"": ""}

// keptAnnotations are those that nkp reads or measures with: its own, endpoint change time, topology mode,
// and preserve-destination.
var keptAnnotations = append([]string{
	v1.EndpointsLastChangeTriggerTime,
	v1.AnnotationTopologyMode, v1.DeprecatedAnnotationTopologyAwareHints,
	k8s.AnnotationPreserveDestination,
}, k8s.OwnAnnotations...)

func trimMeta(m *metav1.ObjectMeta, labels ...string) {
	*m = metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		Labels: only(m.Labels, labels), Annotations: only(m.Annotations, keptAnnotations),
	}
}

// only returns the entries of a map with these keys; nil if there are none.
func only(m map[string]string, keys []string) (kept map[string]string) {
	for _, k := range keys {
		if v, ok := m[k]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[k] = v
		}
	}
	return kept
}

var yes, no = true, false // what the conditions of all endpoints point to; never written

func trimEndpoint(e *discoveryv1.Endpoint, namespace string) {
	var target *v1.ObjectReference // for diagnosis
	if pod := k8s.PodOf(e.TargetRef, namespace); pod != "" {
		target = &v1.ObjectReference{Kind: "Pod", Name: pod}
	}
	*e = discoveryv1.Endpoint{
		Addresses: e.Addresses, Hints: e.Hints, NodeName: e.NodeName, TargetRef: target,
		Conditions: discoveryv1.EndpointConditions{
			Ready:       shared(e.Conditions.Ready),
			Serving:     shared(e.Conditions.Serving),
			Terminating: shared(e.Conditions.Terminating),
		},
	}
	if len(e.Addresses) > 1 {
		e.Addresses = e.Addresses[:1:1] // the others are alternatives that no proxy uses
	}
	if e.NodeName != nil {
		e.NodeName = intern(e.NodeName)
	}
}

// What is remembered of names is bounded, because slices can name any number of nodes. Kubernetes is tested
// with 5,000, and their names are DNS subdomains (RFC 1123).
const (
	maxInterned     = 1 << 13
	maxInternedName = 253
)

// nodeNames holds the *string that all endpoints of a node share, by name. It is never written to.
var nodeNames = lru.New(maxInterned)

// intern returns a pointer to an equal name. It may be called from any goroutine.
func intern(name *string) *string {
	if len(*name) > maxInternedName {
		return name
	}
	if known, ok := nodeNames.Get(*name); ok {
		return known.(*string)
	}
	nodeNames.Add(*name, name) // two goroutines at once keep the name twice
	return name
}

func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}
