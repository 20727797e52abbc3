//go:build linux

package ofctrl

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/ofctrltest"
)

// bigState has n Services: a group of ten endpoints and two flows each.
func bigState(n int) *flow.State {
	s := flow.NewState()
	for i := range n {
		g := &flow.Group{ID: groupLo + uint32(i)}
		for k := range 10 {
			ip := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(k)})
			ct := flow.CT{Commit: true, Zone: 1001, Table: 2, MarkFromReg1: true, NAT: flow.NAT{Kind: flow.NATDst, Addr: ip, PortMin: 8080}}
			g.Buckets = append(g.Buckets, flow.Bucket{ID: uint32(k), Weight: 25, Actions: []flow.Action{ct}})
		}
		s.Groups[g.ID] = g
		vip := netip.AddrFrom4([4]byte{40, 0, byte(i >> 8), byte(i)})
		m := flow.Match{
			EthType: flow.EthIPv4, IPProto: flow.ProtoTCP, Dst: netip.PrefixFrom(vip, 32), DstPort: 80,
			CTState: flow.Bits{Value: flow.CTNew | flow.CTTracked, Mask: flow.CTNew | flow.CTTracked},
		}
		for k, port := range []uint32{0, 1} {
			m.InPort = port
			f := &flow.Flow{Key: key(1, uint16(300+10*k), m), Cookie: ownCookie | uint64(i), Actions: []flow.Action{
				flow.SetField{Field: flow.Reg1, Value: uint64(i)<<8 | 1, Mask: 0xffffffff},
				flow.ToGroup{ID: g.ID},
			}}
			s.Flows[f.Key] = f
		}
	}
	return s
}

// What transactions and read-backs cost, in messages and bytes: one message for each object and three for the
// bundle, whatever else the switch holds; of a read-back one request for each group, and four.
func TestCost(t *testing.T) {
	t.Parallel()
	const services, perService, perGroup = 1000, 1256, 872 // bytes in a bundle
	var asked [256]atomic.Int64                            // by type of message
	c := mustPipe(t, func(f *ofctrltest.Session) {
		for m, err := f.Read(); err == nil; m, err = f.Read() {
			asked[m.Type()].Add(1)
			f.Answer(m)
		}
	}, patient(Options{EchoInterval: time.Hour}))
	writes := &c.nc.(*counted).writes
	costs := func(what string, want map[msgType]int64) {
		t.Helper()
		for typ := range asked {
			if n := asked[typ].Swap(0); n != want[msgType(typ)] {
				t.Errorf("%s: %d messages of type %v, want %d", what, n, msgType(typ), want[msgType(typ)])
			}
		}
	}
	want := bigState(services)
	writes.Store(0)
	res := mustCommit(t, c, flow.Diff(flow.NewState(), want))
	if res.Messages != 3*services || res.Bytes != services*perService {
		t.Errorf("%d messages with %d bytes for %d Services", res.Messages, res.Bytes, services)
	}
	if n := int(writes.Load()); n > res.Bytes/chunk+2 { // the rest of the messages, and the commit
		t.Errorf("%d writes of %d bytes", n, res.Bytes)
	}
	costs("everything", map[msgType]int64{typeBundleControl: 3, typeBundleAdd: 3 * services})
	wantSame(t, mustRead(t, c).State, want)
	costs("a read-back", map[msgType]int64{typeMultipartRequest: services + 5})

	g := want.Groups[groupLo+services/2]
	res = mustCommit(t, c, &flow.Delta{SetGroups: []*flow.Group{{ID: g.ID, Buckets: g.Buckets[1:]}}})
	if res.Messages != 1 || res.Bytes != perGroup {
		t.Errorf("%d messages with %d bytes for one group", res.Messages, res.Bytes)
	}
	costs("one group", map[msgType]int64{typeBundleControl: 3, typeBundleAdd: 1})
}

// TestEncodeAllocates counts allocations: encoding into a buffer with room makes none.
func TestEncodeAllocates(t *testing.T) {
	delta := flow.Diff(flow.NewState(), bigState(10))
	e := newEncoder()
	buf := make([]byte, 0, 1<<20)
	if n := testing.AllocsPerRun(10, func() { encodeAll(t, e, buf, delta) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestLargeState programs 10,000 groups of ten buckets and 20,000 flows, and reads them back.
func TestLargeState(t *testing.T) {
	nightly.Only(t, "the gate has TestCost, and TestRefusedAmongThousands with 6,000 objects on a real switch")
	t.Parallel()
	c := newBridge(t).dial(Options{})
	want := bigState(10000)
	mustCommit(t, c, flow.Diff(flow.NewState(), want))
	wantSame(t, mustRead(t, c).State, want)
}

func encodeAll(t testing.TB, e *encoder, buf []byte, d *flow.Delta) []byte {
	var err error
	for _, g := range d.SetGroups {
		if g.TooWide() {
			t.Fatal("too wide")
		}
		if buf, err = e.groupPart(buf, 1, g, g.Buckets, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range d.SetFlows {
		if buf, err = e.flowAdd(buf, 1, f); err != nil {
			t.Fatal(err)
		}
	}
	return buf
}

func BenchmarkEncode(b *testing.B) {
	delta := flow.Diff(flow.NewState(), bigState(10000))
	e := newEncoder()
	buf := make([]byte, 0, 16<<20)
	b.ReportAllocs()
	for b.Loop() {
		buf = encodeAll(b, e, buf[:0], delta)
	}
	b.SetBytes(int64(len(buf)))
}
