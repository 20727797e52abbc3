package bridge

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// leastRest is how long the id of a Service port that is gone rests at least. By then the datapath's cached flows by which a
// packet was led to the id's groups are gone: ovs-vswitchd looks through all of them every other second, and shrinks their
// number if that takes longer (Open vSwitch: ofproto-dpif-upcall.c, udpif_revalidator).
const leastRest = 30 * time.Second

// maxReleased is how many ids are released at once: for each the switch is asked whether it has pins.
const maxReleased = 1000

// restingIDs finds the ids that nothing leads by any more: the scans for stale UDP connections look for their marks, too. Only
// Plane.Run's goroutine uses it.
type restingIDs struct {
	since map[uint32]time.Time // when each was first seen to rest; nil at first
	free  map[uint32]bool      // ids that no connection has, as of the last scan
}

// begin returns the ids that rest long enough, for a scan that begins now. The scan deletes from it those that it finds.
func (r *restingIDs) begin(c *pipeline.Compiler, now time.Time) map[uint32]bool {
	ids := c.RestingIDs()
	since, unmarked := make(map[uint32]time.Time, len(ids)), map[uint32]bool{}
	for _, id := range ids {
		t, known := r.since[id]
		if !known {
			t = now
		}
		since[id] = t
		if now.Sub(t) >= leastRest {
			unmarked[id] = true
		}
	}
	r.since, r.free = since, nil
	return unmarked
}

// releaseIDs makes ids free that the last scan found no connection of, if the switch has no pin of theirs either. Pins that it
// still has are deleted.
func (g *programmer) releaseIDs(ctx context.Context) {
	free := slices.Sorted(maps.Keys(g.stale.rest.free))
	g.stale.rest.free = nil
	if !g.inStep() || !g.pending.Empty() {
		return // what leads by them may still be installed; the next scan finds them again
	}
	unpinned, pinned := []uint32{}, []flow.Learned{}
	for _, id := range free[:min(len(free), maxReleased)] {
		pins := g.set.Layout.Pins(id)
		n, err := g.conn.FlowCount(ctx, pins.Cookie, ^uint64(0), pins.Table)
		switch {
		case err != nil:
			return
		case n.Flows > 0: // of a packet that was on its way when the others were deleted
			pinned = append(pinned, pins)
		default:
			unpinned = append(unpinned, id)
		}
	}
	d := g.compiler.Release(unpinned)
	d.DelLearned = append(d.DelLearned, pinned...)
	g.push(ctx, d)
}
