package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/internal/bridge"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/mode"
	"github.com/nkp-proxy/nkp/internal/observe/metrics"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/windows"
)

// Status is what `nkp status -o json` prints.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Started time.Time `json:"started"`
	Mode    string    `json:"mode"`
	Reason  string    `json:"reason"` // why Mode was chosen

	Source SourceStatus `json:"source"`

	// Start has the durations of the phases of the start.
	Start StartStatus `json:"start"`

	ServicePorts int `json:"servicePorts"`
	Endpoints    int `json:"endpoints"`
	// Skipped are the Services, as namespace/name, that --skip-services leaves to another program of the
	// node.
	Skipped []string `json:"skipped,omitempty"`
	// Closing are the Services that close TCP connections to removed endpoints; nil: none does.
	Closing *ClosingStatus `json:"closing,omitempty"`

	// Loops are the goroutines that have made no progress for a second or more, with what they work on and
	// since when.
	Loops []dataplane.State `json:"loops,omitempty"`

	// Pending is what has come from the source and is not programmed yet.
	Pending metrics.Pending `json:"pending"`

	*bridge.Status // mode.OVS

	// IPTables is the data plane of mode.IPTables, or in mode.OVS that for the traffic of the node's own
	// processes.
	IPTables *fallback.Status `json:"iptables,omitempty"`
	// NFTables is the same with nftables.
	NFTables *fallback.Status `json:"nftables,omitempty"`
	HNS      *windows.Status  `json:"hns,omitempty"` // mode.Windows

	// Canary is what packets of nkp's own have shown of the data path, by data plane and family.
	Canary []dataplane.CanaryVerdict `json:"canary"`

	Warnings []string `json:"warnings"`
}

// ClosingStatus are the Services with k8s.AnnotationRemovedEndpoints.
type ClosingStatus struct {
	Services int `json:"services"`
	Draining int `json:"draining"` // removed endpoints whose connections stay for now
}

// SourceStatus is where objects come from.
type SourceStatus struct {
	Kind   string `json:"kind"`
	Synced bool   `json:"synced"`
	// Answers reports whether the API server answers now; nil: objects come from files.
	Answers *bool `json:"answers,omitempty"`
	// AwaySince is when it stopped answering; nil: it answers.
	AwaySince *time.Time `json:"awaySince,omitempty"`
	Errors    []string   `json:"errors"`
	// Revision names the manifests that everything else here is about (manifest.Source.Revision); "": changes
	// are still to be applied, or objects come from an API server. What Errors name of them is not in force.
	Revision string `json:"revision,omitempty"`
}

// loopWait is how long status and scrapes wait for the agent's loop, which never blocks but may have much to
// compute.
const loopWait = 300 * time.Millisecond

// status describes the agent. It waits neither for a loop that is stuck nor for a switch.
func (a *Agent) status(ctx context.Context) (Status, error) {
	s := Status{Version: Version, Node: a.set.NodeName, Started: a.started,
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
		s.Source = SourceStatus{Kind: a.kind, Errors: []string{}}
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
			warnings = append(warnings, notForwarding(d, nodeIPs)...)
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

	s.Warnings = append([]string{}, slices.Concat(a.sysctls, a.checks.Failures(), warnings)...)
	return s, nil
}

// loopStatus sets what the status has of the source and the model, and returns their warnings. It must be
// called on the loop.
func (a *Agent) loopStatus(s *Status) (warnings []string) {
	if a.leftovers != "" {
		warnings = append(warnings, a.leftovers)
	}
	if a.hostPlaneOff != "" {
		warnings = append(warnings, a.hostPlaneOff)
	}

	s.Source = SourceStatus{Kind: a.kind, Synced: a.synced, Errors: []string{}}
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
		s.Closing = &ClosingStatus{len(closing), a.tracker.Draining()}
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
