//go:build linux

package ofctrl

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A reading in parts asks a table as often as nkp's own flows make it, up to a bound, however many flows of others there are: for each
// part Open vSwitch looks at all flows of the table.
func TestPartsOfATable(t *testing.T) {
	const own, others = 40 * partSize, 20 * partSize
	b := newBridge(t)
	c := b.dial(Options{})
	var lines []string
	for i := range others {
		lines = append(lines, fmt.Sprintf("cookie=0x77,table=50,priority=5,ip,nw_src=10.0.%d.%d,actions=drop", i>>8, i&255))
	}
	b.addFlows(lines...)
	asked := func() (parts, flows int) {
		s := &Snapshot{State: flow.NewState(), Skipped: map[uint8]int{}}
		must(t, c.ReadInParts(t.Context(), ownFilter, s, func() error { parts++; return nil }))
		return parts, len(s.State.Flows)
	}
	if parts, flows := asked(); parts > 0 || flows > 0 {
		t.Errorf("%d flows of others: %d parts, %d flows of nkp's", others, parts, flows)
	}

	d := &flow.Delta{}
	for i := range own {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		f := fl(1, 5, flow.Match{EthType: flow.EthIPv4, Dst: netip.PrefixFrom(ip, 32)})
		f.Cookie |= uint64(i)
		d.SetFlows = append(d.SetFlows, f)
	}
	_, err := c.Commit(t.Context(), d)
	must(t, err)
	if parts, flows := asked(); parts != maxParts || flows != own {
		t.Errorf("%d flows of nkp's: %d of them in %d parts, want %d", own, flows, parts, maxParts)
	}
}

// A reading takes all flows of nkp's that the switch holds, however many they are: a switch at its limit of cost can be read back, and
// after a connection is lost, too. Without pauses it takes large tables in parts, so that no answer is large.
func TestReadingOfManyFlows(t *testing.T) {
	defer func(objects, answer, size int) { maxObjects, maxAnswer, wholeSize = objects, answer, size }(maxObjects, maxAnswer, wholeSize)
	b := newBridge(t)
	c := b.dial(Options{})
	want := bigState(4 * partSize)
	_, err := c.Commit(t.Context(), flow.Diff(flow.NewState(), want))
	must(t, err)

	maxObjects, maxAnswer, wholeSize = partSize, 3*partSize*200, partSize
	for name, pause := range map[string]func() error{"at once": nil, "with pauses": func() error { return nil }} {
		s := &Snapshot{State: flow.NewState(), Skipped: map[uint8]int{}}
		if err := c.ReadInParts(t.Context(), Filter{Cookie: ownFilter.Cookie, CookieMask: ownFilter.CookieMask}, s, pause); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(s.State.Flows) != len(want.Flows) {
			t.Errorf("%s: %d flows of %d", name, len(s.State.Flows), len(want.Flows))
		}
	}
}

// Between two flows of others that are read one pause at least is taken every few thousand: a change can go ahead there. The parts follow
// from the cookies, wherever these differ; of flows with one cookie there are none.
func TestPartsOfATableOfOthers(t *testing.T) {
	const others, most = 1 << 16, 2 * (1 << 16) / maxParts
	for _, tc := range []struct {
		name   string
		cookie func(i uint64) uint64
		first  int // the most flows in a part at first, before it is known how cookies differ
		then   int // from then on
	}{
		{"by chance", func(i uint64) uint64 { return i * 0x9e3779b1 & 0xffffffff }, most, most},
		{"in high bits", func(i uint64) uint64 { return i << 40 }, others, most},
		{"nowhere", func(uint64) uint64 { return 0x77 }, others, others},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBridge(t)
			c := b.dial(Options{})
			lines := make([]string, others)
			for i := range lines {
				table := 2 + 48*(i&1) // one of nkp's, and another
				lines[i] = fmt.Sprintf("cookie=%#x,table=%d,priority=5,ip,nw_src=10.0.%d.%d,actions=drop", tc.cookie(uint64(i)), table, i>>8, i&255)
			}
			b.addFlows(lines...)

			for n, want := range []int{tc.first / 2, tc.then / 2} {
				flows, parts, since, largest := 0, 0, 0, 0
				take := func(*flow.Flow) { flows++; since++ }
				pause := func() error { parts++; largest = max(largest, since); since = 0; return nil }
				must(t, c.EachForeign(t.Context(), ownFilter, 50, others/2, take, pause))
				if flows != others/2 || largest > want || parts > maxParts {
					t.Errorf("reading %d: %d flows in %d parts, the largest has %d, want %d at most", n, flows, parts, largest, want)
				}

				s := &visitor{Snapshot: Snapshot{State: flow.NewState(), Skipped: map[uint8]int{}}, take: take}
				flows, parts, since, largest = 0, 0, 0, 0
				must(t, c.ReadInParts(t.Context(), ownFilter, s, pause))
				if flows != others/2 || largest > want || parts > maxParts+1 {
					t.Errorf("reading %d of nkp's tables: %d flows in %d parts, the largest has %d, want %d at most", n, flows, parts, largest, want)
				}
			}
		})
	}
}

// visitor calls take for each foreign flow.
type visitor struct {
	Snapshot
	take func(*flow.Flow)
}

func (v *visitor) ForeignFlow(f *flow.Flow) { v.take(f) }

// The flows and the counts of a Service port, whose cookies differ in one bit, are asked for by whole cookies, which Open vSwitch has
// an index of: what else it holds costs it nothing.
func TestReadingByIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bit = uint64(1) << 31
		var cookies, masks []uint64
		c := mustPipe(t, serveUntil(func(m frame) bool {
			if b := m.body(); m.typ() == typeMultipartRequest && (u16(b) == mpFlowDesc || u16(b) == mpAggregate) {
				const at = 8 + 16 // the header of a multipart request, and what precedes the cookie (OpenFlow 1.5.1 §7.3.5.2)
				cookies, masks = append(cookies, u64(b[at:])), append(masks, u64(b[at+8:]))
			}
			return false
		}), Options{})
		s := &Snapshot{State: flow.NewState(), Skipped: map[uint8]int{}}
		f := Filter{Cookie: ownCookie | 7, CookieMask: ^bit}
		must(t, c.ReadInParts(t.Context(), f, s, func() error { return nil }))
		want := []uint64{f.Cookie, f.Cookie | bit, f.Cookie, f.Cookie | bit} // counted, and read
		if !slices.Equal(cookies, want) || slices.ContainsFunc(masks, func(m uint64) bool { return m != ^uint64(0) }) {
			t.Errorf("asked for cookies %#x with masks %#x, want %#x", cookies, masks, want)
		}
	})
}
