package differential

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	netutils "k8s.io/utils/net"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/oracle"
)

// namedEndpoint is an endpoint of one Service port as a slice has it.
type namedEndpoint struct {
	at                          string // address in the canonical form, and port
	port                        int32
	object                      discoveryv1.Endpoint
	ready, serving, terminating bool
}

// slicesOf returns the slices of a Service that kube-proxy sees, sorted by name.
func (k *KubeProxy) slicesOf(name k8s.ServiceName) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for _, s := range k.slices {
		if ownerOf(s) == name {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// endpointsNamed returns every endpoint of a Service port, in the order of slices, as often as it is there.
func (k *KubeProxy) endpointsNamed(name k8s.PortName) []namedEndpoint {
	var all []namedEndpoint
	for _, s := range k.slicesOf(name.ServiceName) {
		if string(s.AddressType) != name.Family.String() {
			continue
		}
		for _, p := range s.Ports {
			if p.Name == nil || *p.Name != name.Port || *p.Protocol != name.Protocol || p.Port == nil || *p.Port == 0 {
				continue
			}
			for _, e := range s.Endpoints {
				if len(e.Addresses) == 0 {
					continue
				}
				c := &e.Conditions
				all = append(all, namedEndpoint{
					at:   fmt.Sprintf("%s %d", netutils.ParseIPSloppy(e.Addresses[0]), *p.Port),
					port: *p.Port, object: e,
					ready:       c.Ready == nil || *c.Ready,
					serving:     c.Serving == nil || *c.Serving,
					terminating: c.Terminating != nil && *c.Terminating,
				})
			}
		}
	}
	return all
}

// what returns everything about an endpoint that can decide something.
func (e *namedEndpoint) what() string {
	node, hints := "", ""
	if e.object.NodeName != nil {
		node = *e.object.NodeName
	}
	if e.object.Hints != nil {
		hints = fmt.Sprint(e.object.Hints.ForNodes, e.object.Hints.ForZones)
	}
	return fmt.Sprint(e.ready, e.serving, e.terminating, node == oracle.ThisNode, hints)
}

// ambiguous reports whether an address and port is there more than once, differently, and kube-proxy's rule (one that
// is not terminating wins) does not say which one counts.
func ambiguous(all []namedEndpoint) bool {
	kinds := map[string]map[string]bool{}
	for i := range all {
		e := &all[i]
		if e.terminating && slices.ContainsFunc(all, func(o namedEndpoint) bool { return o.at == e.at && !o.terminating }) {
			continue
		}
		if kinds[e.at] == nil {
			kinds[e.at] = map[string]bool{}
		}
		kinds[e.at][e.what()] = true
		if len(kinds[e.at]) > 1 {
			return true
		}
	}
	return false
}

// onlyPreferred returns slices with each address and port once, chosen as nkp says it does: one that is not terminating,
// then a ready one, then the first of the first slice by name.
func onlyPreferred(name k8s.PortName, all []namedEndpoint) []*discoveryv1.EndpointSlice {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b namedEndpoint) int {
		return cmp.Or(strings.Compare(a.at, b.at), trueLast(a.terminating, b.terminating), trueLast(!a.ready, !b.ready))
	})
	all = slices.CompactFunc(all, func(a, b namedEndpoint) bool { return a.at == b.at })
	var result []*discoveryv1.EndpointSlice
	for i, e := range all {
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(name.Family.String())}
		s.Namespace, s.Name = name.Namespace, fmt.Sprint(i)
		s.Labels = map[string]string{discoveryv1.LabelServiceName: name.Name}
		s.Ports = []discoveryv1.EndpointPort{{Name: &name.Port, Protocol: &name.Protocol, Port: &e.port}}
		s.Endpoints = []discoveryv1.Endpoint{e.object}
		result = append(result, s)
	}
	return result
}

func trueLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// endpointsOf returns what a kube-proxy that starts now makes of some slices.
func endpointsOf(f k8s.Family, all []*discoveryv1.EndpointSlice) proxy.EndpointsMap {
	p := newProxier(f)
	for _, s := range all {
		p.endpointChanges.EndpointSliceUpdate(s, false)
	}
	p.endpoints.Update(p.endpointChanges)
	return p.endpoints
}
