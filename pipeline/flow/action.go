package flow

import (
	"fmt"
	"net/netip"
	"strings"
)

// Action is one action of a flow or bucket. Every implementation in this package is a comparable struct:
// two actions are the same exactly if == says so.
type Action interface {
	fmt.Stringer // the action in ovs-ofctl syntax
	isAction()
}

// Field names a header field or register that actions read or write.
type Field uint8

// The fields that nkp's actions use.
const (
	Reg0 Field = iota
	Reg1
	Reg2
	Reg3
	EthSrc
	EthDst
	IPSrc
	IPDst
	IPv6Src
	IPv6Dst
	TCPDst
	UDPDst
	TTL // or the hop limit of IPv6
	ICMPv4Type
	ICMPv6Type
	// XXReg0 is reg0 to reg3 as one field; reg3 is its lowest bits. Actions can copy from and to it.
	XXReg0
	CTMark
	// CTIPv6Dst is the destination that the connection's first packet had before translation. Read only.
	CTIPv6Dst
	// DPHashValue is the datapath's hash of the 5-tuple, non-zero once a dp_hash group has computed it. Read
	// only.
	DPHashValue
	reg4 // and up to reg15: RegField
)

// NumAllRegs is how many registers the switch has: reg0 to reg15.
const NumAllRegs = 16

// RegField returns the Field of a register, 0 to 15. Actions can set those from 4 on, and nothing else.
func RegField(n uint8) Field {
	if n < NumRegs {
		return Reg0 + Field(n)
	}
	return reg4 + Field(n-NumRegs)
}

var fieldNames = [...]string{
	Reg0: "reg0", Reg1: "reg1", Reg2: "reg2", Reg3: "reg3",
	EthSrc: "eth_src", EthDst: "eth_dst",
	IPSrc: "ip_src", IPDst: "ip_dst",
	IPv6Src: "ipv6_src", IPv6Dst: "ipv6_dst",
	TCPDst: "tcp_dst", UDPDst: "udp_dst",
	TTL: "nw_ttl", ICMPv4Type: "icmp_type", ICMPv6Type: "icmpv6_type", XXReg0: "xxreg0",
	CTMark: "ct_mark", CTIPv6Dst: "ct_ipv6_dst", DPHashValue: "dp_hash",
}

var nxmNames = [...]string{
	Reg0: "NXM_NX_REG0", Reg1: "NXM_NX_REG1", Reg2: "NXM_NX_REG2", Reg3: "NXM_NX_REG3",
	EthSrc: "NXM_OF_ETH_SRC", EthDst: "NXM_OF_ETH_DST",
	IPSrc: "NXM_OF_IP_SRC", IPDst: "NXM_OF_IP_DST",
	IPv6Src: "NXM_NX_IPV6_SRC", IPv6Dst: "NXM_NX_IPV6_DST", XXReg0: "NXM_NX_XXREG0",
	TCPDst: "NXM_OF_TCP_DST", UDPDst: "NXM_OF_UDP_DST",
	CTMark: "NXM_NX_CT_MARK", CTIPv6Dst: "NXM_NX_CT_IPV6_DST", DPHashValue: "NXM_NX_DP_HASH",
}

// String returns the field's name as ovs-fields(7) has it.
func (f Field) String() string {
	if f >= reg4 {
		return fmt.Sprintf("reg%d", NumRegs+f-reg4)
	}
	return fieldNames[f]
}

// Bits returns the field's width in bits.
func (f Field) Bits() int {
	switch f {
	case EthSrc, EthDst:
		return 48
	case IPv6Src, IPv6Dst, CTIPv6Dst, XXReg0:
		return 128
	case TCPDst, UDPDst:
		return 16
	case TTL, ICMPv4Type, ICMPv6Type:
		return 8
	}
	return 32
}

// Subfield is a run of N bits of a field, from bit Ofs (0 is the least significant) upwards.
type Subfield struct {
	Field Field
	Ofs   uint8
	N     uint8
}

// Whole returns the Subfield that covers all of f.
func Whole(f Field) Subfield { return Subfield{Field: f, N: uint8(f.Bits())} }

// String returns the subfield in the NXM syntax of ovs-actions(7).
func (s Subfield) String() string {
	name := nxmNames[s.Field]
	switch {
	case s.Ofs == 0 && int(s.N) == s.Field.Bits():
		return name + "[]"
	case s.N == 1:
		return fmt.Sprintf("%s[%d]", name, s.Ofs)
	}
	return fmt.Sprintf("%s[%d..%d]", name, s.Ofs, s.Ofs+s.N-1)
}

