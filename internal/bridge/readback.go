package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// readBack reads nkp's objects from the switch, and repairs differences.
func (g *programmer) readBack(ctx context.Context) {
	if g.conn == nil || g.compiler == nil {
		return
	}
	if !g.mayStart(ctx) {
		return
	}

	adopt := g.stats.Compared.IsZero() // what an earlier process has installed
	clean := g.left() == 0
	g.gone = nil // what is left of them is found again
	var found comparison
	for tooMany, replaced := true, false; tooMany; replaced = true {
		var err error
		found, err = g.set.read(ctx, g.conn, g.compiler, adopt, func(unread map[uint8]int) (bool, error) {
			if !g.node.seeOthers(g.conn, unread) {
				return false, nil
			}
			_, err := g.compiler.Reconfigure(g.node.config())
			return true, err
		})
		if err != nil {
			g.cannotRead(ctx, err)
			return
		}
		var gone map[uint32]*pipeline.Gone
		if gone, tooMany = found.Gone(); !tooMany {
			g.gone = gone
		} else if replaced || !g.replaceAll(ctx) {
			return // the next count of flows leads to the next read-back
		}
	}

	g.flows = found.Flows()
	g.audited(found.unread)

	first := g.pending == nil
	// A read-back does not show which pins and conntrack entries a refused transaction was to delete.
	forget := flow.Delta{DelLearned: found.OrphanPins(), FlushCT: found.Stale()}
	if !first {
		forget = *g.pending
	}

	if first {
		g.postpone(found)
	}
	g.pending = found.Delta()
	if d, _ := g.ready(time.Now()); !d.Empty() || len(g.gone) > 0 {
		if first {
			g.log.Info("bringing the switch in step",
				"setFlows", len(d.SetFlows), "setGroups", len(d.SetGroups),
				"deleteFlows", len(d.DelFlows)+g.left(), "deleteGroups", len(d.DelGroups))
		} else if clean { // else they are what deleteSurplus has not come to
			g.recordRepair(d)
		}
	}

	g.pending.DelLearned, g.pending.FlushCT = forget.DelLearned, forget.FlushCT
	g.deferDeletions(g.pending)

	g.fullSync = true
	g.sync(ctx)
	g.fullSync = false
}

// firstCost is the cost of the Services that one bundle adds at most after the first read-back over a
// connection: above 50,000 Services of five endpoints. What is installed already does not count.
const firstCost = 1_000_000

// portion takes the place of dataplane.Portion: Open vSwitch takes 25 ms for a bundle of so many flows.
const portion = 2500

// postpone leaves Services of which the switch has nothing for later: large ones, and those beyond firstCost.
// They come in portions, so that other changes do not wait for them. All that is installed is brought in step
// by one bundle, because no packet may see half of a change.
func (g *programmer) postpone(found comparison) {
	absent := found.Absent()
	slices.SortFunc(absent, func(a, b *k8s.ServicePort) int {
		return cmp.Or(cmp.Compare(a.ServiceCost, b.ServiceCost), a.Name.Compare(b.Name))
	})
	sum := 0
	at := slices.IndexFunc(absent, func(sp *k8s.ServicePort) bool {
		sum += sp.Cost
		return sp.ServiceCost > portion || sum > firstCost
	})
	if at >= 0 {
		found.Postpone(absent[at:])
		g.later(absent[at:])
	}
}

// read reads the switch and compares it with what a compiler wants. It does so once more if reconsider,
// called with the tables that hold too many foreign flows, has changed what the compiler wants, or if the
// switch has shown to whom ids belong.
func (s *Settings) read(ctx context.Context, conn *ofctrl.Conn, c *pipeline.Compiler, adopt bool,
	reconsider func(unread map[uint8]int) (changed bool, err error)) (found comparison, err error) {
	for again := true; again && err == nil; {
		first := found.Comparison == nil
		found = newComparison(c)
		if adopt {
			found.Adopt()
			_, uses, err := conn.MeterDrops(ctx, s.Layout.IsPingMeter)
			found.NoPings = err == nil && uses == 0
		}
		if err = conn.Read(ctx, s.Filter(), found); err != nil || !first {
			break
		}
		if again, err = reconsider(found.unread); err == nil && !again && adopt {
			_, again = found.Gone()
		}
	}
	return found, err
}

