package flow

import (
	"fmt"
	"net/netip"
	"strings"
)

// Ethernet types and IP protocol numbers that matches use (IEEE 802 numbers and IANA protocol numbers).
const (
	EthIPv4 uint16 = 0x0800
	EthIPv6 uint16 = 0x86dd

	ProtoTCP    uint8 = 6
	ProtoUDP    uint8 = 17
	ProtoICMP   uint8 = 1
	ProtoICMPv6 uint8 = 58
	ProtoSCTP   uint8 = 132
)

// Reserved OpenFlow port numbers (OpenFlow 1.5.1 §7.2.1.2 "Port Numbers").
const (
	PortInPort     uint32 = 0xfffffff8
	PortTable      uint32 = 0xfffffff9 // of a packet-out: the first flow table
	PortNormal     uint32 = 0xfffffffa
	PortController uint32 = 0xfffffffd
	PortLocal      uint32 = 0xfffffffe
	PortAny        uint32 = 0xffffffff
)

// Bits of ct_state (OVS: include/openvswitch/packets.h, CS_*).
const (
	CTNew     uint32 = 0x01
	CTEst     uint32 = 0x02
	CTRel     uint32 = 0x04
	CTReply   uint32 = 0x08
	CTInvalid uint32 = 0x10
	CTTracked uint32 = 0x20
)

// Flags of the TCP header (RFC 9293 §3.1).
const (
	TCPSyn uint32 = 0x02
	TCPAck uint32 = 0x10
)

// Bits of nw_frag (OVS: include/openvswitch/packets.h, FLOW_NW_FRAG_*): a fragment, and one without a
// transport header.
const (
	FragAny   uint32 = 1
	FragLater uint32 = 2
)

// NumRegs is how many of the switch's 32-bit registers matches and actions can name: reg0 to reg3.
const NumRegs = 4

// Bits is a value under a mask; the zero value matches anything.
type Bits struct {
	Value, Mask uint32
}

// Exactly returns the Bits that match v in all 32 bits.
func Exactly(v uint32) Bits { return Bits{Value: v, Mask: 0xffffffff} }

// MAC is an Ethernet address.
type MAC [6]byte

// IsZero reports whether the address is unset.
func (m MAC) IsZero() bool { return m == MAC{} }

// String returns the address as 02:00:00:00:00:01.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// Uint64 returns the address as a number, first byte highest.
func (m MAC) Uint64() uint64 {
	var v uint64
	for _, b := range m {
		v = v<<8 | uint64(b)
	}
	return v
}

// Match is what a packet must look like. A field's zero value matches anything. Match is comparable: two
// flows with equal table, priority and Match are the same flow to a switch (OpenFlow 1.5.1 §6.4).
type Match struct {
	InPort   uint32 // OpenFlow port number
	EthType  uint16
	EthDst   MAC
	Tagged   bool         // has a tag of IEEE 802.1Q
	Src, Dst netip.Prefix // masked; the family must be EthType's
	IPProto  uint8
	SrcPort  Bits   // needs IPProto TCP or UDP; 16 bits
	DstPort  uint16 // needs IPProto TCP, UDP or SCTP
	ICMPType uint8  // needs IPProto ICMP or ICMPv6; never 0
	TCPFlags Bits   // needs IPProto TCP; 12 bits
	Frag     Bits   // needs EthType; FragAny and FragLater
	CTState  Bits
	CTMark   Bits
	CTZone   uint16 // the zone of the last lookup; never 0
	// CTProto, CTSrcPort and CTDstPort are of the connection's first packet, the ports only in its first
	// fragment. They need a CTState that implies a valid connection, and the ports need CTProto.
	CTProto   uint8
	CTSrcPort uint16
	CTDstPort uint16
	Reg       [NumRegs]Bits
	Clear31   uint8 // number of a register, 4 to 15, whose highest bit is 0; 0: of none
	// Unknown holds match fields that a switch reported and this type cannot represent. It is empty in
	// desired flows, so that a flow with unknown fields never compares equal to one of them.
	Unknown string
}

var protoNames = map[[2]uint16]string{
	{EthIPv4, uint16(ProtoTCP)}: "tcp", {EthIPv6, uint16(ProtoTCP)}: "tcp6",
	{EthIPv4, uint16(ProtoUDP)}: "udp", {EthIPv6, uint16(ProtoUDP)}: "udp6",
	{EthIPv4, uint16(ProtoSCTP)}: "sctp", {EthIPv6, uint16(ProtoSCTP)}: "sctp6",
	{EthIPv4, uint16(ProtoICMP)}: "icmp", {EthIPv6, uint16(ProtoICMPv6)}: "icmp6",
}

// String returns the match in ovs-ofctl syntax; "" for the match of every packet.
func (m Match) String() string {
	var b fieldList
	m.addMetadata(&b)
	m.addAddresses(&b)
	m.addTransport(&b)
	return strings.Join(b, ",")
}

