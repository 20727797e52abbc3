package node

import (
	"fmt"
	"strings"
)

// Ports are the source ports that the kernel gives to the node's own connections: Min to Max without the
// reserved ones (net.ipv4.ip_local_port_range and ip_local_reserved_ports, for both families). The zero value
// gives none.
type Ports struct {
	Min, Max int
	Reserved [][2]int
}

// ParsePorts reads the two sysctls.
func ParsePorts(localRange, reserved string) (p Ports, err error) {
	if _, err := fmt.Sscan(localRange, &p.Min, &p.Max); err != nil {
		return Ports{}, fmt.Errorf("net.ipv4.ip_local_port_range is %q: %w", localRange, err)
	}
	for field := range strings.FieldsFuncSeq(reserved, func(r rune) bool { return r == ',' || r == '\n' }) {
		from, to, isRange := strings.Cut(field, "-")
		if !isRange {
			to = from
		}
		var r [2]int
		if _, err := fmt.Sscan(from+" "+to, &r[0], &r[1]); err != nil {
			return Ports{}, fmt.Errorf("net.ipv4.ip_local_reserved_ports is %q: %w", reserved, err)
		}
		p.Reserved = append(p.Reserved, r)
	}
	return p, nil
}

// Free returns the longest run of ports from lo to hi that the kernel gives to no connection of the node; to
// < from: there is none.
func (p Ports) Free(lo, hi int) (from, to int) {
	given := func(port int) bool {
		if port < p.Min || port > p.Max {
			return false
		}
		for _, r := range p.Reserved {
			if port >= r[0] && port <= r[1] {
				return false
			}
		}
		return true
	}
	from, to = lo, lo-1
	for port, begin := lo, lo; port <= hi; port++ {
		switch {
		case given(port):
			begin = port + 1
		case port-begin > to-from:
			from, to = begin, port
		}
	}
	return from, to
}
