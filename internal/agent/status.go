package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows"
)

// loopWait is how long status and scrapes wait for the agent's loop, which never blocks but may have much to
// compute.
const loopWait = 300 * time.Millisecond

// status describes the agent. It waits neither for a loop that is stuck nor for a switch.
func (a *Agent) status(ctx context.Context) (api.Status, error) {
	s := api.Status{Version: Version, Node: a.set.NodeName, Started: a.started,
		Mode: string(a.mode), Reason: a.reason, Pending: a.metrics.Pending(),
		Canary: []dataplane.CanaryVerdict{}}
	var warnings []string
	for _, l := range a.watch.Working() {
		if l.For >= time.Second {
			s.Loops = append(s.Loops, l)
		}
	}

	active := a.main // the agent's loop may have added the host's plane since
	var nodeIPs []netip.Addr
	wait, cancel := context.WithTimeout(ctx, loopWait)
	defer cancel()
	err := a.ask(wait, func() {
		active, nodeIPs = a.planes, a.model.Node.IPs
		warnings = a.loopStatus(&s)
	})

	switch {
	case ctx.Err() != nil:
		return s, ctx.Err()
	case err != nil:
		s.Source = api.SourceStatus{Kind: a.kind, Errors: []string{}}
		warnings = append(warnings,
			"the agent is busy: details of source, Services and iptables are missing here, and counts may "+
				"be old")
		if last := a.lastSnapshot.Load(); last != nil {
			s.Source.Synced, active = last.synced, last.planes
			for _, f := range dataplane.Families {
				s.ServicePorts += last.ports[f]
				s.Endpoints += last.endpoints[f]
			}
		}
	}

	if server, ok := a.source.(interface{ Answers() bool }); ok {
		answers := server.Answers()
		s.Source.Answers = &answers
		if since := a.awaySince(); !answers && !since.IsZero() {
			s.Source.AwaySince = &since
		}
	}

	s.Start = a.startStatus()
	for _, pl := range active.all {
		st, err := pl.Status(ctx)
		if err != nil {
			return s, err
		}
		switch d := st.Detail.(type) {
		case *bridge.Status:
			s.Status = d
		case *fallback.Status:
			warnings = append(warnings, a.notForwarding(d, nodeIPs)...)
			if s.IPTables = d; pl.label == string(mode.NFTables) {
				s.IPTables, s.NFTables = nil, d
			}
		case *windows.Status:
			s.HNS = d
		}
		warnings = append(warnings, st.Warnings...)
		for _, v := range st.Canary {
			if w := v.Warning(); w != "" {
				warnings = append(warnings, w)
			}
		}
		s.Canary = append(s.Canary, st.Canary...)
		if n := active.pings(wait, &pl); n != nil {
			if s.Pings == nil {
				s.Pings = map[string]dataplane.Pings{}
			}
			s.Pings[pl.label] = *n
		}
	}

	if s.Status != nil && s.NFTables != nil && s.HostTraffic == bridge.HostIPTables { // what auto stands for
		s.HostTraffic = bridge.HostNFTables
	}

	if a.extraWarnings != nil {
		warnings = append(warnings, a.extraWarnings()...)
	}
	warnings = append(warnings, a.modes.Reasons()...)
	warnings = append(warnings, a.metricsWarnings()...)
	for _, c := range a.ports.Conflicts() {
		warnings = append(warnings, c.String())
	}
	if a.localhost != nil {
		figures := a.localhost.Figures()
		s.Localhost = &figures
	}
	problems := a.localhost.Problems()
	for _, n := range slices.SortedFunc(maps.Keys(problems), k8s.PortName.Compare) {
		warnings = append(warnings, n.String()+": "+problems[n])
	}

	s.Warnings = append([]string{}, slices.Concat(a.sysctls, a.checks.Failures(), warnings)...)
	return s, nil
}

// pings returns the pings of Services' addresses that a data plane has counted; nil: none are answered.
func (p *planes) pings(ctx context.Context, of *plane) *dataplane.Pings {
	switch {
	case of.label == string(mode.OVS):
		return p.bridge.Pings()
	case p.fallback == nil:
		return nil
	}
	if o, _ := p.fallback.Options(); !o.AnswerPing || o.Scope == serving.Own {
		return nil
	}
	n, err := p.fallback.NodeCounters(ctx)
	if err != nil {
		return nil
	}
	return n.Pings
}

// loopStatus sets what the status has of the source and the model, and returns their warnings. It must be
// called on the loop.
func (a *Agent) loopStatus(s *api.Status) (warnings []string) {
	if a.leftovers != "" {
		warnings = append(warnings, a.leftovers)
	}
	if a.hostPlaneOff != "" {
		warnings = append(warnings, a.hostPlaneOff)
	}

	s.Source = api.SourceStatus{Kind: a.kind, Synced: a.synced, Errors: []string{}}
	if files, ok := a.source.(interface{ Revision() string }); ok {
		// in this order: a revision is named after its changes are in the box
		if r := files.Revision(); a.delivered && a.box.empty() {
			s.Source.Revision = r
		}
	}
	for _, e := range a.problems.Errors {
		s.Source.Errors = append(s.Source.Errors, e.String())
	}

	s.ServicePorts = len(a.model.Ports)
	closing := map[k8s.ServiceName]bool{}
	for n, sp := range a.model.Ports {
		if s.Endpoints += len(sp.ClusterEndpoints); sp.Removed != nil {
			closing[n.ServiceName] = true
		}
	}
	if len(closing) > 0 {
		s.Closing = &api.ClosingStatus{Services: len(closing), Draining: a.tracker.Draining()}
	}
	for _, n := range a.model.Skipped {
		s.Skipped = append(s.Skipped, n.String())
	}

	if a.synced && !a.delivered {
		warnings = append(warnings, "nothing is programmed yet: waiting for the node's spec.podCIDRs "+
			"(--detect-local-mode NodeCIDR)")
	}
	if w := a.servedServer(); w != "" {
		warnings = append(warnings, w)
	}
	for _, w := range slices.Concat(a.problems.Warnings, a.model.Warnings) {
		warnings = append(warnings, w.String())
	}
	return warnings
}
