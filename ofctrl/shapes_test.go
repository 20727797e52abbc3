//go:build linux

package ofctrl

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

func bit(v, m uint32) flow.Bits { return flow.Bits{Value: v, Mask: m} }

// udpPart matches packets of new connections to an address and port by what the tracker knows of them.
func udpPart(to string) flow.Match {
	m := tcpTo(to, 80)
	m.IPProto, m.DstPort, m.CTProto, m.CTDstPort = flow.ProtoUDP, 0, flow.ProtoUDP, 80
	m.CTState = bit(flow.CTNew|flow.CTTracked, flow.CTNew|flow.CTTracked)
	return m
}

// matchShapes are matches with every field, in every form that package flow has.
func matchShapes() []flow.Match {
	ip, ip6 := flow.Match{EthType: flow.EthIPv4}, flow.Match{EthType: flow.EthIPv6}
	with := func(m flow.Match, change func(*flow.Match)) flow.Match {
		change(&m)
		return m
	}
	prefix := netip.MustParsePrefix
	out := []flow.Match{
		{},
		ip, ip6,
		{EthType: 0x0806},
		{InPort: 1}, {InPort: flow.PortLocal},
		{EthDst: flow.MAC{2, 0, 0, 0, 0, 2}},
		{Tagged: true},
		{Tagged: true, EthType: flow.EthIPv6, Dst: prefix("fd00:40::122/128")},
		tcpTo("40.0.0.122", 80), tcpTo("fd00:40::122", 65535),
		with(tcpTo("40.0.0.122", 80), func(m *flow.Match) { m.IPProto = flow.ProtoUDP }),
		with(tcpTo("40.0.0.122", 80), func(m *flow.Match) { m.IPProto = flow.ProtoSCTP }),
		with(tcpTo("fd00:40::122", 80), func(m *flow.Match) { m.IPProto = flow.ProtoUDP }),
		with(tcpTo("fd00:40::122", 80), func(m *flow.Match) { m.IPProto = flow.ProtoSCTP }),
		with(ip6, func(m *flow.Match) { m.IPProto, m.ICMPType = flow.ProtoICMPv6, 135 }),
		with(ip, func(m *flow.Match) { m.IPProto, m.ICMPType, m.Frag = flow.ProtoICMP, 8, bit(0, 3) }),
		with(ip6, func(m *flow.Match) { m.IPProto, m.ICMPType, m.Frag = flow.ProtoICMPv6, 128, bit(0, 3) }),
		with(ip, func(m *flow.Match) { m.IPProto = 47 }),
		with(tcpTo("40.0.0.122", 80), func(m *flow.Match) { m.TCPFlags = bit(flow.TCPSyn, flow.TCPSyn|flow.TCPAck) }),
		with(tcpTo("fd00:40::122", 80), func(m *flow.Match) { m.TCPFlags = bit(flow.TCPSyn, 0x1ff) }),
		with(tcpTo("40.0.0.122", 80), func(m *flow.Match) { m.SrcPort = bit(6, 0x7fe) }),
		with(tcpTo("fd00:40::122", 80), func(m *flow.Match) { m.IPProto, m.SrcPort = flow.ProtoUDP, bit(0, 0x7fe) }),
		with(tcpTo("40.0.0.122", 80), func(m *flow.Match) { m.SrcPort = bit(61000, 0xffff) }),
		with(tcpTo("fd00:40::122", 80), func(m *flow.Match) { m.IPProto, m.SrcPort = flow.ProtoUDP, bit(61000, 0xffff) }),
		with(udpPart("40.0.0.122"), func(m *flow.Match) { m.CTSrcPort = 61000 }),
		{CTState: bit(flow.CTNew|flow.CTTracked, flow.CTNew|flow.CTTracked)},
		{CTState: bit(flow.CTTracked, flow.CTReply|flow.CTTracked), CTMark: bit(1, 1)},
		{CTMark: flow.Exactly(0x101)},
		with(udpPart("40.0.0.122"), func(m *flow.Match) { m.Frag = bit(flow.FragAny, flow.FragAny) }),
		with(udpPart("fd00:40::122"), func(m *flow.Match) { m.Frag = bit(flow.FragAny|flow.FragLater, flow.FragAny|flow.FragLater) }),
		with(ip, func(m *flow.Match) { m.Frag = bit(0, flow.FragLater) }),
		with(ip, func(m *flow.Match) { m.Frag, m.CTZone = bit(flow.FragAny, flow.FragAny|flow.FragLater), 65535 }),
		{Reg: [4]flow.Bits{bit(0x100, 0xffffff00), bit(0, 0xff), flow.Exactly(7), flow.Exactly(0)}},
		{Reg: [4]flow.Bits{{}, flow.Exactly(0xfffffffe), {}, bit(0x80000000, 0x80000000)}},
		{Clear31: 4}, {Clear31: 10}, {Clear31: 15}, {InPort: 2, Clear31: 11, Reg: [4]flow.Bits{2: flow.Exactly(1)}},
		{Reg: [4]flow.Bits{flow.Exactly(1)}}, {Reg: [4]flow.Bits{1: flow.Exactly(1)}},
		{Reg: [4]flow.Bits{2: flow.Exactly(1)}}, {Reg: [4]flow.Bits{3: flow.Exactly(1)}},
		{
			InPort: 3, EthDst: flow.MAC{2, 0, 0, 0, 0, 2}, EthType: flow.EthIPv4, Src: prefix("10.0.0.11/32"),
			Dst: prefix("10.0.0.0/9"), IPProto: 6, DstPort: 1, CTState: bit(0x21, 0x29), CTMark: bit(3, 3),
			Reg: [4]flow.Bits{{}, bit(0x100, 0xffffff00)},
		},
	}
	for _, bits := range []int{1, 7, 8, 9, 23, 24, 31, 32} {
		out = append(out, with(ip, func(m *flow.Match) { m.Src = netip.PrefixFrom(netip.MustParseAddr("203.255.7.9"), bits).Masked() }))
		out = append(out, with(ip, func(m *flow.Match) { m.Dst = netip.PrefixFrom(netip.MustParseAddr("203.255.7.9"), bits).Masked() }))
	}
	for _, bits := range []int{1, 8, 63, 64, 65, 112, 127, 128} {
		a := netip.MustParseAddr("fdff:1:2:3:4:5:6:7")
		out = append(out, with(ip6, func(m *flow.Match) { m.Src = netip.PrefixFrom(a, bits).Masked() }))
		out = append(out, with(ip6, func(m *flow.Match) { m.Dst = netip.PrefixFrom(a, bits).Masked() }))
	}
	return out
}

