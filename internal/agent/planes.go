package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/nftables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/windows"
)

// plane is a data plane of this node, and its names.
type plane struct {
	dataplane.Plane
	kind
}

// kind holds the names of a data plane in metrics, messages and Events.
type kind struct {
	label string // of metrics
	name  string // in messages
	event string // the reason of Events about what it refuses
}

var kinds = map[mode.Mode]kind{
	mode.OVS:      {"ovs", "the switch", "RefusedBySwitch"},
	mode.IPTables: {"iptables", "iptables", "RefusedByIPTables"},
	mode.NFTables: {"nftables", "nftables", "RefusedByNFTables"},
	mode.Windows:  {"hns", "HNS", "RefusedByHNS"},
}

// planes are the data planes of this node: one, or the bridge and, beside it, nftables or iptables for what
// does not cross it.
type planes struct {
	all      []plane         // the main one first
	bridge   *bridge.Plane   // the OVS data plane in all; nil if there is none
	fallback *fallback.Plane // the iptables or nftables data plane in all; nil if there is none
}

// makePlanes creates the data plane of the agent's mode. hostPlane decides later what serves alongside the
// bridge.
func (a *Agent) makePlanes(db *ovsdb.Client) error {
	hooks := a.hooks(a.mode)
	hooks.Queued, hooks.InStep, hooks.Synced = a.queued, a.inStep, a.metrics.Synced
	hooks.InStepBut = a.metrics.InStepBut

	var p dataplane.Plane
	var err error
	switch a.mode {
	case mode.OVS:
		a.bridge = bridge.New(a.set.Settings, db, bridge.Hooks{
			Hooks: hooks, Transaction: a.metrics.Transaction, Lost: a.metrics.Lost,
			FailOpen: a.proxy.SetBypassed,
			Stateful: func(text string) {
				a.events.Node(apiserver.EventWarning, "StatefulPolicies", "Serve", text)
			},
			ReservePorts: func(lo, hi int) error { return a.set.reservePorts(lo, hi, a.log) },
		}, a.log)
		p = a.bridge
	case mode.IPTables, mode.NFTables:
		a.fallback, err = a.newFallback(a.mode, serving.Everything, hooks)
		p = a.fallback
	case mode.Windows:
		o := a.set.WindowsOptions()
		o.Log, o.Hooks = a.log, hooks
		p, err = windows.New(o)
	default:
		return nil // only in tests
	}
	if err != nil {
		return err
	}

	a.main = planes{all: []plane{{p, kinds[a.mode]}}, bridge: a.bridge, fallback: a.fallback}
	a.planes = a.main
	a.followers = append(a.followers, p)
	a.watch.Add(p.Loops()...)
	return nil
}

// hooks returns the hooks that the main data plane and the one alongside it have in common.
func (a *Agent) hooks(m mode.Mode) dataplane.Hooks {
	return dataplane.Hooks{
		DataPath: func(v dataplane.CanaryVerdict) {
			// A full table is no reason: who fills it must not take the node out of its load balancers.
			if a.set.HealthzDataPath {
				a.proxy.SetDataPath(v.Plane+" "+v.Family, v.Fault != "" && !v.Full && !v.Partial)
			}
		},
		Refused: func(r dataplane.Refusal) {
			if r.Port != (k8s.PortName{}) {
				a.warnService(r.Port.ServiceName, kinds[m].event, "Program", r.Port.String()+": "+reasonOf(r))
			}
		},
		Forgot: a.metrics.Forgot,
		Unsupported: func(n dataplane.Notice) {
			a.warnService(n.Port.ServiceName, "NotSupportedByHNS", "Program", n.Text)
		},
	}
}

func reasonOf(r dataplane.Refusal) string {
	if r.Object == "" {
		return r.Reason
	}
	return r.Object + ": " + r.Reason
}

// newFallback creates the data plane iptables or nftables, as mode says.
func (a *Agent) newFallback(
	by mode.Mode, scope serving.Scope, hooks dataplane.Hooks,
) (*fallback.Plane, error) {
	set := a.set
	set.Fallback.Log = a.log
	set.Fallback.Hooks = fallback.Hooks{Hooks: hooks,
		Restored: a.metrics.Restore, Split: a.metrics.PartialFailure}
	if by == mode.NFTables {
		return nftables.New(set.NFTablesOptions(scope))
	}
	return iptables.New(set.IPTablesOptions(scope))
}

