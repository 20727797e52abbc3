package node

import "net/netip"

// Longest has a value for each of a set of prefixes, and finds that of the longest prefix with an address.
// The zero value is empty.
type Longest[T any] struct {
	values  map[netip.Prefix]T
	lengths [2][129]bool // that there are, of IPv4 and IPv6
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return 0
	}
	return 1
}

// Put sets the value of a prefix without bits beyond its length.
func (l *Longest[T]) Put(p netip.Prefix, v T) {
	if l.values == nil {
		l.values = map[netip.Prefix]T{}
	}
	l.values[p] = v
	l.lengths[family(p.Addr())][p.Bits()] = true
}

// At returns the value of the longest prefix with an address.
func (l *Longest[T]) At(ip netip.Addr) (v T, ok bool) {
	for bits := ip.BitLen(); bits >= 0; bits-- {
		if l.lengths[family(ip)][bits] {
			if p, err := ip.Prefix(bits); err == nil {
				if v, ok = l.values[p]; ok {
					return v, true
				}
			}
		}
	}
	return v, false
}
