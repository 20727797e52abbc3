package flow

import (
	"net/netip"
	"strings"
	"testing"
)

// The text of matches and actions, as ovs-ofctl takes it.
func TestText(t *testing.T) {
	all := ^uint32(0)
	for _, tc := range []struct{ value, want string }{
		{Match{}.String(), ""},
		{Match{InPort: PortLocal, EthType: EthIPv4}.String(), "in_port=LOCAL,ip"},
		{Match{EthType: EthIPv6, IPProto: ProtoUDP, Dst: netip.MustParsePrefix("fd00::1/128"), DstPort: 53}.String(), "udp6,ipv6_dst=fd00::1,tp_dst=53"},
		{Match{EthType: EthIPv4, IPProto: ProtoSCTP, Src: netip.MustParsePrefix("10.0.0.0/8")}.String(), "sctp,nw_src=10.0.0.0/8"},
		{Match{EthType: EthIPv4, IPProto: 50}.String(), "ip,nw_proto=50"},
		{Match{CTState: Bits{CTTracked, CTTracked | CTReply}, CTMark: Bits{1, 3}}.String(), "ct_state=-rpl+trk,ct_mark=0x1/0x3"},
		{Match{Reg: [NumRegs]Bits{2: {5, all}}}.String(), "reg2=0x5"},
		{Match{Clear31: 10, InPort: 3}.String(), "reg10=0/0x80000000,in_port=3"},
		{SetField{Field: RegField(10), Value: 1 << 31, Mask: 1 << 31}.String() + "," + ClearCT{}.String(), "set_field:0x80000000/0x80000000->reg10,ct_clear"},
		{CT{Zone: 7, Table: 1, NAT: NAT{Kind: NATExisting}}.String(), "ct(table=1,zone=7,nat)"},
		{CT{Commit: true, Zone: 7, Table: NoTable}.String(), "ct(commit,zone=7)"},
		{NAT{Kind: NATSrc, Addr: netip.MustParseAddr("fd00::2"), PortMin: 5, PortMax: 9}.String(), "nat(src=[fd00::2]:5-9)"},
		{NAT{Kind: NATDst, Addr: netip.MustParseAddr("10.0.0.1"), PortMin: 80}.String(), "nat(dst=10.0.0.1:80)"},
		{NAT{Kind: NATSrc, Addr: netip.MustParseAddr("10.0.0.1")}.String(), "nat(src=10.0.0.1)"},
		{SetField{Field: EthDst, Value: 0x020000000001, Mask: 1<<48 - 1}.String(), "set_field:02:00:00:00:00:01->eth_dst"},
		{SetField{Field: Reg0, Value: 1, Mask: 3}.String(), "set_field:0x1/0x3->reg0"},
		{Copy{Subfield{DPHashValue, 0, 9}, Subfield{Reg3, 0, 9}}.String(), "move:NXM_NX_DP_HASH[0..8]->NXM_NX_REG3[0..8]"},
		{Subfield{Reg1, 4, 1}.String(), "NXM_NX_REG1[4]"},
		{(&Flow{Key: Key{Table: 3, Priority: 9}}).String(), "cookie=0x0,table=3,priority=9,actions=drop"},
	} {
		if tc.value != tc.want {
			t.Errorf("got %s, want %s", tc.value, tc.want)
		}
	}
}

// Applying the difference of two states to the first gives the second.
func TestDiffApplied(t *testing.T) {
	f := func(priority uint16, actions ...Action) *Flow {
		return &Flow{Key: Key{Priority: priority}, Cookie: 1, Actions: actions}
	}
	g := func(id uint32, weight uint16) *Group { return &Group{ID: id, Buckets: []Bucket{{Weight: weight}}} }
	state := func(fs []*Flow, gs []*Group, ms ...Meter) *State {
		s := NewState()
		s.Apply(&Delta{SetFlows: fs, SetGroups: gs, SetMeters: ms})
		return s
	}
	have := state([]*Flow{f(1), f(2), f(3, DecTTL{})}, []*Group{g(1, 1), g(2, 1)}, Meter{ID: 1, Rate: 5}, Meter{ID: 2})
	want := state([]*Flow{f(2), f(3), f(4)}, []*Group{g(2, 7), g(3, 1)}, Meter{ID: 1, Rate: 6})
	d := Diff(have, want)
	var b strings.Builder
	d.WriteTo(&b)
	if n := strings.Count(b.String(), "+ "); n != 5 {
		t.Errorf("%d additions, want 5:\n%s", n, b.String())
	}
	if n := strings.Count(b.String(), "- "); n != 3 {
		t.Errorf("%d deletions, want 3:\n%s", n, b.String())
	}
	have.Apply(d)
	if left := Diff(have, want); !left.Empty() {
		t.Errorf("still different: %+v", left)
	}
	if !Diff(want, want).Empty() {
		t.Error("a state differs from itself")
	}
}
