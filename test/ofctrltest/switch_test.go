package ofctrltest

import (
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

const (
	cookie = uint64(0x6e6b70) << 40
	mask   = uint64(0xffffff) << 40
	groups = uint32(0x6000_0000)
)

// state is what n Services look like.
func state(n int) *flow.State {
	s := flow.NewState()
	for i := range n {
		g := &flow.Group{ID: groups + uint32(i)}
		for k := range 10 {
			to := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(k)})
			g.Buckets = append(g.Buckets, flow.Bucket{ID: uint32(k), Weight: 25, Actions: []flow.Action{
				flow.CT{Commit: true, Zone: 1001, Table: 2, MarkFromReg1: true, NAT: flow.NAT{Kind: flow.NATDst, Addr: to, PortMin: 8080}},
			}})
		}
		s.Groups[g.ID] = g
		vip := netip.PrefixFrom(netip.AddrFrom4([4]byte{40, 0, byte(i >> 8), byte(i)}), 32)
		f := &flow.Flow{Cookie: cookie | uint64(i), Actions: []flow.Action{flow.ToGroup{ID: g.ID}}}
		f.Table, f.Priority, f.Match = 1, 300, flow.Match{EthType: flow.EthIPv4, IPProto: flow.ProtoTCP, Dst: vip, DstPort: 80}
		s.Flows[f.Key] = f
	}
	return s
}

// What nkp's channel writes is what it reads back, also after a change, in one message or in many.
func TestReadsBackWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s, err := Listen(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := ofctrl.Dial(t.Context(), ofctrl.Target{Network: "unix", Address: path}, ofctrl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	installed := flow.NewState()
	for i, n := range []int{3, 2000, 1} { // Services
		want := state(n)
		changed := s.Changed()
		if _, err := c.Commit(t.Context(), flow.Diff(installed, want)); err != nil {
			t.Fatal(err)
		}
		<-changed
		if flows, groups := s.Held(); flows != n || groups != n {
			t.Errorf("%d flows and %d groups; want %d of each", flows, groups, n)
		}
		if commits, _ := s.Commits(); commits != i+1 {
			t.Errorf("%d commits; want %d", commits, i+1)
		}
		got, err := c.ReadBack(t.Context(), ofctrl.Filter{Cookie: cookie, CookieMask: mask, Tables: []uint8{0, 1}, GroupLo: groups, GroupHi: groups + 1<<28 - 1})
		if err != nil {
			t.Fatal(err)
		}
		if d := flow.Diff(got.State, want); !d.Empty() {
			t.Errorf("%d Services: read back with differences: %d flows, %d groups to set", n, len(d.SetFlows), len(d.SetGroups))
		}
		count, err := c.FlowCount(t.Context(), cookie, mask)
		if err != nil || count.Flows != uint64(n) {
			t.Errorf("%d flows counted, %v; want %d", count.Flows, err, n)
		}
		installed = want
	}

	// The dump of a switch makes another that is the same.
	dump := s.Dump()
	other, err := Listen(filepath.Join(t.TempDir(), "other"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Load(dump); err != nil {
		t.Fatal(err)
	}
	if again := other.Dump(); len(dump) != 2 || !reflect.DeepEqual(again, dump) {
		t.Errorf("%d messages make a switch of %d:\n%x\n%x", len(dump), len(again), dump, again)
	}
}

// A message that is cut off is refused.
func TestCutOff(t *testing.T) {
	s := &Switch{flows: map[string]Message{}, groups: map[uint32]Message{}, meters: map[uint32]Message{}}
	for typ, least := range map[byte]int{FlowMod: 44, GroupMod: 16, MeterMod: 8} {
		for n := range least {
			if s.apply(NewMessage(typ, 0, make([]byte, n)...)) == nil {
				t.Errorf("message of type %d with %d bytes is taken", typ, n)
			}
		}
	}
	beyond := make([]byte, 44) // a match, or buckets, of 200 bytes
	beyond[43], beyond[9] = 200, 200
	for _, typ := range []byte{FlowMod, GroupMod} {
		if s.apply(NewMessage(typ, 0, beyond...)) == nil {
			t.Errorf("message of type %d with a length beyond its end is taken", typ)
		}
	}
}
