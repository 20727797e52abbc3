//go:build linux

package ofctrl

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// TestCTFlush makes connections in the tracker and flushes some, by destination and by replier.
func TestCTFlush(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	c := b.dial(Options{})
	if err := c.ProbeCTFlush(t.Context()); !b.bed.Since(3, 1) {
		if !errors.Is(err, ErrNoCTFlush) {
			t.Errorf("Open vSwitch %s: %v; want ErrNoCTFlush", b.bed.Version(), err)
		}
		return // nothing to flush with: internal/dpctl is for these
	} else if err != nil {
		t.Fatal(err)
	}
	const zone = 4711
	to := func(v6 bool, addr string) *flow.Flow {
		m := flow.Match{EthType: flow.EthIPv4, IPProto: flow.ProtoUDP, DstPort: 53}
		if v6 {
			m.EthType = flow.EthIPv6
		}
		ct := dnat(addr, 5353)
		ct.Zone = zone
		return fl(0, 5, m, ct)
	}
	send := func(frame []byte) {
		t.Helper()
		must(t, c.PacketOut(t.Context(), flow.PortLocal, frame, flow.Output{Port: portTable}))
		mustRead(t, c) // the packet has been through when this answer comes
	}
	connections := func() string {
		t.Helper()
		out, err := b.bed.Appctl("dpctl/dump-conntrack", "netdev@ovs-netdev", "zone=4711")
		must(t, err)
		return out
	}
	filter := func(dst, replier string) []flow.CTFilter {
		f := flow.CTFilter{Zone: zone, IPProto: flow.ProtoUDP, Dst: netip.MustParseAddrPort(dst)}
		if replier != "" {
			f.Replier = netip.MustParseAddrPort(replier)
		}
		return []flow.CTFilter{f}
	}
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{to(false, "10.1.0.1"), to(true, "fd00::1")}})
	send(udpFrame("10.0.0.9", "40.0.0.1", 1000, 53, "x"))
	send(udpFrame("10.0.0.9", "40.0.0.2", 1000, 53, "x"))
	mustCommit(t, c, &flow.Delta{SetFlows: []*flow.Flow{to(false, "10.1.0.2")}})
	send(udpFrame("10.0.0.9", "40.0.0.1", 1001, 53, "x"))
	send(udp6Frame("fd00::9", "fd00:40::1", 1000, 53))
	if out := connections(); strings.Count(out, "zone=4711") != 4 {
		t.Fatalf("connections:\n%s", out)
	}
	for _, step := range []struct {
		filter []flow.CTFilter
		left   int
		gone   string
	}{
		{filter("40.0.0.9:53", ""), 4, "40.0.0.9"},
		{filter("40.0.0.1:54", ""), 4, "40.0.0.9"},
		{filter("40.0.0.1:53", "10.1.0.3:5353"), 4, "10.1.0.3"},
		{filter("40.0.0.1:53", "10.1.0.1:5353"), 3, "src=10.0.0.9,dst=40.0.0.1,sport=1000"},
		{filter("[fd00:40::1]:53", ""), 2, "fd00"},
		{append(filter("40.0.0.1:53", ""), filter("40.0.0.2:0", "")...), 0, "40.0.0"},
	} {
		must(t, c.Flush(t.Context(), step.filter))
		if out := connections(); strings.Count(out, "zone=4711") != step.left || strings.Contains(out, step.gone) {
			t.Errorf("after flushing %v:\n%s", step.filter, out)
		}
	}
}

// TestNoCTFlush has a switch that does not know the message.
func TestNoCTFlush(t *testing.T) {
	t.Parallel()
	c := dialFake(t, serveFake(t, onEach(func(f *ofctrltest.Session, m frame) {
		switch m.typ() {
		case typeExperimenter:
			f.Write(message(typeError, m.xid(), 0, 1, 0, codeBadSubtype))
		case typeBarrierRequest:
			f.Write(message(typeBarrierReply, m.xid()))
		}
	})), Options{})
	fs := []flow.CTFilter{{Zone: 1, IPProto: 17, Dst: netip.MustParseAddrPort("10.0.0.1:53")}}
	if err := c.Flush(t.Context(), fs); !errors.Is(err, ErrNoCTFlush) || !strings.Contains(err.Error(), "10.0.0.1:53") {
		t.Errorf("%+v", err)
	}
	if err := c.ProbeCTFlush(t.Context()); !errors.Is(err, ErrNoCTFlush) {
		t.Errorf("probed: %v", err)
	}
}

func udp6Frame(src, dst string, sport, dport uint16) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 17, 64}
	b = append(b, netip.MustParseAddr(src).AsSlice()...)
	b = append(b, netip.MustParseAddr(dst).AsSlice()...)
	l4 := put16(put16(put16(nil, sport), dport), 12)
	l4 = append(l4, 0, 0, 1, 2, 3, 4)
	s := uint32(17 + 12)
	for _, part := range [][]byte{b[22:54], l4} {
		for i := 0; i < len(part); i += 2 {
			s += uint32(u16(part[i:]))
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	l4[6], l4[7] = byte(^s>>8), byte(^s)
	return append(b, l4...)
}
