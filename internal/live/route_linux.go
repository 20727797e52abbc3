package live

import (
	"errors"
	"net/netip"

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
