package bridge

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/node"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// contradictions returns a warning for a MAC address in the settings that the kernel contradicts, and notes
// the ports whose addresses in the database the kernel or the switch contradicts. An address in neither
// raises no warning: the kernel resolves the router only where the node's address is on the bridge, and the
// switch learns MACs only from packets that a NORMAL action handles.
func (s *Settings) contradictions(
	ctx context.Context,
	sw *ovsdb.Switch,
	notes *portNotes,
) (warnings []string) {
	network, _ := node.Read()
	if !s.GatewayMAC.IsZero() {
		var cfg pipeline.Config
		(&kernel{network: network}).routes(&cfg, sw)
		if m := cfg.GatewayMAC; !m.IsZero() && m != s.GatewayMAC {
			warnings = append(warnings, fmt.Sprintf("--gateway-mac is %s, but the kernel has %s for the "+
				"next hop of %s's default route: packets to other nodes may get lost; "+
				"correct it or leave it out",
				s.GatewayMAC, m, s.Bridge))
		}
	}

	policy, _ := sw.GatewayPolicy()
	// Without local delivery no flow has a pod's MAC.
	if s.LocalDelivery == DeliverOff || s.LocalDelivery == DeliverAuto && policy {
		return warnings
	}

	learned, at := map[uint32][]net.HardwareAddr{}, map[flow.MAC]uint32{}
	for _, p := range sw.Ports {
		byPorts := func(ip netip.Addr) bool { _, set := s.Ports[ip]; return set } // --ports gives its MAC
		if isDirect(&p) && len(p.IPs) > 0 && !slices.ContainsFunc(p.IPs, byPorts) {
			learned[p.OFPort] = nil
		}
	}

	err := s.daemon(sw).Learned(ctx, s.Bridge, func(port uint32, mac net.HardwareAddr) {
		if list, pod := learned[port]; pod && len(list) < 2 {
			learned[port], at[toMAC(mac)] = append(list, mac), port
		}
	})
	if err != nil {
		return warnings
	}

	bridge, _ := network.Link(s.Bridge)
	const macInDatabase = "its MAC in the database (external_ids:attached-mac, else mac_in_use) is %s, "
	for _, p := range sw.Ports {
		if _, pod := learned[p.OFPort]; !pod {
			continue
		}
		for _, ip := range p.IPs {
			if text := foundElsewhere(network.Neighbour(bridge, ip), sw, &p, ip); text != "" {
				notes.add(p.Name, text)
			}
		}
		// A port with several learned MACs has other stations behind it. The pod's own MAC may be missing
		// among the learned ones.
		list := learned[p.OFPort]
		switch other, elsewhere := sw.PortByNumber(at[toMAC(p.MAC)]); {
		case len(list) == 1 && !slices.Equal(list[0], p.MAC):
			notes.add(p.Name, fmt.Sprintf(macInDatabase+"but the bridge has learned %s there: "+
				"packets of Services to %v may get lost; correct attached-mac",
				p.MAC, list[0], p.IPs))
		case len(list) == 0 && elsewhere:
			notes.add(p.Name, fmt.Sprintf(macInDatabase+"but the bridge has learned that at port %s: "+
				"packets of Services to %v may get lost; correct attached-mac or ip_addresses",
				p.MAC, other.Name, p.IPs))
		}
	}

	return warnings
}

// foundElsewhere returns what the kernel's neighbour contradicts: a port's claim of an address; "": nothing.
func foundElsewhere(n node.Neighbour, sw *ovsdb.Switch, p *ovsdb.Port, ip netip.Addr) string {
	mac := flow.MAC(n.MAC)
	if mac.IsZero() || mac == toMAC(p.MAC) || podOf(sw, mac) == "" {
		return ""
	}
	return fmt.Sprintf("external_ids:ip_addresses has %s, but the kernel has found it at %s, "+
		"the MAC of port %s: packets of Services to it may get lost; correct ip_addresses",
		ip, mac, podOf(sw, mac))
}
