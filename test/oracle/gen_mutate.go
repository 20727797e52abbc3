package oracle

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// mutate makes something happen to the cluster.
func (g *generator) mutate() {
	if len(g.order) == 0 || g.chance(0.15) {
		g.add()
		return
	}
	ref := pick(g, g.order...)
	if g.chance(0.2) {
		g.remove(ref)
		return
	}
	switch o := g.objects[ref].(type) {
	case *v1.Service:
		g.put(g.changedService(o))
	case *discoveryv1.EndpointSlice:
		g.put(g.changedSlice(o))
	case *v1.Node:
		g.put(g.node(o.Name))
	}
}

// add makes an object, or changes it if there is one of that name.
func (g *generator) add() {
	switch {
	case g.chance(0.1):
		g.put(g.node(pick(g, ThisNode, "n2")))
	case g.chance(0.4):
		name := g.serviceName()
		if o, ok := g.objects[k8s.Ref{Kind: k8s.KindService, Namespace: name.Namespace, Name: name.Name}].(*v1.Service); ok {
			g.put(g.changedService(o))
		} else {
			g.put(g.service(name))
		}
	default:
		of := g.serviceName()
		name := g.sliceName(of.Name, of.Namespace)
		s, _ := g.objects[k8s.Ref{Kind: k8s.KindService, Namespace: of.Namespace, Name: of.Name}].(*v1.Service)
		if o, ok := g.objects[k8s.Ref{Kind: k8s.KindEndpointSlice, Namespace: name.Namespace, Name: name.Name}].(*discoveryv1.EndpointSlice); ok {
			g.put(g.changedSlice(o))
		} else {
			if s == nil {
				s = g.service(of)
			}
			g.put(g.slice(name, s))
		}
	}
}

// changedService returns the Service with another specification, or with parts of it.
func (g *generator) changedService(o *v1.Service) *v1.Service {
	fresh := g.service(k8s.ServiceName{Namespace: o.Namespace, Name: o.Name})
	fresh.CreationTimestamp = o.CreationTimestamp
	if g.regular && !g.chance(0.3) {
		c := o.DeepCopy()
		c.Labels, c.Spec.InternalTrafficPolicy = fresh.Labels, fresh.Spec.InternalTrafficPolicy
		c.Status.LoadBalancer.Ingress = fresh.Status.LoadBalancer.Ingress
		return c
	}
	if g.regular || g.chance(0.3) {
		return fresh
	}
	c := o.DeepCopy()
	some := func(change func()) {
		if g.chance(0.25) {
			change()
		}
	}
	some(func() { c.Labels = fresh.Labels })
	some(func() { c.Spec.Type = fresh.Spec.Type })
	some(func() { c.Spec.Ports = fresh.Spec.Ports })
	some(func() {
		c.Spec.ClusterIP, c.Spec.ClusterIPs, c.Spec.IPFamilies = fresh.Spec.ClusterIP, fresh.Spec.ClusterIPs, fresh.Spec.IPFamilies
	})
	some(func() { c.Spec.ExternalIPs = fresh.Spec.ExternalIPs })
	some(func() { c.Status = fresh.Status })
	some(func() { c.Spec.LoadBalancerSourceRanges = fresh.Spec.LoadBalancerSourceRanges })
	some(func() { c.Spec.InternalTrafficPolicy = fresh.Spec.InternalTrafficPolicy })
	some(func() { c.Spec.ExternalTrafficPolicy = fresh.Spec.ExternalTrafficPolicy })
	some(func() {
		c.Spec.SessionAffinity, c.Spec.SessionAffinityConfig = fresh.Spec.SessionAffinity, fresh.Spec.SessionAffinityConfig
	})
	return c
}

// changedSlice returns the slice with other endpoints, ports or labels; the address type of a slice never changes.
func (g *generator) changedSlice(o *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	c := o.DeepCopy()
	if len(c.Endpoints) > 0 && g.chance(0.5) {
		c.Endpoints[g.IntN(len(c.Endpoints))].Conditions = g.conditions()
		return c
	}
	switch {
	case g.chance(0.6):
		c.Endpoints = g.endpoints(c.AddressType)
	case g.chance(0.5):
		s, _ := g.objects[k8s.Ref{Kind: k8s.KindService, Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}].(*v1.Service)
		c.Ports = g.slicePorts(s)
	case g.chance(0.5): // headless and back, mostly
		owner := o.Labels[discoveryv1.LabelServiceName]
		c.Labels = g.sliceLabels(owner)
	default:
		c.Labels = g.sliceLabels(pick(g, "s0", "s1", "s2"))
	}
	return c
}
