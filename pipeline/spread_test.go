package pipeline

import (
	"math/bits"
	"testing"
)

// slotsOVS is how many slots Open vSwitch gives a dp_hash group (group_setup_dp_hash_table).
func slotsOVS(weights []int) int {
	total, least := 0, weights[0]
	for _, w := range weights {
		total += w
		least = min(least, w)
	}
	slots := 1 << bits.Len(uint((total+least-1)/least-1))
	return max(slots, minSlots)
}

// What the switch makes of the weights: a slot for each unit of weight, and nobody far from the fair share.
func TestBucketWeightsMakeEvenSlots(t *testing.T) {
	plain := 0
	for n := 1; n <= 300; n++ {
		shares, ok := slotShares(n, n/3)
		if !ok {
			continue
		}
		plain++
		weights, owner := bucketWeights(shares)
		slots, total := slotsOVS(weights), 0
		got := make([]int, n)
		for i, w := range weights {
			total += w
			got[owner[i]] += w
		}
		if slots > maxSlots || slots%total != 0 {
			t.Errorf("%d endpoints: weights %v add up to %d in a table of %d slots", n, weights, total, slots)
		}
		for i, s := range got {
			if share := float64(s) * float64(n) / float64(total); share < 0.8 || share > 1.2 {
				t.Errorf("%d endpoints: endpoint %d has %.2f of its share", n, i, share)
			}
		}
	}
	if plain < 50 {
		t.Errorf("only %d sizes up to 300 are served by one dp_hash group", plain)
	}
	for _, n := range []int{1, 2, 3, 5, 10, 16, 50, 64, 128, 256} {
		if _, ok := slotShares(n, 0); !ok {
			t.Errorf("%d endpoints should fit one dp_hash group", n)
		}
	}
	for _, n := range []int{0, 100, 257, 2000} {
		if _, ok := slotShares(n, 0); ok {
			t.Errorf("%d endpoints cannot be even in one dp_hash group", n)
		}
	}
}

// Every value of the hash belongs to exactly one endpoint, and none has more than a quarter above its share.
func TestHashBlocksCoverEveryValueOnce(t *testing.T) {
	for _, n := range []int{65, 100, 255, 257, 300, 1000, 2000, 5000} {
		nbits := bits.Len(uint(4*n - 1))
		shares := apportion(1<<nbits, n, 7)
		got := make([]int, n)
		owner := make([]int, 1<<nbits)
		for i := range owner {
			owner[i] = -1
		}
		blocks := hashBlocks(shares, nbits)
		for _, b := range blocks {
			if b.value&^b.mask != 0 {
				t.Fatalf("%d endpoints: block %#x/%#x is not aligned", n, b.value, b.mask)
			}
			for v := range uint32(1) << nbits {
				if v&b.mask == b.value {
					if owner[v] >= 0 {
						t.Fatalf("%d endpoints: value %#x belongs to two blocks", n, v)
					}
					owner[v] = b.owner
					got[b.owner]++
				}
			}
		}
		for i, s := range got {
			if share := float64(s) * float64(n) / float64(len(owner)); share < 0.75 || share > 1.25 {
				t.Errorf("%d endpoints: endpoint %d has %.2f of its share", n, i, share)
			}
		}
		if len(blocks) > 4*n {
			t.Errorf("%d endpoints need %d flows", n, len(blocks))
		}
	}
}
