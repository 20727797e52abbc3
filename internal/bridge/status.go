package bridge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/internal/dpctl"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/ovsdb"
)

// Status is the state that only the bridge data plane has; part of the output of `nkp status -o json`.
type Status struct {
	Bridge   BridgeStatus   `json:"bridge"`
	Database DatabaseStatus `json:"database"`
	Channel  ChannelStatus  `json:"channel"`

	// HostTraffic is who serves the node's own traffic: ovs, iptables, nftables or off; "": not known yet.
	HostTraffic HostTraffic `json:"hostTraffic"`

	Flows  int `json:"flows"`  // wanted
	Groups int `json:"groups"` // wanted

	InStep bool   `json:"inStep"`        // the switch holds what is wanted
	Why    string `json:"why,omitempty"` // why not, or why that is not known
	// FailOpen is why flows are not in force although the switch holds them. It is also among the warnings.
	FailOpen    string           `json:"failOpen,omitempty"`
	LastSync    *time.Time       `json:"lastSync"`
	Programming ProgrammingStats `json:"programming"`
	dataplane.Record
	Compared *time.Time      `json:"compared"` // in place of the Record's; nil: not yet
	Refused  []RefusedStatus `json:"refused"`
	Foreign  int             `json:"foreign"` // flows of other owners in nkp's own tables
	// Decide reports whether flows of others in table 0 decide where packets go that nkp passes on.
	Decide     bool             `json:"othersDecide"`
	Rejects    RejectStats      `json:"rejects"`
	Affinity   AffinityStatus   `json:"affinity"`
	RestingIDs int              `json:"restingIDs"` // of Service ports that are gone, which no other gets yet
	Conntrack  *dpctl.Usage     `json:"conntrack"`  // null: there is no bridge
	Megaflows  *dpctl.Megaflows `json:"megaflows"`  // null: there is no bridge
}

// BridgeStatus is the switch as its database shows it.
type BridgeStatus struct {
	Name          string `json:"name"`
	Exists        bool   `json:"exists"`
	Datapath      string `json:"datapath"`
	OVSVersion    string `json:"ovsVersion"`
	Uplink        uint32 `json:"uplink"`
	Pods          int    `json:"pods"`
	LocalDelivery bool   `json:"localDelivery"`
	// Lacks names what this Open vSwitch does not have, and what nkp does instead.
	Lacks []string `json:"lacks"`
}

// ChannelStatus is the OpenFlow connection.
type ChannelStatus struct {
	Target    string `json:"target"`
	Connected bool   `json:"connected"`
	Silent    bool   `json:"silent"` // connected, but the switch does not answer now
	Since     string `json:"since,omitempty"`
	LastError string `json:"lastError,omitempty"`
}

// ProgrammingStats holds the latency of programming in milliseconds: from the arrival of a change to the
// switch's reply, over the last 1,000 changes, and the part of it spent in the channel, from a transaction's
// first message to the reply to its commit, over the last 1,000 transactions.
type ProgrammingStats struct {
	dataplane.Programming
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
	LastSync time.Time
	dataplane.Record
	Connections uint64           // made since the start
	dropped     uint64           // packet-ins, by connections that have ended
	changes     dataplane.Recent // from a change's arrival to the reply
	channel     dataplane.Recent // from a transaction's first message to the reply
	first       *TransactionStats
}

func (s *statistics) synced(res ofctrl.Result, objects int) {
	s.LastSync = time.Now()
	s.channel.Add(res.Duration)
	if s.first == nil {
		s.first = &TransactionStats{Objects: objects, Milli: dataplane.Milliseconds(res.Duration)}
	}
}

func (s *statistics) programming() ProgrammingStats {
	p := ProgrammingStats{Programming: s.changes.Programming(), First: s.first}
	p.ChannelP50Milli, p.ChannelP99Milli = s.channel.Quantiles()
	return p
}

