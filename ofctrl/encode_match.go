package ofctrl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// unknownPrefix starts each part of Match.Unknown that this package makes: the bytes of a match field follow
// in hex.
const unknownPrefix = "oxm="

// match appends an ofp_match with its padding (OpenFlow 1.5.1 §7.2.3). A field follows the fields that it
// depends on. Fields in Match.Unknown are sent back unchanged if unknown is true: to delete a flow, not to
// add one.
func match(b []byte, m *flow.Match, unknown bool) ([]byte, error) {
	if err := checkMatch(m); err != nil {
		return b, err
	}
	at := len(b)
	b = append(b, 0, 1, 0, 0) // OFPMT_OXM and the length

	if m.InPort != 0 {
		b = put32(put32(b, oxmInPort), m.InPort)
	}
	if !m.EthDst.IsZero() {
		b = append(put32(b, oxmEthDst), m.EthDst[:]...)
	}
	if m.EthType != 0 {
		b = put16(put32(b, oxmEthType), m.EthType)
	}
	if m.Tagged {
		b = put16(put16(put32(b, masked(oxmVLANVID)), vlanPresent), vlanPresent)
	}
	if m.IPProto != 0 {
		b = append(put32(b, oxmIPProto), m.IPProto)
	}

	b = prefixField(b, oxmIPv4Src, oxmIPv6Src, m.Src)
	b = prefixField(b, oxmIPv4Dst, oxmIPv6Dst, m.Dst)
	switch p := m.SrcPort; p.Mask {
	case 0:
	case portBits:
		b = put16(put32(b, srcPortField(m.IPProto)), uint16(p.Value))
	default:
		b = put16(put16(put32(b, masked(srcPortField(m.IPProto))), uint16(p.Value)), uint16(p.Mask))
	}
	if m.DstPort != 0 {
		b = put16(put32(b, portField(m.IPProto)), m.DstPort)
	}
	if f := m.TCPFlags; f.Mask != 0 {
		b = put16(put16(put32(b, masked(oxmTCPFlags)), uint16(f.Value)), uint16(f.Mask))
	}

	if m.ICMPType != 0 {
		b = append(put32(b, icmpTypeField(m.IPProto)), m.ICMPType)
	}

	switch f := m.Frag; f.Mask {
	case 0:
	case fragBits:
		b = append(put32(b, nxmFrag), byte(f.Value))
	default:
		b = append(put32(b, masked(nxmFrag)), byte(f.Value), byte(f.Mask))
	}

	b = metadataFields(b, m)
	if m.Unknown != "" {
		var err error
		if b, err = unknownFields(b, m.Unknown, unknown); err != nil {
			return b, err
		}
	}

	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return pad8(b, at), nil
}

// metadataFields appends the conntrack fields and the registers of m.
func metadataFields(b []byte, m *flow.Match) []byte {
	b = bitsField(b, nxmCTState, m.CTState)
	if m.CTZone != 0 {
		b = put16(put32(b, nxmCTZone), m.CTZone)
	}
	b = bitsField(b, nxmCTMark, m.CTMark)
	if m.CTProto != 0 {
		b = append(put32(b, nxmCTProto), m.CTProto)
	}
	if m.CTSrcPort != 0 {
		b = put16(put32(b, nxmCTSrcPort), m.CTSrcPort)
	}
	if m.CTDstPort != 0 {
		b = put16(put32(b, nxmCTDstPort), m.CTDstPort)
	}

	for i, r := range m.Reg {
		b = bitsField(b, nxmReg(uint8(i)), r)
	}
	if m.Clear31 != 0 {
		b = bitsField(b, nxmReg(m.Clear31), flow.Bits{Mask: bit31})
	}
	return b
}

// checkMatch rejects matches that a switch would accept but report in another form.
func checkMatch(m *flow.Match) error {
	for _, p := range []netip.Prefix{m.Src, m.Dst} {
		if p.IsValid() && (p.Bits() == 0 || p != p.Masked()) {
			return fmt.Errorf("prefix %s matches everything or has bits beyond its length", p)
		}
	}
	for _, v := range [...]flow.Bits{
		m.CTState, m.CTMark, m.TCPFlags, m.SrcPort, m.Frag,
		m.Reg[0], m.Reg[1], m.Reg[2], m.Reg[3],
	} {
		if v.Value&^v.Mask != 0 {
			return fmt.Errorf("value %#x has bits beyond its mask %#x", v.Value, v.Mask)
		}
	}

	if m.SrcPort.Mask > portBits {
		return fmt.Errorf("mask %#x of the source port has more than 16 bits", m.SrcPort.Mask)
	}
	if m.TCPFlags.Mask > tcpFlags {
		return fmt.Errorf("mask %#x of TCP flags has more than 12 bits", m.TCPFlags.Mask)
	}
	if n := m.Clear31; n != 0 && (n < flow.NumRegs || n >= flow.NumAllRegs) {
		return fmt.Errorf("register %d is not one of reg%d to reg%d", n, flow.NumRegs, flow.NumAllRegs-1)
	}
	if m.Frag.Mask > fragBits {
		return fmt.Errorf("mask %#x of nw_frag has more than 2 bits", m.Frag.Mask)
	}
	return nil
}

func icmpTypeField(proto uint8) uint32 {
	if proto == flow.ProtoICMP {
		return oxmICMPv4Type
	}
	return oxmICMPv6Type
}

func srcPortField(proto uint8) uint32 {
	if proto == flow.ProtoUDP {
		return oxmUDPSrc
	}
	return oxmTCPSrc
}

func portField(proto uint8) uint32 {
	switch proto {
	case flow.ProtoUDP:
		return oxmUDPDst
	case flow.ProtoSCTP:
		return oxmSCTPDst
	}
	return oxmTCPDst
}

func bitsField(b []byte, header uint32, v flow.Bits) []byte {
	switch v.Mask {
	case 0:
		return b
	case 0xffffffff:
		return put32(put32(b, header), v.Value)
	}
	return put32(put32(put32(b, masked(header)), v.Value), v.Mask)
}

func prefixField(b []byte, header4, header6 uint32, p netip.Prefix) []byte {
	if !p.IsValid() {
		return b
	}
	h := header4
	if p.Addr().Is6() {
		h = header6
	}
	if p.IsSingleIP() {
		return append(put32(b, h), p.Addr().AsSlice()...)
	}
	b = append(put32(b, masked(h)), p.Addr().AsSlice()...)
	for i := range p.Addr().BitLen() / 8 {
		b = append(b, byte(uint(0xff00)>>min(max(p.Bits()-8*i, 0), 8)))
	}
	return b
}

func unknownFields(b []byte, text string, allowed bool) ([]byte, error) {
	if !allowed {
		return b, errors.New("match has fields that nkp does not know")
	}
	for part := range strings.SplitSeq(text, ",") {
		raw, ok := strings.CutPrefix(part, unknownPrefix)
		oxm, err := hex.DecodeString(raw)
		if !ok || err != nil || len(b)+len(oxm) > maxMessage {
			return b, errors.New("match has fields that cannot be sent")
		}
		b = append(b, oxm...)
	}
	return b, nil
}
