package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// maxRounds bounds how often one synchronisation starts over because the switch refused something: each round
// leaves out what was refused before. A switch that refuses a bundle when it is committed names only the first
// object, so that many bad ones would take many rounds: after these, every Service goes by itself.
const maxRounds = 4

// push brings a Delta of the compiler to the switch, with what the switch lacks already: nearly always nothing.
func (p *Plane) push(ctx context.Context, d *flow.Delta) {
	if d.Empty() || p.gap == nil || p.conn == nil {
		return // the read-back of the next connection finds out all there is to do
	}
	if !p.gap.Empty() {
		d = p.gap.Merge(d)
	}
	p.gap, p.behind = d, true
	p.sync(ctx)
}

// sync sends what the switch lacks, and tells whether it took all of it. It does nothing without a connection or before the
// switch was read back.
func (p *Plane) sync(ctx context.Context) bool {
	for range maxRounds {
		if p.conn == nil || p.gap == nil || p.compiler == nil {
			return false
		}
		now := time.Now()
		if d, rest := p.ready(now); d.Empty() || p.commit(ctx, d) {
			p.sent(rest, now)
			p.forget(ctx)
			return true
		}
	}
	return p.syncEach(ctx)
}

// syncEach sends what the switch lacks Service by Service, each in a transaction of its own, so that whatever the switch
// refuses holds up nobody else.
func (p *Plane) syncEach(ctx context.Context) bool {
	if p.conn == nil || p.gap == nil || p.compiler == nil {
		return false
	}
	now := time.Now()
	d, rest := p.ready(now)
	parts := p.byOwner(d)
	p.log.Warn("the switch refuses too much: sending Service by Service", "parts", len(parts))
	done := true
	for _, part := range parts {
		if !p.commit(ctx, part) {
			rest = rest.Merge(part)
			done = false
		}
		if p.conn == nil {
			return false
		}
	}
	p.sent(rest, now)
	p.forget(ctx)
	return done
}

// sent notes what the switch lacks still: what belongs to Service ports that wait, with the connections to forget then.
func (p *Plane) sent(rest *flow.Delta, now time.Time) {
	p.refused.ForgetIf(func(n k8s.PortName) bool { return !p.refused.Waits(n, now) }) // they were tried, and not refused again
	p.gap, p.behind, p.flows = rest, false, flowsUnknown
	if rest.Empty() && len(p.surplus) == 0 {
		p.flows = p.compiler.Flows()
	}
}

// ready divides what the switch lacks: what is to be sent now, and what belongs to Service ports that wait. What is installed
// of those stays as it is.
func (p *Plane) ready(now time.Time) (d, rest *flow.Delta) {
	if p.refused.Len() == 0 {
		return p.gap, &flow.Delta{}
	}
	// As long as a Service port waits, connections are made by what is installed of it: they are forgotten once more then.
	d, rest = withoutOwner(p.gap), &flow.Delta{FlushCT: p.gap.FlushCT}
	p.deal(p.gap, func(n k8s.PortName) *flow.Delta {
		if p.refused.Waits(n, now) {
			return rest
		}
		return d
	})
	return d, rest
}

// withoutOwner gives the parts of a Delta that are never refused for a Service's sake.
func withoutOwner(d *flow.Delta) *flow.Delta {
	return &flow.Delta{Clear: d.Clear, SetMeters: d.SetMeters, DelMeters: d.DelMeters, DelLearned: d.DelLearned, FlushCT: d.FlushCT}
}

// deal adds every flow and group of a Delta to that of its owner.
func (p *Plane) deal(d *flow.Delta, to func(k8s.PortName) *flow.Delta) {
	for _, g := range d.SetGroups {
		t := to(p.ownerOf(g))
		t.SetGroups = append(t.SetGroups, g)
	}
	for _, f := range d.SetFlows {
		t := to(p.ownerOf(f))
		t.SetFlows = append(t.SetFlows, f)
	}
	for _, f := range d.DelFlows {
		t := to(p.ownerOf(f))
		t.DelFlows = append(t.DelFlows, f)
	}
	for _, id := range d.DelGroups {
		t := to(p.ownerOf(ofctrl.GroupID(id)))
		t.DelGroups = append(t.DelGroups, id)
	}
}

