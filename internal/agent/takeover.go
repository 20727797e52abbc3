package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/mode"
)

// Where iptables and nftables both translate a connection, the one whose chain the kernel calls first
// decides. So what an earlier run, or kube-proxy, has installed in the other must go once this run's Services
// are in force. Until then both lead to endpoints, and a connection is translated once.

// supersededModes returns the data planes of the last run that have to go once this run's main one, m, is in
// force.
func supersededModes(m mode.Mode, last []mode.Mode) (list []mode.Mode) {
	for _, o := range last {
		if o != m && (o == mode.NFTables || o == mode.IPTables && m == mode.NFTables) {
			list = append(list, o)
		}
	}
	return list
}

// takeOver removes what other data planes have left, when the main one is in force for the first time, and so
// is what serves beside a bridge.
func (a *Agent) takeOver(ctx context.Context) {
	m := a.awaitHostPlane(ctx)
	if m == "" {
		return // the next start goes on
	}

	old := supersededModes(m, a.lastModes)
	var errs []error
	named := a.set.HostTraffic == bridge.HostNFTables || a.set.HostTraffic == bridge.HostIPTables
	asked := (m == a.mode || named) && a.set.ServiceProxyName == "" // to replace kube-proxy

	if asked && (m == mode.IPTables || m == mode.NFTables) {
		switch n, err := nftables.RemoveKubeProxyTables(); {
		case err != nil && m == mode.IPTables: // without nf_tables there is none
			a.log.Debug("cannot check nftables for kube-proxy's tables", "error", err)
		case err != nil:
			errs = append(errs, err)
		case n > 0:
			a.log.Info("removed kube-proxy's tables from nftables", "tables", n)
		}
	}

	if asked && m == mode.NFTables && !slices.Contains(old, mode.IPTables) {
		switch occupied, err := iptables.Occupied(ctx); {
		case err != nil: // without iptables there are no chains
			a.log.Debug("cannot check iptables for chains of Services", "error", err)
		case occupied: // kube-proxy's
			old = append(old, mode.IPTables)
		}
	}

	var take func() (bool, error)
	if m == mode.IPTables {
		backend := ""
		if a.ask(ctx, func() { backend = a.planes.fallback.Detail().Backend }) != nil {
			return // shutdown: the next start goes on
		}
		take = func() (bool, error) { return iptables.TakeLocalnet(ctx, backend) }
	}

	for _, o := range old {
		var err error
		if o == mode.NFTables {
			_, err = nftables.Cleanup(take)
		} else {
			_, err = iptables.Cleanup(ctx,
				iptables.CleanupOptions{Log: a.log, TakeLocalnet: nftables.TakeLocalnet})
		}
		errs = append(errs, err)
	}

	if ctx.Err() != nil {
		return // the next start goes on
	}
	if err := errors.Join(errs...); err != nil {
		text := "what another data plane has installed is left, and may serve old endpoints; nkp tries " +
			"again at the next start: " + err.Error()
		a.log.Error(text)
		_ = a.ask(ctx, func() { a.leftovers = text }) // fails only on shutdown
		return
	}

	if len(old) == 0 {
		return
	}

	a.log.Info("removed what another data plane had installed", "planes", old, "mode", a.mode)
	_ = a.ask(ctx, func() {
		modes := []mode.Mode{a.mode}
		for _, p := range a.planes.all[1:] {
			modes = append(modes, mode.Mode(p.label))
		}
		a.recordModes(modes...)
	})
}

// awaitHostPlane waits until what serves the node's own traffic beside a bridge is in force, if there is such
// a plane, and returns its mode, else the agent's. It returns "" if the context ends before, or if that plane
// should serve and cannot: what served before goes on.
func (a *Agent) awaitHostPlane(ctx context.Context) (m mode.Mode) {
	wait := time.NewTicker(hostPlanePoll)
	defer wait.Stop()
	for {
		missing := false
		err := a.ask(ctx, func() {
			p := a.planes.fallback
			switch {
			case a.mode == mode.OVS && p == nil && a.hostPlaneOff != "":
				if missing = true; len(a.lastModes) > 1 {
					a.leftovers = "what the last run installed for the node's own traffic stays, and may " +
						"serve old endpoints, until a data plane serves that traffic"
				}
			case a.mode != mode.OVS || p == nil:
				m = a.mode
			case !slices.ContainsFunc(p.Detail().Families, func(f fallback.FamilyStatus) bool {
				return !f.InStep
			}):
				m = mode.Mode(a.planes.all[1].label)
			}
		})

		if err != nil || m != "" || missing {
			return m
		}

		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	}
}

// hostPlanePoll is how often awaitHostPlane looks.
const hostPlanePoll = 100 * time.Millisecond
