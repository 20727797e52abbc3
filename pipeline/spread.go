package pipeline

import (
	"cmp"
	"math/bits"
	"slices"
)

// The datapath's hash of a packet chooses an endpoint by a table of slots: the low bits of the hash select
// the slot, and each slot belongs to one endpoint. When endpoints come or go, deal changes the owners of as
// few slots as the shares allow, so that other choices stay (docs/decisions/slots-stay.md).

// slots holds the owner of each slot: the index of an endpoint, or vacant. Its length is a power of two.
type slots []uint32

const vacant = ^uint32(0)

// A dp_hash group maps the low bits of the hash to buckets through a table of its own: as many slots as the
// total weight divided by the smallest weight, rounded up to a power of two, at least 16 and at most 256
// (OVS: ofproto/ofproto-dpif.c, group_setup_dp_hash_table). Later releases make at least four slots for each
// bucket, up to 256; see releasesAgree.
const (
	minSlots = 16
	maxSlots = 256
)

// webster returns the index of the bucket in each slot of a group with these weights, as Open vSwitch lays
// them out (group_setup_dp_hash_table): each slot goes to the bucket with the highest quotient of weight and
// 2×slots+1, the first one if several have it. It returns nil if there are no buckets or 256 slots are too
// few.
func webster(weights []int) []int {
	total, least := 0, 0
	for _, w := range weights {
		if total += w; w > 0 && (least == 0 || w < least) {
			least = w
		}
	}
	if total == 0 || total > least*maxSlots {
		return nil
	}

	bucket := make([]int, max(minSlots, 1<<bits.Len(uint((total+least-1)/least-1))))
	value, divisor := make([]float64, len(weights)), make([]float64, len(weights))
	for i, w := range weights {
		value[i], divisor[i] = float64(w), 1
	}

	for slot := range bucket {
		winner := 0
		for i := range value {
			if value[i] > value[winner] {
				winner = i
			}
		}
		divisor[winner] += 2
		value[winner] = float64(weights[winner]) / divisor[winner]
		bucket[slot] = winner
	}

	return bucket
}

// releasesAgree reports whether all releases of Open vSwitch map the hash to buckets of these weights in the
// same way. Releases since September 2024 (3.5.0, and earlier branches) make four slots for each bucket at
// least, which changes nothing if all weights are equal or there are as many slots anyway.
func releasesAgree(weights []int) bool {
	return sum(weights) >= min(4*len(weights), maxSlots) || !uneven(weights)
}

// slotCount returns how many slots a new table for endpoints of these weights has: the least that give each
// endpoint its share within 10 %, because each slot costs the datapath one cached flow. It is 13 % for a few
// endpoints, whose connections scatter less by themselves. A table that need not grow is large enough.
func slotCount(weights []int) int {
	n, within := len(weights), 10
	switch {
	case uneven(weights):
		within = weightsWithin
	case n&(n-1) == 0:
		return n
	case n < 8:
		within = 13
	}
	size := minSlots
	for size < maxSlots && !fair(size, weights, within) {
		size *= 2
	}
	for mustGrow(size, weights) {
		size *= 2
	}
	return size
}

// mustGrow reports whether a table of size slots is too small for endpoints of these weights. Their slots may
// be 20 % off the shares, so that an endpoint that goes moves at most 1.2 times its share; with different
// weights 2 %, up to 256 slots.
func mustGrow(size int, weights []int) bool {
	within := 20
	if size < maxSlots && uneven(weights) {
		within = weightsWithin
	}
	return size < mostSlots(len(weights)) && !fair(size, weights, within)
}

const weightsWithin = 2

// uneven reports whether the weights differ.
func uneven(weights []int) bool { return slices.Max(weights) != slices.Min(weights) }

// mostSlots bounds a table for n endpoints. Equal weights need no more than that.
func mostSlots(n int) int { return max(maxSlots, 1<<bits.Len(uint(8*n-1))) }

// fair reports whether each endpoint has its share of size slots within percent, whichever way it is rounded.
func fair(size int, weights []int, percent int) bool {
	total := sum(weights)
	for i, w := range weights {
		if i > 0 && w == weights[i-1] {
			continue
		}
		least := size * w / total
		most := (size*w + total - 1) / total
		if 100*most*total > size*w*(100+percent) || 100*least*total < size*w*(100-percent) {
			return false
		}
	}
	return true
}

func sum(list []int) (total int) {
	for _, n := range list {
		total += n
	}
	return total
}

