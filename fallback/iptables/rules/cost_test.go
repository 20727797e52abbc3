package rules

import (
	"math/rand/v2"
	"testing"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/shapes"
)

// The cost of a Service port is what is compiled of it, up to twice.
func TestCost(t *testing.T) {
	config := serving.DefaultConfig()
	made := func(m *k8s.Model, sp *k8s.ServicePort) int {
		s := NewCompiler(config, sp.Name.Family, m).Service(sp)
		n := len(s.SharedRules) + len(s.Chains)
		for _, c := range s.Chains {
			n += len(c.Rules)
		}
		return n
	}
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 3)), nightly.Count(200, 5000), Cost, made)
	config.AnswerPing = true
	cost := func(z *k8s.Size) int { return Cost(z) + PingCost(z) }
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 6)), nightly.Count(200, 5000), cost, made)
}
