package live

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
)

var protocols = map[uint8]k8s.Protocol{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_SCTP: "SCTP"}

// KernelConnections gives the TCP, UDP and SCTP connections that the kernel tracks in zone 0, the one of iptables.
func KernelConnections(f k8s.Family) ([]dpctl.Connection, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if f == k8s.IPv6 {
		family = unix.AF_INET6
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // the table changed meanwhile: nearly all of it was seen
		return nil, err
	}
	var list []dpctl.Connection
	for _, fl := range flows {
		p, ok := protocols[fl.Forward.Protocol]
		if !ok || fl.Zone != 0 {
			continue
		}
		seen := addrPort(fl.Reverse.DstIP, fl.Reverse.DstPort)
		list = append(list, dpctl.Connection{
			Protocol: p, Client: addrPort(fl.Forward.SrcIP, fl.Forward.SrcPort), Frontend: addrPort(fl.Forward.DstIP, fl.Forward.DstPort),
			Endpoint: addrPort(fl.Reverse.SrcIP, fl.Reverse.SrcPort), Seen: seen.Addr(), Mark: fl.Mark,
		})
	}
	return list, nil
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}
