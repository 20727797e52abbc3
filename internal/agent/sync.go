package agent

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
func (a *Agent) push(ctx context.Context, d *flow.Delta) bool {
	if d.Empty() {
		return false
	}
	if a.installed == nil || a.conn == nil {
		return false // the read-back of the next connection finds out all there is to do
	}
	if a.behind || len(a.waiting) > 0 {
		a.leftovers.DelLearned = append(a.leftovers.DelLearned, d.DelLearned...)
		a.leftovers.FlushCT = append(a.leftovers.FlushCT, d.FlushCT...)
		a.behind = true
		return a.sync(ctx)
	}
	if a.commit(ctx, d) {
		return true
	}
	a.behind = true
	return a.sync(ctx)
}

// sync compares what is installed with what should be and sends the difference. It does nothing without a
// connection or before the switch was read back.
func (a *Agent) sync(ctx context.Context) bool {
	for range maxRounds {
		if a.conn == nil || a.installed == nil || a.compiler == nil {
			return false
		}
		now := time.Now()
		d := flow.Diff(a.installed, a.target(now))
		d.DelLearned, d.FlushCT = a.leftovers.DelLearned, a.leftovers.FlushCT
		if d.Empty() || a.commit(ctx, d) {
			a.waiting.release(now)
			a.leftovers = flow.Delta{}
			a.behind = false
			return true
		}
	}
	return a.syncEach(ctx)
}

// syncEach sends what is different Service by Service, each in a transaction of its own, so that whatever the switch
// refuses holds up nobody else.
func (a *Agent) syncEach(ctx context.Context) bool {
	if a.conn == nil || a.installed == nil || a.compiler == nil {
		return false
	}
	now := time.Now()
	d := flow.Diff(a.installed, a.target(now))
	d.DelLearned, d.FlushCT = a.leftovers.DelLearned, a.leftovers.FlushCT
	parts := a.byOwner(d)
	a.log.Warn("the switch refuses too much: sending Service by Service", "parts", len(parts))
	done := true
	for _, part := range parts {
		if a.conn == nil {
			return false
		}
		done = a.commit(ctx, part) && done
	}
	a.waiting.release(now)
	a.leftovers = flow.Delta{}
	a.behind = false // whoever was refused waits
	return done
}

// byOwner splits a Delta into one for what belongs to no Service, which comes first, and one for each Service port.
func (a *Agent) byOwner(d *flow.Delta) []*flow.Delta {
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
		p := part(a.ownerOf(g))
		p.SetGroups = append(p.SetGroups, g)
	}
	for _, f := range d.SetFlows {
		p := part(a.ownerOf(f))
		p.SetFlows = append(p.SetFlows, f)
	}
	for _, f := range d.DelFlows {
		p := part(a.ownerOf(f))
		p.DelFlows = append(p.DelFlows, f)
	}
	for _, id := range d.DelGroups {
		p := part(a.ownerOf(ofctrl.GroupID(id)))
		p.DelGroups = append(p.DelGroups, id)
	}
	if shared.Empty() {
		parts = parts[1:]
	}
	return parts
}

// target is what should be on the switch now: what the compiler wants, except that Service ports which wait stay as
// they are installed.
func (a *Agent) target(now time.Time) *flow.State {
	want := a.compiler.State()
	held := map[k8s.PortName]bool{}
	for n := range a.waiting {
		if a.waiting.waiting(n, now) {
			held[n] = true
		}
	}
	if len(held) == 0 {
		return want
	}
	t := &flow.State{Flows: maps.Clone(want.Flows), Groups: maps.Clone(want.Groups), Meters: want.Meters}
	flowHeld := func(f *flow.Flow) bool { n, _ := a.compiler.Owner(f.Cookie); return held[n] }
	groupHeld := func(id uint32) bool { n, _ := a.compiler.GroupOwner(id); return held[n] }
	maps.DeleteFunc(t.Flows, func(_ flow.Key, f *flow.Flow) bool { return flowHeld(f) })
	maps.DeleteFunc(t.Groups, func(id uint32, _ *flow.Group) bool { return groupHeld(id) })
	for k, f := range a.installed.Flows {
		if flowHeld(f) {
			t.Flows[k] = f
		}
	}
	for id, g := range a.installed.Groups {
		if groupHeld(id) {
			t.Groups[id] = g
		}
	}
	return t
}