// actionShapes are lists of actions for flows that match IPv4 or IPv6.
func actionShapes(v6 bool) [][]flow.Action {
	addr, zero := netip.MustParseAddr("10.0.0.11"), netip.IPv4Unspecified()
	ethType, src := flow.EthIPv4, flow.IPSrc
	if v6 {
		addr, zero = netip.MustParseAddr("fd00:a::11"), netip.IPv6Unspecified()
		ethType, src = flow.EthIPv6, flow.IPv6Src
	}
	ct := func(c flow.CT) []flow.Action { return []flow.Action{c} }
	nat := func(k flow.NATKind, a netip.Addr, lo, hi uint16) flow.CT {
		return flow.CT{Commit: true, Zone: 1001, Table: 2, NAT: flow.NAT{Kind: k, Addr: a, PortMin: lo, PortMax: hi}}
	}
	mark := nat(flow.NATDst, addr, 80, 0)
	mark.MarkFromReg1 = true
	sub := func(f flow.Field, ofs, n uint8) flow.Subfield { return flow.Subfield{Field: f, Ofs: ofs, N: n} }
	var own [][]flow.Action // of the family
	if v6 {
		own = [][]flow.Action{
			{flow.SetAddr{Field: flow.IPv6Src, Addr: addr}, flow.Output{Port: 1}},
			{flow.SetAddr{Field: flow.IPv6Dst, Addr: addr}, flow.Output{Port: 1}},
		}
	} else {
		own = [][]flow.Action{{flow.SetAddr{Field: flow.IPDst, Addr: addr}, flow.Resubmit{Table: 30}}}
	}
	dst := src + 1
	own = append(own, []flow.Action{
		flow.Copy{Src: flow.Whole(flow.EthSrc), Dst: sub(flow.XXReg0, 0, 48)},
		flow.Copy{Src: flow.Whole(dst), Dst: flow.Whole(src)},
		flow.Copy{Src: sub(flow.XXReg0, 0, uint8(dst.Bits())), Dst: flow.Whole(dst)},
		flow.SetField{Field: flow.TTL, Value: 64, Mask: 0xff},
	})
	return append(own, [][]flow.Action{
		nil,
		{flow.Output{Port: flow.PortNormal}},
		{flow.Output{Port: flow.PortInPort}},
		{flow.Output{Port: flow.PortLocal}},
		{flow.Output{Port: 11}},
		{flow.ToController{MaxLen: 128}},
		{flow.ToController{MaxLen: 0xffff}},
		{flow.ToMeter{ID: 1}, flow.ToController{MaxLen: 0xffff}},
		{flow.ToGroup{ID: groupLo}},
		{flow.Resubmit{Table: 30}, flow.Resubmit{Table: 0}},
		{flow.SetField{Field: flow.Reg0, Value: 0, Mask: 0xffffffff}, flow.SetField{Field: flow.Reg1, Value: 0x101, Mask: 0xffffffff}},
		{flow.SetField{Field: flow.Reg2, Value: 0x80000000, Mask: 0xffffffff}, flow.SetField{Field: flow.Reg3, Value: 0x100, Mask: 0x1ff00}},
		{flow.SetField{Field: flow.EthSrc, Value: 0x020000000001, Mask: 1<<48 - 1}, flow.SetField{Field: flow.EthDst, Value: 0x02f0000000ff, Mask: 1<<48 - 1}},
		{flow.SetField{Field: flow.EthDst, Value: 0x020000000000, Mask: 0xff0000000000}},
		{flow.SetField{Field: flow.TCPDst, Value: 30080, Mask: 0xffff}, flow.Resubmit{Table: 30}},
		{flow.SetField{Field: flow.RegField(10), Value: 1 << 31, Mask: 1 << 31}, flow.ClearCT{}, flow.Resubmit{Table: 7}},
		{flow.SetField{Field: flow.RegField(15), Value: 7, Mask: 0xffffffff}, flow.SetField{Field: flow.RegField(4), Value: 0, Mask: 0xff}},
		{flow.DecTTL{}, flow.ClearInPort{}, flow.Output{Port: 1}},
		{flow.DecTTL{}, flow.FromLocal{}, flow.Output{Port: flow.PortNormal}},
		{flow.Copy{Src: sub(flow.DPHashValue, 0, 9), Dst: sub(flow.Reg3, 0, 9)}, flow.Resubmit{Table: 2}},
		{flow.Copy{Src: sub(flow.Reg1, 8, 24), Dst: sub(flow.Reg2, 4, 24)}},
		ct(flow.CT{Zone: 1001, Table: 1, NAT: flow.NAT{Kind: flow.NATExisting}}),
		ct(flow.CT{Zone: 0, Table: flow.NoTable}),
		ct(flow.CT{Zone: 65535, Table: 2, Commit: true}),
		ct(flow.CT{Zone: 5, Table: flow.NoTable, Commit: true, MarkFromReg1: true}),
		ct(flow.CT{Zone: 5, Table: 2, Commit: true, NAT: flow.NAT{Kind: flow.NATExisting}, MarkFromReg1: true}),
		ct(mark),
		{flow.CT{Zone: 5, Table: 2, Aside: true}, flow.CT{Zone: 6, Table: 1}},
		ct(nat(flow.NATDst, addr, 0, 0)),
		ct(nat(flow.NATSrc, addr, 61440, 65535)),
		ct(nat(flow.NATSrc, addr, 80, 81)),
		ct(nat(flow.NATSrc, zero, 0, 0)),
		{flow.Learn{
			Table: 10, IdleTimeout: 65535, Priority: 100, Cookie: learnCookie | 4, EthType: ethType,
			Match: [2]flow.Subfield{flow.Whole(src), sub(flow.Reg1, 8, 24)}, Load: flow.Whole(flow.Reg2),
		}, flow.Resubmit{Table: 11}},
		{flow.Learn{
			Table: 10, Priority: 1, Cookie: learnCookie,
			Match: [2]flow.Subfield{sub(flow.Reg0, 31, 1)}, Load: sub(flow.Reg2, 3, 5),
		}},
		{flow.Learn{
			Table: 10, IdleTimeout: 10800, Priority: 100, Cookie: learnCookie | 5, EthType: ethType,
			Match: [2]flow.Subfield{flow.Whole(src), sub(flow.Reg1, 8, 24)}, Load: flow.Whole(flow.Reg2), Limit: 10000,
		}, flow.Resubmit{Table: 11}},
		{flow.Learn{Table: 10, Cookie: learnCookie, Load: sub(flow.Reg2, 0, 32), Limit: 0xffffffff}},
		{flow.Learn{
			Table: 10, IdleTimeout: 10800, Priority: 100, Cookie: learnCookie | 6, EthType: ethType,
			Match: [2]flow.Subfield{flow.Whole(src), sub(flow.Reg1, 8, 24)}, Load: flow.Whole(flow.Reg2), Limit: 10000, Result: sub(flow.Reg3, 29, 1),
		}, flow.Resubmit{Table: 11}},
	}...)
}

