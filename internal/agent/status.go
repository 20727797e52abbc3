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
	Kind   string `json:"kind"`
	Synced bool   `json:"synced"`
	// Answers tells whether the API server answers now; nil: the source is none.
	Answers *bool    `json:"answers,omitempty"`
	Errors  []string `json:"errors"`
}

// ProgrammingStats tells how long programming takes, in milliseconds: from the arrival of a change to the switch's
// reply over the last 1,000 changes, and of that the time in the channel, from a transaction's first message to the
// reply to its commit, over the last 1,000 transactions.
type ProgrammingStats struct {
	Changes         int     `json:"changes"`
	P50Milli        float64 `json:"p50Milliseconds"`
	P99Milli        float64 `json:"p99Milliseconds"`
	ChannelP50Milli float64 `json:"channelP50Milliseconds"`
	ChannelP99Milli float64 `json:"channelP99Milliseconds"`
	// First is the first transaction since the start: what differed then.
	First *TransactionStats `json:"first"`
}

// TransactionStats is one transaction.
type TransactionStats struct {
	Objects int     `json:"objects"` // flows and groups set or deleted
	Milli   float64 `json:"milliseconds"`
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
	changes   durations // from a change's arrival to the reply
	channel   durations // from a transaction's first message to the reply
	first     *TransactionStats
}

// durations remembers the last maxDurations of many.
type durations struct {
	count int
	last  []time.Duration // a ring
}

const maxDurations = 1000

func (d *durations) add(v time.Duration) {
	if len(d.last) < maxDurations {
		d.last = append(d.last, v)
	} else {
		d.last[d.count%maxDurations] = v
	}
	d.count++
}

// quantiles gives the median and the 99th percentile in milliseconds; 0 if there is none.
func (d *durations) quantiles() (p50, p99 float64) {
	n := len(d.last)
	if n == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(d.last))
	return milliseconds(sorted[(n-1)/2]), milliseconds(sorted[(n-1)*99/100])
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (s *statistics) programmed(d time.Duration) { s.changes.add(d) }

func (s *statistics) synced(res ofctrl.Result, objects int) {
	s.LastSync, s.LastError = time.Now(), ""
	s.channel.add(res.Duration)
	if s.first == nil {
		s.first = &TransactionStats{Objects: objects, Milli: milliseconds(res.Duration)}
	}
}

func (s *statistics) failed(err error) { s.LastError = err.Error() }

func (s *statistics) programming() ProgrammingStats {
	p := ProgrammingStats{Changes: s.changes.count, First: s.first}
	p.P50Milli, p.P99Milli = s.changes.quantiles()
	p.ChannelP50Milli, p.ChannelP99Milli = s.channel.quantiles()
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
	if server, ok := a.source.(interface{ Answers() bool }); ok {
		answers := server.Answers()
		s.Source.Answers = &answers
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
