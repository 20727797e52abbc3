package pipeline

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
)

// crowd makes every port want one of n ids, so that chains of collisions are the rule.
func crowd(t *testing.T, n uint32) {
	old := home
	home = func(p k8s.PortName) uint32 { return (old(p)%n+idCount-n/2)%idCount + 1 } // straddles the wrap-around
	t.Cleanup(func() { home = old })
}

func numbered(i int) k8s.PortName {
	return k8s.PortName{ServiceName: k8s.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", i)}, Protocol: "TCP", Family: k8s.IPv4}
}

// The ids depend on the set of ports, not on the order in which they came and went; each is unique and not 0;
// and every port whose id changes is reported.
func TestIDsDoNotDependOnHistory(t *testing.T) {
	crowd(t, 40)
	rng := rand.New(rand.NewPCG(nightly.Seed(t), 2))
	for round := range nightly.Count(100, 3000) {
		table := idTable{}
		live := map[k8s.PortName]bool{}
		seen := map[k8s.PortName]uint32{}
		for range 60 {
			n := numbered(rng.IntN(50))
			moved := func(m k8s.PortName) { seen[m] = table.id(m) }
			if live[n] {
				table.remove(n, moved)
				delete(live, n)
				delete(seen, n)
			} else {
				table.add(n, moved)
				live[n] = true
				seen[n] = table.id(n)
			}
			// moved may be called before an id settles: look again at what was reported.
			for m := range seen {
				if seen[m] != table.id(m) {
					t.Fatalf("round %d: id of %v went from %d to %d unreported", round, m, seen[m], table.id(m))
				}
			}
		}
		fresh := idTable{}
		for n := range live { // map order: another order than history
			fresh.add(n, func(k8s.PortName) {})
		}
		if !maps.Equal(table, fresh) {
			t.Fatalf("round %d: ids by history %v, from scratch %v", round, table, fresh)
		}
		if len(table) != len(live) {
			t.Fatalf("round %d: %d ids in use for %d ports", round, len(table), len(live))
		}
		for id := range table {
			if id == 0 || id > idCount {
				t.Fatalf("id %d is out of range", id)
			}
		}
	}
}

// Real names collide so rarely that a cluster of 10,000 Services moves next to nothing.
func TestIDsRarelyMove(t *testing.T) {
	table := idTable{}
	moves := 0
	for i := range 10_000 {
		table.add(numbered(i), func(k8s.PortName) { moves++ })
	}
	if moves > 40 {
		t.Errorf("%d of 10,000 ports were moved by later ones; about 6 would be chance", moves)
	}
}