// groupShapes are groups with every selection method and kind of bucket.
func groupShapes() []*flow.Group {
	wide := &flow.Group{ID: groupLo + 10}
	for i := range 2000 {
		wide.Buckets = append(wide.Buckets, flow.Bucket{ID: uint32(i), Weight: uint16(i), Actions: []flow.Action{flow.Resubmit{Table: uint8(i % 255)}}})
	}
	full := &flow.Group{ID: groupLo + 11, Method: flow.HashSrc6}
	for i := range 743 {
		full.Buckets = append(full.Buckets, flow.Bucket{ID: uint32(i), Weight: 1, Actions: []flow.Action{dnat("10.0.0.11", uint16(i+1))}})
	}
	mixed := &flow.Group{ID: groupHi, Buckets: []flow.Bucket{
		{ID: 0xffffff00, Weight: 65535, Actions: []flow.Action{dnat("fd00:a::11", 80)}},
		{ID: 7, Weight: 1, Actions: []flow.Action{dnat("10.0.0.12", 0)}},
		{ID: 8, Weight: 1, Actions: []flow.Action{flow.SetField{Field: flow.Reg2, Value: 3, Mask: 0xffffffff}, flow.Resubmit{Table: 14}}},
		{ID: 9, Weight: 0, Actions: []flow.Action{flow.Output{Port: flow.PortLocal}}},
		{ID: 1, Weight: 1},
	}}
	return []*flow.Group{
		{ID: groupLo, Buckets: []flow.Bucket{{ID: 0, Weight: 1, Actions: []flow.Action{dnat("10.0.0.11", 80)}}}},
		{ID: groupLo + 1, Method: flow.HashSrc, Buckets: []flow.Bucket{{ID: 1, Weight: 100, Actions: []flow.Action{flow.Resubmit{Table: 14}}}}},
		{ID: groupLo + 2, Method: flow.HashSrc6, Buckets: []flow.Bucket{{ID: 1, Weight: 1, Actions: []flow.Action{flow.ToGroup{ID: groupLo}}}}},
		{ID: groupLo + 3},
		{ID: groupLo + 4, Buckets: []flow.Bucket{{ID: 0, Weight: 1, Actions: []flow.Action{
			flow.Copy{Src: flow.Subfield{Field: flow.DPHashValue, N: 12}, Dst: flow.Subfield{Field: flow.Reg3, N: 12}},
			flow.Resubmit{Table: 1},
		}}}},
		wide, full, mixed,
	}
}

