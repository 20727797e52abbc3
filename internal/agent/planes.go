package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/rules"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
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

// loops returns the signs of life of all planes.
func (p *planes) loops() (list []*dataplane.Loop) {
	if p.bridge != nil {
		list = append(list, p.bridge.Loops()...)
	}
	if p.iptables != nil {
		list = append(list, p.iptables.Loops()...)
	}
	if p.hns != nil {
		list = append(list, p.hns.Loops()...)
	}
	return list
}

// makePlanes makes the data plane of the agent's mode. What stands beside the bridge is decided later (hostPlane).
func (a *Agent) makePlanes(db *ovsdb.Client) (err error) {
	switch a.mode {
	case ModeOVS:
		a.bridge = bridge.New(a.set.Settings, db, bridge.Hooks{
			Queued:      func() { a.queued(families...) },
			InStep:      func() { a.inStep(families...) },
			Transaction: a.measureBridge,
			Refused: func(n k8s.PortName, reason string) {
				if n != (k8s.PortName{}) {
					a.warnService(n.ServiceName, "RefusedBySwitch", "Program", n.String()+": "+reason)
				}
			},
		}, a.log)
		a.followers = append(a.followers, a.bridge)
	case ModeIPTables:
		o := a.iptablesOptions(rules.Everything)
		o.Hooks.Queued = func(f k8s.Family) { a.queued(f) }
		o.Hooks.InStep = func(f k8s.Family) { a.inStep(f) }
		o.Hooks.Synced = func(r fallback.Round) { a.metrics.Synced([]k8s.Family{r.Family}, r.Full, r.Took) }
		if a.iptables, err = fallback.New(o); err != nil {
			return err
		}
		a.followers = append(a.followers, a.iptables)
	case ModeWindows:
		o := a.set.WindowsOptions()
		o.Log = a.log
		o.Queued = func() { a.queued(families...) }
		o.InStep = func() { a.inStep(families...) }
		o.Synced = a.measureHNS
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
	a.measureIPTables(&o.Hooks)
	o.Hooks.Refused = func(n k8s.PortName, reason string) {
		a.warnService(n.ServiceName, "RefusedByIPTables", "Program", n.String()+": "+reason)
	}
	return o
}

// Beside tells what iptables has to serve beside the bridge, for a form of host traffic.
func (s *Settings) Beside(form bridge.HostTraffic) (scope rules.Scope, ok bool) {
	switch {
	case form == bridge.HostIPTables:
		return rules.Host, true
	case form == bridge.HostOVS && s.HostTraffic != bridge.HostOVS: // auto: what the node sends to itself never gets to the bridge
		return rules.Own, true
	}
	return 0, false
}

// hostPlane puts iptables beside the bridge if the node's own traffic calls for it, and hands it the first model. It runs on
// the loop. That what cannot be done there does not stop the bridge is why errors are only warnings.
func (a *Agent) hostPlane(ctx context.Context, m *k8s.Model, first k8s.Changes) {
	if a.bridge == nil {
		return
	}
	scope, ok := a.set.Beside(a.bridge.HostTrafficFor(m))
	if !ok {
		a.nothingBeside(ctx)
		return
	}
	if why := a.set.LeaveIPTables(ctx, func() []Mode { return a.lastModes }); why != "" {
		a.besides = "iptables does not serve the node's own traffic: " + why
		a.log.Warn(a.besides)
		return
	}
	p, err := fallback.New(a.iptablesOptions(scope))
	if err != nil {
		a.besides = "iptables does not serve the node's own traffic: " + err.Error()
		a.log.Error(a.besides)
		return
	}
	a.noteModes(ModeOVS, ModeIPTables)
	a.iptables = p
	a.watch.Add(p.Loops()...)
	var f follower = p
	if scope == rules.Own {
		f = &ownTraffic{Plane: p}
	}
	a.followers = append(a.followers, f)
	f.Update(m, first)
	a.spawn(func(ctx context.Context) error {
		if err := p.Run(ctx); err != nil {
			text := fmt.Sprintf("iptables does not serve the node's own traffic; the bridge goes on: %v", err)
			a.log.Error(text)
			_ = a.ask(ctx, func() { a.besides, a.iptables = text, nil }) // fails only when all ends
		}
		return nil
	})
}

// nothingBeside removes what an earlier run had beside the bridge.
func (a *Agent) nothingBeside(ctx context.Context) {
	if !slices.Contains(a.lastModes, ModeIPTables) {
		return
	}
	if _, err := fallback.Cleanup(ctx, fallback.CleanupOptions{Log: a.log}); err != nil {
		a.besides = "cannot remove from iptables what an earlier run of nkp put there: " + err.Error()
		a.log.Error(a.besides)
		return
	}
	a.noteModes(ModeOVS)
}

// LeaveIPTables says why iptables beside the bridge is better left alone unless somebody asks for it by name; "": there is
// no reason. Chains that are there are nkp's own if the last run had iptables among its data planes. last is called after
// the chains were looked for: an agent that starts meanwhile notes that it takes iptables before it writes a chain.
func (s *Settings) LeaveIPTables(ctx context.Context, last func() []Mode) string {
	if err := fallback.Available(s.IPTables.Backend); err != nil {
		return err.Error()
	}
	switch {
	case s.HostTraffic == bridge.HostIPTables:
		return ""
	case s.ServiceProxyName != "":
		return "with --service-proxy-name another proxy is at work here, whose chains have the same names; --host-traffic iptables takes them over"
	}
	switch occupied, err := fallback.Occupied(ctx); {
	case err != nil:
		return "cannot look whether it holds chains of Services: " + err.Error()
	case occupied && !slices.Contains(last(), ModeIPTables):
		return "it holds chains of Services that are not nkp's, kube-proxy's it seems; --host-traffic iptables takes them over"
	}
	return ""
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
		steps, err := p.hns.Diff(ctx)
		if len(steps) > 0 {
			steps = append(steps, "")
		}
		note(strings.Join(steps, "\n"), err)
	}
	return text.String(), errors.Join(errs...)
}
