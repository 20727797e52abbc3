package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP has no end of a connection that conntrack could see: a client that keeps sending from one port keeps
// its entry alive, and with it the translation to an endpoint that may be gone. Such entries must be deleted
// when their endpoint stops serving their frontend. SCTP connections are left to end by themselves, and so
// are TCP connections, unless their Service has k8s.AnnotationRemovedEndpoints.

// UDPFrontends maps each UDP frontend to the endpoints that serve it; a NodePort has a frontend at each
// address of the node. A connection to a frontend may stay with any of its endpoints, in force or not.
type UDPFrontends map[netip.AddrPort][]netip.AddrPort

// UDPFrontends returns the UDP frontends of all Service ports. It shares the ports' slices of endpoints.
func (c *Compiler) UDPFrontends() UDPFrontends {
	isUDP := func(sp *k8s.ServicePort) bool { return sp.Name.Protocol == "UDP" }
	return byFrontend(c, isUDP, func(p *placed) []netip.AddrPort { return p.sp.Serving })
}

// byFrontend maps the frontends of those Service ports that are wanted to a value of each port. As in table
// 1, a frontend with an address takes precedence over NodePorts.
func byFrontend[V any](
	c *Compiler, wanted func(*k8s.ServicePort) bool, value func(*placed) V,
) map[netip.AddrPort]V {
	all, nodePorts := map[netip.AddrPort]V{}, map[netip.AddrPort]V{}
	for _, p := range c.ports {
		if !wanted(p.sp) {
			continue
		}
		for _, f := range frontendsOf(&c.cfg, p.sp) {
			if f.nodePort {
				nodePorts[f.AddrPort] = value(p)
			} else {
				all[f.AddrPort] = value(p)
			}
		}
	}
	for at, v := range nodePorts {
		if _, named := all[at]; !named {
			all[at] = v
		}
	}
	return all
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

// ClosingFrontends maps each frontend of a TCP Service port whose connections to removed endpoints end to the
// port's id, and to the endpoints with which connections may stay.
type ClosingFrontends map[netip.AddrPort]closingFrontend

type closingFrontend struct {
	id   uint32
	stay []netip.AddrPort
}

// ClosingFrontends returns those frontends, except for those of ports that do not know yet which endpoints
// were removed. It shares the ports' slices of endpoints.
func (c *Compiler) ClosingFrontends() ClosingFrontends {
	closing := false
	for _, p := range c.ports {
		closing = closing || closes(p.sp)
	}
	if !closing {
		return nil
	}

	// Another Service's frontend may take precedence over a NodePort.
	isTCP := func(sp *k8s.ServicePort) bool { return sp.Name.Protocol == "TCP" }
	f := ClosingFrontends{}
	for at, p := range byFrontend(c, isTCP, func(p *placed) *placed { return p }) {
		if closes(p.sp) {
			f[at] = closingFrontend{p.id, p.sp.Serving}
		}
	}
	return f
}

// closes reports whether connections to endpoints that are not in Serving end.
func closes(sp *k8s.ServicePort) bool { return sp != nil && sp.Removed != nil && !sp.Removed.Unknown }

// Stale reports whether a TCP entry in the conntrack zone of destination NAT must be deleted: by its ct_mark
// it belongs to the Service port that has its frontend, and the endpoint was removed. Entries of a port that
// had the frontend before stay.
func (f ClosingFrontends) Stale(mark uint32, frontend, endpoint netip.AddrPort) bool {
	return mark&markService != 0 && f[frontend].id == mark>>markIDShift && f.Ends(frontend, endpoint)
}

// Ends reports whether connections to a frontend that go to this endpoint end now: it was removed, and has
// not come back.
func (f ClosingFrontends) Ends(frontend, endpoint netip.AddrPort) bool {
	to, ok := f[frontend]
	if !ok {
		return false
	}
	_, stays := slices.BinarySearchFunc(to.stay, endpoint, netip.AddrPort.Compare)
	return !stays
}

// servedAt is an address and port where a Service port is served.
type servedAt struct {
	netip.AddrPort
	nodePort bool
}

// frontendsOf returns where a Service port is served, NodePorts at each address of the node.
func frontendsOf(cfg *Config, sp *k8s.ServicePort) (out []servedAt) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		switch {
		case f.ShadowedBy != "":
		case f.Address.IsValid():
			out = append(out, servedAt{netip.AddrPortFrom(f.Address, f.Port), false})
		default:
			for _, ip := range cfg.LocalIPs {
				if k8s.FamilyOf(ip) == sp.Name.Family {
					out = append(out, servedAt{netip.AddrPortFrom(ip, f.Port), true})
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
// (nil: absent). For a UDP frontend that the port no longer has, it selects all entries, whichever Service
// has the frontend now.
func staleConnections(out []flow.CTFilter, cfg *Config, old, now *k8s.ServicePort) []flow.CTFilter {
	forget := func(frontend, endpoint netip.AddrPort) {
		out = appendFilter(out, cfg, flow.ProtoUDP, frontend, endpoint)
	}

	var before, after []servedAt
	var gone []netip.AddrPort
	if old != nil && old.Name.Protocol == "UDP" {
		before, gone = frontendsOf(cfg, old), notServing(old.Serving, now)
	}
	if now != nil && now.Name.Protocol == "UDP" {
		after = frontendsOf(cfg, now)
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

// closedConnections appends to out the conntrack entries to delete of TCP connections that end when a Service
// port changes from old to now (nil: absent). If nothing is known of endpoints that were removed before, it
// selects all entries of each frontend, of which OnlyListed is true.
func closedConnections(out []flow.CTFilter, cfg *Config, old, now *k8s.ServicePort) []flow.CTFilter {
	if old == nil || !closes(now) {
		return out // the entries of a port that is new bear no id of its own
	}
	was, gone := setOf(frontendsOf(cfg, old)), notServing(old.Serving, now)
	for _, f := range frontendsOf(cfg, now) {
		switch {
		case !closes(old):
			out = appendFilter(out, cfg, flow.ProtoTCP, f.AddrPort, netip.AddrPort{})
		case was[f]:
			for _, e := range gone[:min(len(gone), MaxStale+1-len(out))] {
				out = appendFilter(out, cfg, flow.ProtoTCP, f.AddrPort, e)
			}
		}
	}
	return out
}

// appendFilter appends the filter for the entries of a frontend, or of those the ones to one endpoint. There
// are MaxStale+1 at most.
func appendFilter(
	out []flow.CTFilter, cfg *Config, proto uint8, frontend, endpoint netip.AddrPort,
) []flow.CTFilter {
	if len(out) > MaxStale {
		return out
	}
	return append(out, flow.CTFilter{
		Zone: cfg.Layout.ZoneDNAT, IPProto: proto, Dst: frontend, Replier: endpoint,
	})
}

// OnlyListed reports whether the entries that a filter selects must be listed, and judged one by one: those
// of all TCP connections to a frontend, most of which stay.
func OnlyListed(f *flow.CTFilter) bool { return f.IPProto == flow.ProtoTCP && !f.Replier.IsValid() }

func setOf(list []servedAt) map[servedAt]bool {
	set := make(map[servedAt]bool, len(list))
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
	for _, f := range frontendsOf(cfg, sp) {
		for _, e := range endpoints[:min(len(endpoints), MaxStale+1-len(out))] {
			out = appendFilter(out, cfg, flow.ProtoUDP, f.AddrPort, e)
		}
	}
	return out
}
