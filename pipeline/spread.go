package pipeline

import "slices"

// A dp_hash group maps the low bits of the datapath's hash to buckets through a table of slots: as many as
// the total weight divided by the smallest weight, rounded up to a power of two, at least 16 and at most 256
// (OVS: ofproto/ofproto-dpif.c, group_setup_dp_hash_table). With equal weights, ten buckets share 16 slots, and
// six of them get twice as many as the others. Weights that add up to the number of slots, one of them being 1,
// give each bucket exactly as many slots as its weight.
const (
	minSlots = 16
	maxSlots = 256
)

// slotShares returns the number of slots of each of n endpoints. If a table of up to 256 slots allows it, no endpoint gets
// more than 5 % above or 10 % below its fair share, else no more than 20 % above or below. ok is false if 256 slots cannot do
// that: flows then spread the endpoints (wide.go). turn decides which endpoints get the slots left over. The smallest
// sufficient table is used, because each slot costs the datapath one cached flow.
func slotShares(n, turn int) (shares []int, ok bool) {
	if n <= 0 {
		return nil, false
	}
	slots := 0
	switch {
	case n&(n-1) == 0 && n <= maxSlots:
		slots = n
	default:
		for s := minSlots; s <= maxSlots && slots == 0; s *= 2 {
			if s >= n && fair(s, n, 0.05, 0.10) {
				slots = s
			}
		}
		if slots == 0 && n <= maxSlots && fair(maxSlots, n, 0.20, 0.20) {
			slots = maxSlots
		}
	}
	if slots == 0 {
		return nil, false
	}
	return apportion(slots, n, turn), true
}

func fair(slots, n int, above, below float64) bool {
	share := float64(slots) / float64(n)
	most := float64((slots + n - 1) / n)
	least := float64(slots / n)
	return most <= share*(1+above) && least >= share*(1-below)
}

// apportion divides slots into n shares as evenly as whole numbers allow.
func apportion(slots, n, turn int) []int {
	shares := slices.Repeat([]int{slots / n}, n)
	for i := range slots % n {
		shares[(turn+i)%n]++
	}
	return shares
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

// hashBlock is an aligned run of hash values: those that equal value under mask.
type hashBlock struct {
	owner       int // index of the share that the block is part of
	value, mask uint32
}

// hashBlocks divides the values of a hash of nbits bits: share i gets shares[i] of them. Each share becomes
// blocks whose lengths are powers of two; laid out by falling length they stay aligned, so that one value and
// mask describes a block. The shares must add up to 2^nbits.
func hashBlocks(shares []int, nbits int) []hashBlock {
	all := uint32(1)<<nbits - 1
	var blocks []hashBlock
	next := uint32(0)
	for b := nbits; b >= 0; b-- {
		length := uint32(1) << b
		for i, s := range shares {
			if uint32(s)&length != 0 {
				blocks = append(blocks, hashBlock{owner: i, value: next, mask: all &^ (length - 1)})
				next += length
			}
		}
	}
	return blocks
}
