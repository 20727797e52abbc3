package rules

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/shapes"
)

// The cost of a Service port is what is compiled of it, up to twice.
func TestCost(t *testing.T) {
	config := testConfig()
	config.CountTraffic = true
	made := func(m *k8s.Model, sp *k8s.ServicePort) int {
		s := NewCompiler(config, sp.Name.Family, m).Service(sp, AssignPorts(Ports{}, sp))
		n := len(s.Elements) + len(s.Shared) + len(s.Own.Sets) + len(s.Own.Chains)
		for _, c := range s.Own.Chains {
			if strings.HasPrefix(c.Name, "slots-") {
				n += len(c.Rules)
			}
		}
		return n
	}
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 2)), nightly.Count(60, 2000), Cost, made)
	config.AnswerPing = true
	cost := func(z *k8s.Size) int { return Cost(z) + PingCost(z) }
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 5)), nightly.Count(60, 2000), cost, made)
}
