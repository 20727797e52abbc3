package bridge

import (
	"net"

	"github.com/vishvananda/netlink"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// gatewayMAC asks the kernel for the MAC of the router behind an interface: the next hop of a default route, if
// the kernel has talked to it. The zero MAC means unknown.
func gatewayMAC(ifname string) flow.MAC {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return flow.MAC{}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(link, family)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Gw == nil || r.Dst != nil && !isDefault(r.Dst) {
				continue
			}
			neighbours, err := netlink.NeighList(link.Attrs().Index, family)
			if err != nil {
				continue
			}
			for _, n := range neighbours {
				if n.IP.Equal(r.Gw) && len(n.HardwareAddr) == 6 {
					return flow.MAC(n.HardwareAddr)
				}
			}
		}
	}
	return flow.MAC{}
}

func isDefault(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}