// recordRepair records that the switch does not hold what nkp installed there, and reports whose flows and
// groups d restores.
func (g *programmer) recordRepair(d *flow.Delta) {
	seen := map[k8s.PortName]bool{}
	var names []string
	if g.left() > 0 {
		names = append(names, "no Service")
	}
	scratch := &flow.Delta{}
	g.splitByOwner(d, func(n k8s.PortName) *flow.Delta {
		if !seen[n] {
			seen[n] = true
			names = append(names, ownerText(n))
		}
		return scratch
	})
	slices.Sort(names)

	what := repairText(names, d, g.left())
	g.log.Warn("another program changed the switch: repairing", "what", what)
	g.stats.Repairing(what)
}

// repairText describes what d restores: whose flows and groups, or meters, and how many of each. gone is
// the number of flows that are deleted besides.
func repairText(owners []string, d *flow.Delta, gone int) string {
	what := "meters"
	if len(owners) > 0 {
		what = "flows or groups of " + dataplane.Some(5, owners)
	}

	var counts []string
	for _, c := range []struct {
		action string
		n      int
	}{
		{"flows set", len(d.SetFlows)},
		{"groups set", len(d.SetGroups)},
		{"meters set", len(d.SetMeters)},
		{"flows deleted", len(d.DelFlows) + gone},
		{"groups deleted", len(d.DelGroups)},
		{"meters deleted", len(d.DelMeters)},
	} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", c.action, c.n))
		}
	}
	return what + ": " + strings.Join(counts, ", ")
}

// diff reads the switch back and compares. It changes nothing on the switch.
func (g *programmer) diff(ctx context.Context) (*flow.Delta, error) {
	found := newComparison(g.compiler)
	if err := g.conn.Read(ctx, g.set.Filter(), found); err != nil {
		return nil, err
	}
	g.lookForeign(true)
	return found.changes(g.compiler)
}

// cannotRead closes the connection after a failed read-back.
func (g *programmer) cannotRead(ctx context.Context, err error) {
	if ctx.Err() == nil {
		g.log.Error("cannot read the switch back; reconnecting", "error", err)
	}
	g.failed(err)
}

// checkCount counts nkp's flows on the switch and reads everything back if the number is wrong or unknown.
// Open vSwitch visits all flows for it, and serves nobody else meanwhile: nkp asks only if the size of the
// tables is not what it was at the last count, but for nkp's own changes.
func (g *programmer) checkCount(ctx context.Context) {
	if g.pending == nil {
		g.readBack(ctx)
	}
	if g.conn == nil || g.pending == nil || g.left() > 0 {
		return
	}
	g.lookForeign(false)
	tables := g.set.Layout.StaticTables()
	sizes, err := g.conn.TableSizes(ctx)
	if err != nil {
		g.readBack(ctx)
		return
	}
	all := 0
	for _, t := range tables {
		all += int(sizes[t])
	}
	if g.flows != flowsUnknown && g.others != nil && all-g.flows == *g.others {
		return
	}

	cookie, mask := g.set.Layout.StaticCookies()
	c, err := g.conn.FlowCount(ctx, cookie, mask, tables...)
	switch {
	case err != nil || g.flows != flowsUnknown && int(c.Flows) != g.flows:
		g.readBack(ctx)
	default:
		g.flows = int(c.Flows)
		others := all - g.flows
		g.others = &others
	}
}

// flowsUnknown is programmer.flows after a transaction that left out Service ports: some of their flows are
// there, others not.
const flowsUnknown = -1

// comparison makes a Comparison a Visitor. It ignores foreign flows, because the connection itself records
// what it needs of them.
type comparison struct {
	*pipeline.Comparison
	unread map[uint8]int // tables where others have too many, and how many
}

func newComparison(c *pipeline.Compiler) comparison {
	return comparison{c.Compare(), map[uint8]int{}}
}

// changes returns what brings the switch in step with the compiler of the comparison.
func (c comparison) changes(of *pipeline.Compiler) (*flow.Delta, error) {
	gone, tooMany := c.Gone()
	if tooMany {
		return nil, errors.New(tooManyText)
	}
	d := c.Delta()
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		of.Clear(d, id, gone[id])
	}
	return d, nil
}

func (comparison) ForeignFlow(*flow.Flow)          {}
func (c comparison) Unread(table uint8, flows int) { c.unread[table] = flows }