// Output sends the packet out of a port; PortNormal and PortLocal are ports too.
type Output struct{ Port uint32 }

// ToController sends the packet to the controller, at most MaxLen bytes of it, as a packet-in.
type ToController struct{ MaxLen uint16 }

// ToMeter passes the packet through a meter, which drops it above its rate (OpenFlow 1.5.1 §7.2.6.14).
type ToMeter struct{ ID uint32 }

// ToGroup hands the packet to a group.
type ToGroup struct{ ID uint32 }

// Resubmit looks the packet up in another table and then continues with the next action.
type Resubmit struct{ Table uint8 }

// SetField writes the bits of Value under Mask. A Mask of all ones (of the field's width) writes the whole
// field. It supports only EthSrc, EthDst, TCPDst, UDPDst, TTL, the types of ICMP messages and the registers.
type SetField struct {
	Field       Field
	Value, Mask uint64
}

// SetAddr writes an address of a packet: IPDst, IPv6Dst or IPv6Src.
type SetAddr struct {
	Field Field
	Addr  netip.Addr
}

// Copy copies the bits of Src to Dst; both have the same number of bits (OpenFlow 1.5.1 §7.2.6.9,
// Copy-Field).
type Copy struct{ Src, Dst Subfield }

// ClearInPort clears the packet's ingress port, so that the packet may be sent out of that port.
type ClearInPort struct{}

// ClearCT forgets what conntrack lookups have found: ct_state, ct_zone and ct_mark are 0 again.
type ClearCT struct{}

// FromLocal makes LOCAL the packet's ingress port: NORMAL then forwards it as what the node sends, in the
// VLAN of LOCAL.
type FromLocal struct{}

// PopVLAN takes the tag of IEEE 802.1Q from a packet. The flow must match packets with a tag.
type PopVLAN struct{}

// DecTTL decrements the TTL or hop limit; the switch drops a packet whose TTL runs out.
type DecTTL struct{}

// NoTable is CT.Table when the packet is not looked up again.
const NoTable uint8 = 0xff

// CT sends the packet through the connection tracker (ovs-actions(7), "The ct action").
type CT struct {
	Commit bool
	Zone   uint16
	Table  uint8 // table where processing continues, with ct_state set; or NoTable
	NAT    NAT
	// Aside sends a copy of the packet; the packet itself continues with the next action.
	Aside bool
	// MarkFromReg1 copies reg1 to ct_mark of the connection being committed.
	MarkFromReg1 bool
}

// NATKind is the address translation that CT performs.
type NATKind uint8

// NATExisting applies the translation of the connection's existing entry; NATSrc and NATDst set the
// translation of the connection being committed.
const (
	NATNone NATKind = iota
	NATExisting
	NATSrc
	NATDst
)

// NAT is the translation of a CT action. PortMin 0 leaves the port to conntrack; PortMax 0 means PortMin
// only.
type NAT struct {
	Kind             NATKind
	Addr             netip.Addr
	PortMin, PortMax uint16
}

// Learn adds to a table a flow built from the current packet (ovs-actions(7), "The learn action").
type Learn struct {
	Table       uint8
	Priority    uint16
	IdleTimeout uint16 // seconds; 16 bits on the wire
	Cookie      uint64
	EthType     uint16 // the learned flow matches it
	// Match are fields of the packet that the learned flow matches.
	Match [2]Subfield
	// Load is a field of the packet; the learned flow writes its value into the same field of packets that
	// match.
	Load Subfield
	// Limit is the maximum number of flows with this Cookie in Table; the action adds no more. 0: no limit.
	// Open vSwitch recounts them whenever the action would add one, at a cost proportional to Limit.
	Limit uint32
	// Result, if set, is a bit that the action sets to 1, or to 0 if Limit kept it from adding the flow. It
	// needs a Limit.
	Result Subfield
}

// UnknownAction is an action that a switch reported and this package cannot represent; it equals no desired
// action.
type UnknownAction struct {
	Text    string
	Effects Effects
}

func (Output) isAction()        {}
func (ToController) isAction()  {}
func (ToMeter) isAction()       {}
func (ToGroup) isAction()       {}
func (Resubmit) isAction()      {}
func (SetField) isAction()      {}
func (SetAddr) isAction()       {}
func (Copy) isAction()          {}
func (ClearInPort) isAction()   {}
func (ClearCT) isAction()       {}
func (FromLocal) isAction()     {}
func (PopVLAN) isAction()       {}
func (DecTTL) isAction()        {}
func (CT) isAction()            {}
func (Learn) isAction()         {}
func (UnknownAction) isAction() {}

