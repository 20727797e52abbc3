package ofctrl

import (
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Action types (OpenFlow 1.5.1 §7.2.6) and Nicira subtypes (openvswitch/nicira-ext.h).
const (
	actOutput       = 0
	actPopVLAN      = 18
	actGroup        = 22
	actDecTTL       = 24
	actSetField     = 25
	actCopyField    = 28
	actMeter        = 29
	actExperimenter = 0xffff

	nxMultipath       = 10
	nxBundleLoad      = 13
	nxResubmitTable   = 14
	nxLearn           = 16
	nxStackPop        = 28
	nxCT              = 35
	nxNAT             = 36
	nxClone           = 42
	nxCTClear         = 43
	nxResubmitTableCT = 44
	nxLearn2          = 45 // since Open vSwitch 2.8
	nxPktLarger       = 49 // since 2.12

	nxInPort = 0xfff8 // OFPP_IN_PORT of OpenFlow 1.0, as in resubmit
)

// decoder turns what a switch reports into package flow's values. It reuses the values of frequent actions
// and is not safe for concurrent use.
type decoder struct {
	resubmits [256]flow.Action
	clearIn   flow.Action
	decTTL    flow.Action
	// v6 is set while actions for IPv6 packets are decoded. On the wire a translation to the unspecified
	// address has no address at all, so its family is that of the flow.
	v6 bool
}

func newDecoder() *decoder {
	d := &decoder{clearIn: flow.ClearInPort{}, decTTL: flow.DecTTL{}}
	for i := range d.resubmits {
		d.resubmits[i] = flow.Resubmit{Table: uint8(i)}
	}
	return d
}

// actions appends the actions of a list to out. An action that package flow cannot represent becomes an
// UnknownAction; inconsistent lengths are an error.
func (d *decoder) actions(out []flow.Action, b []byte) ([]flow.Action, error) {
	for len(b) > 0 {
		n, err := actionLen(b)
		if err != nil {
			return out, err
		}
		a := d.action(b[:n])
		if a == nil {
			a = flow.UnknownAction{Text: "action=" + hex.EncodeToString(b[:n]), Effects: effects(b[:n])}
		}
		out = append(out, a)
		b = b[n:]
	}
	return out, nil
}

// actionLen returns the checked length of the action at the start of b.
func actionLen(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, short("action")
	}
	n := int(u16(b[2:]))
	if n < 8 || n%8 != 0 || n > len(b) {
		return 0, fmt.Errorf("%w: action of %d bytes", ErrProtocol, n)
	}
	return n, nil
}

// action returns nil for what it does not know. a is at least 8 bytes and a multiple of 8 bytes long.
func (d *decoder) action(a []byte) flow.Action {
	switch u16(a) {
	case actOutput:
		if len(a) != 16 {
			return nil
		}
		port, maxLen := u32(a[4:]), u16(a[8:])
		if port == flow.PortController {
			return flow.ToController{MaxLen: maxLen}
		}
		return flow.Output{Port: port}
	case actGroup:
		if len(a) == 8 {
			return flow.ToGroup{ID: u32(a[4:])}
		}
	case actMeter:
		if len(a) == 8 {
			return flow.ToMeter{ID: u32(a[4:])}
		}
	case actPopVLAN:
		if len(a) == 8 {
			return flow.PopVLAN{}
		}
	case actDecTTL:
		if len(a) == 8 {
			return d.decTTL
		}
	case actSetField:
		return d.setField(a)
	case actCopyField:
		if c, ok := decodeCopy(a); ok {
			return c
		}
	case actExperimenter:
		if u32(a[4:]) == vendorNX && len(a) >= 16 {
			return d.nxAction(a)
		}
	}

	return nil
}

