package pipeline

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// UDP has no end that the tracker could see: a client that keeps sending from one port keeps its entry alive, and
// with it an endpoint that may be gone. Such connections must be forgotten when their endpoint stops serving. TCP
// and SCTP connections are left to end by themselves.

// staleConnections gives the connections to forget when a Service port changes from old to now (nil: gone).
func staleConnections(cfg *Config, old, now *k8s.ServicePort) []flow.CTFilter {
	if old.Name.Protocol != "UDP" {
		return nil
	}
	return connectionsTo(cfg, old, notServing(old.Serving, now))
}

// notServing gives those of the endpoints that do not serve now, each once.
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
func connectionsTo(cfg *Config, sp *k8s.ServicePort, endpoints []netip.AddrPort) []flow.CTFilter {
	var out []flow.CTFilter
	add := func(vip netip.AddrPort) {
		for _, e := range endpoints {
			out = append(out, flow.CTFilter{Zone: cfg.Layout.ZoneDNAT, IPProto: flow.ProtoUDP, Dst: vip, Replier: e})
		}
	}
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		switch {
		case f.ShadowedBy != "":
		case f.Address.IsValid():
			add(netip.AddrPortFrom(f.Address, f.Port))
		default:
			for _, ip := range cfg.LocalIPs {
				if k8s.FamilyOf(ip) == sp.Name.Family {
					add(netip.AddrPortFrom(ip, f.Port))
				}
			}
		}
	}
	return out
}

// StaleSince gives the connections to forget if the switch was found to hold have: those that it may have sent to
// endpoints which have stopped serving while nobody watched.
func (c *Compiler) StaleSince(have *flow.State) []flow.CTFilter {
	endpoints := map[k8s.PortName][]netip.AddrPort{}
	note := func(owner k8s.PortName, as []flow.Action) {
		for _, a := range as {
			if ct, ok := a.(flow.CT); ok && ct.NAT.Kind == flow.NATDst {
				endpoints[owner] = append(endpoints[owner], netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin))
			}
		}
	}
	for _, g := range have.Groups {
		if n, ok := c.GroupOwner(g.ID); ok && n.Protocol == "UDP" {
			for _, b := range g.Buckets {
				note(n, b.Actions)
			}
		}
	}
	for _, f := range have.Flows {
		if n, ok := c.Owner(f.Cookie); ok && n.Protocol == "UDP" {
			note(n, f.Actions)
		}
	}
	var out []flow.CTFilter
	for n, es := range endpoints {
		now := c.ports[n].sp
		out = append(out, connectionsTo(&c.cfg, now, notServing(es, now))...)
	}
	slices.SortFunc(out, func(a, b flow.CTFilter) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// OrphanPins gives those of the learned flows found on the switch that no Service port with session affinity has
// any use for: what was learned for Services that went while nobody watched.
func (c *Compiler) OrphanPins(learned []*flow.Flow) []flow.Learned {
	var out []flow.Learned
	for _, f := range learned {
		n, ok := c.Owner(f.Cookie)
		if ok && c.ports[n].sp.AffinitySeconds > 0 {
			continue
		}
		if l := (flow.Learned{Table: f.Table, Cookie: f.Cookie}); !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out
}
