package pipeline

import (
	"math/rand/v2"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/shapes"
)

// The cost of a Service port is what is compiled of it, up to twice.
func TestCost(t *testing.T) {
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 1)), nightly.Count(200, 5000), Cost, made(t, false))
	cost := func(z *k8s.Size) int { return Cost(z) + PingCost(z) }
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 4)), nightly.Count(200, 5000), cost, made(t, true))
}

// made returns a function that counts the flows, groups and buckets of a Service port. Of a table of more than 256 slots it counts these: that
// is how many flows and buckets many changes may make of it.
func made(t testing.TB, pings bool) func(*k8s.Model, *k8s.ServicePort) int {
	return func(m *k8s.Model, sp *k8s.ServicePort) (n int) {
		cfg := testConfig()
		cfg.Detector, cfg.Fragments, cfg.AnswerPing = m.Detector, true, pings
		common := compile(t, cfg)
		c := compile(t, cfg, sp)
		p := c.ports[sp.Name]
		o := c.compilePort(p)
		for _, g := range o.groups {
			n += 1 + len(g.Buckets)
			for _, set := range k8s.Sets {
				kind := []uint32{groupCluster, groupLocal}[set]
				if t := p.slots; g.ID == cfg.Layout.group(p.id, kind, 0) && p.hashed(set) != nil && len(t(set)) > maxSlots {
					n += len(t(set)) - len(g.Buckets)
				}
			}
		}
		for _, f := range c.State().Flows {
			if f.Table != tableWide {
				n++
			}
		}
		return n - common.Flows()
	}
}
