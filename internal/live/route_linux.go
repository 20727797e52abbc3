package live

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeOf returns the device by which the kernel sends packets of the node's own. from may be the zero Addr.
func routeOf(from, to netip.Addr) (device string, err error) {
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
	_, err := routeOf(netip.Addr{}, to)
	if errors.Is(err, unix.ENETUNREACH) {
		return nil
	}
	return err
}

// forwards asks the kernel whether it forwards a packet that comes from a station by a device; "": by that by
// which it would send packets there.
func forwards(from, to netip.Addr, in string) (device string, err error) {
	if device = in; device == "" {
		if device, err = routeOf(netip.Addr{}, from); err != nil {
			return "?", err
		}
	}
	_, err = netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{
		SrcAddr: from.AsSlice(),
		Iif:     device,
	})
	// A route lookup does not look at this setting.
	switch on, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/forwarding"); {
	case errors.Is(err, unix.EHOSTUNREACH):
		err = fmt.Errorf("%w: is net.ipv4.ip_forward 1, and net.ipv4.conf.%s.forwarding?", err, device)
	case errors.Is(err, unix.EXDEV):
		err = fmt.Errorf("%w: rp_filter", err)
	case err == nil && to.Is6() && string(on) == "0\n":
		err = errors.New("net.ipv6.conf.all.forwarding is 0")
	}
	return device, err
}
