package ofctrl

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// decodeMatch parses an ofp_match with its padding at the start of b and returns its length (OpenFlow 1.5.1
// §7.2.3). Fields that flow.Match cannot represent go to Unknown; inconsistent lengths are an error.
func decodeMatch(b []byte) (m flow.Match, n int, err error) {
	if len(b) < 4 {
		return m, 0, short("match")
	}
	length := int(u16(b[2:]))
	n = (length + 7) &^ 7
	if u16(b) != 1 || length < 4 || n > len(b) {
		return m, 0, fmt.Errorf("%w: match of type %d, length %d", ErrProtocol, u16(b), length)
	}
	var unknown []string
	for f := b[4:length]; len(f) > 0; {
		if len(f) < 4 {
			return m, 0, short("match field")
		}
		size := 4 + int(f[3])
		if size > len(f) {
			return m, 0, short("match field")
		}
		if !matchField(&m, u32(f), f[4:size]) {
			unknown = append(unknown, unknownPrefix+hex.EncodeToString(f[:size]))
		}
		f = f[size:]
	}
	m.Unknown = strings.Join(unknown, ",")
	return m, n, nil
}

// records calls do for each of the records that fill b. Each has at least fixed bytes, and its length in the
// two bytes at lengthAt.
func records(b []byte, what string, fixed, lengthAt int, do func(record []byte) error) error {
	for len(b) > 0 {
		if len(b) < fixed {
			return short(what)
		}
		n := int(u16(b[lengthAt:]))
		if n < fixed || n > len(b) {
			return fmt.Errorf("%w: %s of %d bytes", ErrProtocol, what, n)
		}
		if err := do(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func short(what string) error { return fmt.Errorf("%w: %s is cut off", ErrProtocol, what) }

// matchField sets the field of m that a TLV describes. It returns false for TLVs that flow.Match cannot
// represent: another field, another mask, or the value that stands for "any" in flow.Match.
func matchField(m *flow.Match, header uint32, v []byte) bool {
	field, hasMask := unmasked(header)
	if n, ok := regNumber(field); ok && n < flow.NumRegs {
		return setBits(&m.Reg[n], v, hasMask)
	} else if ok && hasMask {
		return setClear31(m, n, u32(v), u32(v[4:]))
	}

	if field > oxmPktReg1 && field <= oxmPktReg7 && hasMask && len(v) == 16 {
		first := 2 * uint8((field-oxmPktReg0)/(oxmPktReg1-oxmPktReg0))
		if u32(v[8:]) != 0 {
			return u32(v[12:]) == 0 && setClear31(m, first, u32(v), u32(v[8:]))
		}
		return setClear31(m, first+1, u32(v[4:]), u32(v[12:]))
	}

	switch field {
	case oxmIPv4Src, oxmIPv6Src:
		return setPrefix(&m.Src, v, hasMask)
	case oxmIPv4Dst, oxmIPv6Dst:
		return setPrefix(&m.Dst, v, hasMask)
	case nxmCTState:
		return setBits(&m.CTState, v, hasMask)
	case nxmCTMark:
		return setBits(&m.CTMark, v, hasMask)
	case oxmTCPSrc, oxmUDPSrc:
		m.SrcPort = flow.Bits{Value: uint32(u16(v)), Mask: portBits}
		if hasMask {
			m.SrcPort.Mask = uint32(u16(v[2:]))
		}
		return m.SrcPort.Mask != 0
	case oxmTCPFlags:
		m.TCPFlags = flow.Bits{Value: uint32(u16(v)), Mask: tcpFlags}
		if hasMask {
			m.TCPFlags.Mask = uint32(u16(v[2:]))
		}
		return m.TCPFlags.Mask != 0
	case oxmVLANVID: // of a certain VLAN, or of none: flow.Match has none of these
		m.Tagged = hasMask && u16(v) == vlanPresent && u16(v[2:]) == vlanPresent
		return m.Tagged
	case nxmFrag:
		m.Frag = flow.Bits{Value: uint32(v[0]), Mask: fragBits}
		if hasMask {
			m.Frag.Mask = uint32(v[1])
		}
		return m.Frag.Mask != 0
	case oxmPktReg0:
		return setRegPair(&m.Reg[0], &m.Reg[1], v, hasMask)
	case oxmPktReg1:
		return setRegPair(&m.Reg[2], &m.Reg[3], v, hasMask)
	}

	return !hasMask && exactField(m, field, v)
}

// exactField sets a field that flow.Match holds without a mask. It returns false if there is no such field,
// or if v is zero, which flow.Match cannot tell from a field that is not matched.
func exactField(m *flow.Match, field uint32, v []byte) bool {
	switch field { // the header has the length, so v is as long as the field
	case oxmInPort:
		m.InPort = u32(v)
		return m.InPort != 0
	case oxmEthDst:
		m.EthDst = flow.MAC(v)
		return !m.EthDst.IsZero()
	case oxmEthType:
		m.EthType = u16(v)
		return m.EthType != 0
	case oxmIPProto:
		m.IPProto = v[0]
		return v[0] != 0
	case oxmTCPDst, oxmUDPDst, oxmSCTPDst:
		m.DstPort = u16(v)
		return m.DstPort != 0
	case nxmCTZone:
		m.CTZone = u16(v)
		return m.CTZone != 0
	case nxmCTProto:
		m.CTProto = v[0]
		return v[0] != 0
	case nxmCTSrcPort:
		m.CTSrcPort = u16(v)
		return m.CTSrcPort != 0
	case nxmCTDstPort:
		m.CTDstPort = u16(v)
		return m.CTDstPort != 0
	case oxmICMPv4Type, oxmICMPv6Type:
		m.ICMPType = v[0]
		return v[0] != 0
	}

	return false
}

func setBits(to *flow.Bits, v []byte, hasMask bool) bool {
	*to = flow.Exactly(u32(v))
	if hasMask {
		to.Mask = u32(v[4:])
	}
	return true
}

// bit31 is the highest bit of a register.
const bit31 = 1 << 31

// setClear31 records that a flow matches the highest bit of a register beyond reg3, which is 0, and no other
// bit.
func setClear31(m *flow.Match, n uint8, value, mask uint32) bool {
	if m.Clear31 != 0 || value != 0 || mask != bit31 {
		return false
	}
	m.Clear31 = n
	return true
}

// setRegPair reads a 64-bit register: Open vSwitch reports reg0 and reg1 as one in OpenFlow 1.5, the first in
// the upper half.
func setRegPair(hi, lo *flow.Bits, v []byte, hasMask bool) bool {
	mask := ^uint64(0)
	if hasMask {
		mask = u64(v[8:])
	}
	set := func(to *flow.Bits, value, mask uint32) {
		if mask != 0 {
			*to = flow.Bits{Value: value, Mask: mask}
		}
	}
	set(hi, u32(v), uint32(mask>>32))
	set(lo, u32(v[4:]), uint32(mask))
	return true
}

func setPrefix(to *netip.Prefix, v []byte, hasMask bool) bool {
	n := len(v)
	ones := 8 * n
	if hasMask {
		n /= 2
		var size int
		if ones, size = net.IPMask(v[n:]).Size(); size == 0 { // not ones followed by zeros
			return false
		}
	}
	a, ok := netip.AddrFromSlice(v[:n])
	*to = netip.PrefixFrom(a, ones)
	return ok
}
