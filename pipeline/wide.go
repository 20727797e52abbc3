package pipeline

import (
	"math/bits"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A dp_hash group has at most 256 slots: with more buckets Open vSwitch hashes in the slow path, one upcall
// for every new connection. If a table has more, the group chooses by the low 8 bits of the hash. Where the
// slots that share these bits belong to several endpoints, the bucket copies all of the table's bits to reg3
// and goes on in tableWide. There each of these slots has a flow unless the flow of a shorter match leads to
// its owner already: a flow matches all slots that share the bits up to the highest one of its own slot, and
// longer matches have higher priorities. So a change of one slot adds, changes or deletes one flow or two,
// and a table that grows changes none.

const (
	groupBits = 8 // log2(maxSlots)
	// prioSlot is the priority of the flows that match the group's bits; each further bit adds 1.
	prioSlot = 100
)

// choice adds the group that chooses among the endpoints of a set by a table, and its flows.
func (s *service) choice(p k8s.Set, es []k8s.Endpoint, t slots) {
	buckets := make(slots, min(len(t), maxSlots)) // vacant: goes on in tableWide
	for c := range buckets {
		buckets[c] = t[c]
		for j := c; j < len(t); j += maxSlots {
			if t[j] != t[c] {
				buckets[c] = vacant
			}
		}
		if buckets[c] == vacant {
			s.slotFlows(p, es, t, c)
		}
	}

	g := &flow.Group{ID: s.group(p), Method: flow.DPHash}
	nbits := uint8(bits.Len(uint(len(t) - 1)))
	for i, owner := range buckets.shortest() {
		b := flow.Bucket{ID: uint32(i), Weight: 1}
		if owner != vacant {
			b.Actions = []flow.Action{s.translate(es[owner])}
		} else {
			b.Actions = []flow.Action{flow.Copy{
				Src: flow.Subfield{Field: flow.DPHashValue, N: nbits},
				Dst: flow.Subfield{Field: flow.Reg3, N: nbits},
			}, s.resubmit(tableWide)}
		}
		g.Buckets = append(g.Buckets, b)
	}

	s.groups = append(s.groups, g)
}

// slotFlows adds the flows of the slots whose low bits are c.
func (s *service) slotFlows(p k8s.Set, es []k8s.Endpoint, t slots, c int) {
	for j := c; j < len(t); j += maxSlots {
		depth := max(groupBits, bits.Len(uint(j)))
		if j != c && t[j] == t[j&^(1<<(depth-1))] {
			continue
		}
		m := s.marked(p)
		m.IPProto = ipProto(s.sp.Name.Protocol)
		m.Reg[3] = flow.Bits{Value: uint32(j), Mask: 1<<depth - 1}
		// reg3 is cleared before the packet is tracked: what it holds would otherwise become part of the
		// state that the switch keeps for packets coming back from the tracker.
		s.add(tableWide, prioSlot+uint16(depth-groupBits), s.id, m,
			flow.SetField{Field: flow.Reg3, Mask: 0xffffffff}, s.translate(es[t[j]]))
	}
}
