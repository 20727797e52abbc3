package pipeline

import (
	"hash/fnv"
	"maps"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// ids gives every Service port an id of idBits bits, never 0, which it keeps as long as it exists.
//
// An id never passes to another name while anything on the switch or in conntrack can still lead by it: a
// cached flow, a pin, the mark of a connection. So the id of a port that is gone rests until the caller of
// Compiler.Release has seen that nothing does. If its name comes back before that, it gets the same id. A
// flow on the switch says that an id rests, so that the next process knows, too
// (docs/decisions/ids-without-state.md).
type ids struct {
	holders map[uint32]k8s.PortName
	resting map[uint32]rest
	waiting map[k8s.PortName]uint32 // resting ids by name, as far as the name is known
	shares  map[string]int          // resting ids of each namespace, as far as that is known
}

// rest is an id that rests. What is not known of it is zero.
type rest struct {
	namespace string
	name      k8s.PortName
}

const idCount = 1<<idBits - 1 // ids are 1 to idCount

// What rests is bounded, so that nobody uses up the ids, or the switch's memory, by making and deleting
// Services.
const (
	// MaxResting is how many ids of one namespace can rest; beyond, new ports of it get none. They are 0.4 %
	// of all ids.
	MaxResting = 1 << 14
	// maxWaiting bounds the names that are remembered, a few MiB. A name beyond it gets another id when it
	// comes back.
	maxWaiting = 1 << 15
)

// reach is how far from its home an id can be that an earlier process has given to a name.
const reach = 1 << 12

// home is the id that n gets unless that is taken. A variable so that tests can force collisions.
var home = func(n k8s.PortName) uint32 {
	h := fnv.New32a()
	h.Write([]byte(n.ID()))
	return h.Sum32()%idCount + 1
}

func nextID(id uint32) uint32 { return id%idCount + 1 }

// mayHave reports whether an earlier process can have given an id to a name.
func mayHave(n k8s.PortName, id uint32) bool { return (id+idCount-home(n))%idCount < reach }

func newIDs() ids {
	return ids{
		holders: map[uint32]k8s.PortName{}, resting: map[uint32]rest{},
		waiting: map[k8s.PortName]uint32{}, shares: map[string]int{},
	}
}

// take gives n an id: the one that waits for it, else the first free one from its home on. It returns 0 if
// too many of the namespace's ids rest. n must have none.
func (t *ids) take(n k8s.PortName) uint32 {
	id, waits := t.waiting[n]
	switch {
	case waits:
		t.release(id)
	case t.shares[n.Namespace] >= MaxResting || len(t.holders)+len(t.resting) >= idCount:
		return 0
	default:
		id = t.free(n)
	}
	t.holders[id] = n
	return id
}

// free returns the first free id from n's home on.
func (t *ids) free(n k8s.PortName) uint32 {
	id := home(n)
	for t.inUse(id) {
		id = nextID(id)
	}
	return id
}

func (t *ids) inUse(id uint32) bool {
	_, held := t.holders[id]
	_, rests := t.resting[id]
	return held || rests
}

// leave lets the id of a port that is gone rest.
func (t *ids) leave(id uint32) {
	r := rest{namespace: t.holders[id].Namespace}
	if len(t.waiting) < maxWaiting {
		r.name = t.holders[id]
		t.waiting[r.name] = id
	}
	delete(t.holders, id)
	t.resting[id] = r
	t.shares[r.namespace]++
}

// release makes a resting id free.
func (t *ids) release(id uint32) {
	r, rests := t.resting[id]
	if !rests {
		return
	}
	delete(t.resting, id)
	delete(t.waiting, r.name)
	if r.namespace != "" {
		t.shares[r.namespace]--
	}
	if t.shares[r.namespace] == 0 {
		delete(t.shares, r.namespace)
	}
}

// restingObjects returns the flow that says on the switch that an id rests. Only packets that a cached choice
// of the id's last holder has sent to this table can match, and they are dropped as without the flow.
func (c *Compiler) restingObjects(id uint32) objects {
	b := builder{Config: &c.cfg}
	var m flow.Match
	m.Reg[1] = flow.Bits{Value: id << markIDShift, Mask: markIDMask}
	b.add(tableLearn, prioResting, id, m)
	return b.objects
}

// RestingIDs returns, in order, the ids of Service ports that are gone. No other port gets one of them before
// Release.
func (c *Compiler) RestingIDs() []uint32 { return slices.Sorted(maps.Keys(c.ids.resting)) }

// Resting returns the number of RestingIDs.
func (c *Compiler) Resting() int { return len(c.ids.resting) }

// Release makes resting ids free for other Service ports, and returns the changes for the switch. The caller
// has seen that nothing leads by them any more: no flow, group or pin on the switch, no cached flow, and no
// mark in either conntrack zone.
func (c *Compiler) Release(list []uint32) *flow.Delta {
	e := newEdit(c)
	for _, id := range list {
		if _, rests := c.ids.resting[id]; rests {
			o := c.restingObjects(id)
			e.remove(&o)
			c.ids.release(id)
		}
	}
	again := map[k8s.PortName]*k8s.ServicePort{} // what got no id
	for n, sp := range c.withoutID {
		if c.ids.shares[n.Namespace] < MaxResting {
			again[n] = sp
		}
	}
	c.update(e, again)
	return e.delta()
}
