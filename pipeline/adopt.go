package pipeline

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// indexOf returns the index of an endpoint in a sorted list, or vacant.
func indexOf(es []k8s.Endpoint, at netip.AddrPort) uint32 {
	i, ok := slices.BinarySearchFunc(es, at, func(e k8s.Endpoint, at netip.AddrPort) int {
		return e.Addr.Compare(at)
	})
	if !ok {
		return vacant
	}
	return uint32(i)
}

// Adopt makes the Compiler take over the ids of Service ports that the switch has and, where a group differs
// from the desired one, the slots of the endpoints, so that a new process moves nothing that an earlier one
// has not moved. It must be called before the first object is added. Flows must be added before groups.
func (x *Comparison) Adopt() { x.adopted, x.idsToAdopt = map[uint32][]slotFlow{}, true }

// slotFlow is a flow of tableWide.
type slotFlow struct {
	value, mask uint32
	to          netip.AddrPort
}

// noteSlot records a flow of tableWide for the group that leads to it.
func (x *Comparison) noteSlot(f *flow.Flow) {
	l := &x.c.cfg.Layout
	if x.adopted == nil || f.Table != l.table(tableWide) {
		return
	}
	reg1, reg3 := f.Match.Reg[1], f.Match.Reg[3]
	depth := bits.Len32(reg3.Mask)
	if reg3.Mask != 1<<depth-1 || depth < groupBits || reg3.Value&^reg3.Mask != 0 {
		return
	}
	kind := uint32(groupCluster)
	if reg1.Value&markLocal != 0 {
		kind = groupLocal
	}
	if to := translation(f.Actions); to.IsValid() {
		g := l.group(reg1.Value>>markIDShift, kind, 0)
		x.adopted[g] = append(x.adopted[g], slotFlow{reg3.Value, reg3.Mask, to})
	}
}

// translation returns the endpoint that a list of actions translates to; the zero AddrPort if there is none.
func translation(as []flow.Action) (to netip.AddrPort) {
	for _, a := range as {
		if ct, ok := a.(flow.CT); ok && ct.NAT.Kind == flow.NATDst {
			return netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin)
		}
	}
	return to
}

// adopt deals the slots that a group on the switch has to the endpoints in force.
func (x *Comparison) adopt(g *flow.Group) {
	flows := x.adopted[g.ID]
	delete(x.adopted, g.ID)
	if _, same := x.c.wanted[g.Digest(x.c.seed)]; same && len(flows) == 0 {
		return
	}

	l := &x.c.cfg.Layout
	p := x.c.owner[l.groupID(g.ID)]
	if p == nil {
		return
	}

	var set k8s.Set
	switch g.ID {
	case l.group(p.id, groupCluster, 0):
		set = k8s.Anywhere
	case l.group(p.id, groupLocal, 0):
		set = k8s.OnNode
	default:
		return
	}

	es := p.hashed(set)
	if es == nil {
		return
	}
	t := installedSlots(g, flows, es)
	if t == nil {
		return
	}

	was, before := x.c.compilePort(p), p.slotTables
	if p.deal(set, t); slices.Equal(before.of(set), p.slotTables.of(set)) {
		return
	}

	now := x.c.compilePort(p)
	x.exchange(&was, &now)
}

// maxInstalledSlots bounds the tables that are read from a switch.
const maxInstalledSlots = 1 << 20

// installedSlots returns the table by which a group and its flows choose, with indexes into es; nil if it
// cannot be one of nkp's.
func installedSlots(g *flow.Group, flows []slotFlow, es []k8s.Endpoint) slots {
	weights, owners := make([]int, len(g.Buckets)), make(slots, len(g.Buckets))
	size := 0
	for i, b := range g.Buckets {
		weights[i], owners[i] = int(b.Weight), vacant
		if to := translation(b.Actions); to.IsValid() {
			owners[i] = indexOf(es, to)
			continue
		}
		for _, a := range b.Actions {
			if c, ok := a.(flow.Copy); ok && c.Src.Field == flow.DPHashValue && c.Src.Ofs == 0 {
				size = 1 << c.Src.N
			}
		}
	}

	layout := webster(weights)
	if layout == nil || g.Method != flow.DPHash || size > maxInstalledSlots {
		return nil
	}

	t := make(slots, max(size, len(layout)))
	for j := range t {
		t[j] = owners[layout[j%len(layout)]]
	}

	slices.SortFunc(flows, func(a, b slotFlow) int { return cmp.Compare(a.mask, b.mask) })
	for _, f := range flows {
		owner := indexOf(es, f.to)
		for j := int(f.value); j < len(t); j += int(f.mask) + 1 {
			t[j] = owner
		}
	}
	return t.shortest()
}

// exchange replaces desired objects of Service ports by others. Objects that were read before keep what the
// comparison found.
func (x *Comparison) exchange(was, now *objects) {
	c := x.c
	found := map[uint64]bool{} // desired before: is it on the switch
	gone := func(digest uint64) (onSwitch bool) {
		onSwitch = found[digest]
		delete(found, digest)
		if onSwitch {
			x.matched--
		}
		return onSwitch
	}

	for _, f := range was.flows {
		d := f.Digest(c.seed)
		found[d] = c.wanted[d] == x.number
	}
	for _, g := range was.groups {
		d := g.Digest(c.seed)
		found[d] = c.wanted[d] == x.number
	}

	c.remove(&objects{flows: was.flows, groups: was.groups}, func(*flow.Flow) {}, func(*flow.Group) {})
	c.add(&objects{flows: now.flows, groups: now.groups}, func(f *flow.Flow) {
		d := f.Digest(c.seed)
		switch there := x.flows[f.Key]; {
		case found[d]:
			c.wanted[d] = x.number
			delete(found, d)
		case there != nil && there.Digest(c.seed) == d:
			x.match(d)
			delete(x.flows, f.Key)
		}
	}, func(g *flow.Group) {
		if d := g.Digest(c.seed); found[d] {
			c.wanted[d] = x.number
			delete(found, d)
		}
	})

	for _, f := range was.flows {
		if gone(f.Digest(c.seed)) {
			x.flows[f.Key] = f
		}
	}
	for _, g := range was.groups {
		if gone(g.Digest(c.seed)) {
			x.groups[g.ID] = g
		}
	}
}
