package ofctrl

import "github.com/nkp-proxy/nkp/pipeline/flow"

// Header bits of a learn action's specification (openvswitch/nicira-ext.h, NX_LEARN_*).
const (
	learnImmediate   = 1 << 13 // the source is a value, not a field
	learnLoad        = 1 << 11 // the destination is loaded, not matched
	learnBits        = 0x7ff
	learnWriteResult = 1 << 2 // in the flags of nx_action_learn2
	learnHeaderLen   = 32
	learn2HeaderLen  = 40
)

// knownFields maps the headers that learn and copy actions may use, NXM and OXM, to fields.
var knownFields = map[uint32]flow.Field{
	nxmReg0: flow.Reg0, nxmReg1: flow.Reg1, nxmReg2: flow.Reg2, nxmReg3: flow.Reg3,
	nxmEthSrc: flow.EthSrc, nxmEthDst: flow.EthDst, oxmEthSrc: flow.EthSrc, oxmEthDst: flow.EthDst,
	nxmIPSrc: flow.IPSrc, oxmIPv4Src: flow.IPSrc, nxmIPv6Src: flow.IPv6Src, oxmIPv6Src: flow.IPv6Src,
	nxmIPDst: flow.IPDst, oxmIPv4Dst: flow.IPDst, nxmIPv6Dst: flow.IPv6Dst, oxmIPv6Dst: flow.IPv6Dst,
	nxmXXReg0: flow.XXReg0,
	nxmCTMark: flow.CTMark, nxmCTIPv6Dst: flow.CTIPv6Dst, nxmDPHash: flow.DPHashValue,
}

// decodeLearn reads the shape that flow.Learn can express: an Ethernet type, up to two fields copied into the
// match, one loaded. ok is false for any other.
func decodeLearn(a []byte) (l flow.Learn, ok bool) {
	specs := learnHeaderLen

	if len(a) >= learn2HeaderLen && u16(a[8:]) == nxLearn2 {
		specs = learn2HeaderLen
		l.Limit = u32(a[32:])
		if l.Limit == 0 {
			return l, false
		}
		// The result is 16 bits, and as many of padding.
		if ofs := u32(a[36:]); u16(a[24:]) == learnWriteResult && len(a) >= specs+4 {
			f, ok := knownFields[u32(a[40:])]
			if !ok || ofs&0xffff != 0 || int(ofs>>16) >= f.Bits() {
				return l, false
			}
			l.Result = flow.Subfield{Field: f, Ofs: uint8(ofs >> 16), N: 1}
			specs += 4
		} else if ofs != 0 {
			return l, false
		}
	}

	if len(a) < specs {
		return l, false
	}
	hard, flags, pad, finIdle, finHard := u16(a[12:]), u16(a[24:]), a[27], u16(a[28:]), u16(a[30:])
	if l.Result.N != 0 {
		flags = 0
	}
	if hard|flags|uint16(pad)|finIdle|finHard != 0 {
		return l, false
	}

	l.IdleTimeout, l.Priority, l.Cookie, l.Table = u16(a[10:]), u16(a[14:]), u64(a[16:]), a[26]
	matches := 0
	for b := a[specs:]; len(b) >= 2; {
		h := u16(b)
		if h == 0 { // the padding at the end
			return l, l.Load.N != 0
		}
		bits := h & learnBits
		switch h &^ learnBits {
		case learnImmediate: // only the Ethernet type is ever matched by value
			if bits != 16 || len(b) < 10 || l.EthType != 0 {
				return l, false
			}
			if to := u32(b[4:]); to != nxmEthType && to != oxmEthType || u16(b[8:]) != 0 {
				return l, false
			}
			l.EthType = u16(b[2:])
			b = b[10:]
			if l.EthType == 0 {
				return l, false
			}
			continue
		case 0, learnLoad:
		default:
			return l, false
		}

		if len(b) < 14 {
			return l, false
		}
		s, ok := subfield(b[2:], b[8:], bits)
		if !ok {
			return l, false
		}
		switch {
		case h&learnLoad != 0 && l.Load.N == 0:
			l.Load = s
		case h&learnLoad == 0 && matches < len(l.Match) && l.Load.N == 0:
			l.Match[matches] = s
			matches++
		default:
			return l, false
		}
		b = b[14:]
	}

	return l, l.Load.N != 0
}

// subfield reads source and destination of a specification, which must be the same bits of the same field.
func subfield(src, dst []byte, bits uint16) (s flow.Subfield, ok bool) {
	f, ok := knownFields[u32(src)]
	if !ok {
		return s, false
	}
	to, ok := knownFields[u32(dst)]
	ofs := u16(src[4:])
	if !ok || to != f || u16(dst[4:]) != ofs || bits == 0 || int(ofs)+int(bits) > f.Bits() {
		return s, false
	}
	return flow.Subfield{Field: f, Ofs: uint8(ofs), N: uint8(bits)}, true
}