// byOwner splits a Delta into one for what belongs to no Service, which comes first, and one for each Service port.
func (p *Plane) byOwner(d *flow.Delta) []*flow.Delta {
	shared := withoutOwner(d)
	parts := []*flow.Delta{shared}
	of := map[k8s.PortName]*flow.Delta{{}: shared}
	p.deal(d, func(n k8s.PortName) *flow.Delta {
		if of[n] == nil {
			of[n] = &flow.Delta{}
			parts = append(parts, of[n])
		}
		return of[n]
	})
	if shared.Empty() {
		parts = parts[1:]
	}
	return parts
}

// commit sends one Delta as one transaction. If the switch refuses objects, their owners wait and false comes
// back. A connection that fails is closed: the client makes a new one and everything is read back.
func (p *Plane) commit(ctx context.Context, d *flow.Delta) bool {
	for _, f := range d.SetFlows {
		delete(p.surplus, f.Key) // it takes the place of what was to go
	}
	res, err := p.conn.Commit(ctx, d)
	var tx *ofctrl.TxError
	switch {
	case err == nil:
		p.measured(d, res, 0, false)
	case errors.As(err, &tx) && tx.Installed():
		p.measured(d, res, 0, false)
		p.log.Warn("switch is in step, but not every meter was deleted", "error", err)
		p.stats.failed(err)
	case errors.As(err, &tx) && len(tx.Rejected) > 0:
		p.stats.failed(err)
		p.measured(d, res, len(tx.Rejected)+tx.More, false)
		p.noteRefused(tx.Rejected)
		return false
	default:
		p.stats.failed(err)
		if ctx.Err() == nil {
			p.log.Error("transaction failed; connecting anew", "error", err)
		}
		p.measured(d, res, 0, true)
		p.lost(err)
		p.conn.Close()
		p.disconnected()
		return false
	}
	p.forgets.owed.add(false, d.FlushCT)
	p.stats.synced(res, len(d.SetFlows)+len(d.DelFlows)+len(d.SetGroups)+len(d.DelGroups))
	p.log.Debug("switch is in step", "flows", len(d.SetFlows), "deleted", len(d.DelFlows), "groups", len(d.SetGroups),
		"deletedGroups", len(d.DelGroups), "took", res.Duration)
	return true
}

// noteRefused makes the owners of refused objects wait. The transaction they were part of was not installed.
func (p *Plane) noteRefused(rejected []ofctrl.Rejection) {
	now := time.Now()
	seen := map[k8s.PortName]bool{}
	for _, r := range rejected {
		if _, ok := r.Object.(flow.Meter); ok && !p.noMeter {
			// Datapaths without meters exist (Linux before 4.15); Services work without it.
			p.noMeter = true
			p.withoutMeter()
			continue
		}
		n := p.ownerOf(r.Object)
		if seen[n] {
			continue
		}
		seen[n] = true
		refusal := p.refused.Refuse(n, dataplane.Refusal{Port: n, Reason: r.String()}, now)
		p.hooks.Refused(refusal)
		p.log.Error("the switch refused a Service; the others go on", "service", ownerText(n), "error", r.String(),
			"retryIn", refusal.RetryAt.Sub(now))
	}
}

// withoutMeter goes over to a pipeline without the meter.
func (p *Plane) withoutMeter() {
	d, err := p.compiler.Reconfigure(p.config())
	if err != nil {
		p.log.Error("cannot do without the meter", "error", err)
		return
	}
	if p.gap != nil {
		p.gap = p.gap.Merge(d)
		p.gap.DelMeters = nil // it is not there
	}
}

