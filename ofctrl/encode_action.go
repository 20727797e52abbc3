package ofctrl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// encoder appends the OpenFlow 1.5 encodings of package flow's values to buffers. It caches templates of ct
// actions and is not safe for concurrent use.
//
// It rejects objects that a switch would accept but report in another form, because they would always look
// changed.
type encoder struct {
	cts map[flow.CT]ctTemplate // by shape: address and ports replaced, see ctShape
}

// maxTemplates bounds encoder.cts. A pipeline has a few dozen shapes.
const maxTemplates = 4096

func newEncoder() *encoder { return &encoder{cts: map[flow.CT]ctTemplate{}} }

func (e *encoder) actions(b []byte, as []flow.Action) ([]byte, error) {
	var err error
	for _, a := range as {
		if b, err = e.action(b, a); err != nil {
			return b, err
		}
	}
	return b, nil
}

// action appends one action (OpenFlow 1.5.1 §7.2.6; ovs-actions(7)).
func (e *encoder) action(b []byte, a flow.Action) ([]byte, error) {
	switch a := a.(type) {
	case flow.CT:
		return e.ct(b, a)
	case flow.Output:
		if a.Port == flow.PortController {
			return b, errors.New("output to the controller must be a ToController action")
		}
		return output(b, a.Port, 0), nil
	case flow.ToController:
		return output(b, flow.PortController, a.MaxLen), nil
	case flow.ToGroup:
		return patch32(b, groupTemplate, 4, a.ID), nil
	case flow.ToMeter:
		return patch32(b, meterTemplate, 4, a.ID), nil
	case flow.Resubmit:
		at := len(b)
		b = append(b, resubmitTemplate...)
		b[at+12] = a.Table
		return b, nil
	case flow.SetField:
		return setFieldAction(b, a)
	case flow.SetAddr:
		return setAddr(b, a)
	case flow.Copy:
		return copyField(b, a)
	case flow.ClearCT:
		return append(b, clearCTTemplate...), nil
	case flow.ClearInPort:
		return append(b, clearInPortTemplate...), nil
	case flow.FromLocal:
		return append(b, fromLocalTemplate...), nil
	case flow.PopVLAN:
		return append(b, popVLANTemplate...), nil
	case flow.DecTTL:
		return append(b, decTTLTemplate...), nil
	case flow.Learn:
		return learn(b, a)
	case nil:
		return b, errors.New("no action")
	}

	return b, fmt.Errorf("action %q cannot be sent", a)
}

func patch32(b, template []byte, ofs int, v uint32) []byte {
	at := len(b)
	b = append(b, template...)
	binary.BigEndian.PutUint32(b[at+ofs:], v)
	return b
}

func output(b []byte, port uint32, maxLen uint16) []byte {
	at := len(b)
	b = patch32(b, outputTemplate, 4, port)
	binary.BigEndian.PutUint16(b[at+8:], maxLen)
	return b
}

func setFieldAction(b []byte, a flow.SetField) ([]byte, error) {
	all := uint64(1)<<a.Field.Bits() - 1
	if a.Mask == 0 || a.Mask&^all != 0 || a.Value&^a.Mask != 0 {
		return b, fmt.Errorf("%s: value %#x and mask %#x do not fit each other or the field",
			a, a.Value, a.Mask)
	}
	if int(a.Field) >= len(setTemplates) || setTemplates[a.Field][0] == nil {
		return b, fmt.Errorf("field %s cannot be set", a.Field)
	}
	at, width := len(b)+8, a.Field.Bits()/8
	if a.Mask == all {
		b = append(b, setTemplates[a.Field][0]...)
	} else {
		b = append(b, setTemplates[a.Field][1]...)
		putBytes(b[at+width:], a.Mask, width)
	}
	putBytes(b[at:], a.Value, width)
	return b, nil
}

func setAddr(b []byte, a flow.SetAddr) ([]byte, error) {
	t := addrTemplates[a.Field]
	if t == nil || a.Field.Bits() != a.Addr.BitLen() {
		return b, fmt.Errorf("%s: not an address that can be set, or of the other family", a)
	}
	at := len(b)
	b = append(b, t...)
	copy(b[at+8:], a.Addr.AsSlice())
	return b, nil
}

// putBytes writes the low bytes of v, as many as width.
func putBytes(b []byte, v uint64, width int) {
	for i := range width {
		b[i] = byte(v >> (8 * (width - 1 - i)))
	}
}

// fieldHeaders are the headers of flow's fields, as copy and learn actions name them.
var fieldHeaders = [...]uint32{
	flow.Reg0: nxmReg0, flow.Reg1: nxmReg1, flow.Reg2: nxmReg2, flow.Reg3: nxmReg3,
	flow.EthSrc: oxmEthSrc, flow.EthDst: oxmEthDst, flow.XXReg0: nxmXXReg0,
	flow.IPSrc: oxmIPv4Src, flow.IPDst: oxmIPv4Dst, flow.IPv6Src: oxmIPv6Src, flow.IPv6Dst: oxmIPv6Dst,
	flow.CTMark: nxmCTMark, flow.CTIPv6Dst: nxmCTIPv6Dst, flow.DPHashValue: nxmDPHash,
}

func checkSubfield(s flow.Subfield) error {
	known := int(s.Field) < len(fieldHeaders) && fieldHeaders[s.Field] != 0
	if !known || s.N == 0 || int(s.Ofs)+int(s.N) > s.Field.Bits() {
		return errors.New("bits out of the field")
	}
	return nil
}

