package rules

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
)

// Slots hold each endpoint once, without a hole, and keep as many as they can: of those that stay, only endpoints beyond the new end
// move.
func TestAssign(t *testing.T) {
	random := rand.New(rand.NewPCG(nightly.Seed(t), 2))
	var slots Slots
	for range nightly.Count(10_000, 200_000) {
		var list []k8s.Endpoint
		for i := range random.IntN(40) {
			if random.IntN(3) > 0 {
				list = append(list, k8s.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
			}
		}
		next := Assign(slots, list)
		if len(next) != len(list) {
			t.Fatalf("%d slots for %d endpoints", len(next), len(list))
		}
		for _, e := range list {
			at, had := slices.Index(next, e.Addr), slices.Index(slots, e.Addr)
			if at < 0 || had >= 0 && had < len(next) && at != had {
				t.Fatalf("%v was in slot %d, is in %d of %d", e.Addr, had, at, len(next))
			}
		}
		slots = next
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
