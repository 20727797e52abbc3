package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/metrics"
	"github.com/nkp-proxy/nkp/windows"
)

// Status is what `nkp status -o json` prints.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Started time.Time `json:"started"`
	Mode    string    `json:"mode"`
	Reason  string    `json:"reason"`

	Source SourceStatus `json:"source"`

	// Start tells how long the start took.
	Start StartStatus `json:"start"`

	ServicePorts int `json:"servicePorts"`
	Endpoints    int `json:"endpoints"`

	// Loops are those that have worked for a second or more without progress, with what and since when.
	Loops []dataplane.State `json:"loops,omitempty"`

	// Pending is what has come from the source and is not in force yet.
	Pending metrics.Pending `json:"pending"`

	*bridge.Status // ModeOVS

	// IPTables is the data plane of ModeIPTables, or what serves the node's own traffic beside the bridge.
	IPTables *fallback.Status `json:"iptables,omitempty"`
	HNS      *windows.Status  `json:"hns,omitempty"` // ModeWindows

	Warnings []string `json:"warnings"`
}

// SourceStatus is where objects come from.
type SourceStatus struct {
	Kind   string `json:"kind"`
	Synced bool   `json:"synced"`
	// Answers tells whether the API server answers now; nil: the source is none.
	Answers *bool `json:"answers,omitempty"`
	// AwaySince is since when it does not; nil: it does.
	AwaySince *time.Time `json:"awaySince,omitempty"`
	Errors    []string   `json:"errors"`
}

// loopWait is how long status and scrapes wait for the agent's loop, which waits for nobody but may have much to compute.
const loopWait = 300 * time.Millisecond

// status describes the agent. It waits neither for a loop that is stuck nor for a switch.
func (a *Agent) status(ctx context.Context) (Status, error) {
	s := Status{Version: Version, Node: a.set.NodeName, Started: a.started, Mode: string(a.mode), Reason: a.reason, Pending: a.metrics.Pending()}
	var warnings []string
	for _, l := range a.watch.Working() {
		if l.For >= time.Second {
			s.Loops = append(s.Loops, l)
		}
	}
	now := a.main // the loop may put another beside it
	wait, cancel := context.WithTimeout(ctx, loopWait)
	defer cancel()
	err := a.ask(wait, func() {
		now = a.planes
		if a.noHostPlane != "" {
			warnings = append(warnings, a.noHostPlane)
		}
		s.Source = SourceStatus{Kind: a.kind, Synced: a.synced, Errors: []string{}}
		s.ServicePorts = len(a.model.Ports)
		for _, sp := range a.model.Ports {
			s.Endpoints += len(sp.ClusterEndpoints)
		}
		for _, e := range a.problems.Errors {
			s.Source.Errors = append(s.Source.Errors, e.String())
		}
		if a.synced && !a.handed {
			warnings = append(warnings, "nothing is programmed yet: waiting for the node's spec.podCIDRs (--detect-local-mode NodeCIDR)")
		}
		for _, w := range slices.Concat(a.problems.Warnings, a.model.Warnings) {
			warnings = append(warnings, w.String())
		}
	})
	switch {
	case ctx.Err() != nil:
		return s, ctx.Err()
	case err != nil:
		s.Source = SourceStatus{Kind: a.kind, Errors: []string{}}
		warnings = append(warnings, "the agent's loop is busy: what it knows of source, Services and iptables is missing here")
		if last := a.tally.Load(); last != nil {
			s.Source.Synced, now = last.synced, last.planes
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
	for _, pl := range now.all {
		st, err := pl.Status(ctx)
		if err != nil {
			return s, err
		}
		switch d := st.Detail.(type) {
		case *bridge.Status:
			s.Status = d
		case *fallback.Status:
			s.IPTables = d
		case *windows.Status:
			s.HNS = d
		}
		warnings = append(warnings, st.Warnings...)
	}
	if a.notes != nil {
		warnings = append(warnings, a.notes()...)
	}
	if change := a.modeChange.Load(); change != nil && *change != "" {
		warnings = append(warnings, *change)
	}
	if failure := a.metricsServer.Failure(); failure != "" {
		warnings = append(warnings, failure)
	}
	for _, c := range a.ports.Conflicts() {
		warnings = append(warnings, c.String())
	}
	s.Warnings = append([]string{}, slices.Concat(a.sysctls, a.checks.Failures(), warnings)...)
	return s, nil
}
