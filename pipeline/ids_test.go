package pipeline

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
	"github.com/nkp-proxy/nkp/test/nightly"
)

// crowd makes every port want one of n ids, so that runs of collisions are the rule.
func crowd(t *testing.T, n uint32) {
	old := home
	home = func(p k8s.PortName) uint32 { return (old(p)%n+idCount-n/2)%idCount + 1 } // straddles the wrap-around
	t.Cleanup(func() { home = old })
}

// node is a switch, and the process that programs it. It checks after each step that no id has passed to another name.
type node struct {
	t     *testing.T
	c     *Compiler
	sw    *flow.State
	live  map[k8s.PortName]*k8s.ServicePort
	leads map[uint32]k8s.PortName // whom something on the switch or in conntrack can lead to, by each id
}

func newNode(t *testing.T) *node {
	n := &node{t: t, sw: flow.NewState(), live: map[k8s.PortName]*k8s.ServicePort{}, leads: map[uint32]k8s.PortName{}}
	n.restart()
	return n
}

// restart lets a new process take over, and returns what it changes.
func (n *node) restart() *flow.Delta {
	n.c = compile(n.t, testConfig())
	n.c.Load(n.live)
	x := n.c.Compare()
	x.Adopt()
	for _, f := range n.sw.Flows {
		x.Flow(f)
	}
	for _, g := range n.sw.Groups {
		x.Group(g)
	}
	for _, m := range n.sw.Meters {
		x.Meter(m)
	}
	d := x.Delta()
	n.install(d)
	return d
}

func (n *node) install(d *flow.Delta) {
	n.t.Helper()
	n.sw.Apply(d)
	equal(n.t, "the switch, and what the compiler wants", n.sw, n.c.State())
	for name, p := range n.c.ports {
		switch was := n.leads[p.id]; {
		case p.id == 0 || p.id > idCount:
			n.t.Fatalf("%v has id %d", name, p.id)
		case was == (k8s.PortName{}):
			n.leads[p.id] = name
		case was != name:
			n.t.Fatalf("id %d passed from %v to %v", p.id, was, name)
		}
		if n.c.owner[p.id] != p || n.c.ids.holders[p.id] != name {
			n.t.Fatalf("id %d of %v is owned by %v", p.id, name, n.c.ids.holders[p.id])
		}
	}
	if len(n.c.owner) != len(n.live) || len(n.c.ids.holders) != len(n.live) {
		n.t.Fatalf("%d and %d ids for %d ports", len(n.c.owner), len(n.c.ids.holders), len(n.live))
	}
}

// toggle adds or deletes Service ports. While no process runs, the caller restarts one.
func (n *node) toggle(rng *rand.Rand, among, times int) map[k8s.PortName]*k8s.ServicePort {
	changes := map[k8s.PortName]*k8s.ServicePort{}
	for range times {
		i := rng.IntN(among)
		sp := randomShape(rng, i, i).ServicePort()
		if n.live[sp.Name] != nil {
			changes[sp.Name] = nil
			delete(n.live, sp.Name)
		} else {
			changes[sp.Name], n.live[sp.Name] = sp, sp
		}
	}
	return changes
}

func (n *node) ids() map[k8s.PortName]uint32 {
	out := map[k8s.PortName]uint32{}
	for name, p := range n.c.ports {
		out[name] = p.id
	}
	return out
}

// An id never passes to another name before it is released, whatever comes and goes, restarts of the process included. Who has
// one keeps it, also while no process runs; who comes back while it rests gets it back. A restart writes nothing.
func TestIDsNeverPass(t *testing.T) {
	crowd(t, 12)
	rng := rand.New(rand.NewPCG(nightly.Seed(t), 2))
	for range nightly.Count(6, 500) {
		n := newNode(t)
		for range 25 {
			before, resting := n.ids(), maps.Clone(n.c.ids.waiting)
			switch rng.IntN(4) {
			case 0:
				if d := n.restart(); !d.Empty() {
					t.Fatalf("a restart writes %v", d)
				}
			case 1: // some come and go while no process runs
				n.toggle(rng, 20, 1+rng.IntN(4))
				n.restart()
				resting = nil // their names are not on the switch
			case 2:
				free := n.c.RestingIDs()
				rng.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
				free = free[:len(free)/2]
				for _, id := range free {
					delete(n.leads, id)
					maps.DeleteFunc(resting, func(_ k8s.PortName, rests uint32) bool { return rests == id })
				}
				n.install(n.c.Release(free))
			default:
				n.install(n.c.Update(n.toggle(rng, 20, 1+rng.IntN(4))))
			}
			for name, id := range n.ids() {
				if was := before[name]; was != 0 && was != id {
					t.Fatalf("%v had id %d and has %d", name, was, id)
				}
				if waits := resting[name]; before[name] == 0 && waits != 0 && waits != id {
					t.Fatalf("%v came back, and got id %d instead of %d", name, id, waits)
				}
			}
		}
	}
}

