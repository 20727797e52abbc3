package bridge

import (
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A refused object delays only its own Service port (README.md, "Refused objects"). The cookie of a flow and
// the id of a group name its owner.

// backOff puts the owners of refused objects in backoff. The transaction with these objects was not
// installed.
func (g *programmer) backOff(rejected []ofctrl.Rejection) {
	now := time.Now()
	seen := map[k8s.PortName]bool{}
	for _, r := range rejected {
		if m, ok := r.Object.(flow.Meter); ok {
			g.withoutMeter(m.ID)
			continue
		}
		n := g.ownerOf(r.Object)
		if seen[n] {
			continue
		}
		seen[n] = true
		g.refused.Refuse(n, dataplane.Refusal{Port: n, Reason: r.String()}, now)
	}
}

// withoutMeter changes over to a pipeline without meters, without those of pods, or without pings and theirs,
// after the switch has refused one. Datapaths without meters exist (Linux before 4.15); Services work without.
func (g *programmer) withoutMeter(id uint32) {
	without := &g.node.oneMeter
	switch l := &g.set.Layout; {
	case id == l.MeterID:
		without = &g.node.noMeter
	case l.IsPingMeter(id):
		without = &g.node.noPings
	}
	if *without || g.node.noMeter {
		return
	}
	*without = true

	d, err := g.compiler.Reconfigure(g.node.config())
	switch {
	case err != nil:
		g.log.Error("cannot switch to a pipeline with fewer meters", "error", err)
	case g.pending != nil:
		g.pending = g.pending.Merge(d)
		if g.node.noMeter {
			g.pending.DelMeters = nil // none is there
		}
	}
}

// ready splits the pending Delta: d is to be sent now, rest belongs to Service ports in backoff. Their
// installed objects stay as they are.
func (g *programmer) ready(now time.Time) (d, rest *flow.Delta) {
	if g.refused.Len() == 0 {
		return g.pending, &flow.Delta{}
	}
	// During backoff the installed flows of a Service port still make connections, so that rest deletes their
	// entries once more.
	d, rest = withoutOwner(g.pending), &flow.Delta{FlushCT: g.pending.FlushCT}
	g.splitByOwner(g.pending, func(n k8s.PortName) *flow.Delta {
		if g.refused.Waits(n, now) {
			return rest
		}
		return d
	})
	return d, rest
}

// withoutOwner returns the parts of a Delta that belong to no Service.
func withoutOwner(d *flow.Delta) *flow.Delta {
	return &flow.Delta{
		Clear:      d.Clear,
		SetMeters:  d.SetMeters,
		DelMeters:  d.DelMeters,
		DelLearned: d.DelLearned,
		FlushCT:    d.FlushCT,
	}
}

// splitByOwner adds every flow and group of a Delta to the Delta that to returns for its owner.
func (g *programmer) splitByOwner(d *flow.Delta, to func(k8s.PortName) *flow.Delta) {
	for _, group := range d.SetGroups {
		t := to(g.ownerOf(group))
		t.SetGroups = append(t.SetGroups, group)
	}
	for _, f := range d.SetFlows {
		t := to(g.ownerOf(f))
		t.SetFlows = append(t.SetFlows, f)
	}
	for _, f := range d.DelFlows {
		t := to(g.ownerOf(f))
		t.DelFlows = append(t.DelFlows, f)
	}
	for _, id := range d.DelGroups {
		t := to(g.ownerOf(ofctrl.GroupID(id)))
		t.DelGroups = append(t.DelGroups, id)
	}
}

// byOwner splits a Delta into one for what belongs to no Service, which comes first, and one for each Service
// port.
func (g *programmer) byOwner(d *flow.Delta) []*flow.Delta {
	shared := withoutOwner(d)
	parts := []*flow.Delta{shared}
	of := map[k8s.PortName]*flow.Delta{{}: shared}
	g.splitByOwner(d, func(n k8s.PortName) *flow.Delta {
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

// ownerOf returns the Service port that a flow or group belongs to; the zero PortName: none.
func (g *programmer) ownerOf(object any) k8s.PortName {
	var n k8s.PortName
	switch o := object.(type) {
	case *flow.Flow:
		n, _ = g.compiler.Owner(o.Cookie)
	case flow.Learned:
		n, _ = g.compiler.Owner(o.Cookie)
	case *flow.Group:
		n, _ = g.compiler.GroupOwner(o.ID)
	case ofctrl.GroupID:
		n, _ = g.compiler.GroupOwner(uint32(o))
	}
	return n
}