// Status describes the data plane; its Detail is a *Status. If the loop is busy, the status
// contains only what is known without it. It claims that the switch is in step only if the switch answers.
func (p *Plane) Status(ctx context.Context) (s dataplane.Status, err error) {
	wait, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	answer := make(chan error, 1)
	conn := p.conn()
	go func() { answer <- p.Answers(wait) }() // ends with wait, as the next does
	question := make(chan asked, 1)
	go func() { question <- p.askSwitch(wait) }()
	if p.askLoop(wait, p.looks, func(ctx context.Context) { p.checkFailOpen(ctx); s = p.status() }) != nil {
		s, err = p.busyStatus(), ctx.Err()
	}
	if why := <-answer; why != nil && conn != nil && time.Since(conn.Heard()) >= freshness {
		s = withoutAnswer(s, why)
	}
	s.Canary = p.Canary()
	if d, a := s.Detail.(*Status), <-question; d.Bridge.Exists {
		d.Conntrack, d.Megaflows = &a.usage, &a.megaflows
		s.Warnings = append(s.Warnings, a.warnings...)
	}
	return s, err
}

// busyStatus describes the data plane without its loop: as it was when the loop was last at rest.
func (p *Plane) busyStatus() dataplane.Status {
	f, sw := p.Figures(), p.db.Switch()
	target, _ := p.set.OpenFlowTarget() // if it is invalid, Run has ended
	s := &Status{
		Bridge: BridgeStatus{
			Name:       sw.Bridge,
			Exists:     sw.Exists,
			Datapath:   sw.DatapathType,
			OVSVersion: sw.OVSVersion,
			Lacks:      []string{},
		},
		Database: p.database(),
		Channel: ChannelStatus{
			Target:    target,
			Connected: f.Connected,
			LastError: "not known: the data plane is busy",
		},
		Flows:   f.FlowsWanted,
		Groups:  f.GroupsWanted,
		Record:  dataplane.Record{Repairs: f.Repairs},
		Foreign: f.Foreign,
		Rejects: f.Rejects,
		Refused: []RefusedStatus{},
	}

	s.Why = "the data plane is busy"
	const busy = "the data plane is busy with the switch: its status is incomplete and may be out of date"
	warnings := []string{busy}
	if !sw.Exists {
		warnings = append(warnings, goneWarning(&sw))
	}
	return dataplane.Status{Busy: true, Why: busy, Warnings: warnings, Detail: s}
}

// status runs on the loop.
func (p *Plane) status() dataplane.Status {
	sw := p.db.Switch()
	why := p.notInStep()
	p.prog.lookForeign(false)
	s := &Status{
		Bridge: BridgeStatus{
			Name:       sw.Bridge,
			Exists:     sw.Exists,
			Datapath:   sw.DatapathType,
			OVSVersion: sw.OVSVersion,
		},
		Database:    p.database(),
		Channel:     ChannelStatus{Target: p.openflow, Connected: p.prog.conn != nil},
		HostTraffic: p.traffic.by,
		InStep:      why == "",
		Why:         why,
		FailOpen:    p.failOpen,
		Programming: p.prog.stats.programming(),
		Record:      p.prog.stats.Record,
		Foreign:     p.prog.foreign.Number,
		Refused:     []RefusedStatus{},
		Rejects:     p.rejects.stats(p.prog.stats.dropped),
		Affinity:    p.affinity.status(),
	}

	warnings := slices.Concat(p.node.warnings, p.traffic.warnings, s.Affinity.warnings(),
		p.prog.unreadWarnings(), p.prog.foreign.warnings(), p.prog.beyondWarnings())
	if p.failOpen != "" {
		warnings = append(warnings, p.failOpen)
	}

	if !p.prog.stats.LastSync.IsZero() {
		t := p.prog.stats.LastSync
		s.LastSync = &t
	}
	if !s.Record.Compared.IsZero() {
		s.Compared = &s.Record.Compared
	}
	if p.prog.conn != nil {
		s.Rejects.Dropped += p.prog.conn.PacketInDrops()
	}

	client := p.of.Load().Status()
	s.Channel.LastError = errorText(client.LastError)
	if client.Connected {
		s.Channel.Since = client.Since.UTC().Format(time.RFC3339)
	}

	if p.prog.compiler != nil {
		s.Flows, s.Groups = p.prog.compiler.Flows(), p.prog.compiler.Groups()
		cfg := p.prog.compiler.Config()
		s.RestingIDs = p.prog.compiler.Resting()
		s.Decide = cfg.OthersDecide()
		s.Bridge.Uplink, s.Bridge.Pods, s.Bridge.LocalDelivery = cfg.Uplink, len(cfg.Pods), cfg.LocalDelivery
		warnings = append(warnings, p.prog.compiler.Missing()...)
	}

	s.Bridge.Lacks = p.missingFeatures()
	if p.stale.problem != "" {
		warnings = append(warnings, p.stale.problem)
	}

	if !sw.Exists {
		warnings = []string{goneWarning(&sw)} // whatever else is unknown follows from that
	}

	refusals := p.prog.refused.All()
	for _, r := range refusals {
		s.Refused = append(s.Refused, RefusedStatus{
			Service: ownerText(r.Port),
			Error:   r.Reason,
			Times:   r.Times,
			RetryAt: r.RetryAt,
		})
	}

	return dataplane.Status{
		InStep: s.InStep, Why: why, Refusals: refusals, Notices: p.affinity.notices(), Warnings: warnings,
		Programming: s.Programming.Programming, Detail: s,
	}
}

