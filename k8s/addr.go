package k8s

import (
	"net/netip"
	"strings"
)

// parseAddr reads an address as Kubernetes does: IPv4 octets may have leading zeros (and are decimal all the
// same), a 4-in-6 address is the IPv4 address it holds, and a zone is refused.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		if a, err = netip.ParseAddr(trimOctets(s)); err != nil {
			return netip.Addr{}, false
		}
	}
	if a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// parsePrefix reads a CIDR as Kubernetes does: like parseAddr, the length may have leading zeros too, and host bits are
// cleared.
func parsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, bits, found := strings.Cut(s, "/")
		if !found {
			return netip.Prefix{}, false
		}
		if p, err = netip.ParsePrefix(trimOctets(addr) + "/" + trimZeros(bits)); err != nil {
			return netip.Prefix{}, false
		}
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

// trimOctets removes leading zeros from the octets of a dotted IPv4 address; other text comes back as it is.
func trimOctets(s string) string {
	if strings.ContainsRune(s, ':') || len(s) > 64 {
		return s
	}
	octets := strings.Split(s, ".")
	if len(octets) != 4 {
		return s
	}
	for i, o := range octets {
		octets[i] = trimZeros(o)
	}
	return strings.Join(octets, ".")
}

// trimZeros removes leading zeros from a number.
func trimZeros(s string) string {
	t := strings.TrimLeft(s, "0")
	if t == "" && s != "" {
		return "0"
	}
	return t
}

// wildcard is the unspecified address of a family; it stands for "every address of the node" where addresses
// are compared.
func wildcard(f Family) netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
