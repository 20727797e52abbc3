package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/test/nightly"
	"github.com/nkp-proxy/nkp/test/shapes"
	"github.com/nkp-proxy/nkp/windows/hns"
)

// The cost of a Service port is what is planned of it, up to twice.
func TestCost(t *testing.T) {
	shapes.CheckCost(t, rand.New(rand.NewPCG(nightly.Seed(t), 4)), nightly.Count(200, 5000), Cost, func(m *k8s.Model, sp *k8s.ServicePort) int {
		facts := &Facts{Network: hns.Network{ID: "net", Name: "cbr0", Type: hns.NetworkL2Bridge}, Version: hns.Version{Major: 15, Minor: 5},
			HealthEndpoint: addr("10.244.1.3"), HealthzPort: 10256}
		w := New(map[k8s.PortName]*k8s.ServicePort{sp.Name: sp}, nil, facts)
		n := len(w.Endpoints) + len(w.LoadBalancers)
		for _, l := range w.LoadBalancers {
			n += len(l.Backends)
		}
		return n
	})
}
