//go:build linux

package ofctrl

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/wait"
)

// portTable is OFPP_TABLE: a packet-out goes through the flow tables (OpenFlow 1.5.1 §7.2.1).
const portTable = 0xfffffff9

// udpFrame is an Ethernet frame with an IPv4 UDP datagram, without checksums.
func udpFrame(src, dst string, sport, dport uint16, payload string) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0}
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(28+len(payload)))
	b = append(b, 0, 0, 0, 0, 64, 17, 0, 0)
	b = append(b, netip.MustParseAddr(src).AsSlice()...)
	b = append(b, netip.MustParseAddr(dst).AsSlice()...)
	var s uint32
	for i := 14; i < 34; i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	binary.BigEndian.PutUint16(b[24:], ^uint16(s))
	b = binary.BigEndian.AppendUint16(b, sport)
	b = binary.BigEndian.AppendUint16(b, dport)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(b, 0, 0)
	return append(b, payload...)
}

// TestPacketIn sends packets through a table to the controller, from small ones to the largest.
func TestPacketIn(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	got := make(chan *PacketIn, 16)
	c := b.dial(Options{OnPacketIn: func(p *PacketIn) { got <- p }})
	want := state(t, flow.Meter{ID: 1, Rate: 100000, Burst: 1000},
		fl(0, 1, flow.Match{}, flow.SetField{Field: flow.Reg0, Value: 5, Mask: 0xffffffff}, flow.SetField{Field: flow.Reg3, Value: 9, Mask: 0xffffffff}, flow.Resubmit{Table: 13}),
		&flow.Flow{Key: key(13, 1, flow.Match{}), Cookie: ownCookie | 0x77, Actions: []flow.Action{flow.ToMeter{ID: 1}, flow.ToController{MaxLen: 0xffff}}})
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	for _, size := range []int{1, 100, 1400, 9000, 65400 - 42} {
		frame := udpFrame("10.0.0.9", "10.0.0.1", 5, 6, string(bytes.Repeat([]byte("x"), size)))
		must(t, c.PacketOut(t.Context(), flow.PortLocal, frame, flow.Output{Port: portTable}))
		p := wait.Receive(t, fmt.Sprintf("the packet-in of size %d", size), got)
		if !bytes.Equal(p.Data, frame) || p.InPort != flow.PortLocal || p.Table != 13 || p.Cookie != ownCookie|0x77 {
			t.Errorf("size %d: %d bytes, port %#x, table %d, cookie %#x", size, len(p.Data), p.InPort, p.Table, p.Cookie)
		}
	}
	if err := c.PacketOut(t.Context(), 1, make([]byte, 65500), flow.Output{Port: 1}); err == nil {
		t.Error("a packet-out that is too long was taken")
	}
}

// TestForward has somebody else change groups and meters, and a bundle.
func TestForward(t *testing.T) {
	t.Parallel()
	b := newBridge(t)
	got := make(chan struct{}, 100)
	c := b.dial(Options{OnForward: func() { got <- struct{}{} }})
	mustCommit(t, c, flow.Diff(flow.NewState(), bigState(5))) // our own changes are not reported
	if len(got) > 0 {
		t.Error("the switch has reported a change of our own")
	}
	for _, change := range [][]string{
		{"add-meter", "meter=9,pktps,band=type=drop,rate=7"}, {"add-group", "group_id=7,type=all,bucket=output:1"},
		{"del-groups", "group_id=7"}, {"del-groups"},
	} {
		b.ofctl(change[0], change[1:]...)
		wait.Receive(t, fmt.Sprint(change), got)
	}
}
