package pipeline

import (
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// placed is a Service port with the id allocated to it, and the slots of its endpoints.
type placed struct {
	sp         *k8s.ServicePort
	id         uint32
	slotTables slotTables
	// postponed: nothing of it is wanted before the next update of it.
	postponed bool
}

// slotTables are the tables of a Service port's two sets of endpoints; nil: the table that newSlots makes.
type slotTables struct{ cluster, local slots }

func (d *slotTables) of(p k8s.Set) slots { return *d.at(p) }

func (d *slotTables) at(p k8s.Set) *slots {
	if p == k8s.OnNode {
		return &d.local
	}
	return &d.cluster
}

// hashed returns the endpoints of a set if the datapath's hash chooses among them.
func (p *placed) hashed(set k8s.Set) []k8s.Endpoint {
	if es := p.sp.Endpoints(set); len(es) > 1 && p.sp.AffinitySeconds == 0 {
		return es
	}
	return nil
}

// turn returns the number of the endpoint that comes first when a new table's slots do not divide evenly
// among n.
func (p *placed) turn(n int) int { return int(p.id) % n }

// slots returns the table of a set.
func (p *placed) slots(set k8s.Set) slots {
	if t := p.slotTables.of(set); t != nil {
		return t
	}
	es := p.hashed(set)
	return newSlots(newShares(weights(es), p.turn(len(es))))
}

// follow deals the slots of old, the same Service port before a change or nil, to the endpoints of p.
func (p *placed) follow(old *placed) {
	if old == nil {
		return
	}
	for _, set := range k8s.Sets {
		was, now := old.hashed(set), p.hashed(set)
		switch {
		case was == nil || now == nil:
		case sameChoice(was, now):
			*p.slotTables.at(set) = old.slotTables.of(set)
		default:
			p.deal(set, old.slots(set).reindexed(was, now))
		}
	}
}

// deal sets the table of a set to the one that follows t.
func (p *placed) deal(set k8s.Set, t slots) {
	at := p.slotTables.at(set)
	*at = nil
	if next := deal(t, weights(p.hashed(set))); !slices.Equal(next, p.slots(set)) {
		*at = next
	}
}

// sameChoice reports whether two lists have the same endpoints with the same weights.
func sameChoice(was, now []k8s.Endpoint) bool {
	return slices.EqualFunc(was, now, func(a, b k8s.Endpoint) bool {
		return a.Addr == b.Addr && a.MoreWeight == b.MoreWeight
	})
}

// weights returns the weights of endpoints.
func weights(es []k8s.Endpoint) []int {
	out := make([]int, len(es))
	for i, e := range es {
		out[i] = e.Weight()
	}
	return out
}

// reindexed returns the table with indexes into now instead of was. Slots of endpoints that are not in now
// are vacant.
func (t slots) reindexed(was, now []k8s.Endpoint) slots {
	index := make([]uint32, len(was))
	for i, e := range was {
		index[i] = indexOf(now, e.Addr)
	}
	out := make(slots, len(t))
	for j, owner := range t {
		out[j] = index[owner]
	}
	return out
}
