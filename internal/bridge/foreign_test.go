package bridge

import (
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/bound"
)

// Of flows of others, nkp diff shows 5 of each kind, and counts the others, also those that were only counted.
func TestForeignFlowsAreBounded(t *testing.T) {
	bound.Check(t, "flows", 5, func(n int) []string { return briefly(slices.Repeat([]*flow.Flow{{}}, n), n) })
	bound.Check(t, "flows, some counted only", 5, func(n int) []string { return briefly(slices.Repeat([]*flow.Flow{{}}, min(n, 6)), n) })
}

// After a read-back 20,000 flows that should not be there are deleted at once, and the others set aside.
func TestSurplusIsSetAside(t *testing.T) {
	for n, aside := range map[int]int{20_000: 0, 20_007: 7} {
		d := &flow.Delta{}
		for i := range n {
			d.DelFlows = append(d.DelFlows, &flow.Flow{Key: flow.Key{Priority: uint16(i), Table: uint8(i >> 15)}})
		}
		g := &programmer{surplus: map[flow.Key]*flow.Flow{}}
		if g.deferDeletions(d); len(d.DelFlows) != n-aside || len(g.surplus) != aside {
			t.Errorf("of %d, %d are deleted and %d set aside; want %d", n, len(d.DelFlows), len(g.surplus), aside)
		}
	}
}
