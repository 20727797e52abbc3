package agent

import (
	"context"
	"fmt"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/observe/notify"
)

// watchdogSign returns the agent's sign of life for the service manager. It comes from the loop: no loop, no
// sign. The stuck loop of a data plane keeps the watchdog unfed, too. The agent is ready when all Services
// are programmed for the first time, also in iptables alongside the bridge, if it can be used there.
func (a *Agent) watchdogSign(ctx context.Context) (s notify.Sign, err error) {
	if stuck := a.watch.Stuck(); len(stuck) > 0 {
		return notify.Sign{Stuck: true, Status: fmt.Sprintf("%s: %v", a.mode, stuck[0])}, nil
	}
	err = a.ask(ctx, func() {
		switch {
		case !a.synced:
			s.Status = fmt.Sprintf("%s: waiting for %s; what was installed stays in force", a.mode, a.kind)
		case !a.delivered:
			s.Status = fmt.Sprintf("%s: waiting for the node's spec.podCIDRs", a.mode)
		default:
			s.Ready = a.proxy.InStep() && (a.bridge == nil || a.fallback == nil || a.fallback.Tried())
			s.Status = fmt.Sprintf("%s: %s of %s",
				a.mode, dataplane.Count(len(a.model.Ports), "Service port"), a.kind)
			if !a.proxy.Healthy() {
				s.Status += "; not healthy, see nkp status"
			}
		}
	})
	return s, err
}