// IPTablesScope returns which traffic nftables or iptables handles in addition to the bridge, given how host
// traffic is handled; ok is false if none.
func (s *Settings) IPTablesScope(form bridge.HostTraffic) (scope serving.Scope, ok bool) {
	switch {
	case form == bridge.HostIPTables || form == bridge.HostNFTables:
		return serving.Host, true
	// auto: what the node sends to itself never gets to the bridge
	case form == bridge.HostOVS && s.HostTraffic != bridge.HostOVS:
		return serving.Own, true
	}
	return 0, false
}

// hostPlane adds iptables or nftables to the bridge if the node's own traffic needs it, and hands it the
// model, or leaves that open until the node has an address. It runs on the loop. Errors are logged, not
// returned: its failure must not stop the bridge.
func (a *Agent) hostPlane(ctx context.Context, m *k8s.Model) {
	if a.bridge == nil {
		return
	}
	form := a.bridge.HostTrafficFor(m)
	if a.hostPlaneOpen = a.set.HostTrafficOpen(form, m.Node.IPs); a.hostPlaneOpen {
		return
	}

	scope, ok := a.set.IPTablesScope(form)
	if !ok {
		a.noHostPlane(ctx)
		return
	}

	by, why := a.set.Beside(ctx, scope, func() []mode.Mode { return a.lastModes })
	if by == "" {
		a.hostPlaneOff = "Service traffic from the node itself is not handled: " + why
		a.log.Warn(a.hostPlaneOff)
		return
	}
	if why != "" {
		a.log.Info("Service traffic from the node itself is handled by iptables, not nftables", "reason", why)
	}

	p, err := a.newFallback(by, scope, a.hooks(by))
	if err != nil {
		a.hostPlaneOff = fmt.Sprintf("Service traffic from the node itself is not handled by %s: %v", by, err)
		a.log.Error(a.hostPlaneOff)
		return
	}

	a.recordModes(append([]mode.Mode{mode.OVS, by}, supersededModes(by, a.lastModes)...)...)
	a.watch.Add(p.Loops()...)
	var beside dataplane.Plane = p
	if scope == serving.Own {
		beside = &localTraffic{Plane: p}
	}

	a.planes = planes{all: []plane{a.main.all[0], {beside, kinds[by]}}, bridge: a.bridge, fallback: p}
	a.followers = append(a.followers, beside)
	beside.Update(m, m.Everything())
	if a.localhost != nil {
		a.followers = append(a.followers, a.localhost)
		a.localhost.Update(m, m.Everything())
	}

	a.spawn(func(ctx context.Context) error {
		watched, stop := context.WithCancel(ctx)
		defer stop()
		if a.localhost != nil {
			a.spawn(func(context.Context) error { return a.localhost.Run(watched) })
		}
		if by == mode.NFTables && a.set.HostTraffic != bridge.HostNFTables {
			a.spawn(func(context.Context) error { a.watchDrops(watched, scope); return nil })
		}
		if scope != serving.Own {
			a.watchForwarding(watched, by, a.set.HostTraffic != bridge.HostNFTables)
		}
		if err := p.Run(ctx); err != nil {
			text := fmt.Sprintf(
				"Service traffic from the node itself is not handled by %s; the bridge is not affected: %v",
				by, err)
			a.log.Error(text)
			_ = a.ask(ctx, func() { a.hostPlaneOff, a.planes = text, a.main }) // fails only on shutdown
		}
		return nil
	})
}

// noHostPlane removes the iptables rules of an earlier run beside the bridge. A kube-proxy that serves by
// them since keeps them.
func (a *Agent) noHostPlane(ctx context.Context) {
	if !slices.Contains(a.lastModes, mode.IPTables) {
		return
	}
	options := iptables.CleanupOptions{Log: a.log, TakeLocalnet: nftables.TakeLocalnet}
	if _, err := iptables.Cleanup(ctx, options); err != nil {
		a.hostPlaneOff = "cannot remove the iptables rules of an earlier nkp run: " + err.Error()
		a.log.Error(a.hostPlaneOff)
		return
	}
	a.recordModes(append([]mode.Mode{mode.OVS}, supersededModes(mode.OVS, a.lastModes)...)...)
}

// Diff compares what is installed with what should be; "" means equal.
func (p *planes) Diff(ctx context.Context) (string, error) {
	var text strings.Builder
	var errs []error
	for _, pl := range p.all {
		s, err := pl.Diff(ctx)
		text.WriteString(s)
		errs = append(errs, err)
	}
	return text.String(), errors.Join(errs...)
}