// watchOthers has the switch report flows of other owners, so that a transaction replaces none of them.
func (p *Plane) watchOthers(ctx context.Context) {
	if err := p.conn.Watch(ctx, p.set.Filter(), p.set.Layout.WatchedTables()); err != nil && ctx.Err() == nil && p.conn.Err() == nil {
		p.log.Warn("the switch does not report flows of other owners: one with the table, priority and match of nkp's is seen at the next audit only", "error", err)
	}
}

func (p *Plane) ownerOf(object any) k8s.PortName {
	var n k8s.PortName
	switch o := object.(type) {
	case *flow.Flow:
		n, _ = p.compiler.Owner(o.Cookie)
	case flow.Learned:
		n, _ = p.compiler.Owner(o.Cookie)
	case *flow.Group:
		n, _ = p.compiler.GroupOwner(o.ID)
	case ofctrl.GroupID:
		n, _ = p.compiler.GroupOwner(uint32(o))
	}
	return n
}

// readBack reads what nkp has on the switch, and repairs what differs.
func (p *Plane) readBack(ctx context.Context) {
	if p.conn == nil || p.compiler == nil {
		return
	}
	if !p.replaceStrangers(ctx) {
		return
	}
	found := p.newComparison()
	err := p.conn.Read(ctx, p.set.Filter(), found)
	if err != nil {
		p.cannotRead(ctx, err)
		return
	}
	p.stats.Compared = time.Now()
	p.unanswered.Store(false)
	p.life.Progress()
	p.unread, p.flows = found.unread, found.Flows()
	first := p.gap == nil
	// What a refused transaction was to make the switch forget is nothing that the switch shows.
	forget := flow.Delta{DelLearned: found.OrphanPins(), FlushCT: found.Stale()}
	if !first {
		forget = *p.gap
	}
	p.gap = found.Delta()
	if d, _ := p.ready(time.Now()); !d.Empty() {
		p.log.Info("bringing the switch in step", "firstTime", first, "setFlows", len(d.SetFlows), "setGroups", len(d.SetGroups),
			"deleteFlows", len(d.DelFlows), "deleteGroups", len(d.DelGroups))
		if !first {
			p.stats.Repairs++
		}
	}
	p.gap.DelLearned, p.gap.FlushCT = forget.DelLearned, forget.FlushCT
	p.setAside(p.gap)
	p.whole = true
	p.sync(ctx)
	p.whole = false
}

// cannotRead gives up a connection on which a read-back failed.
func (p *Plane) cannotRead(ctx context.Context, err error) {
	if ctx.Err() == nil {
		p.log.Error("cannot read the switch back; connecting anew", "error", err)
	}
	p.stats.failed(err)
	p.lost(err)
	p.conn.Close()
	p.disconnected()
}

// checkCount counts nkp's flows on the switch and reads everything back if some are missing or too many.
func (p *Plane) checkCount(ctx context.Context) {
	if p.conn == nil || p.gap == nil {
		return
	}
	cookie, mask := p.set.Layout.StaticCookies()
	c, err := p.conn.FlowCount(ctx, cookie, mask, p.set.Layout.StaticTables()...)
	switch {
	case err != nil || p.flows != flowsUnknown && int(c.Flows) != p.flows:
		p.readBack(ctx)
	default:
		p.flows = int(c.Flows)
	}
}

// flowsUnknown is Plane.flows after a transaction that left out Service ports: some of their flows are there, others not.
const flowsUnknown = -1

// comparison is a Comparison as a Visitor. The connection itself keeps what it must know of the flows of others.
type comparison struct {
	*pipeline.Comparison
	unread map[uint8]int // tables where others have too many, and how many
}

func (p *Plane) newComparison() comparison {
	return comparison{p.compiler.Compare(), map[uint8]int{}}
}

func (comparison) ForeignFlow(*flow.Flow)          {}
func (c comparison) Unread(table uint8, flows int) { c.unread[table] = flows }
