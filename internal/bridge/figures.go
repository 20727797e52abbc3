package bridge

import (
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// Figures are the numbers of a plane that can be had at any time, also while its loop waits for the switch.
type Figures struct {
	Connected                     bool
	Connections                   uint64 // made since the start
	FlowsWanted                   int
	FlowsInstalled                int // 0 while that is not known
	GroupsWanted                  int
	Refused                       int // Service ports
	Repairs                       int
	Warnings                      int
	Rejects                       RejectStats
	AffinityClients, AffinityFull int
	AffinityStopped               bool
}

// Figures gives the plane's numbers as they were when its loop was last at rest; those of rejects are of now.
func (p *Plane) Figures() Figures {
	var f Figures
	if last := p.figures.Load(); last != nil {
		f = *last
	}
	f.Rejects.Answered, f.Rejects.Unanswerable, f.Rejects.Failed = p.rejects.answered.Load(), p.rejects.unanswerable.Load(), p.rejects.failed.Load()
	return f
}

// publish makes new Figures known. It runs on the loop.
func (p *Plane) publish() {
	f := &Figures{
		Connected: p.conn != nil, Connections: p.stats.Connections, Refused: p.refused.Len(), Repairs: p.stats.Repairs,
		Warnings: len(p.warnings) + len(p.routes.warnings),
	}
	f.AffinityClients, f.AffinityFull, f.AffinityStopped = p.pins.count, len(p.pins.full), p.pins.stopped
	affinity := p.affinityStatus()
	f.Warnings += len(affinity.warnings()) + len(p.unread)
	f.Rejects.Dropped = p.stats.dropped
	if p.conn != nil {
		f.Rejects.Dropped += p.conn.PacketInDrops()
	}
	if p.gap != nil {
		f.FlowsInstalled = max(0, p.flows)
	}
	if p.compiler != nil {
		f.FlowsWanted, f.GroupsWanted = p.compiler.Flows(), p.compiler.Groups()
		f.Warnings += len(p.compiler.Missing())
	}
	p.figures.Store(f)
}

// disconnected forgets the connection, and what was known by it.
func (p *Plane) disconnected() {
	p.stats.dropped += p.conn.PacketInDrops()
	if p.gap != nil {
		p.forgets.owed.add(false, p.gap.FlushCT)
	}
	p.conn, p.gap = nil, nil
	clear(p.surplus)
}

// measured calls the hooks for a transaction that is over.
func (p *Plane) measured(d *flow.Delta, res ofctrl.Result, refused int, failed bool) {
	p.hooks.Transaction(dataplane.Transaction{
		Flows: len(d.SetFlows) + len(d.DelFlows), Groups: len(d.SetGroups) + len(d.DelGroups),
		Refused: refused, Failed: failed, Took: res.Duration,
	})
	if refused == 0 && !failed {
		p.hooks.Synced(dataplane.Sync{Families: p.familiesOf(d), Full: p.whole, Took: res.Duration})
	}
}

// familiesOf gives the families that a Delta touches: both, if it touches what belongs to none.
func (p *Plane) familiesOf(d *flow.Delta) []k8s.Family {
	var four, six bool
	note := func(f k8s.Family) bool {
		four, six = four || f != k8s.IPv6, six || f != k8s.IPv4
		return four && six
	}
	family := func(f *flow.Flow) k8s.Family {
		switch f.Match.EthType {
		case flow.EthIPv4:
			return k8s.IPv4
		case flow.EthIPv6:
			return k8s.IPv6
		}
		return 0
	}
	for _, flows := range [][]*flow.Flow{d.SetFlows, d.DelFlows} {
		for _, f := range flows {
			if note(family(f)) {
				return dataplane.Families
			}
		}
	}
	for _, g := range d.SetGroups {
		if n, _ := p.compiler.GroupOwner(g.ID); note(n.Family) {
			return dataplane.Families
		}
	}
	switch {
	case four:
		return dataplane.Families[:1:1]
	case six:
		return dataplane.Families[1:]
	}
	return dataplane.Families
}
