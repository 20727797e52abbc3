package fallback

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isLocal reports whether the kernel takes an address for one of the node's: of an interface, or of a route
// of type local. It does so for all loopback and IPv6 link-local ones, to which nobody forwards packets.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() || a.Is6() && a.IsLinkLocalUnicast() {
		return true
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}
