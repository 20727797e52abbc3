package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// maxRounds bounds how often one synchronisation starts over because the switch refused something: each round
// leaves out what was refused before. A switch that refuses a bundle when it is committed names only the first
// object, so that many bad ones would take many rounds: after these, every Service goes by itself.
const maxRounds = 4

// push brings a Delta of the compiler to the switch. While the switch is known to hold what the compiler wanted
// before, the Delta alone is sent; otherwise everything is compared. It tells whether the switch is in step now.
func (p *Plane) push(ctx context.Context, d *flow.Delta) bool {
	if d.Empty() {
		return false
	}
	if p.installed == nil || p.conn == nil {
		return false // the read-back of the next connection finds out all there is to do
	}
	if p.behind || len(p.waiting) > 0 {
		p.leftovers.DelLearned = append(p.leftovers.DelLearned, d.DelLearned...)
		p.leftovers.FlushCT = append(p.leftovers.FlushCT, d.FlushCT...)
		p.behind = true
		return p.sync(ctx)
	}
	if p.commit(ctx, d) {
		return true
	}
	p.behind = true
	return p.sync(ctx)
}

// sync compares what is installed with what should be and sends the difference. It does nothing without a
// connection or before the switch was read back.
func (p *Plane) sync(ctx context.Context) bool {
	for range maxRounds {
		if p.conn == nil || p.installed == nil || p.compiler == nil {
			return false
		}
		now := time.Now()
		d := flow.Diff(p.installed, p.target(now))
		d.DelLearned, d.FlushCT = p.leftovers.DelLearned, p.leftovers.FlushCT
		if d.Empty() || p.commit(ctx, d) {
			p.waiting.release(now)
			p.leftovers = flow.Delta{}
			p.behind = false
			return true
		}
	}
	return p.syncEach(ctx)
}

// syncEach sends what is different Service by Service, each in a transaction of its own, so that whatever the switch
// refuses holds up nobody else.
func (p *Plane) syncEach(ctx context.Context) bool {
	if p.conn == nil || p.installed == nil || p.compiler == nil {
		return false
	}
	now := time.Now()
	d := flow.Diff(p.installed, p.target(now))
	d.DelLearned, d.FlushCT = p.leftovers.DelLearned, p.leftovers.FlushCT
	parts := p.byOwner(d)
	p.log.Warn("the switch refuses too much: sending Service by Service", "parts", len(parts))
	done := true
	for _, part := range parts {
		if p.conn == nil {
			return false
		}
		done = p.commit(ctx, part) && done
	}
	p.waiting.release(now)
	p.leftovers = flow.Delta{}
	p.behind = false // whoever was refused waits
	return done
}

// byOwner splits a Delta into one for what belongs to no Service, which comes first, and one for each Service port.
func (p *Plane) byOwner(d *flow.Delta) []*flow.Delta {
	shared := &flow.Delta{SetMeters: d.SetMeters, DelMeters: d.DelMeters, DelLearned: d.DelLearned, FlushCT: d.FlushCT}
	parts := []*flow.Delta{shared}
	of := map[k8s.PortName]*flow.Delta{{}: shared}
	part := func(n k8s.PortName) *flow.Delta {
		if of[n] == nil {
			of[n] = &flow.Delta{}
			parts = append(parts, of[n])
		}
		return of[n]
	}
	for _, g := range d.SetGroups {
		to := part(p.ownerOf(g))
		to.SetGroups = append(to.SetGroups, g)
	}
	for _, f := range d.SetFlows {
		to := part(p.ownerOf(f))
		to.SetFlows = append(to.SetFlows, f)
	}
	for _, f := range d.DelFlows {
		to := part(p.ownerOf(f))
		to.DelFlows = append(to.DelFlows, f)
	}
	for _, id := range d.DelGroups {
		to := part(p.ownerOf(ofctrl.GroupID(id)))
		to.DelGroups = append(to.DelGroups, id)
	}
	if shared.Empty() {
		parts = parts[1:]
	}
	return parts
}

// target is what should be on the switch now: what the compiler wants, except that Service ports which wait stay as
// they are installed.
func (p *Plane) target(now time.Time) *flow.State {
	want := p.compiler.State()
	held := map[k8s.PortName]bool{}
	for n := range p.waiting {
		if p.waiting.waiting(n, now) {
			held[n] = true
		}
	}
	if len(held) == 0 {
		return want
	}
	t := &flow.State{Flows: maps.Clone(want.Flows), Groups: maps.Clone(want.Groups), Meters: want.Meters}
	flowHeld := func(f *flow.Flow) bool { n, _ := p.compiler.Owner(f.Cookie); return held[n] }
	groupHeld := func(id uint32) bool { n, _ := p.compiler.GroupOwner(id); return held[n] }
	maps.DeleteFunc(t.Flows, func(_ flow.Key, f *flow.Flow) bool { return flowHeld(f) })
	maps.DeleteFunc(t.Groups, func(id uint32, _ *flow.Group) bool { return groupHeld(id) })
	for k, f := range p.installed.Flows {
		if flowHeld(f) {
			t.Flows[k] = f
		}
	}
	for id, g := range p.installed.Groups {
		if groupHeld(id) {
			t.Groups[id] = g
		}
	}
	return t
}