func (d *decoder) nxAction(a []byte) flow.Action {
	switch u16(a[8:]) {
	case nxResubmitTable:
		if len(a) == 16 && u16(a[10:]) == nxInPort {
			return d.resubmits[a[12]]
		}
	case nxCT:
		if ct, ok := decodeCT(a, d.v6); ok {
			return ct
		}
	case nxCTClear:
		if string(a) == string(clearCTTemplate) {
			return flow.ClearCT{}
		}
	case nxClone:
		if n, err := actionLen(a[cloneHeaderLen:]); err == nil && n == len(a)-cloneHeaderLen {
			if ct, ok := d.action(a[cloneHeaderLen:]).(flow.CT); ok && !ct.Aside {
				ct.Aside = true
				return ct
			}
		}
	case nxLearn, nxLearn2:
		if l, ok := decodeLearn(a); ok {
			return l
		}
	}

	return nil
}

func (d *decoder) setField(a []byte) flow.Action {
	header := u32(a[4:])
	size := int(header & 0xff)
	if 8+size > len(a) {
		return nil
	}
	v := a[8 : 8+size]
	f, hasMask := unmasked(header)
	if hasMask && size%2 != 0 {
		return nil
	}

	to := flow.SetField{}
	reg, isReg := regNumber(f)
	if isReg {
		to.Field = flow.RegField(reg)
		to.Value, to.Mask = uint64(u32(v)), 0xffffffff
		if hasMask {
			to.Mask = uint64(u32(v[4:]))
		}
		return to
	}

	switch f {
	case oxmEthSrc, oxmEthDst, nxmEthSrc, nxmEthDst:
		to.Field = flow.EthSrc
		if f == oxmEthDst || f == nxmEthDst {
			to.Field = flow.EthDst
		}
		to.Value, to.Mask = flow.MAC(v[:6]).Uint64(), 1<<48-1
		if hasMask {
			to.Mask = flow.MAC(v[6:12]).Uint64()
		}
	case oxmIPv4Dst, oxmIPv6Src, oxmIPv6Dst:
		if !hasMask {
			a, _ := netip.AddrFromSlice(v)
			return flow.SetAddr{Field: addrFields[f], Addr: a}
		}
		return nil
	case nxmTTL, oxmICMPv4Type, oxmICMPv6Type:
		if hasMask {
			return nil
		}
		to.Field, to.Value, to.Mask = byteFields[f], uint64(v[0]), 0xff
	case oxmTCPDst, oxmUDPDst:
		if hasMask {
			return nil
		}
		to.Field, to.Value, to.Mask = flow.TCPDst, uint64(u16(v)), 1<<16-1
		if f == oxmUDPDst {
			to.Field = flow.UDPDst
		}
	case nxmInPort:
		switch {
		case !hasMask && u16(v) == 0xffff:
			return d.clearIn
		case !hasMask && u16(v) == 0xfffe:
			return flow.FromLocal{}
		}
		return nil
	default:
		return nil
	}

	return to
}

// addrFields are the fields of SetAddr by their headers.
var addrFields = map[uint32]flow.Field{
	oxmIPv4Dst: flow.IPDst,
	oxmIPv6Src: flow.IPv6Src,
	oxmIPv6Dst: flow.IPv6Dst,
}

// byteFields are the fields of SetField that have 8 bits, by their headers.
var byteFields = map[uint32]flow.Field{
	nxmTTL:        flow.TTL,
	oxmICMPv4Type: flow.ICMPv4Type,
	oxmICMPv6Type: flow.ICMPv6Type,
}

// Flags of ct and nat (openvswitch/nicira-ext.h).
const (
	ctCommit = 1

	natSrc = 1
	natDst = 2

	natIPv4Min  = 1
	natIPv6Min  = 4
	natProtoMin = 16
	natProtoMax = 32
)

