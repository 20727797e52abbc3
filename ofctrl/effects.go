package ofctrl

import "github.com/nkp-proxy/nkp/pipeline/flow"

// effects returns what an action can do to the way of a packet, by its bytes: for those that package flow
// cannot represent. a is as for decoder.action.
func effects(a []byte) (e flow.Effects) {
	switch u16(a) {
	case actGroup:
		e.Send(u32(a[4:]))
	case actSetField:
		e.Clears = registers(u32(a[4:]))
	case actCopyField:
		if len(a) >= 24 {
			e.Clears = registers(u32(a[16:]))
		}
	case actExperimenter:
		if u32(a[4:]) == vendorNX && len(a) >= 16 {
			return nxEffects(a)
		}
	}
	return e
}

func nxEffects(a []byte) (e flow.Effects) {
	switch u16(a[8:]) {
	case nxResubmitTable, nxResubmitTableCT:
		e.GoTo(a[12])
	case nxCT:
		if e.Conntrack = true; len(a) >= ctHeaderLen && a[18] != flow.NoTable {
			e.GoTo(a[18])
		}
	case nxClone:
		return nested(a[cloneHeaderLen:])
	case nxMultipath, nxBundleLoad, nxStackPop, nxPktLarger: // they write a field of their choice
		e.Clears = 1<<flow.NumAllRegs - 1
	}
	return e
}

// instructionEffects is effects for an instruction other than apply-actions (§7.2.5).
func instructionEffects(b []byte) (e flow.Effects) {
	switch u16(b) {
	case instrGotoTable:
		e.GoTo(b[4])
	case instrWriteActions:
		return nested(b[8:])
	}
	return e
}

// nested returns the effects of a list of actions inside an action or instruction. What follows one of a
// wrong length is lost.
func nested(b []byte) (e flow.Effects) {
	for len(b) > 0 {
		n, err := actionLen(b)
		if err != nil {
			break
		}
		inside := effects(b[:n])
		e.Add(&inside)
		b = b[n:]
	}
	return e
}

// registers returns the registers that a field is part of, or consists of, a bit for each: by the header of
// its OXM.
func registers(header uint32) uint16 {
	h, _ := unmasked(header)
	if n, ok := regNumber(h); ok {
		return 1 << n
	}
	for n := range uint32(flow.NumAllRegs / 2) {
		if h == oxmPktReg0+n*(oxmPktReg1-oxmPktReg0) {
			return 0b11 << (2 * n)
		}
	}
	for n := range uint32(flow.NumAllRegs / 4) {
		if h == nxmXXReg0+n*(nxmXXReg1-nxmXXReg0) {
			return 0b1111 << (4 * n)
		}
	}
	return 0
}
