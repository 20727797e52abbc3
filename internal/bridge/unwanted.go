package bridge

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Foreign flows never keep nkp from reading its own back: nkp requests the flows under its cookie, and
// foreign ones only from tables that have few of them (ofctrl.MaxForeign). That leaves unwanted flows under
// nkp's cookie, which another program installed or an earlier nkp left behind. They are deleted in portions:
// one by one, or, of ids that no Service port has and that have many, by their cookie (pipeline.Gone). More
// than that are not kept: one transaction deletes all flows under the cookie and sets the wanted ones, so
// that no packet sees an intermediate state.

const tooManyText = "the switch holds too many flows under nkp's cookie that are not nkp's"

// replaceAll replaces all flows under nkp's cookie, of which too many are unwanted. It reports whether the
// switch can be read back.
func (g *programmer) replaceAll(ctx context.Context) bool {
	g.log.Error(tooManyText + "; " +
		"replacing all flows under the cookie. Service counters restart at 0. " +
		"Find out which program installs them; --cookie-prefix gives nkp another cookie")

	want := g.compiler.State()
	d := flow.Diff(flow.NewState(), want)
	d.SetMeters = nil // the read-back brings them
	cookie, mask := g.set.Layout.StaticCookies()
	d.Clear = []flow.Cookies{{Cookie: cookie, Mask: mask}}
	g.stats.Repairs++

	first := g.pending == nil
	if !first { // what waits to be forgotten is not among the flows
		d.DelLearned, d.FlushCT = g.pending.DelLearned, g.pending.FlushCT
	}

	if g.pending = d; !g.sync(ctx) {
		return false
	}
	if first {
		g.pending = nil
	}
	return true
}

// unreadWarnings returns a line for each table in which conflicts with foreign flows would go unnoticed.
func (g *programmer) unreadWarnings() (out []string) {
	for _, t := range slices.Sorted(maps.Keys(g.unread)) {
		out = append(out, fmt.Sprintf("table %d holds %d flows of others, too many flows to check for "+
			"conflicts: one with the priority and match of an nkp flow would be replaced", t, g.unread[t]))
	}
	return out
}

// maxSurplus is how many flows that should not be there one transaction deletes after a read-back. Open
// vSwitch deletes some 30,000 a second and does nothing else meanwhile, so that a change waits for less than
// a second behind them.
const maxSurplus = 20_000

// deferDeletions leaves what d deletes beyond maxSurplus for later: the loop deletes it in portions, between
// other work.
func (g *programmer) deferDeletions(d *flow.Delta) {
	clear(g.surplus)
	if len(d.DelFlows) <= maxSurplus {
		return
	}
	for _, f := range d.DelFlows[maxSurplus:] {
		g.surplus[f.Key] = f
	}
	d.DelFlows = d.DelFlows[:maxSurplus]
}

// left returns how many flows that should not be there wait for deleteSurplus.
func (g *programmer) left() int {
	n := len(g.surplus)
	for _, gone := range g.gone {
		n += gone.Flows
	}
	return n
}

// deleteSurplus deletes one portion of the surplus.
func (g *programmer) deleteSurplus(ctx context.Context) {
	d, n := &flow.Delta{}, 0
	for id, gone := range g.gone {
		if n += gone.Flows; n > maxSurplus && len(d.Clear) > 0 {
			break
		}
		g.compiler.Clear(d, id, gone)
		delete(g.gone, id)
	}
	for key, f := range g.surplus {
		if n++; n > maxSurplus {
			break
		}
		d.DelFlows = append(d.DelFlows, f)
		delete(g.surplus, key)
	}
	d.Sort()
	switch {
	case !g.commit(ctx, d):
		if g.pending != nil { // refused: from here on like any other change that the switch refuses
			g.pending, g.unsent = d.Merge(g.pending), true
			g.sync(ctx)
		}
	case g.pending.Empty() && !g.unsent && g.left() == 0:
		g.flows = g.compiler.Flows()
	}
}
