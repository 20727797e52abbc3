package agent

import (
	"context"
	"errors"
	"strings"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ovsdb"
	"github.com/nkp-proxy/nkp/windows"
)

// Mode names a data plane.
type Mode string

// The data planes, as --mode says them.
const (
	ModeOVS      Mode = "ovs"
	ModeIPTables Mode = "iptables"
	ModeWindows  Mode = "windows"
)

// planes are the data planes of this node: one, or the bridge and, beside it, iptables for what does not cross it.
type planes struct {
	bridge   *bridge.Plane
	iptables *fallback.Plane
	hns      *windows.Plane
}

// makePlanes makes the data plane of the agent's mode. What stands beside the bridge is decided later (hostPlane).
func (a *Agent) makePlanes(db *ovsdb.Client) (err error) {
	switch a.mode {
	case ModeOVS:
		a.bridge = bridge.New(a.set.Settings, db, bridge.Hooks{
			Queued: func() { a.proxy.Queued(families...) },
			InStep: func() { a.proxy.Updated(families...) },
			Refused: func(n k8s.PortName, reason string) {
				if n != (k8s.PortName{}) {
					a.warnService(n.ServiceName, "RefusedBySwitch", "Program", n.String()+": "+reason)
				}
			},
		}, a.log)
		a.followers = append(a.followers, a.bridge)
	case ModeIPTables:
		o := a.iptablesOptions(rules.Everything)
		o.Hooks.Queued = func(f k8s.Family) { a.proxy.Queued(f) }
		o.Hooks.InStep = func(f k8s.Family) { a.proxy.Updated(f) }
		if a.iptables, err = fallback.New(o); err != nil {
			return err
		}
		a.followers = append(a.followers, a.iptables)
	case ModeWindows:
		o := a.set.Windows
		o.Log = a.log
		o.Report = func(name k8s.ServiceName, reason string) { a.warnService(name, "NotSupportedByHNS", "Program", reason) }
		if a.hns, err = windows.New(o); err != nil {
			return err
		}
		a.followers = append(a.followers, a.hns)
	}
	return nil
}

func (a *Agent) iptablesOptions(scope rules.Scope) fallback.Options {
	o := a.set.IPTablesOptions(scope)
	o.Log = a.log
	o.Hooks.Refused = func(n k8s.PortName, reason string) {
		a.warnService(n.ServiceName, "RefusedByIPTables", "Program", n.String()+": "+reason)
	}
	return o
}

// hostPlane puts iptables beside the bridge if the node's own traffic calls for it. It runs on the loop, before the first
// model is handed over. That what cannot be done there does not stop the bridge is why errors are only logged.
func (a *Agent) hostPlane(m *k8s.Model) {
	if a.bridge == nil || a.bridge.HostTrafficFor(m) != bridge.HostIPTables {
		return
	}
	p, err := fallback.New(a.iptablesOptions(rules.Host))
	if err != nil {
		a.log.Error("iptables cannot serve the node's own traffic", "error", err)
		return
	}
	a.noteModes(ModeOVS, ModeIPTables)
	a.iptables = p
	a.followers = append(a.followers, p)
	a.spawn(func(ctx context.Context) error {
		if err := p.Run(ctx); err != nil {
			a.log.Error("iptables does not serve the node's own traffic; the bridge goes on", "error", err)
		}
		return nil
	})
}

// Diff compares what is installed with what should be; "" means equal.
func (p *planes) Diff(ctx context.Context) (string, error) {
	var text strings.Builder
	var errs []error
	note := func(s string, err error) {
		text.WriteString(s)
		errs = append(errs, err)
	}
	if p.bridge != nil {
		note(p.bridge.Diff(ctx))
	}
	if p.iptables != nil {
		note(p.iptables.Diff(ctx))
	}
	if p.hns != nil {
		steps, err := p.hns.Diff()
		if len(steps) > 0 {
			steps = append(steps, "")
		}
		note(strings.Join(steps, "\n"), err)
	}
	return text.String(), errors.Join(errs...)
}
