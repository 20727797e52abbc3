package oracle

import (
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nkp-proxy/nkp/k8s"
)

// generator makes one case. Its universe is small, so that names, addresses and ports meet again and again.
type generator struct {
	*rand.Rand
	regular bool
	objects map[k8s.Ref]k8s.Object // as they are now
	order   []k8s.Ref              // the objects, in the order of their first appearance
	events  []Event
}

// Generate returns the case of a seed.
func Generate(seed uint64) Case {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), objects: map[k8s.Ref]k8s.Object{}}
	g.regular = g.chance(0.4)
	g.start()
	for range g.IntN(4) {
		for range 1 + g.IntN(4) {
			g.mutate()
		}
		g.ask()
	}
	return Case{Regular: g.regular, Events: g.events}
}

func (g *generator) chance(p float64) bool { return g.Float64() < p }

// pick returns one of some values.
func pick[T any](g *generator, values ...T) T { return values[g.IntN(len(values))] }

// odd reports, with a chance of p, that something should be as an API server would not have it.
func (g *generator) odd(p float64) bool { return !g.regular && g.chance(p) }

func (g *generator) ask() { g.events = append(g.events, Event{}) }

func (g *generator) put(o k8s.Object) {
	ref, _ := k8s.RefOf(o)
	if g.objects[ref] == nil {
		g.order = append(g.order, ref)
	}
	g.objects[ref] = o
	g.events = append(g.events, Event{Object: o})
}

func (g *generator) remove(ref k8s.Ref) {
	delete(g.objects, ref)
	for i := range g.order {
		if g.order[i] == ref {
			g.order = append(g.order[:i:i], g.order[i+1:]...)
			break
		}
	}
	g.events = append(g.events, Event{Gone: ref})
}

// start makes the first objects, in any order, and asks.
func (g *generator) start() {
	var made []k8s.Object
	if !g.chance(0.1) {
		made = append(made, g.node(ThisNode))
	}
	if g.chance(0.2) {
		made = append(made, g.node("n2"))
	}
	for range 1 + g.IntN(4) {
		s := g.service(g.serviceName())
		made = append(made, s)
		for range g.IntN(4) {
			made = append(made, g.slice(g.sliceName(s.Name, s.Namespace), s))
		}
	}
	g.Shuffle(len(made), func(i, j int) { made[i], made[j] = made[j], made[i] })
	for _, o := range made {
		if ref, _ := k8s.RefOf(o); g.objects[ref] == nil {
			g.put(o)
		}
		if g.chance(0.02) {
			g.ask()
		}
	}
	g.ask()
}

func (g *generator) serviceName() k8s.ServiceName {
	return k8s.ServiceName{Namespace: pick(g, "a", "b"), Name: pick(g, "s0", "s1", "s2")}
}

func (g *generator) sliceName(service, namespace string) k8s.ServiceName {
	return k8s.ServiceName{Namespace: namespace, Name: service + "-" + pick(g, "v", "w", "x", "y")}
}

func (g *generator) node(name string) *v1.Node {
	n := &v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	if g.chance(0.8) {
		n.Labels = map[string]string{v1.LabelTopologyZone: pick(g, "z1", "z1", "z2", "")}
	}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "172.18.0.2"}}
	return n
}