// When a frontend has passed to another Service while no process ran, the id stays with nobody: connections by it are the first
// Service's. The frontend's new Service gets an id of its own.
func TestIDOfAMovedFrontendRests(t *testing.T) {
	n := newNode(t)
	old := shape{Name: "old", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	n.live[old.Name] = old
	n.install(n.c.Update(maps.Clone(n.live)))
	id := n.c.ports[old.Name].id

	heir := shape{Name: "new", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	n.live = map[k8s.PortName]*k8s.ServicePort{heir.Name: heir}
	n.restart()
	if got := n.c.ports[heir.Name].id; got != home(heir.Name) || !slices.Equal(n.c.RestingIDs(), []uint32{id}) {
		t.Errorf("the new Service has id %d; resting: %v", got, n.c.RestingIDs())
	}
	// The resting id is still known after another restart, and released once.
	if d := n.restart(); !d.Empty() || !slices.Equal(n.c.RestingIDs(), []uint32{id}) {
		t.Errorf("after a restart %v rest; it wrote %v", n.c.RestingIDs(), d)
	}
	n.install(n.c.Release([]uint32{id}))
	if d := n.restart(); !d.Empty() || len(n.c.RestingIDs()) > 0 {
		t.Errorf("after the release %v rest; the restart wrote %v", n.c.RestingIDs(), d)
	}
}

// Of several Services that have an id's frontends now, the one with the cluster IP takes it over.
func TestClusterIPDecides(t *testing.T) {
	crowd(t, 1)
	n := newNode(t)
	one := shape{Name: "s1", Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP, k8s.ExternalIP, k8s.LoadBalancer}}.ServicePort()
	n.live[one.Name] = one
	n.install(n.c.Update(maps.Clone(n.live)))
	id := n.c.ports[one.Name].id

	two := shape{Name: "s0", VIP: 1, Cluster: 2, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
	two.Frontends = append(two.Frontends, one.Frontends[1:]...)
	less := *one
	less.Frontends = one.Frontends[:1]
	n.live = map[k8s.PortName]*k8s.ServicePort{one.Name: &less, two.Name: two}
	n.restart()
	if got := n.c.ports[one.Name].id; got != id {
		t.Errorf("the Service with the cluster IP had id %d and has %d", id, got)
	}
}

// A namespace that makes and deletes Services gets no more ids once too many of its own rest; others do. When ids are released
// it is served again. What is remembered of names is bounded.
func TestRestingIDsAreBounded(t *testing.T) {
	c := compile(t, testConfig())
	port := func(namespace string, i int) *k8s.ServicePort {
		sp := shape{Name: fmt.Sprint("s", i), VIP: i, Cluster: 1, Types: []k8s.FrontendType{k8s.ClusterIP}}.ServicePort()
		sp.Name.Namespace = namespace
		return sp
	}
	update := func(sp *k8s.ServicePort, n k8s.PortName) { c.Update(map[k8s.PortName]*k8s.ServicePort{n: sp}) }
	coming, going := map[k8s.PortName]*k8s.ServicePort{}, map[k8s.PortName]*k8s.ServicePort{}
	for i := range MaxResting {
		sp := port("greedy", i)
		coming[sp.Name], going[sp.Name] = sp, nil
	}
	c.Update(coming)
	c.Update(going)
	for i := range 10 {
		sp := port("greedy", MaxResting+i)
		if update(sp, sp.Name); c.Serves(sp.Name) {
			t.Errorf("Service %d got an id", i)
		}
		if i < 5 { // the others wait
			update(nil, sp.Name)
		}
	}
	if n := len(c.RestingIDs()); n != MaxResting {
		t.Errorf("%d ids rest", n)
	}
	if lines := c.Missing(); len(lines) != 5 {
		t.Errorf("%d Service ports wait: %q", len(lines), lines)
	}
	other := port("other", 1<<20)
	if update(other, other.Name); !c.Serves(other.Name) {
		t.Error("another namespace's Service got no id")
	}
	back := port("greedy", 7) // its own id rests
	if update(back, back.Name); !c.Serves(back.Name) {
		t.Error("a Service that comes back did not get its id")
	}
	d := c.Release(c.RestingIDs()[:100])
	if lines := c.Missing(); len(lines) > 0 || len(d.DelFlows) != 100 {
		t.Errorf("after the release: %q, flows deleted: %d", lines, len(d.DelFlows))
	}
	for _, namespace := range []string{"a", "b", "c"} {
		for i := range MaxResting {
			sp := port(namespace, i)
			c.ids.leave(c.ids.take(sp.Name))
		}
	}
	if n := len(c.ids.waiting); n != maxWaiting {
		t.Errorf("%d names are remembered; the limit is %d", n, maxWaiting)
	}
}