// apportion divides size slots by weight. The slots that are left over go to the largest remainders, in the
// order of first among equal ones. Each endpoint gets a slot at least.
func apportion(size int, weights []int, first func(a, b int) int) []int {
	total := sum(weights)
	shares, order := make([]int, len(weights)), make([]int, len(weights))
	left := size
	for i, w := range weights {
		shares[i], order[i] = max(1, size*w/total), i
		left -= shares[i]
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(size*weights[b]%total, size*weights[a]%total), first(a, b))
	})
	for i := 0; left > 0; i, left = i+1, left-1 {
		shares[order[i]]++
	}
	for ; left < 0; left++ { // weights so different that some shares were less than a slot
		shares[slices.Index(shares, slices.Max(shares))]--
	}
	return shares
}

// rotated returns an order of n endpoints that begins with number turn.
func rotated(n, turn int) func(a, b int) int {
	return func(a, b int) int { return cmp.Compare((a-turn+n)%n, (b-turn+n)%n) }
}

// newShares returns the shares of a new table. turn decides which of equal endpoints get the slots left over.
func newShares(weights []int, turn int) []int {
	return apportion(slotCount(weights), weights, rotated(len(weights), turn))
}

// newSlots returns the table for these shares when there is no earlier one. Up to maxSlots it is what Open
// vSwitch makes of bucketWeights. Beyond, each share is laid out in blocks of slots that are equal in as many
// low bits as possible.
func newSlots(shares []int) slots {
	size := sum(shares)
	t := make(slots, 0, size)
	if size <= maxSlots {
		weights, owner := bucketWeights(shares)
		for _, b := range webster(weights) {
			t = append(t, uint32(owner[b]))
		}
		return t.shortest()
	}
	t = t[:size]
	nbits := bits.Len(uint(size - 1))
	next := uint32(0)
	for b := nbits; b >= 0; b-- {
		for i, s := range shares {
			if s&(1<<b) == 0 {
				continue
			}
			for range 1 << b {
				t[bits.Reverse32(next)>>(32-nbits)] = uint32(i)
				next++
			}
		}
	}
	return t.shortest()
}

// bucketWeights turns shares into the weights of buckets: owner[i] is the index of the share that weight[i]
// belongs to. One share is split so that the smallest weight is 1 and the switch makes a slot for each.
func bucketWeights(shares []int) (weight, owner []int) {
	least := slices.Min(shares)
	for i, s := range shares {
		if s == least && least > 1 {
			weight, owner = append(weight, s-1, 1), append(owner, i, i)
			least = 0 // once
			continue
		}
		weight, owner = append(weight, s), append(owner, i)
	}
	return weight, owner
}

// shortest returns the smallest table that chooses as t does.
func (t slots) shortest() slots {
	for len(t) > 1 && slices.Equal(t[:len(t)/2], t[len(t)/2:]) {
		t = t[:len(t)/2]
	}
	return t
}

// A table with more slots than maxOversize × mostSlots is halved, although that moves choices, because each
// slot costs cached flows.
const maxOversize = 2

// deal returns the table for endpoints of these weights that follows t, whose owners are indexes into the
// same list, or vacant. Each endpoint gets its share; a slot has another owner than before only if its
// endpoint is gone or has more than its share.
func deal(t slots, weights []int) slots {
	t = slices.Clone(t)
	for mustGrow(len(t), weights) {
		t = append(t, t...) // chooses as before
	}
	for len(t) > maxOversize*mostSlots(len(weights)) {
		t = t.halved()
	}

	have := make([]int, len(weights))
	gains := make([]int, len(weights)) // vacant slots in whose partners' places the endpoint is
	for j, owner := range t {
		if owner != vacant {
			have[owner]++
			if t[t.partner(j)] == vacant {
				gains[owner]++
			}
		}
	}

	shares := apportion(len(t), weights, func(a, b int) int {
		return cmp.Or(cmp.Compare(have[b], have[a]), cmp.Compare(gains[b], gains[a]), cmp.Compare(a, b))
	})
	for j := len(t) - 1; j >= 0; j-- {
		if owner := t[j]; owner != vacant && have[owner] > shares[owner] {
			have[owner]--
			t[j] = vacant
		}
	}

	take := func(j int, owner uint32) {
		t[j] = owner
		have[owner]++
	}
	for j := range t {
		if owner := t[t.partner(j)]; t[j] == vacant && owner != vacant && have[owner] < shares[owner] {
			take(j, owner)
		}
	}

	next := 0
	for j := range t {
		if t[j] == vacant {
			for have[next] == shares[next] {
				next++
			}
			take(j, uint32(next))
		}
	}

	return t.shortest()
}

// partner returns the slot that differs from slot j in the highest bit only. A table in which all partners
// have the same owner is twice as large as it must be.
func (t slots) partner(j int) int { return j ^ len(t)/2 }

// halved returns a table of half the size. A vacant slot takes its partner's owner.
func (t slots) halved() slots {
	half := slices.Clone(t[:len(t)/2])
	for j := range half {
		if half[j] == vacant {
			half[j] = t[t.partner(j)]
		}
	}
	return half
}
