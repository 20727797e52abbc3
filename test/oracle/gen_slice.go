package oracle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// slice makes an EndpointSlice, most often one that fits the Service.
func (g *generator) slice(name k8s.ServiceName, s *v1.Service) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: g.sliceLabels(s.Name)},
	}
	o.AddressType = pick(g, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4,
		discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeIPv6)
	if g.chance(0.04) {
		o.AddressType = discoveryv1.AddressTypeFQDN
	}
	if g.odd(0.3) {
		o.Annotations = map[string]string{KeepNilNames: ""}
	}
	o.Ports = g.slicePorts(s)
	o.Endpoints = g.endpoints(o.AddressType)
	return o
}

func (g *generator) sliceLabels(owner string) map[string]string {
	l := map[string]string{discoveryv1.LabelServiceName: owner, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	if g.chance(0.04) {
		l[v1.IsHeadlessService] = pick(g, "", "true")
	}
	if g.chance(0.03) {
		l["service.kubernetes.io/service-proxy-name"] = "other"
	}
	switch {
	case g.chance(0.03):
		delete(l, discoveryv1.LabelServiceName)
	case g.chance(0.02):
		l[discoveryv1.LabelServiceName] = ""
	}
	return l
}

// slicePorts returns the ports of the Service (nil: none) as its slices would have them, more or less.
func (g *generator) slicePorts(s *v1.Service) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	names := map[string]bool{}
	add := func(name string, protocol v1.Protocol) {
		p := discoveryv1.EndpointPort{}
		number := pick[int32](g, 8080, 8080, 8080, 8081, 53)
		p.Port = &number
		if g.chance(0.05) {
			number = 0
		}
		if g.chance(0.05) {
			p.Port = nil
		}
		if name != "" || g.chance(0.5) {
			p.Name = &name
		}
		if (protocol != "" && protocol != v1.ProtocolTCP) || g.chance(0.5) {
			if protocol == "" {
				protocol = v1.ProtocolTCP
			}
			p.Protocol = &protocol
		}
		if names[name] && g.regular {
			return
		}
		names[name] = true
		ports = append(ports, p)
	}
	if s != nil {
		for _, p := range s.Spec.Ports {
			if g.chance(0.9) {
				add(p.Name, p.Protocol)
			}
		}
	}
	if g.chance(0.15) {
		add(pick(g, "http", "dns", "admin", ""), pick(g, "", v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP))
	}
	return ports
}

// endpoints makes endpoints of one slice, with hints as one controller would give them.
func (g *generator) endpoints(typ discoveryv1.AddressType) []discoveryv1.Endpoint {
	var all []discoveryv1.Endpoint
	hints := g.IntN(8)
	for range g.IntN(6) {
		e := discoveryv1.Endpoint{Addresses: []string{g.address(typ)}, Conditions: g.conditions()}
		if g.chance(0.05) {
			e.Addresses = append(e.Addresses, g.address(typ))
		}
		if g.odd(0.02) {
			e.Addresses = nil
		}
		if g.chance(0.85) {
			node := pick(g, ThisNode, "n2", "n3")
			e.NodeName = &node
		}
		if g.chance(0.3) {
			zone := pick(g, "z1", "z2")
			e.Zone = &zone
		}
		forNodes, forZones := hints == 5 || hints == 7, hints == 6 || hints == 7
		if hints == 4 || g.chance(0.05) {
			forNodes, forZones = g.chance(0.5), g.chance(0.5)
		}
		e.Hints = g.hints(forNodes, forZones)
		all = append(all, e)
	}
	return all
}

func (g *generator) address(typ discoveryv1.AddressType) string {
	n := 1 + g.IntN(6)
	switch typ {
	case discoveryv1.AddressTypeIPv6:
		if g.chance(0.05) {
			return fmt.Sprintf("FD00:0:0::%d", n)
		}
		return fmt.Sprintf("fd00::%d", n)
	case discoveryv1.AddressTypeFQDN:
		return fmt.Sprintf("h%d.example.org", n)
	}
	switch {
	case g.chance(0.05):
		return fmt.Sprintf("10.0.0.00%d", n)
	case g.odd(0.02):
		return fmt.Sprintf("::ffff:10.0.0.%d", n)
	}
	return fmt.Sprintf("10.0.0.%d", n)
}

// conditions makes what controllers make, more often than the rest.
func (g *generator) conditions() discoveryv1.EndpointConditions {
	yes, no := true, false
	switch g.IntN(8) {
	case 0, 1, 2:
		return discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
	case 3:
		return discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	case 4:
		return discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &no}
	}
	any := []*bool{nil, &yes, &no}
	return discoveryv1.EndpointConditions{Ready: pick(g, any...), Serving: pick(g, any...), Terminating: pick(g, any...)}
}

func (g *generator) hints(forNodes, forZones bool) *discoveryv1.EndpointHints {
	if !forNodes && !forZones {
		if g.chance(0.1) {
			return &discoveryv1.EndpointHints{}
		}
		return nil
	}
	h := &discoveryv1.EndpointHints{}
	if forNodes {
		h.ForNodes = []discoveryv1.ForNode{{Name: pick(g, ThisNode, "n2", "n3")}}
	}
	if forZones {
		h.ForZones = []discoveryv1.ForZone{{Name: pick(g, "z1", "z1", "z2")}}
		if g.chance(0.2) {
			h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: pick(g, "z3", "z1")})
		}
		if g.odd(0.05) {
			h.ForZones[0].Name = ""
		}
	}
	return h
}