// commit sends one Delta as one transaction. If the switch refuses objects, their owners wait and false comes
// back. A connection that fails is closed: the client makes a new one and everything is read back.
func (a *Agent) commit(ctx context.Context, d *flow.Delta) bool {
	if a.refuseConflicts(d) {
		return false
	}
	res, err := a.conn.Commit(ctx, d)
	var tx *ofctrl.TxError
	switch {
	case err == nil:
	case errors.As(err, &tx) && tx.Installed():
		a.log.Warn("switch is in step, but not all was forgotten", "error", err)
		a.stats.failed(err)
	case errors.As(err, &tx) && len(tx.Rejected) > 0:
		a.stats.failed(err)
		a.refused(tx.Rejected)
		return false
	default:
		a.stats.failed(err)
		if ctx.Err() == nil {
			a.log.Error("transaction failed; connecting anew", "error", err)
		}
		a.conn.Close()
		a.conn, a.installed = nil, nil
		return false
	}
	a.installed.Apply(d)
	a.stats.synced(res, len(d.SetFlows)+len(d.DelFlows)+len(d.SetGroups)+len(d.DelGroups))
	a.log.Debug("switch is in step", "flows", len(d.SetFlows), "deleted", len(d.DelFlows), "groups", len(d.SetGroups),
		"deletedGroups", len(d.DelGroups), "took", res.Duration)
	return true
}

// refused makes the owners of refused objects wait. The transaction they were part of was not installed.
func (a *Agent) refused(rejected []ofctrl.Rejection) {
	now := time.Now()
	seen := map[k8s.PortName]bool{}
	for _, r := range rejected {
		if _, ok := r.Object.(flow.Meter); ok && !a.noMeter {
			// Datapaths without meters exist (Linux before 4.15); Services work without it.
			a.noMeter = true
			if _, err := a.compiler.Reconfigure(a.config()); err != nil {
				a.log.Error("cannot do without the meter", "error", err)
			}
			continue
		}
		n := a.ownerOf(r.Object)
		if seen[n] {
			continue
		}
		seen[n] = true
		a.waiting.refuse(n, r.String(), now)
		a.log.Error("the switch refused a Service; the others go on", "service", ownerText(n), "error", r.String(),
			"retryIn", a.waiting[n].pause)
	}
}

// refuseConflicts keeps flows of others: where one has the table, priority and match of one of ours, ours waits.
func (a *Agent) refuseConflicts(d *flow.Delta) bool {
	found := false
	for _, f := range d.SetFlows {
		foreign := a.conflicts[f.Key]
		if foreign == nil {
			continue
		}
		found = true
		n, _ := a.compiler.Owner(f.Cookie)
		reason := fmt.Sprintf("somebody else's flow has the table, priority and match of nkp's: %s; remove it, or move nkp with --table-base", foreign)
		a.waiting.refuse(n, reason, time.Now())
		a.log.Error("cannot install", "service", ownerText(n), "error", reason)
	}
	return found
}

func (a *Agent) ownerOf(object any) k8s.PortName {
	var n k8s.PortName
	switch o := object.(type) {
	case *flow.Flow:
		n, _ = a.compiler.Owner(o.Cookie)
	case flow.Learned:
		n, _ = a.compiler.Owner(o.Cookie)
	case *flow.Group:
		n, _ = a.compiler.GroupOwner(o.ID)
	case ofctrl.GroupID:
		n, _ = a.compiler.GroupOwner(uint32(o))
	}
	return n
}

func ownerText(n k8s.PortName) string {
	if n == (k8s.PortName{}) {
		return "none (fixed part of the pipeline)"
	}
	return n.String()
}

// readBack reads what nkp has on the switch, repairs what differs, and notes foreign flows in the way.
func (a *Agent) readBack(ctx context.Context) {
	if a.conn == nil || a.compiler == nil {
		return
	}
	snap, err := a.conn.ReadBack(ctx, a.set.Filter())
	if err != nil {
		if ctx.Err() == nil {
			a.log.Error("cannot read the switch back; connecting anew", "error", err)
		}
		a.stats.failed(err)
		a.conn.Close()
		a.conn, a.installed = nil, nil
		return
	}
	a.conflicts = map[flow.Key]*flow.Flow{}
	for _, f := range snap.Foreign {
		a.conflicts[f.Key] = f
	}
	first := a.installed == nil
	a.installed = snap.State
	if first {
		a.leftovers = flow.Delta{FlushCT: a.compiler.StaleSince(a.installed), DelLearned: a.compiler.OrphanPins(snap.Learned)}
	}
	if d := flow.Diff(a.installed, a.target(time.Now())); !d.Empty() {
		a.log.Info("bringing the switch in step", "firstTime", first, "setFlows", len(d.SetFlows), "setGroups", len(d.SetGroups),
			"deleteFlows", len(d.DelFlows), "deleteGroups", len(d.DelGroups))
		if !first {
			a.stats.Repairs++
		}
	}
	a.sync(ctx)
}

// checkCount counts nkp's flows on the switch and reads everything back if some are missing or too many.
func (a *Agent) checkCount(ctx context.Context) {
	if a.conn == nil || a.installed == nil {
		return
	}
	cookie, mask := a.set.Layout.StaticCookies()
	c, err := a.conn.FlowCount(ctx, cookie, mask)
	if err != nil || int(c.Flows) != len(a.installed.Flows) {
		a.readBack(ctx)
	}
}