// fieldList is the fields of a match in the notation of ovs-ofctl(8).
type fieldList []string

func (l *fieldList) add(format string, args ...any) { *l = append(*l, fmt.Sprintf(format, args...)) }

// addMetadata adds the conntrack state, the registers and the port.
func (m *Match) addMetadata(b *fieldList) {
	if m.CTState.Mask != 0 {
		b.add("ct_state=%s", bitNames(m.CTState, ctStateNames))
	}
	if m.CTZone != 0 {
		b.add("ct_zone=%d", m.CTZone)
	}
	if m.CTMark.Mask != 0 {
		b.add("ct_mark=%s", m.CTMark)
	}

	for i, r := range m.Reg {
		if r.Mask != 0 {
			b.add("reg%d=%s", i, r)
		}
	}
	if m.Clear31 != 0 {
		b.add("reg%d=0/0x80000000", m.Clear31)
	}

	if m.InPort != 0 {
		b.add("in_port=%s", portName(m.InPort))
	}
}

// addAddresses adds the Ethernet header, the protocol and the IP addresses.
func (m *Match) addAddresses(b *fieldList) {
	if !m.EthDst.IsZero() {
		b.add("dl_dst=%s", m.EthDst)
	}
	if m.Tagged {
		b.add("vlan_tci=0x1000/0x1000")
	}

	switch name := protoNames[[2]uint16{m.EthType, uint16(m.IPProto)}]; {
	case name != "":
		b.add("%s", name)
	case m.EthType == EthIPv4:
		b.add("ip")
	case m.EthType == EthIPv6:
		b.add("ipv6")
	case m.EthType != 0:
		b.add("dl_type=0x%04x", m.EthType)
	}
	if m.IPProto != 0 && protoNames[[2]uint16{m.EthType, uint16(m.IPProto)}] == "" {
		b.add("nw_proto=%d", m.IPProto)
	}

	src, dst := "nw_src", "nw_dst"
	if m.EthType == EthIPv6 {
		src, dst = "ipv6_src", "ipv6_dst"
	}
	if m.Src.IsValid() {
		b.add("%s=%s", src, prefix(m.Src))
	}
	if m.Dst.IsValid() {
		b.add("%s=%s", dst, prefix(m.Dst))
	}
}

// addTransport adds the transport header, the original direction's fields in conntrack, and unknown fields.
func (m *Match) addTransport(b *fieldList) {
	if m.ICMPType != 0 {
		b.add("icmp_type=%d", m.ICMPType)
	}
	if m.SrcPort.Mask != 0 {
		b.add("tp_src=%s", m.SrcPort)
	}
	if m.DstPort != 0 {
		b.add("tp_dst=%d", m.DstPort)
	}

	if m.CTProto != 0 {
		b.add("ct_nw_proto=%d", m.CTProto)
	}
	if m.CTSrcPort != 0 {
		b.add("ct_tp_src=%d", m.CTSrcPort)
	}
	if m.CTDstPort != 0 {
		b.add("ct_tp_dst=%d", m.CTDstPort)
	}

	if m.Frag.Mask != 0 {
		b.add("nw_frag=%s", fragNames[m.Frag])
	}
	if m.TCPFlags.Mask != 0 {
		b.add("tcp_flags=%s", bitNames(m.TCPFlags, tcpFlagNames))
	}
	if m.Unknown != "" {
		b.add("%s", m.Unknown)
	}
}

// String returns 0xvalue/0xmask, or 0xvalue under a full mask.
func (b Bits) String() string {
	if b.Mask == 0xffffffff {
		return fmt.Sprintf("%#x", b.Value)
	}
	return fmt.Sprintf("%#x/%#x", b.Value, b.Mask)
}

// Open vSwitch's names of bits, lowest bit first.
var (
	ctStateNames = []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}
	tcpFlagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"}
)

// fragNames are the kinds of nw_frag (ovs-fields(7)).
var fragNames = map[Bits]string{
	{0, FragAny | FragLater}: "no", {FragAny, FragAny}: "yes", {FragAny, FragAny | FragLater}: "first",
	{FragAny | FragLater, FragAny | FragLater}: "later", {0, FragLater}: "not_later",
}

// bitNames returns each bit under the mask by name, with + if it is set.
func bitNames(b Bits, names []string) string {
	var s strings.Builder
	for i, name := range names {
		bit := uint32(1) << i
		switch {
		case b.Mask&bit == 0:
		case b.Value&bit != 0:
			s.WriteString("+" + name)
		default:
			s.WriteString("-" + name)
		}
	}
	return s.String()
}

func prefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func portName(p uint32) string {
	switch p {
	case PortInPort:
		return "IN_PORT"
	case PortNormal:
		return "NORMAL"
	case PortController:
		return "CONTROLLER"
	case PortLocal:
		return "LOCAL"
	}
	return fmt.Sprint(p)
}
