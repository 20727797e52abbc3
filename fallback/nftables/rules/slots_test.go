package rules

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
)

// Slots hold each endpoint as often as its weight says, without a hole, and keep as many as they can: a slot has another endpoint than
// before only if its own has gone or has fewer slots now.
func TestAssign(t *testing.T) {
	random := rand.New(rand.NewPCG(nightly.Seed(t), 2))
	var slots Slots
	for range nightly.Count(10_000, 200_000) {
		var list []k8s.Endpoint
		var weights []int
		most, weighted := uint8([]int{1, 3, k8s.MaxWeight}[random.IntN(3)]), random.IntN(4) > 0
		for i := range random.IntN(40) {
			if random.IntN(3) > 0 {
				addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
				list = append(list, k8s.Endpoint{Addr: addr, MoreWeight: uint8(random.IntN(int(most)))})
				weights = append(weights, list[len(list)-1].Weight())
			}
		}
		next, total := Assign(slots, list, weighted), 0
		for i, want := range slotShares(weights, weighted) {
			total += want
			kept, before := 0, 0
			for k, e := range next {
				if e == list[i].Addr {
					want--
					if k < len(slots) && slots[k] == e {
						kept++
					}
				}
			}
			for k, e := range slots {
				if e == list[i].Addr && k < len(next) {
					before++
				}
			}
			if want != 0 || kept < min(before, count(next, list[i].Addr)) {
				t.Fatalf("%+v has %d slots too few, and keeps %d of %d: from %v to %v", list[i], want, kept, before, slots, next)
			}
		}
		if len(next) != total {
			t.Fatalf("%d slots, want %d", len(next), total)
		}
		slots = next
	}
}

func count(s Slots, of netip.AddrPort) (n int) {
	for _, e := range s {
		if e == of {
			n++
		}
	}
	return n
}

// Weights of many endpoints take a bounded number of slots, which the offsets of sets have room for.
func TestWeightsAreBounded(t *testing.T) {
	for _, n := range []int{2, 10, 1000, MaxEndpoints} {
		list := make([]k8s.Endpoint, n)
		for i := range list {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
			list[i] = k8s.Endpoint{Addr: addr, MoreWeight: uint8(i % k8s.MaxWeight)}
		}
		slots := Assign(nil, list, true)
		if most := min(max(slotsForWeights, slotsForEach*n)+n, MaxSlots); len(slots) > most || len(slots) > int(slotOffset(k8s.OnNode)) {
			t.Errorf("%d endpoints take %d slots, want up to %d", n, len(slots), most)
		}
		c := spreadOver(len(slots), k8s.Anywhere, false).chain()
		if again, ok := SpreadChain(c.Name); !ok || again.Name != c.Name {
			t.Errorf("chain %s is not found again", c.Name)
		}
	}
}

// A chain picks every slot, and its last rule never one that may be free.
func TestSpread(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 8, 9, 1000, 1024, 1025, MaxEndpoints} {
		c := spreadOver(n, k8s.OnNode, false).chain()
		first, last := c.Rules[0][0].(DNAT), c.Rules[len(c.Rules)-1][0].(DNAT)
		if int(first.Modulus) < n || int(last.Modulus) > n || first.Offset != slotOffset(k8s.OnNode) || 2*int(last.Modulus) < int(first.Modulus) || int(first.Modulus) >= 2*n && n > 1 {
			t.Errorf("%d endpoints: %+v", n, c)
		}
	}
}
