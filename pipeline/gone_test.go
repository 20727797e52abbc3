package pipeline

import (
	"math/rand/v2"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// What an earlier process installed of Services that are gone takes no memory for each flow: a comparison keeps a bounded part, by
// which ids are claimed, and what it does not keep is deleted by its id. The Services that are left keep theirs.
func TestGoneIsBounded(t *testing.T) {
	defer func(n int) { MaxKept = n }(MaxKept)
	MaxKept = 200
	rng := rand.New(rand.NewPCG(3, 4))
	all, left := map[k8s.PortName]*k8s.ServicePort{}, map[k8s.PortName]*k8s.ServicePort{}
	for i := range 60 {
		sp := randomShape(rng, i, i).ServicePort()
		if all[sp.Name] = sp; i%10 == 0 {
			left[sp.Name] = sp
		}
	}
	before := compile(t, testConfig())
	before.Update(all)
	onSwitch := before.State()

	now := compile(t, testConfig())
	now.Load(left)
	var x *Comparison
	var gone map[uint32]*Gone
	for again := true; again; {
		x = now.Compare()
		x.Adopt()
		feed(x, onSwitch)
		gone, again = x.Gone()
	}
	if n, most := len(x.flows), MaxKept+keptOfEach*len(all); n > most || len(gone) == 0 {
		t.Errorf("of %d flows %d are kept, at most %d should be; ids gone: %d", len(onSwitch.Flows), n, most, len(gone))
	}
	d := x.Delta()
	onSwitch.Apply(d)
	for id, g := range gone {
		d := &flow.Delta{}
		now.Clear(d, id, g)
		onSwitch.Apply(d)
	}
	for n, p := range now.ports {
		if p.id != before.ports[n].id {
			t.Errorf("%v has the id %d, and had %d", n, p.id, before.ports[n].id)
		}
	}
	if rest := len(all) - len(left); now.Resting() != rest {
		t.Errorf("%d ids rest, want %d", now.Resting(), rest)
	}
	equal(t, "switch", onSwitch, now.State())
}
