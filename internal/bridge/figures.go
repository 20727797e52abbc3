package bridge

import "github.com/nkp-proxy/nkp/k8s"

// Figures are the numbers of a plane that are available at any time, even while its loop waits for the
// switch.
type Figures struct {
	Connected                     bool
	FailOpen                      bool
	Connections                   uint64 // made since the start
	FlowsWanted                   int
	FlowsInstalled                int // 0 while that is not known
	GroupsWanted                  int
	Refused                       int // Service ports
	Repairs                       int
	Foreign                       int // flows of other owners in nkp's own tables
	Warnings                      int
	Rejects                       RejectStats
	AffinityClients, AffinityFull int
	AffinityStopped               bool
	RestingIDs                    int                       // of Service ports that are gone
	Dropped                       map[k8s.DropReason]uint64 // at the last count; it is not changed
}

// Figures returns the plane's numbers as they were when its loop was last at rest. Rejects, except Dropped,
// are current.
func (p *Plane) Figures() Figures {
	var f Figures
	if last := p.figures.Load(); last != nil {
		f = *last
	}
	f.Rejects = p.rejects.stats(f.Rejects.Dropped)
	return f
}

// publish makes new Figures known. It runs on the loop.
func (p *Plane) publish() {
	f := &Figures{
		Connected:   p.prog.conn != nil,
		Connections: p.prog.stats.Connections,
		Refused:     p.prog.refused.Len(),
		Repairs:     p.prog.stats.Repairs,
		Foreign:     p.prog.foreign.Number,
		Warnings:    len(p.node.warnings) + len(p.traffic.warnings),
	}
	if f.FailOpen = p.failOpen != ""; f.FailOpen {
		f.Warnings++
	}

	pins := &p.affinity.last
	f.AffinityClients, f.AffinityFull, f.AffinityStopped = pins.clients, len(pins.full), pins.stopped
	f.Dropped = p.drops.Node()
	affinity := p.affinity.status()
	f.Warnings += len(affinity.warnings()) + len(p.prog.unread) + len(p.prog.foreign.warnings()) +
		len(p.prog.beyondWarnings())

	f.Rejects.Dropped = p.prog.stats.dropped
	if p.prog.conn != nil {
		f.Rejects.Dropped += p.prog.conn.PacketInDrops()
	}
	if p.prog.pending != nil {
		f.FlowsInstalled = max(0, p.prog.flows)
	}
	if p.prog.compiler != nil {
		f.RestingIDs = p.prog.compiler.Resting()
		f.FlowsWanted, f.GroupsWanted = p.prog.compiler.Flows(), p.prog.compiler.Groups()
		f.Warnings += len(p.prog.compiler.Missing())
	}

	p.figures.Store(f)
}