// allShapes is a state with everything that package flow can express and a switch accepts.
func allShapes(t testing.TB) *flow.State {
	s := state(t, flow.Meter{ID: 1, Rate: 100, Burst: 200}, flow.Meter{ID: 2, Rate: 1, Burst: 1})
	add := func(f *flow.Flow) { s.Flows[f.Key] = f }
	for i, m := range matchShapes() {
		add(fl(0, uint16(1000+i), m, flow.Output{Port: flow.PortNormal}))
	}
	for i, as := range actionShapes(false) {
		add(fl(1, uint16(1000+i), tcpTo("40.0.0.1", 80), as...))
	}
	for i, as := range actionShapes(true) {
		add(fl(2, uint16(i), tcpTo("fd00::1", 80), as...))
	}
	original := tcpTo("fd00::1", 80) // only a tracked packet has an original destination
	original.CTState = bit(flow.CTRel, flow.CTRel)
	add(fl(3, 1000, original, flow.Copy{Src: flow.Whole(flow.CTIPv6Dst), Dst: flow.Whole(flow.IPv6Src)}))
	add(fl(30, 65535, flow.Match{}))
	add(fl(30, 0, flow.Match{}))
	add(&flow.Flow{Key: key(77, 5, flow.Match{}), Cookie: ownCookie | 0xffff_ffff_ffff}) // in none of the filter's tables
	for _, g := range groupShapes() {
		s.Groups[g.ID] = g
	}
	return s
}

