package ofctrl

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"antrea.io/libOpenflow/openflow15"
	"antrea.io/ofnet/ofctrl"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// The encodings of actions and properties come from ofnet and libOpenflow. As these libraries allocate some
// twenty objects per action, each kind of action is built once, as a template, and only the numbers that
// differ are written into a copy of it.

var (
	outputTemplate = mustMarshal(&openflow15.ActionOutput{
		ActionHeader: header(openflow15.ActionType_Output, 16),
	})
	groupTemplate    = mustMarshal(openflow15.NewActionGroup(0))
	meterTemplate    = mustMarshal(ofctrl.NewMeterAction(0).GetActionMessage())
	decTTLTemplate   = mustMarshal(openflow15.NewActionDecNwTtl())
	popVLANTemplate  = []byte{0, actPopVLAN, 0, 8, 0, 0, 0, 0}
	resubmitTemplate = mustMarshal(resubmitAction())
	copyTemplate     = mustMarshal(copyReg1ToMark())
	// clearInPortTemplate is how ovs-ofctl encodes load:0xffff->NXM_OF_IN_PORT[] in OpenFlow 1.5: a set_field
	// of the 16-bit NXM field to OFPP_NONE. It is not the 32-bit OXM_OF_IN_PORT.
	clearInPortTemplate = mustMarshal(setField("NXM_OF_IN_PORT", bytesValue([]byte{0xff, 0xff}), nil))
	// clearCTTemplate is NXAST_CT_CLEAR, which libOpenflow does not build (ovs-actions(7), "The ct_clear
	// action").
	clearCTTemplate = []byte{0xff, 0xff, 0, 16, 0, 0, 0x23, 0x20, 0, nxCTClear, 0, 0, 0, 0, 0, 0}
	// The value is OFPP_LOCAL of OpenFlow 1.0.
	fromLocalTemplate = mustMarshal(setField("NXM_OF_IN_PORT", bytesValue([]byte{0xff, 0xfe}), nil))
	weightTemplate    = mustMarshal(openflow15.NewGroupBucketPropWeight(0))

	// setTemplates are set_field without and with a mask.
	setTemplates = newSetTemplates()
	// addrTemplates are set_field of a whole address.
	addrTemplates = map[flow.Field][]byte{
		flow.IPDst:   setTemplate("OXM_OF_IPV4_DST", 4)[0],
		flow.IPv6Src: setTemplate("OXM_OF_IPV6_SRC", 16)[0],
		flow.IPv6Dst: setTemplate("OXM_OF_IPV6_DST", 16)[0],
	}
	methodTemplates = [...][]byte{
		flow.DPHash:   mustMarshal(openflow15.NewNTRSelectionMethod(openflow15.NTR_DP_HASH, 0)),
		flow.HashSrc:  hashTemplate("OXM_OF_IPV4_SRC", 4),
		flow.HashSrc6: hashTemplate("OXM_OF_IPV6_SRC", 16),
	}
)

func header(typ, length uint16) openflow15.ActionHeader {
	return openflow15.ActionHeader{Type: typ, Length: length}
}

func resubmitAction() openflow15.Action {
	table := uint8(0)
	return ofctrl.NewResubmit(nil, &table).GetActionMessage()
}

// bytesValue is the payload of a field.
func bytesValue(b []byte) *openflow15.ByteArrayField {
	return &openflow15.ByteArrayField{Data: b, Length: uint8(len(b))}
}

func setField(name string, value, mask *openflow15.ByteArrayField) openflow15.Action {
	f := field(name, mask != nil)
	f.Value = value
	if mask != nil {
		f.Mask = mask
	}
	return ofctrl.NewSetFieldAction(f).GetActionMessage()
}

func newSetTemplates() [][2][]byte {
	list := make([][2][]byte, flow.RegField(flow.NumAllRegs-1)+1)
	for n := range uint8(flow.NumAllRegs) {
		list[flow.RegField(n)] = setTemplate(fmt.Sprintf("NXM_NX_REG%d", n), 4)
	}
	list[flow.EthSrc], list[flow.EthDst] = setTemplate("OXM_OF_ETH_SRC", 6), setTemplate("OXM_OF_ETH_DST", 6)
	list[flow.TCPDst], list[flow.UDPDst] = setTemplate("OXM_OF_TCP_DST", 2), setTemplate("OXM_OF_UDP_DST", 2)
	list[flow.TTL] = setTemplate("NXM_NX_IP_TTL", 1)
	list[flow.ICMPv4Type] = setTemplate("OXM_OF_ICMPV4_TYPE", 1)
	list[flow.ICMPv6Type] = setTemplate("OXM_OF_ICMPV6_TYPE", 1)
	return list
}

func setTemplate(name string, width int) [2][]byte {
	zero := bytesValue(make([]byte, width))
	return [2][]byte{mustMarshal(setField(name, zero, nil)), mustMarshal(setField(name, zero, zero))}
}

// hashTemplate is the selection method that hashes reg3 and one more field, both whole (OVS extension;
// ovs-ofctl(8), selection_method).
func hashTemplate(name string, width int) []byte {
	// In the order in which Open vSwitch reports them.
	seed, client := field("NXM_NX_REG3", false), field(name, false)
	seed.Value = bytesValue(bytes.Repeat([]byte{0xff}, 4))
	client.Value = bytesValue(bytes.Repeat([]byte{0xff}, width))
	return mustMarshal(openflow15.NewNTRSelectionMethod(openflow15.NTR_HASH, 0, *seed, *client))
}

