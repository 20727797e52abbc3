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
// nkp's cookie, which another program installed or an earlier nkp left behind. Up to maxUnwanted are read and
// deleted in portions. More are not read: one transaction deletes all flows under the cookie and sets the
// wanted ones, so that no packet sees an intermediate state.

// maxUnwanted is how many unwanted flows a read-back takes in. Each takes about 700 bytes meanwhile.
const maxUnwanted = 1 << 17

// unwanted returns how many flows the switch has under nkp's cookie beyond those that are wanted, at least 0.
func (g *programmer) unwanted(ctx context.Context) (int, error) {
	cookie, mask := g.set.Layout.StaticCookies()
	n, err := g.conn.FlowCount(ctx, cookie, mask)
	if err != nil {
		return 0, fmt.Errorf("count flows: %w", err)
	}
	wanted := g.compiler.Flows()
	if g.stats.Compared.IsZero() {
		wanted += g.compiler.MoreSlotFlows() // the slots on the switch are not known yet
	}
	return max(0, int(n.Flows)-wanted), nil
}

func tooManyText(n int) string {
	return fmt.Sprintf("the switch holds %d flows under nkp's cookie that are not nkp's, "+
		"more than can be read (%d)", n, maxUnwanted)
}

// replaceUnwanted makes sure that no more than maxUnwanted unwanted flows are under nkp's cookie. It reports
// whether the switch can be read back.
func (g *programmer) replaceUnwanted(ctx context.Context) bool {
	n, err := g.unwanted(ctx)
	if err == nil && n > maxUnwanted {
		g.log.Error(tooManyText(n) +
			"; replacing all flows under the cookie. Service counters restart at 0. " +
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
	}

	if err != nil {
		g.cannotRead(ctx, err)
	}
	return err == nil
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

// deleteSurplus deletes one portion of the surplus.
func (g *programmer) deleteSurplus(ctx context.Context) {
	d := &flow.Delta{}
	for key, f := range g.surplus {
		if len(d.DelFlows) == maxSurplus {
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
	case g.pending.Empty() && !g.unsent && len(g.surplus) == 0:
		g.flows = g.compiler.Flows()
	}
}
