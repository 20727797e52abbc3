package fallback

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/k8s"
)

// forgetUDP deletes the UDP connections of a family that a set names, and gives their number. Connections in zones are
// others' (Open vSwitch's).
func forgetUDP(f k8s.Family, s *staleSet) (int, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if f == k8s.IPv6 {
		family = unix.AF_INET6
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, staleFilter{s})
	if errors.Is(err, unix.EINTR) || errors.Is(err, netlink.ErrDumpInterrupted) {
		err = nil // the table changed meanwhile; what is new is not stale
	}
	return int(n), err
}

type staleFilter struct{ *staleSet }

// MatchConntrackFlow is part of netlink.CustomConntrackFilter.
func (s staleFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP || flow.Zone != 0 {
		return false
	}
	to, ok1 := netip.AddrFromSlice(flow.Forward.DstIP)
	by, ok2 := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok1 && ok2 && s.match(netip.AddrPortFrom(to.Unmap(), flow.Forward.DstPort), netip.AddrPortFrom(by.Unmap(), flow.Reverse.SrcPort))
}
