package pipeline

import (
	"net/netip"

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