// TestShapes installs every shape of value and reads it back as equal. Over the wire on one bridge, and as text with ovs-ofctl on
// another, the bridges then hold the same, for ovs-ofctl and for ReadBack.
func TestShapes(t *testing.T) {
	t.Parallel()
	wire, text := newBridge(t), newBridge(t)
	c, want := wire.dial(Options{}), allShapes(t)
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	snap := mustRead(t, c)
	wantSame(t, snap.State, want)
	if len(snap.Foreign) != 0 {
		t.Errorf("foreign %v on a bridge of our own", snap.Foreign)
	}

	for _, m := range want.SortedMeters() {
		text.ofctl("add-meter", m.String())
	}
	var lines strings.Builder
	for _, g := range want.SortedGroups() {
		fmt.Fprintln(&lines, "group add", g)
	}
	for _, f := range want.SortedFlows() {
		fmt.Fprintln(&lines, "flow add", f)
	}
	file := filepath.Join(t.TempDir(), "bundle")
	must(t, os.WriteFile(file, []byte(lines.String()), 0o600))
	text.ofctl("bundle", file)
	wantSame(t, mustRead(t, text.dial(Options{})).State, want)
	out, err := wire.bed.Ofctl("-O", "OpenFlow15", "diff-flows", wire.target().String(), text.target().String())
	if err != nil || out != "" {
		t.Errorf("diff-flows: %v\n%s", err, clip(out))
	}
	for id := range want.Groups {
		if a, b := wire.ofctl("dump-groups", fmt.Sprint(id)), text.ofctl("dump-groups", fmt.Sprint(id)); a != b {
			t.Errorf("dump-groups %d:\n%s\n%s", id, clip(a), clip(b))
		}
	}

	// the same again changes nothing but a meter that is another, and everything can be deleted
	want.Meters[1] = flow.Meter{ID: 1, Rate: 30, Burst: 5}
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	wantSame(t, mustRead(t, c).State, want)
	mustCommit(t, c, flow.Diff(want, flow.NewState()))
	wantSame(t, mustRead(t, c).State, flow.NewState())
}

// TestShapesInParts sends groups in parts by lowering the length at which that is done.
func TestShapesInParts(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{maxMessage: 1000})
	want := flow.NewState()
	for _, g := range groupShapes() {
		if g.ID != groupLo+11 {
			want.Groups[g.ID] = g
		}
	}
	for range 2 { // the second time over the groups of the first
		mustCommit(t, c, flow.Diff(flow.NewState(), want))
		wantSame(t, mustRead(t, c).State, want)
	}
}