// Behind is part of dataplane.Plane. The datapath may still have cached flows of before: Uncached.
func (p *Plane) Behind(ctx context.Context, by time.Time, closing bool) (why string) {
	if err := p.Answers(ctx); err != nil {
		return err.Error()
	}
	err := p.askLoop(ctx, p.looks, func(loop context.Context) {
		p.checkFailOpen(loop)
		if why = cmp.Or(p.notKnown(), p.failOpen); why == "" && p.waits(by) {
			why = notAll
		} else if why == "" && closing && p.stale.pending.closes {
			why = notClosed
		}
	})
	if err != nil {
		return err.Error()
	}
	return why
}

// waits reports whether the switch may lack what was handed over by a time, or hold what should be gone since
// the last read-back. It runs on the loop.
func (p *Plane) waits(by time.Time) bool { return p.in.Waits(by) || p.prog.left() > 0 }

// Uncached waits until the flows that the datapath caches follow the tables as they are now, and returns why
// they may not; "": they do, or ovs-vswitchd's control socket cannot be reached.
func (p *Plane) Uncached(ctx context.Context) string {
	if p.daemon().Revalidated(ctx) != nil && ctx.Err() != nil {
		return "the datapath's cached flows do not follow the tables yet"
	}
	return ""
}

const (
	notAll    = "not all changes are on the switch yet"
	notClosed = "connections to removed endpoints are still to be deleted"
)

// notKnown returns why it is not known what the switch holds; "": it is. It runs on the loop.
func (p *Plane) notKnown() string {
	switch sw := p.db.Switch(); {
	case !sw.Exists:
		return Gone(&sw)
	case p.prog.conn == nil:
		return p.notConnected().Error()
	case !p.prog.permitted && p.prog.beyond.stateful != nil:
		return p.prog.beyondWarnings()[0]
	case p.prog.pending == nil:
		return "the switch has not been read back yet"
	}
	return ""
}

// notInStep returns why the switch does not hold all that is wanted; "": it does. It runs on the loop.
func (p *Plane) notInStep() string {
	why := p.notKnown()
	switch {
	case why != "":
		return why
	case p.prog.unsent || !p.in.Idle(): // a large Service comes in portions
		return notAll
	case p.prog.left() > 0:
		return fmt.Sprintf("unwanted flows still to be deleted: %d", p.prog.left())
	case p.prog.refused.Len() > 0:
		return "the switch refuses " + dataplane.Count(p.prog.refused.Len(), "Service port")
	case p.failOpen != "":
		return p.failOpen
	case p.stale.pending.closes:
		return notClosed
	}
	return ""
}

// missingFeatures names the features found missing since the last connection, and those that the switch's
// release does not have.
func (p *Plane) missingFeatures() []string {
	list := []string{}
	if sw := p.db.Switch(); sw.Exists {
		if _, without := p.set.guards(&sw); without != "" {
			list = append(list, without)
		}
	}
	if p.stale.noFlush && p.stale.problem == "" {
		list = append(list,
			ovsdb.CTFlush.String()+": netlink (kernel datapath) or ovs-vswitchd's control socket does it")
	}
	return list
}

// goneWarning returns what a missing bridge means, and what to do.
func goneWarning(sw *ovsdb.Switch) string {
	return Gone(sw) + ": Services are not served to the pods on it; make it again as the pod network does, " +
		"nkp programs it as soon as it is there (ovs-vsctl show; --bridge names another)"
}

func ownerText(n k8s.PortName) string {
	if n == (k8s.PortName{}) {
		return "the fixed part of the pipeline"
	}
	return n.String()
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
