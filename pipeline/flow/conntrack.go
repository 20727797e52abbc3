package flow

import (
	"fmt"
	"net/netip"
)

// CTFilter selects conntrack entries by zone, protocol, original destination and the address and port that
// replies. With Src it selects one connection, which the switch looks up; without Src the switch scans all
// entries.
type CTFilter struct {
	Zone    uint16
	IPProto uint8
	Src     netip.AddrPort // source of the original direction; the zero value: any
	Dst     netip.AddrPort // destination of the original direction
	Replier netip.AddrPort // source of the reply direction; the zero value: any
}

// String returns the filter as ovs-dpctl(8) flush-conntrack names its parts.
func (c CTFilter) String() string {
	src := ""
	if c.Src.IsValid() {
		src = fmt.Sprintf(",src=%s", c.Src)
	}
	return fmt.Sprintf("zone=%d,ct_nw_proto=%d%s,dst=%s,replier=%s", c.Zone, c.IPProto, src, c.Dst, c.Replier)
}
