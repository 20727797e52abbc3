package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nkp-proxy/nkp/ovsdb"
)

// failOpenWait bounds how long the loop waits for ovs-vswitchd's control socket. It is less than statusWait.
const failOpenWait = 200 * time.Millisecond

// FailOpen returns why flows are not in force although the switch holds them: without fail_mode=secure
// ovs-vswitchd forwards every packet by itself when all controllers of the bridge have been gone for three
// inactivity probes. "": they are in force. If ovs-vswitchd cannot be asked, the result says so, unless the
// database shows a controller that is connected.
func (s *Settings) FailOpen(ctx context.Context, sw *ovsdb.Switch) string {
	if !sw.Exists || sw.FailMode == "secure" || len(sw.Controllers) == 0 {
		return ""
	}
	open, err := s.daemon(sw).FailsOpen(ctx, sw.Bridge)
	connected := func(c ovsdb.Controller) bool { return c.Connected }
	if err == nil && !open || err != nil && slices.ContainsFunc(sw.Controllers, connected) {
		return ""
	}

	var rows []string
	for _, c := range sw.Controllers[:min(len(sw.Controllers), maxWrong)] {
		state := "is_connected=false"
		if c.Connected {
			state = "is_connected=true, but silent"
		}
		if c.LastError != "" {
			state += ", " + c.LastError
		}
		rows = append(rows, fmt.Sprintf("%s: %s", c.Target, state))
	}
	if more := len(sw.Controllers) - len(rows); more > 0 {
		rows = append(rows, fmt.Sprintf("and %d more", more))
	}
	does := "ovs-vswitchd forwards every packet by itself, past nkp's flows"
	if err != nil {
		does = fmt.Sprintf("ovs-vswitchd may forward every packet by itself, past nkp's flows "+
			"(it cannot be asked: %s)", unknown(err))
	}
	return fmt.Sprintf(
		"%s, because fail_mode of bridge %s is not secure and no controller serves it (Controller %s): "+
			"run ovs-vsctl set-fail-mode %s secure, start the controller, or run ovs-vsctl del-controller %s",
		does, sw.Bridge, strings.Join(rows, "; "), sw.Bridge, sw.Bridge)
}

// checkFailOpen updates failOpen. It runs on the loop.
func (p *Plane) checkFailOpen(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, failOpenWait)
	defer cancel()
	sw := p.db.Switch()
	was := p.failOpen
	switch p.failOpen = p.set.FailOpen(ctx, &sw); {
	case p.failOpen != "" && was == "":
		p.log.Warn("nkp's flows are not in force: " + p.failOpen)
	case p.failOpen == "" && was != "":
		p.log.Info("nkp's flows are in force again")
	}
}
