package bridge

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Flows of others never keep nkp from reading its own back: the switch is asked for flows under nkp's cookie, and for others only in
// tables where they are few (ofctrl.MaxForeign). What is left is flows that others have put under nkp's cookie. A few are
// deleted one by one. Many are not even read: one transaction deletes all flows under the cookie and sets those that belong
// there, so that no packet meets anything in between.

// maxStrangers is how many flows more than are wanted a read-back takes. Each takes about 700 bytes meanwhile.
const maxStrangers = 1 << 17

// strangers returns how many flows the switch has under nkp's cookie beyond those that are wanted, at least 0.
func (p *Plane) strangers(ctx context.Context) (int, error) {
	cookie, mask := p.set.Layout.StaticCookies()
	n, err := p.conn.FlowCount(ctx, cookie, mask)
	if err != nil {
		return 0, fmt.Errorf("count flows: %w", err)
	}
	return max(0, int(n.Flows)-p.compiler.Flows()), nil
}

func tooManyText(n int) string {
	return fmt.Sprintf("the switch holds %d flows under nkp's cookie that are not nkp's, more than can be read (%d)", n, maxStrangers)
}

// replaceStrangers makes sure that no more than maxStrangers flows are under nkp's cookie without being wanted. It reports
// whether the switch can be read back.
func (p *Plane) replaceStrangers(ctx context.Context) bool {
	n, err := p.strangers(ctx)
	if err == nil && n > maxStrangers {
		p.log.Error(tooManyText(n) + "; replacing all flows under the cookie. Counters of Services begin again. " +
			"Find out which program installs them; --cookie-prefix moves nkp out of its way")
		want := p.compiler.State()
		d := flow.Diff(flow.NewState(), want)
		d.SetMeters = nil // those are seen to by the read-back
		cookie, mask := p.set.Layout.StaticCookies()
		d.Clear = []flow.Cookies{{Cookie: cookie, Mask: mask}}
		p.stats.Repairs++
		first := p.gap == nil
		if p.gap = d; !p.sync(ctx) {
			return false
		}
		if first {
			p.gap = nil
		}
	}
	if err != nil {
		p.cannotRead(ctx, err)
	}
	return err == nil
}

// unreadWarnings name the tables where nkp cannot tell whether flows of others are in its way. It runs on the loop.
func (p *Plane) unreadWarnings() (out []string) {
	for _, t := range slices.Sorted(maps.Keys(p.unread)) {
		out = append(out, fmt.Sprintf("table %d holds %d flows of others, too many to look through: one with the priority and match of a flow of nkp's would be replaced", t, p.unread[t]))
	}
	return out
}
