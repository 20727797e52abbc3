package k8s

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// NotServed is an address and port of a Service that looks like a frontend but is none on this node, and why.
type NotServed struct {
	Service PortName
	Type    FrontendType
	Addr    netip.AddrPort // the zero Addr with a port: every address of the node (NodePort)
	Why     string
}

// notServedDef is NotServed as a Service's definition holds it: nearly all have none.
type notServedDef struct {
	typ  FrontendType
	addr netip.Addr // the zero Addr: NodePort
	why  string
}

// NotServed returns the Service addresses that match an address, port and protocol but are not served by this
// proxy: the Service is for another program or over a limit, the load balancer handles the address itself
// (ipMode Proxy), or a setting excludes it. It does not return frontends that are shadowed or restricted to
// other addresses of the node: they are in the Model. If local is set, every NodePort matches. It scans every
// Service, so it is for diagnosis only.
func (t *Tracker) NotServed(at netip.AddrPort, protocol Protocol, local bool) (list []NotServed) {
	for _, s := range t.services {
		for _, n := range s.notServed() {
			name := n.Service
			if name.Protocol == protocol && name.Family == FamilyOf(at.Addr()) &&
				n.Addr.Port() == at.Port() &&
				(n.Type == NodePort && local || n.Type != NodePort && n.Addr.Addr() == at.Addr()) {
				list = append(list, n)
			}
		}
		list = append(list, s.refusedAt(at, protocol, local)...)
	}
	slices.SortFunc(list, NotServed.compare)
	return list
}

// refusedAt is NotServed for the addresses of a Service over a limit. It does not make the product of its
// ports and addresses.
func (s *service) refusedAt(at netip.AddrPort, protocol Protocol, local bool) (list []NotServed) {
	if s.refused == "" {
		return nil
	}
	for i := range s.def.ports {
		p := &s.def.ports[i]
		if p.name.Protocol != protocol || p.name.Family != FamilyOf(at.Addr()) {
			continue
		}
		if local && p.nodePort == at.Port() {
			list = append(list,
				NotServed{p.name, NodePort, netip.AddrPortFrom(netip.Addr{}, p.nodePort), s.refused})
		}
		for _, f := range p.shared.frontends {
			if p.port == at.Port() && f.Address == at.Addr() {
				list = append(list, NotServed{p.name, f.Type, at, s.refused})
			}
		}
	}
	return list
}

// NotServedOf returns the addresses of one Service port that are not served, sorted by type and address.
func (t *Tracker) NotServedOf(name PortName) (list []NotServed) {
	if s := t.services[name.ServiceName]; s != nil {
		list = slices.DeleteFunc(s.notServed(), func(n NotServed) bool {
			return n.Service != name || n.Type != NodePort && FamilyOf(n.Addr.Addr()) != name.Family
		})
	}
	slices.SortFunc(list, NotServed.compare)
	return slices.Compact(list)
}

func (n NotServed) compare(o NotServed) int {
	return cmp.Or(n.Service.Compare(o.Service), cmp.Compare(n.Type, o.Type), n.Addr.Compare(o.Addr))
}

// notServed returns all addresses of the Service that are not served, at all of its ports and in both
// families.
func (s *service) notServed() (list []NotServed) {
	if s.def == nil {
		return nil
	}
	for _, u := range s.def.notServed {
		for _, p := range s.def.notServedPorts {
			switch {
			case u.typ != NodePort:
				list = append(list, NotServed{p.name, u.typ, netip.AddrPortFrom(u.addr, p.port), u.why})
			case p.nodePort != 0:
				list = append(list, NotServed{p.name, u.typ, netip.AddrPortFrom(u.addr, p.nodePort), u.why})
			}
		}
	}
	return list
}

// notServedPort is a port of a Service that has an address not served here.
type notServedPort struct {
	name           PortName
	port, nodePort uint16
}

// noteNotServed records in the definition which addresses of the Service are not served, and why. otherServer
// is why none is; "": some are.
func (d *serviceDef) noteNotServed(o *v1.Service, otherServer string, opts *Options) {
	if otherServer != "" {
		d.noteAddresses(ClusterIP, append([]string{o.Spec.ClusterIP}, o.Spec.ClusterIPs...), otherServer)
		d.notServed = append(d.notServed, notServedDef{typ: NodePort, why: otherServer})
	}
	switch {
	case otherServer != "":
		d.noteAddresses(ExternalIP, o.Spec.ExternalIPs, otherServer)
	case opts.IgnoreExternalIPs:
		d.noteAddresses(ExternalIP, o.Spec.ExternalIPs,
			"externalIPs are switched off (feature gate AllowServiceExternalIPs)")
	}
	for i := range o.Status.LoadBalancer.Ingress {
		ing := &o.Status.LoadBalancer.Ingress[i]
		if why := cmp.Or(otherServer, opts.leftToLoadBalancer(ing)); why != "" {
			d.noteAddresses(LoadBalancer, []string{ing.IP}, why)
		}
	}
	if len(d.notServed) > 0 {
		d.noteNotServedPorts(o)
	}
}

// leftToLoadBalancer returns why the address of a load balancer is not served; "": it is.
func (o *Options) leftToLoadBalancer(ing *v1.LoadBalancerIngress) string {
	switch {
	case ing.IPMode != nil && *ing.IPMode != v1.LoadBalancerIPModeVIP:
		return "the load balancer wants the traffic itself: its ingress has ipMode " + string(*ing.IPMode)
	case o.IgnoreLoadBalancers:
		return "the addresses of load balancers are left alone (--load-balancer-addresses=false)"
	}
	return ""
}

func (d *serviceDef) noteAddresses(typ FrontendType, texts []string, why string) {
	for _, text := range texts {
		if a, ok := ParseAddr(text); ok {
			u := notServedDef{typ, a, why}
			if n := len(d.notServed); n == 0 || d.notServed[n-1] != u { // clusterIPs repeats clusterIP
				d.notServed = append(d.notServed, u)
			}
		}
	}
}

func (d *serviceDef) noteNotServedPorts(o *v1.Service) {
	for i := range o.Spec.Ports {
		p := &o.Spec.Ports[i]
		for _, f := range []Family{IPv4, IPv6} {
			name := PortName{ServiceName{o.Namespace, o.Name}, p.Name, cmp.Or(p.Protocol, v1.ProtocolTCP), f}
			d.notServedPorts = append(d.notServedPorts,
				notServedPort{name, uint16(p.Port), uint16(p.NodePort)})
		}
	}
}