func copyField(b []byte, a flow.Copy) ([]byte, error) {
	if err := errors.Join(checkSubfield(a.Src), checkSubfield(a.Dst)); err != nil {
		return b, err
	}
	if a.Src.N != a.Dst.N {
		return b, fmt.Errorf("%s: source and destination differ in width", a)
	}
	at := len(b)
	b = append(b, copyTemplate...)
	binary.BigEndian.PutUint16(b[at+4:], uint16(a.Src.N))
	binary.BigEndian.PutUint16(b[at+6:], uint16(a.Src.Ofs))
	binary.BigEndian.PutUint16(b[at+8:], uint16(a.Dst.Ofs))
	binary.BigEndian.PutUint32(b[at+12:], fieldHeaders[a.Src.Field])
	binary.BigEndian.PutUint32(b[at+16:], fieldHeaders[a.Dst.Field])
	return b, nil
}

// ct appends a ct action: the template of its shape with address and ports filled in.
func (e *encoder) ct(b []byte, a flow.CT) ([]byte, error) {
	if a.Aside { // inside a clone action
		at := len(b)
		b = append(put32(put32(b, actExperimenter<<16), vendorNX), 0, nxClone, 0, 0, 0, 0, 0, 0)
		a.Aside = false
		b, err := e.ct(b, a)
		binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
		return b, err
	}

	n := a.NAT
	if n.PortMax != 0 && n.PortMax <= n.PortMin || n.PortMin == 0 && n.PortMax != 0 || n.Kind > flow.NATDst {
		return b, fmt.Errorf("%s: bad translation (PortMax must be above PortMin, or 0)", a)
	}
	if needs := n.Kind > flow.NATExisting; needs != n.Addr.IsValid() ||
		n.PortMin != 0 && (!needs || n.Addr.IsUnspecified()) || n.Addr.Zone() != "" {
		return b, fmt.Errorf("%s: the translation lacks an address, or has one or a port that it cannot have",
			a)
	}

	shape := ctShape(a)
	t, ok := e.cts[shape]
	if !ok {
		if len(e.cts) >= maxTemplates {
			clear(e.cts)
		}
		t = newCTTemplate(shape)
		e.cts[shape] = t
	}

	at := len(b)
	b = append(b, t.bytes...)
	if t.addr != 0 {
		ip := n.Addr.As16() // an IPv4 address is its end
		copy(b[at+t.addr:], ip[16-n.Addr.BitLen()/8:])
	}
	if t.portMin != 0 {
		binary.BigEndian.PutUint16(b[at+t.portMin:], n.PortMin)
		if n.PortMax != 0 {
			binary.BigEndian.PutUint16(b[at+t.portMin+2:], n.PortMax)
		}
	}

	return b, nil
}

// ctShape replaces address and ports by placeholders that only show their presence. A translation to the
// unspecified address, which lets conntrack change nothing but a port that is taken, is a shape of its own.
func ctShape(a flow.CT) flow.CT {
	switch {
	case a.NAT.Addr.IsUnspecified():
		a.NAT.Addr = netip.Addr{}
	case a.NAT.Addr.Is4():
		a.NAT.Addr = anyIPv4
	case a.NAT.Addr.Is6():
		a.NAT.Addr = anyIPv6
	}
	a.NAT.PortMin = min(a.NAT.PortMin, 1)
	a.NAT.PortMax = min(a.NAT.PortMax, 1)
	return a
}

// anyIPv4 and anyIPv6 stand for an address of their family in a shape.
var (
	anyIPv4 = netip.AddrFrom4([4]byte{1})
	anyIPv6 = netip.AddrFrom16([16]byte{1})
)

func learn(b []byte, a flow.Learn) ([]byte, error) {
	for _, s := range []flow.Subfield{a.Match[0], a.Match[1], a.Load, a.Result} {
		if s == (flow.Subfield{}) {
			continue
		}
		if err := checkSubfield(s); err != nil {
			return b, err
		}
	}

	if a.Load.N == 0 || a.Match[0].N == 0 && a.Match[1].N != 0 || a.Result.N != 0 && a.Limit == 0 {
		return b, fmt.Errorf("%s: a part is missing", a)
	}
	if a.Result.N > 1 {
		return b, fmt.Errorf("%s: the result has one bit", a)
	}

	l := learnAction(a)
	m, err := l.MarshalBinary()
	if err != nil || a.Limit == 0 {
		return append(b, m...), err
	}

	// nx_action_learn2 is nx_action_learn with more before the specifications: the limit, and where the
	// result goes (Open vSwitch, lib/ofp-actions.c). libOpenflow does not have it.
	at := len(b)
	b = append(b, m[:learnHeaderLen]...)
	binary.BigEndian.PutUint16(b[at+8:], nxLearn2)
	b = append(put32(b, a.Limit), 0, a.Result.Ofs, 0, 0)
	if a.Result.N != 0 {
		binary.BigEndian.PutUint16(b[at+24:], learnWriteResult)
		result := field(strings.TrimSuffix(flow.Whole(a.Result.Field).String(), "[]"), false)
		b = put32(b, result.MarshalHeader())
	}

	n := learnHeaderLen
	for _, s := range l.LearnSpecs {
		n += int(s.Len())
	}
	b = append(b, m[learnHeaderLen:n]...)
	b = append(b, make([]byte, -(len(b)-at)&7)...)
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
	return b, nil
}
