//go:build linux

package nftables

import (
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/shapes"
)

// sweepOnce compares all of the table, and returns a difference; "": there is none.
func sweepOnce(t *testing.T, w *worker) string {
	t.Helper()
	s, err := newSweep(w)
	if err != nil {
		t.Fatal(err)
	}
	defer s.conn.Close()
	for {
		if done, drift, err := s.portion(); err != nil {
			t.Fatal(err)
		} else if done || drift != "" {
			return drift
		}
	}
}

// churning is a node where changes never stop: while one is programmed, the next waits.
type churning struct {
	*largeNode
	rng      *rand.Rand
	services int
}

// change gives a random Service port but the first other endpoints, deletes it, or adds it again.
func (n *churning) change() k8s.Changes {
	i := 1 + n.rng.IntN(n.services-1)
	name := shapes.Name(i)
	if n.rng.IntN(3) == 0 && n.m.Ports[name] != nil {
		delete(n.m.Ports, name)
		return k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name: nil}}
	}
	first := n.m.Ports[shapes.Name(0)]
	sp := &k8s.ServicePort{Name: name, Frontends: slices.Clone(first.Frontends)}
	sp.Frontends[0].Address = shapes.VIP(i)
	for e := range 1 + n.rng.IntN(40) {
		sp.ClusterEndpoints = append(sp.ClusterEndpoints, k8s.Endpoint{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(e), byte(n.rng.IntN(250))}), 80)})
	}
	n.m.Ports[name] = sp
	return k8s.Changes{Ports: map[k8s.PortName]*k8s.ServicePort{name: sp}}
}

// sweep lets a read-back begin and end, one portion a round, and returns the number of rounds. Each round must bring what waited in force.
func (n *churning) sweep() (rounds int) {
	n.t.Helper()
	audits, repairs := n.status.Audits, n.status.Repairs
	n.w.CheckAt = time.Time{}
	for ; n.status.Audits == audits && n.status.Repairs == repairs; rounds++ {
		n.in.Put(n.m, n.change())
		n.w.TakeUpdates(n.w)
		if rounds%2 == 0 { // one more has come since
			n.in.Put(n.m, n.change())
		}
		must(n.t, n.w.Step(n.t.Context()))
		if n.w.broken || len(n.w.Dirty) > 0 || rounds == 10_000 {
			n.t.Fatalf("after %d rounds, what came before the round is not in force: %+v", rounds, n.status)
		}
	}
	return rounds
}

// A read-back of the table is done in portions: a change waits for one of them at most. It finds what others have added, deleted and
// changed while changes never stop, and takes no change of nkp's own for another's.
func TestChangesBetweenPortions(t *testing.T) {
	n := &churning{newLargeNode(t), rand.New(rand.NewPCG(41, 3)), 100}
	n.m = shapes.Many(n.services)
	n.set(n.m.Ports)

	// Its listing alone takes a message for each of the 24 sets.
	for range 3 {
		if rounds := n.sweep(); rounds < 20 || n.status.Repairs > 0 {
			t.Errorf("a sweep in %d portions: %+v", rounds, n.status)
		}
	}

	vip := shapes.VIP(0).String()
	for i, command := range []string{
		"delete element ip nkp services { " + vip + " . tcp . 80 }",
		"delete element ip nkp endpoints { " + vip + " . tcp . 80 . 0 }",
		"add element ip nkp endpoints { 40.1.200.1 . tcp . 80 . 0 : 10.9.9.9 . 80 }",
		"add element ip nkp cluster-ips { 40.1.200.1 }",
		"add chain ip nkp stranger",
		"flush chain ip nkp cluster-ip",
		"add element ip nkp node-ips { 1.2.3.4 }",
	} {
		if out, err := exec.Command("nft", strings.Fields(command)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		n.sweep()
		if n.status.Repairs != i+1 {
			t.Errorf("%s: not found: %+v", command, n.status)
			n.status.Repairs = i + 1
		}
		if n.sweep(); n.status.Repairs != i+1 {
			t.Errorf("%s: a repair more: %+v", command, n.status)
			n.status.Repairs = i + 1
		}
	}
}

// What another program changes during a check, where that has read already, is looked at after it, and not a sync period later.
func TestChangeDuringACheck(t *testing.T) {
	n := &churning{newLargeNode(t), rand.New(rand.NewPCG(41, 3)), 100}
	n.m = shapes.Many(n.services)
	n.set(n.m.Ports)
	n.w.CheckAt = time.Time{}
	n.in.Put(n.m, n.change())
	must(t, n.w.Step(t.Context()))
	if n.w.sweep == nil {
		t.Fatal("no check is under way")
	}
	n.w.Noticed = true
	n.sweep()
	if next := n.w.Next(); next.After(n.w.lookFrom) {
		t.Errorf("the next look is %v after the earliest time", next.Sub(n.w.lookFrom))
	}
}
