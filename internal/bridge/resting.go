package bridge

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// leastRest is how long the id of a Service port that is gone rests at least, from when all changes are on
// the switch. By then the datapath's cached flows by which a packet was led to the id's groups are gone:
// ovs-vswitchd looks through all of them every other second, and shrinks their number if that takes longer
// (Open vSwitch: ofproto-dpif-upcall.c, udpif_revalidator).
const leastRest = 30 * time.Second

// maxAsked is of how many ids at once the switch is asked whether they have pins, where there are pins at
// all.
const maxAsked = 100

// restingIDs finds the ids that nothing leads by any more: the scans for stale UDP connections look for their
// marks, too. Only Plane.Run's goroutine uses it.
type restingIDs struct {
	// since is when each was first seen to rest with all changes on the switch; nil at first.
	since map[uint32]time.Time
	free  map[uint32]bool // ids that no connection has, as of the last scan
}

// begin returns the ids that rest long enough, for a scan that begins now. The scan deletes from it those
// that it finds. settled reports whether all changes are on the switch: what leads by an id may still be
// installed else, and its rest begins anew.
func (r *restingIDs) begin(c *pipeline.Compiler, settled bool, now time.Time) map[uint32]bool {
	if !settled {
		r.since, r.free = nil, nil
		return nil
	}
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

// settled reports whether all changes are on the switch, and nothing else of nkp's.
func (g *programmer) settled() bool { return g.inStep() && g.pending.Empty() && g.left() == 0 }

// releaseIDs makes ids free that the last scan found no connection of, if the switch has no pin of theirs
// either. Pins that it still has are deleted.
func (g *programmer) releaseIDs(ctx context.Context) {
	free := slices.Sorted(maps.Keys(g.stale.rest.free))
	g.stale.rest.free = nil
	if !g.settled() {
		return // the next scan finds them again
	}
	pinned, err := g.pinned(ctx, &free)
	if err != nil {
		g.log.Debug("cannot find out whether ids of Services that are gone have pins; "+
			"the next scan tries again", "error", err)
		return
	}
	d := g.compiler.Release(free)
	d.DelLearned = append(d.DelLearned, pinned...)
	g.push(ctx, d)
}

// pinned returns the pins that some ids have on the switch, of packets that were on their way when the others
// were deleted. It takes these ids out of the list, and those that it has not asked for.
func (g *programmer) pinned(ctx context.Context, ids *[]uint32) (pinned []flow.Learned, err error) {
	cookie, mask := g.set.Layout.PinCookies()
	if n, err := g.conn.FlowCount(ctx, cookie, mask, g.set.Layout.PinTable()); err != nil || n.Flows == 0 {
		return nil, err
	}
	var without []uint32
	for _, id := range (*ids)[:min(len(*ids), maxAsked)] {
		pins := g.set.Layout.Pins(id)
		n, err := g.conn.FlowCount(ctx, pins.Cookie, ^uint64(0), pins.Table)
		if err != nil {
			return nil, err
		}
		if n.Flows > 0 {
			pinned = append(pinned, pins)
		} else {
			without = append(without, id)
		}
	}
	*ids = without
	return pinned, nil
}