// field returns libOpenflow's header of a field that exists.
func field(name string, hasMask bool) *openflow15.MatchField {
	f, err := openflow15.FindFieldHeaderByName(name, hasMask)
	if err != nil {
		panic(err)
	}
	return f
}

// mustMarshal is for values that this package builds from constants.
func mustMarshal(m encoding.BinaryMarshaler) []byte {
	b, err := m.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return b
}

// ctTemplate is a ct action with zeros where address and ports go.
type ctTemplate struct {
	bytes         []byte
	addr, portMin int // offsets; 0 if there is none. The highest port follows the lowest
}

// ctHeaderLen is the length of nx_action_conntrack, natHeaderLen that of nx_action_nat without ranges,
// cloneHeaderLen that of NXAST_CLONE without actions.
const (
	ctHeaderLen    = 24
	natHeaderLen   = 16
	cloneHeaderLen = 16
)

// newCTTemplate builds the ct action of a shape. Of a's address and ports only their presence matters.
func newCTTemplate(a flow.CT) ctTemplate {
	var t ctTemplate
	var acts []openflow15.Action
	if a.NAT.Kind != flow.NATNone {
		acts = append(acts, natAction(a.NAT))
		if a.NAT.Kind != flow.NATExisting && a.NAT.Addr.IsValid() {
			t.addr = ctHeaderLen + natHeaderLen
			if a.NAT.PortMin != 0 {
				t.portMin = t.addr + a.NAT.Addr.BitLen()/8
			}
		}
	}
	if a.MarkFromReg1 {
		acts = append(acts, copyReg1ToMark())
	}
	table, zone := &a.Table, a.Zone
	if a.Table == flow.NoTable {
		table = nil
	}
	ct := ofctrl.NewNXConnTrackAction(a.Commit, false, table, &zone, acts...)
	t.bytes = mustMarshal(ct.GetActionMessage())
	return t
}

func natAction(n flow.NAT) openflow15.Action {
	nat := openflow15.NewNXActionCTNAT()
	switch n.Kind {
	case flow.NATSrc:
		nat.Flags |= openflow15.NX_NAT_F_SRC
	case flow.NATDst:
		nat.Flags |= openflow15.NX_NAT_F_DST
	}

	if n.Kind == flow.NATExisting || !n.Addr.IsValid() {
		return nat
	}

	if n.Addr.Is4() {
		nat.SetRangeIPv4Min(net.IPv4zero)
	} else {
		nat.SetRangeIPv6Min(net.IPv6zero)
	}

	if n.PortMin != 0 {
		var lo, hi uint16
		nat.SetRangeProtoMin(&lo) // libOpenflow needs both
		nat.SetRangeProtoMax(&hi)
		if n.PortMax == 0 { // its two bytes become padding
			nat.RangePresent &^= openflow15.NX_NAT_RANGE_PROTO_MAX
		}
	}

	nat.Len() // rounds the length up to 8, which the ct action around it adds to its own
	return nat
}

// copyReg1ToMark is move:NXM_NX_REG1[]->NXM_NX_CT_MARK[]; OpenFlow 1.5 has copy_field for it (§7.2.6).
func copyReg1ToMark() openflow15.Action {
	id := func(name string) *openflow15.OxmId {
		f := field(name, false)
		return openflow15.NewOxmId(f.Class, f.Field, false, f.Length, 0)
	}
	return ofctrl.NewCopyFieldAction(32, 0, 0, id("NXM_NX_REG1"), id("NXM_NX_CT_MARK")).GetActionMessage()
}

// learnAction builds a learn action. ofnet's AddMatch is not used: it writes field headers that claim a mask.
func learnAction(a flow.Learn) *openflow15.NXActionLearn {
	l := openflow15.NewNXActionLearn()
	l.IdleTimeout, l.Priority, l.Cookie, l.TableID = a.IdleTimeout, a.Priority, a.Cookie, a.Table
	if a.EthType != 0 {
		l.LearnSpecs = append(l.LearnSpecs, &openflow15.NXLearnSpec{
			Header:   openflow15.NewLearnHeaderMatchFromValue(16),
			SrcValue: binary.BigEndian.AppendUint16(nil, a.EthType),
			DstField: &openflow15.NXLearnSpecField{Field: field("NXM_OF_ETH_TYPE", false)},
		})
	}

	sub := func(s flow.Subfield) *openflow15.NXLearnSpecField {
		name := strings.TrimSuffix(flow.Whole(s.Field).String(), "[]")
		return &openflow15.NXLearnSpecField{Field: field(name, false), Ofs: uint16(s.Ofs)}
	}
	for _, m := range a.Match {
		if m.N != 0 {
			l.LearnSpecs = append(l.LearnSpecs, &openflow15.NXLearnSpec{
				Header:   openflow15.NewLearnHeaderMatchFromField(uint16(m.N)),
				SrcField: sub(m), DstField: sub(m),
			})
		}
	}
	l.LearnSpecs = append(l.LearnSpecs, &openflow15.NXLearnSpec{
		Header:   openflow15.NewLearnHeaderLoadFromField(uint16(a.Load.N)),
		SrcField: sub(a.Load), DstField: sub(a.Load),
	})
	return l
}
