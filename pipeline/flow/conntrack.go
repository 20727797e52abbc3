package flow

import (
	"fmt"
	"net/netip"
)

// CTFilter selects connections of the tracker by zone, protocol, the address and port they were opened to,
// and the address and port that answers.
type CTFilter struct {
	Zone    uint16
	IPProto uint8
	Dst     netip.AddrPort // destination of the original direction
	Replier netip.AddrPort // source of the reply direction; the zero value: any
}

// String gives the filter as ovs-dpctl(8) flush-conntrack names its parts.
func (c CTFilter) String() string {
	return fmt.Sprintf("zone=%d,ct_nw_proto=%d,dst=%s,replier=%s", c.Zone, c.IPProto, c.Dst, c.Replier)
}
