package bridge

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// gatewayMAC returns the kernel's MAC of the router behind an interface: the next hop of a default route. The zero MAC means
// unknown; if ask is set, the kernel then resolves it, so that a later call can return it.
func gatewayMAC(ifname string, ask bool) flow.MAC {
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
			if ask {
				resolve(link.Attrs().Index, family, r.Gw)
			}
		}
	}
	return flow.MAC{}
}

// neighbours returns the addresses that the kernel has resolved on an interface.
func neighbours(ifname string) map[netip.Addr]flow.MAC {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return nil
	}
	out := map[netip.Addr]flow.MAC{}
	list, _ := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	for _, n := range list {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
			out[ip.Unmap()] = toMAC(n.HardwareAddr)
		}
	}
	return out
}

func isDefault(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}

// resolve makes the kernel resolve the MAC of a neighbour that it never talked to (NTF_USE). An error is ignored, because the next
// check finds the MAC still missing.
func resolve(index, family int, ip net.IP) {
	_ = netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: family, IP: ip, State: netlink.NUD_NONE, Flags: netlink.NTF_USE})
}
