package live

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/sysctl"
)

// RouteOf returns the device by which the kernel sends packets of the node's own. from may be the zero Addr.
func RouteOf(from, to netip.Addr) (device string, err error) {
	var o netlink.RouteGetOptions
	if from.IsValid() {
		o.SrcAddr = from.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &o)
	if errors.Is(err, unix.EINVAL) {
		err = errors.New("a blackhole route")
	}
	if err != nil {
		return "", err
	}
	for _, r := range routes {
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil {
			return "", err
		}
		device = link.Attrs().Name
	}
	return device, nil
}

// closed returns why the kernel sends nothing to an address (a blackhole, unreachable or prohibit route);
// nil: it sends, or has no route at all.
func closed(to netip.Addr) error {
	_, err := RouteOf(netip.Addr{}, to)
	if errors.Is(err, unix.ENETUNREACH) {
		return nil
	}
	return err
}

// forwards asks the kernel whether it forwards a packet that comes from a station by a device; "": by that by
// which it would send packets there.
func forwards(from, to netip.Addr, in string) (device string, err error) {
	if device = in; device == "" {
		if device, err = RouteOf(netip.Addr{}, from); err != nil {
			return "?", err
		}
	}
	_, err = netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{
		SrcAddr: from.AsSlice(),
		Iif:     device,
	})
	// Of IPv6 a route lookup does not look at this setting. Since Linux 6.13 one of IPv4 says EINVAL whatever
	// the kernel has against a packet (net/ipv4/route.c, inet_rtm_getroute).
	off := sysctl.ForwardingOff(to.Is6(), device)
	switch refused := errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EHOSTUNREACH); {
	case off != "" && (refused || err == nil):
		err = fmt.Errorf("%s is 0", off)
	case errors.Is(err, unix.EXDEV), refused && to.Is4() && sysctl.StrictReversePath(device):
		err = fmt.Errorf("%w: rp_filter of %s, or of all", err, device)
	}
	return device, err
}
