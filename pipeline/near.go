package pipeline

import (
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Open vSwitch before 3.5 tracks prefixes of IPv4 addresses only. Where flows match full IPv6 addresses, it
// adds all 128 bits to the cached flows of all packets that visit the table, so that the datapath needs one
// for each address. It compares registers before addresses. So flows that match full IPv6 addresses also
// match a field of reg0, which counts how many prefixes of such an address the packet's address shares. Flows
// of higher priority match these prefixes, the shortest first, count, and send the packet through the table
// again. A packet to another address leaves that at the first prefix that differs, and only this prefix is in
// its cached flow (README.md, "IPv6 addresses").
//
// A packet whose field is 0 is compared in each table again. A field that is too high, because the packet's
// address was translated since, costs cached flows and changes nothing else. So packets on their way while
// the flows change match the right ones.

// nearLengths are the lengths of these prefixes: a site, a node's range.
var nearLengths = [...]int{48, 64}

// Fields of reg0, of three bits each: how many of nearLengths the packet's address shares with one that flows
// match.
const (
	nearNode    = 1 << 8  // table 0: the destination with an address of the node
	nearSource  = 1 << 11 // tables 0, 20 and 2: the source with an address of the node
	nearService = 1 << 14 // tables 3 and 1: the destination with a Service's address
	nearPods    = 1 << 17 // table 2: source and destination with a pod's address
	nearLocal   = 1 << 20 // tables 2 and 30: the destination with an address on this bridge
	nearMask    = 7
)

// Priorities of the flows that count.
const (
	prioNear       = 410 // above all flows that match the field
	prioNearNode   = 250 // table 0: below prioBypass
	prioNearSource = 130 // tables 0 and 20: below prioNode
	prioNearMasq   = 325 // table 2: below prioToNode
)

// opensService is what all flows for addresses of Services in table 1 match.
var opensService = flow.Match{CTState: flow.Bits{Mask: flow.CTEst | flow.CTInvalid}}

// near returns m, a match of full IPv6 addresses, with a field of reg0, and adds the flows that count in that
// field, for packets that also match when. It returns a match of IPv4 addresses as it is.
func (b *builder) near(table uint8, priority uint16, field uint32, when, m flow.Match) flow.Match {
	if m.EthType != flow.EthIPv6 {
		return m
	}
	when.EthType = m.EthType
	for i, length := range nearLengths {
		shares := when
		shares.Src, shares.Dst = around(m.Src, length), around(m.Dst, length)
		shares.Reg[0].Value |= field * uint32(i)
		shares.Reg[0].Mask |= field * nearMask
		count := flow.SetField{
			Field: flow.Reg0,
			Value: uint64(field) * uint64(i+1),
			Mask:  uint64(field) * nearMask,
		}
		b.share(table, priority, 0, shares, count, b.resubmit(table))
	}
	return isNear(field, m)
}

// isNear returns a match of packets whose field of reg0 is complete.
func isNear(field uint32, m flow.Match) flow.Match {
	m.Reg[0].Value |= field * uint32(len(nearLengths))
	m.Reg[0].Mask |= field * nearMask
	return m
}

// nearEntry matches packets to an address of the node in table 0, nearDelivery packets to an address on this
// bridge in table 30.
func (b *builder) nearEntry(ip netip.Addr) flow.Match {
	return b.near(tableEntry, prioNearNode, nearNode, flow.Match{}, toAddr(ip))
}

func (b *builder) nearDelivery(ip netip.Addr) flow.Match {
	return b.near(tableDeliver, prioNear, nearLocal, flow.Match{}, toAddr(ip))
}

// toService is near for the address of a Service in table 1.
func (b *builder) toService(m flow.Match) flow.Match {
	return b.toServiceIn(tableServices, opensService, m)
}

// toServiceIn is near for the address of a Service in table 1 or 3. The common part counts for all addresses
// in the Service ranges.
func (b *builder) toServiceIn(table uint8, when, m flow.Match) flow.Match {
	hasDst := func(p netip.Prefix) bool { return p.Contains(m.Dst.Addr()) }
	if m.EthType == flow.EthIPv6 && slices.ContainsFunc(b.ServiceCIDRs, hasDst) {
		return isNear(nearService, m)
	}
	return b.near(table, prioNear, nearService, when, m)
}

// around returns the prefix of at most length bits that contains p.
func around(p netip.Prefix, length int) netip.Prefix {
	if p.Bits() <= length {
		return p
	}
	return netip.PrefixFrom(p.Addr(), length).Masked()
}
