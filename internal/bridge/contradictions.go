package bridge

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// maxWrong bounds how many ports are named.
const maxWrong = 5

// contradictions returns a warning for each MAC address in the settings or the database that the kernel or the switch contradicts.
// An address in neither raises no warning: the kernel resolves the router only where the node's address is on the bridge,
// and the switch learns MACs only from packets that a NORMAL action handles.
func (s *Settings) contradictions(ctx context.Context, sw *ovsdb.Switch) (warnings []string) {
	if !s.GatewayMAC.IsZero() {
		if m := gatewayMAC(s.Bridge, false); !m.IsZero() && m != s.GatewayMAC {
			warnings = append(warnings, fmt.Sprintf("--gateway-mac is %s, but the kernel has %s for the next hop of %s's default route: packets to other nodes may get lost; correct it or leave it out",
				s.GatewayMAC, m, s.Bridge))
		}
	}
	policy, _ := sw.GatewayPolicy()
	t, err := dpctl.Find(s.OVSDB, sw.DatapathType)
	if err != nil || s.LocalDelivery == DeliverOff || s.LocalDelivery == DeliverAuto && policy { // or no flow has a pod's MAC
		return warnings
	}
	learned := map[uint32][]net.HardwareAddr{}
	for _, p := range sw.Ports {
		byPorts := func(ip netip.Addr) bool { _, set := s.Ports[ip]; return set } // --ports gives its MAC
		if straight(&p) && len(p.IPs) > 0 && !slices.ContainsFunc(p.IPs, byPorts) {
			learned[p.OFPort] = nil
		}
	}
	err = t.Learned(ctx, s.Bridge, func(port uint32, mac net.HardwareAddr) {
		if list, pod := learned[port]; pod && len(list) < 2 {
			learned[port] = append(list, mac)
		}
	})
	wrong := 0
	for _, p := range sw.Ports {
		// A port with several learned MACs has other stations behind it. The pod's own MAC may be missing among the learned ones.
		list := learned[p.OFPort]
		if err != nil || len(list) != 1 || slices.Equal(list[0], p.MAC) {
			continue
		}
		if wrong++; wrong <= maxWrong {
			warnings = append(warnings, fmt.Sprintf("port %s: its MAC in the database (external_ids:attached-mac, else mac_in_use) is %s, but the bridge has learned %s there: packets of Services to %v may get lost; correct attached-mac",
				p.Name, p.MAC, list[0], p.IPs))
		}
	}
	if wrong > maxWrong {
		warnings = append(warnings, fmt.Sprintf("ports with such a contradiction that are not listed: %d", wrong-maxWrong))
	}
	return warnings
}
