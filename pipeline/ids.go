package pipeline

import (
	"hash/fnv"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// idTable assigns every Service port an id of idBits bits, never 0. The ids depend only on the set of ports,
// not on the order in which they were added, so that an agent that restarts assigns the same ids without
// having stored them.
//
// It is an ordered hash table with linear probing: in a chain of collisions the smaller name comes first
// (Amble and Knuth, "Ordered hash tables", 1974). Adding or removing a port may therefore move a few others.
type idTable map[uint32]k8s.PortName

const idCount = 1<<idBits - 1 // ids are 1 to idCount

// home is the id that n gets unless another name has it. A variable so that tests can force collisions.
var home = func(n k8s.PortName) uint32 {
	h := fnv.New32a()
	h.Write([]byte(n.ID()))
	return h.Sum32()%idCount + 1
}

func nextID(id uint32) uint32 { return id%idCount + 1 }

// id returns the id of n; 0: it has none.
func (t idTable) id(n k8s.PortName) uint32 {
	for id := home(n); ; id = nextID(id) {
		there, taken := t[id]
		switch {
		case there == n:
			return id
		case !taken || there.Compare(n) > 0:
			return 0
		}
	}
}

// add assigns an id to n; moved receives every other port whose id changes.
func (t idTable) add(n k8s.PortName, moved func(k8s.PortName)) {
	in := n
	for id := home(in); ; id = nextID(id) {
		there, taken := t[id]
		if there == in {
			return
		}
		if taken && there.Compare(in) < 0 {
			continue
		}
		t[id] = in
		if in != n {
			moved(in)
		}
		if !taken {
			return
		}
		in = there
	}
}

// remove frees the id of n; moved receives every other port whose id changes.
func (t idTable) remove(n k8s.PortName, moved func(k8s.PortName)) {
	id := t.id(n)
	if id == 0 {
		return
	}
	delete(t, id)
	// Remove the rest of the run and add it again, so that each name gets the id it would have had without n.
	before := map[k8s.PortName]uint32{}
	for id = nextID(id); ; id = nextID(id) {
		m, taken := t[id]
		if !taken {
			break
		}
		before[m] = id
		delete(t, id)
	}
	for m := range before {
		t.add(m, func(k8s.PortName) {})
	}
	names := make([]k8s.PortName, 0, len(before))
	for m, old := range before {
		if t.id(m) != old {
			names = append(names, m)
		}
	}
	slices.SortFunc(names, k8s.PortName.Compare)
	for _, m := range names {
		moved(m)
	}
}