// commit sends one Delta as one transaction. If the switch refuses objects, their owners wait and false comes
// back. A connection that fails is closed: the client makes a new one and everything is read back.
func (p *Plane) commit(ctx context.Context, d *flow.Delta) bool {
	if p.refuseConflicts(d) {
		return false
	}
	res, err := p.conn.Commit(ctx, d)
	var tx *ofctrl.TxError
	switch {
	case err == nil:
		p.measured(d, res, 0, false)
	case errors.As(err, &tx) && tx.Installed():
		p.measured(d, res, 0, false)
		p.log.Warn("switch is in step, but not all was forgotten", "error", err)
		p.stats.failed(err)
	case errors.As(err, &tx) && len(tx.Rejected) > 0:
		p.stats.failed(err)
		p.measured(d, res, len(tx.Rejected)+tx.More, false)
		p.refused(tx.Rejected)
		return false
	default:
		p.stats.failed(err)
		if ctx.Err() == nil {
			p.log.Error("transaction failed; connecting anew", "error", err)
		}
		p.measured(d, res, 0, true)
		p.conn.Close()
		p.disconnected()
		return false
	}
	p.installed.Apply(d)
	p.stats.synced(res, len(d.SetFlows)+len(d.DelFlows)+len(d.SetGroups)+len(d.DelGroups))
	p.log.Debug("switch is in step", "flows", len(d.SetFlows), "deleted", len(d.DelFlows), "groups", len(d.SetGroups),
		"deletedGroups", len(d.DelGroups), "took", res.Duration)
	return true
}

// refused makes the owners of refused objects wait. The transaction they were part of was not installed.
func (p *Plane) refused(rejected []ofctrl.Rejection) {
	now := time.Now()
	seen := map[k8s.PortName]bool{}
	for _, r := range rejected {
		if _, ok := r.Object.(flow.Meter); ok && !p.noMeter {
			// Datapaths without meters exist (Linux before 4.15); Services work without it.
			p.noMeter = true
			if _, err := p.compiler.Reconfigure(p.config()); err != nil {
				p.log.Error("cannot do without the meter", "error", err)
			}
			continue
		}
		n := p.ownerOf(r.Object)
		if seen[n] {
			continue
		}
		seen[n] = true
		p.waiting.refuse(n, r.String(), now)
		p.hooks.Refused(n, r.String())
		p.log.Error("the switch refused a Service; the others go on", "service", ownerText(n), "error", r.String(),
			"retryIn", p.waiting[n].pause)
	}
}

// refuseConflicts keeps flows of others: where one has the table, priority and match of one of ours, ours waits.
func (p *Plane) refuseConflicts(d *flow.Delta) bool {
	found := false
	for _, f := range d.SetFlows {
		foreign := p.conflicts[f.Key]
		if foreign == nil {
			continue
		}
		found = true
		n, _ := p.compiler.Owner(f.Cookie)
		reason := fmt.Sprintf("somebody else's flow has the table, priority and match of nkp's: %s; remove it, or move nkp with --table-base", foreign)
		p.waiting.refuse(n, reason, time.Now())
		p.hooks.Refused(n, reason)
		p.log.Error("cannot install", "service", ownerText(n), "error", reason)
	}
	return found
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

// readBack reads what nkp has on the switch, repairs what differs, and notes foreign flows in the way.
func (p *Plane) readBack(ctx context.Context) {
	if p.conn == nil || p.compiler == nil {
		return
	}
	snap, err := p.conn.ReadBack(ctx, p.set.Filter())
	if err != nil {
		if ctx.Err() == nil {
			p.log.Error("cannot read the switch back; connecting anew", "error", err)
		}
		p.stats.failed(err)
		p.conn.Close()
		p.disconnected()
		return
	}
	p.stats.Compared = time.Now()
	p.conflicts = map[flow.Key]*flow.Flow{}
	for _, f := range snap.Foreign {
		p.conflicts[f.Key] = f
	}
	first := p.installed == nil
	p.installed = snap.State
	if first {
		p.leftovers = flow.Delta{FlushCT: p.compiler.StaleSince(p.installed), DelLearned: p.compiler.OrphanPins(snap.Learned)}
	}
	if d := flow.Diff(p.installed, p.target(time.Now())); !d.Empty() {
		p.log.Info("bringing the switch in step", "firstTime", first, "setFlows", len(d.SetFlows), "setGroups", len(d.SetGroups),
			"deleteFlows", len(d.DelFlows), "deleteGroups", len(d.DelGroups))
		if !first {
			p.stats.Repairs++
		}
	}
	p.whole = true
	p.sync(ctx)
	p.whole = false
}

// checkCount counts nkp's flows on the switch and reads everything back if some are missing or too many.
func (p *Plane) checkCount(ctx context.Context) {
	if p.conn == nil || p.installed == nil {
		return
	}
	cookie, mask := p.set.Layout.StaticCookies()
	c, err := p.conn.FlowCount(ctx, cookie, mask)
	if err != nil || int(c.Flows) != len(p.installed.Flows) {
		p.readBack(ctx)
	}
}
