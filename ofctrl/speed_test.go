//go:build linux

package ofctrl

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/pipeline/flow"
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

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}

// TestSpeed programs 10,000 groups of ten buckets and 20,000 flows, side by side with ovs-ofctl --bundle, three
// times, and reads them back.
func TestSpeed(t *testing.T) {
	const services = 10000
	want := bigState(services)
	delta := flow.Diff(flow.NewState(), want)
	file := filepath.Join(t.TempDir(), "bundle")
	var text strings.Builder
	for _, g := range delta.SetGroups {
		fmt.Fprintln(&text, "group add", g)
	}
	for _, f := range delta.SetFlows {
		fmt.Fprintln(&text, "flow add", f)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var ours, theirs, reads []time.Duration
	for round := range 3 {
		b := newBridge(t)
		c := b.dial(Options{})
		res := mustCommit(t, c, delta)
		ours = append(ours, res.Duration)
		start := time.Now()
		snap := mustRead(t, c)
		reads = append(reads, time.Since(start))
		wantSame(t, snap.State, want)
		if round == 0 {
			t.Logf("%d messages, %d bytes", res.Messages, res.Bytes)
			oneChange(t, c, want)
		}
		c.Close()
		b.bed.Vsctl("del-br", b.name)

		b = newBridge(t)
		b.dial(Options{}).Close()
		start = time.Now()
		b.ofctl("bundle", file)
		theirs = append(theirs, time.Since(start))
		b.bed.Vsctl("del-br", b.name)
	}
	ratio := float64(median(ours)) / float64(median(theirs))
	t.Logf("programming: nkp %v, ovs-ofctl --bundle %v, ratio %.2f", ours, theirs, ratio)
	reading := float64(median(reads)) / float64(median(theirs))
	t.Logf("reading back: %v, %.2f of what ovs-ofctl takes to program", reads, reading)
	if ratio > 1 {
		t.Errorf("programming takes %.2f times as long as ovs-ofctl --bundle", ratio)
	}
	if reading > 0.5 {
		t.Errorf("reading back takes %.2f times as long as ovs-ofctl --bundle", reading)
	}
}

// oneChange replaces one group many times among all the others and logs how long it takes.
func oneChange(t *testing.T, c *Conn, s *flow.State) {
	t.Helper()
	g := s.Groups[groupLo+5000]
	other := &flow.Group{ID: g.ID, Buckets: g.Buckets[1:]}
	var took []time.Duration
	for i := range 1000 {
		d := &flow.Delta{SetGroups: []*flow.Group{g}}
		if i%2 == 0 {
			d.SetGroups[0] = other
		}
		start := time.Now()
		mustCommit(t, c, d)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("one group changed: p50 %v, p99 %v", p50, p99)
	if p50 > 5*time.Millisecond {
		t.Errorf("changing one group takes %v", p50)
	}
}

func BenchmarkEncode(b *testing.B) {
	delta := flow.Diff(flow.NewState(), bigState(10000))
	e := newEncoder()
	buf := make([]byte, 0, 16<<20)
	b.ReportAllocs()
	for b.Loop() {
		buf = buf[:0]
		var err error
		for _, g := range delta.SetGroups {
			if g.TooWide() {
				b.Fatal("too wide")
			}
			if buf, err = e.groupPart(buf, 1, g, g.Buckets, 0); err != nil {
				b.Fatal(err)
			}
		}
		for _, f := range delta.SetFlows {
			if buf, err = e.flowAdd(buf, 1, f); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.SetBytes(int64(len(buf)))
}
