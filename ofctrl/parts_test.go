//go:build linux

package ofctrl

import (
	"fmt"
	"net/netip"
	"testing"

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
