package fallback

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/k8s"
)

// forgetUDP deletes the UDP connections of a family that a set names, and gives their number. Connections in zones are
// others' (Open vSwitch's). After an error, some of them may be left.
func forgetUDP(f k8s.Family, s *staleSet) (int, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if f == k8s.IPv6 {
		family = unix.AF_INET6
	}
	return uninterrupted(func() (uint, error) {
		return netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, staleFilter{s})
	})
}

// dumpTries is how often a dump is tried that the kernel interrupts: the table changes while it is listed, and entries are left
// out (NLM_F_DUMP_INTR, include/uapi/linux/netlink.h).
const dumpTries = 5

// uninterrupted calls f until it is not interrupted, and adds up what it returns.
func uninterrupted(f func() (uint, error)) (total int, err error) {
	for range dumpTries {
		var n uint
		n, err = f()
		total += int(n)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return total, err
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
