package flow

import "hash/maphash"

// Digests stand in for flows and groups where thousands are compared. Under one seed, equal objects have
// equal digests, and different objects have different ones, except for one pair in 2^64.

// Digest returns the key's digest under a seed.
func (k *Key) Digest(seed maphash.Seed) uint64 { return maphash.Comparable(seed, *k) }

// Digest returns the flow's digest under a seed.
func (f *Flow) Digest(seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, f.Key)
	maphash.WriteComparable(&h, f.Cookie)
	digestActions(&h, f.Actions)
	return h.Sum64()
}

// Digest returns the group's digest under a seed.
func (g *Group) Digest(seed maphash.Seed) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, [2]uint32{g.ID, uint32(g.Method)})
	for i := range g.Buckets {
		b := &g.Buckets[i]
		maphash.WriteComparable(&h, [2]uint32{b.ID, uint32(b.Weight)})
		digestActions(&h, b.Actions)
	}
	return h.Sum64()
}

func digestActions(h *maphash.Hash, as []Action) {
	maphash.WriteComparable(h, len(as))
	for _, a := range as {
		maphash.WriteComparable(h, a)
	}
}
