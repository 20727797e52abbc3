package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/pipeline"
)

// setRoutes adds and deletes nkp's routes on the bridge so that they are the wanted ones, and sets the MAC of
// each next hop, which is the destination of a route on the link. Foreign routes stay; one in place of a
// wanted route is an error. A missing interface is an error only if routes are wanted.
func setRoutes(bridge string, want []route) error {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		if len(want) == 0 {
			return nil
		}
		return fmt.Errorf("interface %s: %w", bridge, err)
	}

	index := link.Attrs().Index
	have, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{
		LinkIndex: index,
		Protocol:  routeProtocol,
	},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}

	var errs []error
	if len(want) > 0 && link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %s is down", bridge)
	}

	for i := range have {
		if !slices.ContainsFunc(want, func(r route) bool { return r.is(&have[i]) }) {
			if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("delete %s: %w", have[i].Dst, err))
			}
		}
	}

	if len(want) == 0 {
		return errors.Join(append(errs, dropNextHops(index))...)
	}

	for _, r := range want {
		if !r.Via.IsValid() {
			if err := netlink.NeighSet(nextHop(index, r.Dst.Addr())); err != nil {
				errs = append(errs, fmt.Errorf("neighbour %s: %w", r.Dst.Addr(), err))
			}
		}
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return r.is(&h) }) {
			continue
		}
		if err := netlink.RouteAdd(r.on(index)); errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf(
				"a route to %s exists that is not nkp's; nkp leaves it and cannot add its own", r.Dst))
		} else if err != nil {
			errs = append(errs, fmt.Errorf("add %s: %w", r.Dst, err))
		}
	}

	return errors.Join(errs...)
}

// nextHop returns the neighbour entry for the next hop of nkp's routes.
func nextHop(index int, hop netip.Addr) *netlink.Neigh {
	n := &netlink.Neigh{
		LinkIndex:    index,
		IP:           hop.AsSlice(),
		HardwareAddr: pipeline.NextHopMAC[:],
		State:        netlink.NUD_PERMANENT,
		Family:       unix.AF_INET,
	}
	if hop.Is6() {
		n.Family = unix.AF_INET6
	}
	return n
}

// dropNextHops forgets the neighbours that nkp made, known by their MAC.
func dropNextHops(index int) error {
	var errs []error
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.NeighList(index, family)
		errs = append(errs, err)
		for i := range list {
			if slices.Equal(list[i].HardwareAddr, pipeline.NextHopMAC[:]) {
				errs = append(errs, netlink.NeighDel(&list[i]))
			}
		}
	}
	return errors.Join(errs...)
}

func (r route) on(index int) *netlink.Route {
	n := &netlink.Route{
		LinkIndex: index, Protocol: routeProtocol, Src: r.Src.AsSlice(), MTU: r.MTU,
		Dst: &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())},
	}
	if r.Via.IsValid() {
		n.Gw, n.Flags = r.Via.AsSlice(), int(netlink.FLAG_ONLINK)
	} else {
		n.Scope = netlink.SCOPE_LINK
	}
	return n
}

func (r route) is(h *netlink.Route) bool {
	if h.Dst == nil {
		return false
	}
	ones, _ := h.Dst.Mask.Size()
	return ones == r.Dst.Bits() && sameIP(h.Dst.IP, r.Dst.Addr()) && sameIP(h.Gw, r.Via) &&
		sameIP(h.Src, r.Src) && h.MTU == r.MTU
}

func sameIP(a net.IP, b netip.Addr) bool {
	if !b.IsValid() {
		return len(a) == 0 || a.IsUnspecified()
	}
	ip, ok := netip.AddrFromSlice(a)
	return ok && ip.Unmap() == b
}

// RemoveRoutes deletes nkp's routes and next hops from the bridge's interface.
func RemoveRoutes(bridge string) error { return setRoutes(bridge, nil) }