func (a Output) String() string {
	switch a.Port {
	case PortNormal, PortInPort, PortLocal:
		return portName(a.Port)
	}
	return fmt.Sprintf("output:%d", a.Port)
}

func (a ToController) String() string { return fmt.Sprintf("CONTROLLER:%d", a.MaxLen) }
func (a ToMeter) String() string      { return fmt.Sprintf("meter:%d", a.ID) }
func (a ToGroup) String() string      { return fmt.Sprintf("group:%d", a.ID) }
func (a Resubmit) String() string     { return fmt.Sprintf("resubmit(,%d)", a.Table) }
func (a SetAddr) String() string      { return fmt.Sprintf("set_field:%s->%s", a.Addr, a.Field) }
func (a Copy) String() string         { return fmt.Sprintf("move:%s->%s", a.Src, a.Dst) }
func (ClearInPort) String() string    { return "set_field:ANY->in_port" }
func (ClearCT) String() string        { return "ct_clear" }
func (FromLocal) String() string      { return "set_field:LOCAL->in_port" }
func (PopVLAN) String() string        { return "pop_vlan" }
func (DecTTL) String() string         { return "dec_ttl" }
func (a UnknownAction) String() string {
	return a.Text
}

func (a SetField) String() string {
	if a.Field == EthSrc || a.Field == EthDst {
		if a.Mask != 1<<48-1 {
			return fmt.Sprintf("set_field:%s/%s->%s", macOf(a.Value), macOf(a.Mask), a.Field)
		}
		return fmt.Sprintf("set_field:%s->%s", macOf(a.Value), a.Field)
	}
	if a.Field.Bits() <= 16 {
		return fmt.Sprintf("set_field:%d->%s", a.Value, a.Field)
	}
	if a.Mask == 0xffffffff {
		return fmt.Sprintf("set_field:%#x->%s", a.Value, a.Field)
	}
	return fmt.Sprintf("set_field:%#x/%#x->%s", a.Value, a.Mask, a.Field)
}

// macOf is the inverse of MAC.Uint64.
func macOf(v uint64) (m MAC) {
	for i := range m {
		m[i] = byte(v >> (40 - 8*i))
	}
	return m
}

func (a CT) String() string {
	var b []string
	if a.Commit {
		b = append(b, "commit")
	}
	if a.Table != NoTable {
		b = append(b, fmt.Sprintf("table=%d", a.Table))
	}
	b = append(b, fmt.Sprintf("zone=%d", a.Zone))
	if a.NAT.Kind != NATNone {
		b = append(b, a.NAT.String())
	}
	if a.MarkFromReg1 {
		b = append(b, "exec(move:NXM_NX_REG1[]->NXM_NX_CT_MARK[])")
	}
	ct := "ct(" + strings.Join(b, ",") + ")"
	if a.Aside {
		return "clone(" + ct + ")"
	}
	return ct
}

// String returns the translation as ovs-actions(7) writes it inside ct().
func (n NAT) String() string {
	var dir string
	switch n.Kind {
	case NATNone:
		return ""
	case NATExisting:
		return "nat"
	case NATSrc:
		dir = "src"
	case NATDst:
		dir = "dst"
	}
	s := n.Addr.String()
	if n.Addr.Is6() {
		s = "[" + s + "]"
	}
	if n.PortMin != 0 {
		s += fmt.Sprintf(":%d", n.PortMin)
	}
	if n.PortMax > n.PortMin {
		s += fmt.Sprintf("-%d", n.PortMax)
	}
	return "nat(" + dir + "=" + s + ")"
}

func (a Learn) String() string {
	b := []string{
		fmt.Sprintf("table=%d", a.Table),
		fmt.Sprintf("idle_timeout=%d", a.IdleTimeout),
		fmt.Sprintf("priority=%d", a.Priority),
		fmt.Sprintf("cookie=%#x", a.Cookie),
	}
	if a.Limit != 0 {
		b = append(b, fmt.Sprintf("limit=%d", a.Limit))
	}
	if a.Result.N != 0 {
		b = append(b, fmt.Sprintf("result_dst=%s", a.Result))
	}
	if a.EthType != 0 {
		b = append(b, fmt.Sprintf("eth_type=%#x", a.EthType))
	}
	for _, m := range a.Match {
		if m.N != 0 {
			b = append(b, m.String())
		}
	}
	b = append(b, fmt.Sprintf("load:%s->%s", a.Load, a.Load))
	return "learn(" + strings.Join(b, ",") + ")"
}
