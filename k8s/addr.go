package k8s

import (
	"net/netip"

	netutils "k8s.io/utils/net"
)

// ParseAddr parses an address as Kubernetes does: IPv4 octets may have leading zeros and are still decimal, a
// 4-in-6 address becomes the IPv4 address in it, and a zone is refused.
func ParseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil { // rare; this parser allocates, so it comes second
		a, _ = netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	}
	if !a.IsValid() || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// ParsePrefix parses a CIDR as Kubernetes does: the address as in ParseAddr, a length that may have leading
// zeros, host bits cleared.
func ParsePrefix(s string) (netip.Prefix, bool) {
	_, n, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if a.Is4In6() && bits >= 96 {
		a, bits = a.Unmap(), bits-96
	}
	return netip.PrefixFrom(a, bits), true
}

// Unspecified returns the unspecified address of a family; it stands for "every address of the node".
func (f Family) Unspecified() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// First returns the first address of a family; the zero Addr if there is none.
func (f Family) First(ips []netip.Addr) netip.Addr {
	for _, ip := range ips {
		if FamilyOf(ip) == f {
			return ip
		}
	}
	return netip.Addr{}
}
