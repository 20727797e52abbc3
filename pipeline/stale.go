package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP has no end of a connection that conntrack could see: a client that keeps sending from one port keeps
// its entry alive, and with it the translation to an endpoint that may be gone. Such entries must be deleted
// when their endpoint stops serving their frontend. TCP and SCTP connections are left to end by themselves.

// UDPFrontends maps each UDP frontend to the endpoints that serve it; a NodePort has a frontend at each
// address of the node. A connection to a frontend may stay with any of its endpoints, in force or not.
type UDPFrontends map[netip.AddrPort][]netip.AddrPort

// UDPFrontends returns the UDP frontends of all Service ports. It shares the ports' slices of endpoints.
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
		// As in table 1, a frontend with an address takes precedence over NodePorts.
		if _, named := serving[at]; !named {
			serving[at] = endpoints
		}
	}
	return serving
}

// Stale reports whether a UDP entry in the conntrack zone of destination NAT must be deleted: by its ct_mark
// it belongs to a Service, and the endpoint does not serve the frontend, or no Service has the frontend any
// more.
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

// MaxStale bounds the filters of a Delta for conntrack entries. More of them, frontends times endpoints, only
// mean that there is much to delete: a Delta then has MaxStale+1.
const MaxStale = 1 << 16

// staleConnections appends to out the conntrack entries to delete when a Service port changes from old to now
// (nil: absent). For a frontend that the port no longer has, it selects all entries, whichever Service has
// the frontend now.
func staleConnections(out []flow.CTFilter, cfg *Config, old, now *k8s.ServicePort) []flow.CTFilter {
	forget := func(frontend, endpoint netip.AddrPort) {
		if len(out) > MaxStale {
			return
		}
		out = append(out, flow.CTFilter{
			Zone:    cfg.Layout.ZoneDNAT,
			IPProto: flow.ProtoUDP,
			Dst:     frontend,
			Replier: endpoint,
		})
	}

	var before, after []udpFrontend
	var gone []netip.AddrPort
	if old != nil && old.Name.Protocol == "UDP" {
		before, gone = udpFrontends(cfg, old), notServing(old.Serving, now)
	}
	if now != nil && now.Name.Protocol == "UDP" {
		after = udpFrontends(cfg, now)
	}

	was, stays := setOf(before), setOf(after)
	for _, f := range before {
		if !stays[f] {
			forget(f.AddrPort, netip.AddrPort{})
			continue
		}
		for _, e := range gone[:min(len(gone), MaxStale+1-len(out))] {
			forget(f.AddrPort, e)
		}
	}

	// A frontend takes precedence over another Service's NodePort at this address.
	for _, f := range after {
		if !f.nodePort && slices.Contains(cfg.LocalIPs, f.Addr()) && !was[f] {
			forget(f.AddrPort, netip.AddrPort{})
		}
	}
	return out
}

func setOf(list []udpFrontend) map[udpFrontend]bool {
	set := make(map[udpFrontend]bool, len(list))
	for _, f := range list {
		set[f] = true
	}
	return set
}

// notServing returns those of the endpoints, without duplicates, that are not in now.Serving.
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

// connectionsTo appends to out the connections through any frontend of a UDP Service port to any of the
// endpoints, up to MaxStale+1.
func connectionsTo(
	out []flow.CTFilter, cfg *Config,
	sp *k8s.ServicePort, endpoints []netip.AddrPort,
) []flow.CTFilter {
	for _, f := range udpFrontends(cfg, sp) {
		for _, e := range endpoints[:min(len(endpoints), MaxStale+1-len(out))] {
			out = append(out, flow.CTFilter{
				Zone:    cfg.Layout.ZoneDNAT,
				IPProto: flow.ProtoUDP,
				Dst:     f.AddrPort,
				Replier: e,
			})
		}
	}
	return out
}
