package bridge

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
)

// Where the node's address is on the bridge, the node's own packets for Services must reach the bridge,
// whatever its default route is: routes for the Service ranges lead them to the bridge's LOCAL port. Their
// next hop is the hairpin address, with a MAC that exists only in the node's neighbour table and in the
// pipeline, so that no router is needed. The pipeline forwards packets that leave the node to the real
// router. So do routes for the load balancer addresses and external IPs on the bridge's link: perhaps nobody
// answers for them there.

// routeProtocol marks nkp's routes (rtm_protocol, linux/rtnetlink.h: 5 to 255 are free for applications;
// "n").
const routeProtocol = 110

// hostTraffic tracks which data plane serves the node's own traffic, and maintains the routes to the bridge.
// It belongs to the loop.
type hostTraffic struct {
	set *Settings
	log *slog.Logger

	by       HostTraffic // "": not known yet
	open     bool        // it is not decided yet
	warnings []string
}

// route is a route to the bridge.
type route struct {
	Dst netip.Prefix
	Via netip.Addr // the zero Addr: on the link
	Src netip.Addr // which of its addresses the node uses
	MTU int        // 0: the interface's
}

// wantedRoutes returns the routes for the node's own traffic: to the hairpin addresses, and by them to the
// Service ranges. mtus, by family, are those by which the node's connections have to get to the endpoints.
func wantedRoutes(
	ranges []netip.Prefix, hairpins, nodeIPs []netip.Addr, mtus map[k8s.Family]int,
) []route {
	var rs []route
	for _, hop := range hairpins {
		f := k8s.FamilyOf(hop)
		src := f.First(nodeIPs)
		if !src.IsValid() {
			continue
		}
		rs = append(rs, route{Dst: netip.PrefixFrom(hop, hop.BitLen()), Src: src})
		for _, p := range ranges {
			if k8s.FamilyOf(p.Addr()) == f {
				rs = append(rs, route{Dst: p, Via: hop, Src: src, MTU: mtus[f]})
			}
		}
	}
	return rs
}

// nodeOnBridge reports whether the node's addresses of all families are on the bridge's LOCAL port.
func nodeOnBridge(cfg *pipeline.Config) bool {
	return !cfg.NodeMAC.IsZero() && len(cfg.NodeElsewhere) == 0
}

// hostTraffic returns the data plane that serves the node's own traffic: the one in --host-traffic, or for
// auto the one that fits.
func (s *Settings) hostTraffic(cfg *pipeline.Config, network *node.Network) HostTraffic {
	switch {
	case s.HostTraffic != HostAuto && s.HostTraffic != "":
		return s.HostTraffic
	case nodeOnBridge(cfg):
		return HostOVS
	case network.Has(cfg.NodeIPs):
		return HostIPTables
	}
	return HostOff // this is not the node's network namespace, or its addresses are unknown
}

// HostTrafficOpen reports whether nobody serves the node's own traffic for want of the node's addresses: with
// them that is decided.
func (s *Settings) HostTrafficOpen(by HostTraffic, nodeIPs []netip.Addr) bool {
	return by == HostOff && s.HostTraffic != HostOff && len(nodeIPs) == 0
}

// HostTrafficFor returns the data plane that serves the node's own traffic, for a model.
func (s *Settings) HostTrafficFor(m *k8s.Model, sw *ovsdb.Switch) HostTraffic {
	network, _ := node.Read()
	cfg, _ := s.pipelineConfig(m, sw, &kernel{network: network})
	return s.hostTraffic(&cfg, network)
}

// HostTrafficFor returns the data plane that serves the node's own traffic, for a model. Any goroutine may
// call it.
func (p *Plane) HostTrafficFor(m *k8s.Model) HostTraffic {
	sw := p.db.Switch()
	return p.set.HostTrafficFor(m, &sw)
}

// check finds out which data plane serves the node's own traffic, and sets nkp's routes accordingly. mtus are
// as for wantedRoutes.
func (h *hostTraffic) check(
	cfg *pipeline.Config, network *node.Network, external []netip.Addr, mtus map[k8s.Family]int,
) {
	was, before := h.by, h.warnings
	h.by, h.warnings = h.set.hostTraffic(cfg, network), nil

	if was != "" && h.by != was && !h.open {
		planes := map[HostTraffic]string{HostOVS: "the bridge", HostIPTables: "nftables or iptables"}
		h.warn("the node's address has moved: its own traffic should be served by %s now, not by %s; "+
			"restart nkp to change over (no connection is lost)",
			cmp.Or(planes[h.by], "nothing"), cmp.Or(planes[was], "nothing"))
		h.by = was
	}

	h.open = h.set.HostTrafficOpen(h.by, cfg.NodeIPs)
	if h.by != was {
		h.log.Info("the node's own traffic for Services", "servedBy", h.by, "nodeOnBridge", nodeOnBridge(cfg))
	}

	switch {
	case h.by != HostOVS: // routes of an earlier run would lead the node's traffic astray
		h.routes(nil)
	case cfg.NodeMAC.IsZero():
		h.warn("--host-traffic ovs, but none of the node's addresses is on bridge %s: "+
			"its traffic for Services does not get there", h.set.Bridge)
	default:
		if len(cfg.ServiceCIDRs) == 0 && !network.DefaultRouteOn(h.set.Bridge) {
			h.warn("the Service range is unknown (--service-cidr, or ServiceCIDR objects; "+
				"neither counts with --service-proxy-name) and the default route is not on bridge %s: "+
				"the node's own traffic for Services does not get there", h.set.Bridge)
		}
		ranges := slices.Clone(cfg.ServiceCIDRs)
		for _, ip := range external[:min(len(external), maxRoutes)] {
			ranges = append(ranges, netip.PrefixFrom(ip, ip.BitLen()))
		}
		if more := len(external) - maxRoutes; more > 0 {
			h.warn("%d addresses of Services on the link of bridge %s have no route (limit: %d): "+
				"the node reaches them only if someone answers for them there",
				more, h.set.Bridge, maxRoutes)
		}
		for _, f := range cfg.NodeElsewhere {
			h.warn("the node's %s addresses are not on bridge %s: "+
				"its own %[1]s traffic for Services does not get there", f, h.set.Bridge)
		}
		onBridge := slices.DeleteFunc(slices.Clone(cfg.NodeIPs), func(ip netip.Addr) bool {
			return cfg.Elsewhere(k8s.FamilyOf(ip))
		})
		h.routes(wantedRoutes(ranges, cfg.HairpinIPs, onBridge, mtus))
	}

	for _, w := range h.warnings {
		if !slices.Contains(before, w) {
			h.log.Warn(w)
		}
	}
}

func (h *hostTraffic) routes(want []route) {
	if err := setRoutes(h.set.Bridge, want); err != nil {
		h.warn("routes for the node's own traffic: %v", err)
	}
}

func (h *hostTraffic) warn(format string, args ...any) {
	h.warnings = append(h.warnings, fmt.Sprintf(format, args...))
}