func decodeCT(a []byte, v6 bool) (ct flow.CT, ok bool) {
	if len(a) < ctHeaderLen {
		return ct, false
	}
	flags, zoneSrc, alg := u16(a[10:]), u32(a[12:]), u16(a[22:])
	if flags&^ctCommit != 0 || zoneSrc != 0 || alg != 0 {
		return ct, false
	}

	ct = flow.CT{Commit: flags&ctCommit != 0, Zone: u16(a[16:]), Table: a[18]}
	for b := a[ctHeaderLen:]; len(b) > 0; {
		n, err := actionLen(b)
		if err != nil {
			return ct, false
		}
		sub := b[:n]

		b = b[n:]
		switch {
		case u16(sub) == actExperimenter && n >= 16 && u32(sub[4:]) == vendorNX && u16(sub[8:]) == nxNAT:
			if ct.NAT.Kind != flow.NATNone {
				return ct, false
			}
			if ct.NAT, ok = decodeNAT(sub, v6); !ok {
				return ct, false
			}
		case isCopyReg1ToMark(sub) && !ct.MarkFromReg1:
			ct.MarkFromReg1 = true
		default:
			return ct, false
		}
	}

	return ct, true
}

// reg1ToMark is what CT.MarkFromReg1 executes.
var reg1ToMark = flow.Copy{Src: flow.Whole(flow.Reg1), Dst: flow.Whole(flow.CTMark)}

func isCopyReg1ToMark(a []byte) bool {
	if u16(a) != actCopyField {
		return false
	}
	c, ok := decodeCopy(a)
	return ok && c == reg1ToMark
}

// decodeCopy reads a copy_field action (§7.2.6, ofp_action_copy_field).
func decodeCopy(a []byte) (c flow.Copy, ok bool) {
	if len(a) != 24 {
		return c, false
	}
	n, srcOfs, dstOfs := u16(a[4:]), u16(a[6:]), u16(a[8:])
	src, ok1 := knownFields[u32(a[12:])]
	dst, ok2 := knownFields[u32(a[16:])]
	if !ok1 || !ok2 || n == 0 || int(srcOfs)+int(n) > src.Bits() || int(dstOfs)+int(n) > dst.Bits() {
		return c, false
	}
	return flow.Copy{
		Src: flow.Subfield{Field: src, Ofs: uint8(srcOfs), N: uint8(n)},
		Dst: flow.Subfield{Field: dst, Ofs: uint8(dstOfs), N: uint8(n)},
	}, true
}

func decodeNAT(a []byte, v6 bool) (n flow.NAT, ok bool) {
	flags, present := u16(a[12:]), u16(a[14:])

	switch flags {
	case 0:
		n.Kind = flow.NATExisting
	case natSrc:
		n.Kind = flow.NATSrc
	case natDst:
		n.Kind = flow.NATDst
	default:
		return n, false
	}
	const understood = natIPv4Min | natIPv6Min | natProtoMin | natProtoMax
	if present&^understood != 0 || present != 0 && n.Kind == flow.NATExisting {
		return n, false
	}

	r := a[natHeaderLen:]
	take := func(k int) []byte {
		if len(r) < k {
			return nil
		}
		v := r[:k]
		r = r[k:]
		return v
	}

	size := 0
	switch present & (natIPv4Min | natIPv6Min) {
	case natIPv4Min:
		size = 4
	case natIPv6Min:
		size = 16
	case 0:
		if n.Kind != flow.NATExisting {
			n.Addr = netip.IPv4Unspecified()
			if v6 {
				n.Addr = netip.IPv6Unspecified()
			}
		}
		return n, present == 0
	default:
		return n, false
	}
	if n.Addr, ok = netip.AddrFromSlice(take(size)); !ok {
		return n, false
	}

	if present&natProtoMin != 0 {
		v := take(2)
		if v == nil || u16(v) == 0 {
			return n, false
		}
		n.PortMin = u16(v)
	}

	if present&natProtoMax != 0 {
		v := take(2)
		if v == nil || n.PortMin == 0 || u16(v) == 0 {
			return n, false
		}
		n.PortMax = u16(v)
	}

	return n, true
}
