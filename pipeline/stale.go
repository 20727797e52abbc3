package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP has no end that the tracker could see: a client that keeps sending from one port keeps its entry alive, and
// with it an endpoint that may be gone. Such connections must be forgotten when their endpoint stops serving their
// frontend. TCP and SCTP connections are left to end by themselves.

// UDPFrontends are the endpoints that serve each UDP frontend, NodePorts by each address of the node. A connection to one of
// them may stay with any of its endpoints, in force or not.
type UDPFrontends map[netip.AddrPort][]netip.AddrPort

// UDPFrontends returns what the Service ports that are compiled serve. It shares their endpoints.
func (c *Compiler) UDPFrontends() UDPFrontends {
	serving := UDPFrontends{}
	nodePorts := UDPFrontends{}
	for _, p := range c.ports {
		if p.sp.Name.Protocol != "UDP" {
			continue
		}
		for _, f := range udpFrontends(&c.cfg, p.sp) {
			if f.nodePort {
				nodePorts[f.AddrPort] = p.sp.Serving
			} else {
				serving[f.AddrPort] = p.sp.Serving
			}
		}
	}
	for at, endpoints := range nodePorts {
		if _, named := serving[at]; !named { // as in table 1, an address that is named comes before NodePorts
			serving[at] = endpoints
		}
	}
	return serving
}

// Stale reports whether a UDP connection of the zone of destination NAT must be forgotten: it is one through a Service, by
// its ct_mark, and the endpoint does not serve its frontend, or no Service has the frontend any more.
func (u UDPFrontends) Stale(mark uint32, frontend, endpoint netip.AddrPort) bool {
	if mark&markService == 0 {
		return false
	}
	_, serves := slices.BinarySearchFunc(u[frontend], endpoint, netip.AddrPort.Compare)
	return !serves
}

// udpFrontend is an address and port where a UDP Service port is served.
type udpFrontend struct {
	netip.AddrPort
	nodePort bool
}

// udpFrontends returns where a UDP Service port is served, NodePorts at each address of the node.
func udpFrontends(cfg *Config, sp *k8s.ServicePort) (out []udpFrontend) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		switch {
		case f.ShadowedBy != "":
		case f.Address.IsValid():
			out = append(out, udpFrontend{netip.AddrPortFrom(f.Address, f.Port), false})
		default:
			for _, ip := range cfg.LocalIPs {
				if k8s.FamilyOf(ip) == sp.Name.Family {
					out = append(out, udpFrontend{netip.AddrPortFrom(ip, f.Port), true})
				}
			}
		}
	}
	return out
}

// staleConnections returns the connections to forget when a Service port changes from old to now; nil: it is not there. A
// frontend that it gave up is named whole: who has it now is not looked at.
func staleConnections(cfg *Config, old, now *k8s.ServicePort) (out []flow.CTFilter) {
	forget := func(frontend, endpoint netip.AddrPort) {
		out = append(out, flow.CTFilter{Zone: cfg.Layout.ZoneDNAT, IPProto: flow.ProtoUDP, Dst: frontend, Replier: endpoint})
	}
	var before, after []udpFrontend
	var gone []netip.AddrPort
	if old != nil && old.Name.Protocol == "UDP" {
		before, gone = udpFrontends(cfg, old), notServing(old.Serving, now)
	}
	if now != nil && now.Name.Protocol == "UDP" {
		after = udpFrontends(cfg, now)
	}
	for _, f := range before {
		if !slices.Contains(after, f) {
			forget(f.AddrPort, netip.AddrPort{})
			continue
		}
		for _, e := range gone {
			forget(f.AddrPort, e)
		}
	}
	for _, f := range after { // one that takes a NodePort of another Service at this address
		if !f.nodePort && slices.Contains(cfg.LocalIPs, f.Addr()) && !slices.Contains(before, f) {
			forget(f.AddrPort, netip.AddrPort{})
		}
	}
	return out
}

// notServing returns those of the endpoints that do not serve now, each once.
func notServing(endpoints []netip.AddrPort, now *k8s.ServicePort) []netip.AddrPort {
	seen := map[netip.AddrPort]bool{}
	if now != nil {
		for _, e := range now.Serving {
			seen[e] = true
		}
	}
	var gone []netip.AddrPort
	for _, e := range endpoints {
		if !seen[e] {
			seen[e] = true
			gone = append(gone, e)
		}
	}
	return gone
}

// connectionsTo selects the connections through any frontend of a UDP Service port to any of the endpoints.
func connectionsTo(cfg *Config, sp *k8s.ServicePort, endpoints []netip.AddrPort) (out []flow.CTFilter) {
	for _, f := range udpFrontends(cfg, sp) {
		for _, e := range endpoints {
			out = append(out, flow.CTFilter{Zone: cfg.Layout.ZoneDNAT, IPProto: flow.ProtoUDP, Dst: f.AddrPort, Replier: e})
		}
	}
	return out
}
