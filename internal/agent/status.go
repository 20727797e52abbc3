package agent

import (
	"cmp"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/ofctrl"
)

// Status is what `nkp status -o json` prints.
type Status struct {
	Version string    `json:"version"`
	Node    string    `json:"node"`
	Started time.Time `json:"started"`
	Mode    string    `json:"mode"`
	Reason  string    `json:"reason"`

	Bridge  BridgeStatus  `json:"bridge"`
	Channel ChannelStatus `json:"channel"`
	Source  SourceStatus  `json:"source"`

	ServicePorts int `json:"servicePorts"`
	Endpoints    int `json:"endpoints"`
	Flows        int `json:"flows"`  // wanted
	Groups       int `json:"groups"` // wanted

	InStep      bool             `json:"inStep"` // the switch holds what is wanted
	LastSync    *time.Time       `json:"lastSync"`
	Programming ProgrammingStats `json:"programming"`
	Repairs     int              `json:"repairs"` // times the switch was found to differ while connected
	Refused     []RefusedStatus  `json:"refused"`
	Rejects     RejectStats      `json:"rejects"`
	LastError   string           `json:"lastError,omitempty"`
	Warnings    []string         `json:"warnings"`
}

// BridgeStatus is the switch as its database shows it.
type BridgeStatus struct {
	Name          string `json:"name"`
	Datapath      string `json:"datapath"`
	OVSVersion    string `json:"ovsVersion"`
	Uplink        uint32 `json:"uplink"`
	Pods          int    `json:"pods"`
	LocalDelivery bool   `json:"localDelivery"`
}

// ChannelStatus is the OpenFlow connection.
type ChannelStatus struct {
	Target    string `json:"target"`
	Connected bool   `json:"connected"`
	Since     string `json:"since,omitempty"`
	LastError string `json:"lastError,omitempty"`
}

// SourceStatus is where objects come from.
type SourceStatus struct {
	Kind   string   `json:"kind"`
	Synced bool     `json:"synced"`
	Errors []string `json:"errors"`
}

// ProgrammingStats tells how long it takes from a change at the source to the switch's reply, over the last
// 1,000 changes, in milliseconds.
type ProgrammingStats struct {
	Changes  int     `json:"changes"`
	P50Milli float64 `json:"p50Milliseconds"`
	P99Milli float64 `json:"p99Milliseconds"`
}

// RefusedStatus is a Service port that the switch refused.
type RefusedStatus struct {
	Service string    `json:"service"`
	Error   string    `json:"error"`
	Times   int       `json:"times"`
	RetryAt time.Time `json:"retryAt"`
}

// RejectStats counts packets to Services without endpoints.
type RejectStats struct {
	Answered     uint64 `json:"answered"`
	Unanswerable uint64 `json:"unanswerable"` // such as an RST, which is never answered
	Dropped      uint64 `json:"dropped"`      // the queue was full
	Failed       uint64 `json:"failed"`
}

// statistics are the loop's own counters.
type statistics struct {
	Started   time.Time
	LastSync  time.Time
	LastError string
	Repairs   int
	Drifts    int
	changes   int
	latencies []time.Duration // a ring of the last maxLatencies
}

const maxLatencies = 1000

func (s *statistics) programmed(d time.Duration) {
	if len(s.latencies) < maxLatencies {
		s.latencies = append(s.latencies, d)
	} else {
		s.latencies[s.changes%maxLatencies] = d
	}
	s.changes++
}

func (s *statistics) synced(ofctrl.Result, int) {
	s.LastSync, s.LastError = time.Now(), ""
}

func (s *statistics) failed(err error) { s.LastError = err.Error() }

func (s *statistics) programming() ProgrammingStats {
	p := ProgrammingStats{Changes: s.changes}
	if n := len(s.latencies); n > 0 {
		sorted := slices.Sorted(slices.Values(s.latencies))
		p.P50Milli = sorted[n/2].Seconds() * 1000
		p.P99Milli = sorted[min(n-1, n*99/100)].Seconds() * 1000
	}
	return p
}

// status describes the agent. It runs on the loop.
func (a *Agent) status() Status {
	sw := a.db.Switch()
	s := Status{
		Version: Version, Node: a.set.NodeName, Started: a.stats.Started, Mode: "ovs", Reason: a.reason,
		Bridge:       BridgeStatus{Name: sw.Bridge, Datapath: sw.DatapathType, OVSVersion: sw.OVSVersion},
		Channel:      ChannelStatus{Target: a.openflow, Connected: a.conn != nil},
		Source:       SourceStatus{Kind: a.kind, Synced: a.compiler != nil, Errors: []string{}},
		ServicePorts: len(a.model.Ports),
		InStep:       a.conn != nil && a.installed != nil && !a.behind && len(a.waiting) == 0,
		Programming:  a.stats.programming(),
		Repairs:      a.stats.Repairs,
		Refused:      []RefusedStatus{},
		LastError:    a.stats.LastError,
		Warnings:     slices.Clone(a.warnings),
		Rejects: RejectStats{
			Answered: a.rejects.answered.Load(), Unanswerable: a.rejects.unanswerable.Load(), Failed: a.rejects.failed.Load(),
		},
	}
	if !a.stats.LastSync.IsZero() {
		t := a.stats.LastSync
		s.LastSync = &t
	}
	if a.conn != nil {
		s.Rejects.Dropped = a.conn.PacketInDrops()
	}
	client := a.of.Status()
	s.Channel.LastError = errorText(client.LastError)
	if client.Connected {
		s.Channel.Since = client.Since.UTC().Format(time.RFC3339)
	}
	for _, sp := range a.model.Ports {
		s.Endpoints += len(sp.ClusterEndpoints)
	}
	if a.compiler != nil {
		s.Flows, s.Groups = len(a.compiler.State().Flows), len(a.compiler.State().Groups)
		cfg := a.compiler.Config()
		s.Bridge.Uplink, s.Bridge.Pods, s.Bridge.LocalDelivery = cfg.Uplink, len(cfg.Pods), cfg.LocalDelivery
		s.Warnings = append(s.Warnings, a.compiler.Missing()...)
	}
	for _, e := range a.problems.Errors {
		s.Source.Errors = append(s.Source.Errors, e.String())
	}
	for _, w := range slices.Concat(a.problems.Warnings, a.model.Warnings) {
		s.Warnings = append(s.Warnings, w.String())
	}
	for n, r := range a.waiting {
		s.Refused = append(s.Refused, RefusedStatus{Service: ownerText(n), Error: r.err, Times: r.count, RetryAt: r.until})
	}
	slices.SortFunc(s.Refused, func(x, y RefusedStatus) int { return cmp.Compare(x.Service, y.Service) })
	if s.Warnings == nil {
		s.Warnings = []string{}
	}
	return s
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
