package pipeline

import (
	"math/rand/v2"
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// A new configuration collects what differs, not all flows of all Services, because these take gigabytes at
// --cost-limit-node.
func TestReconfigureCollectsDifferences(t *testing.T) {
	cfg := testConfig()
	c := compile(t, cfg)
	rng := rand.New(rand.NewPCG(1, 2))
	model := map[k8s.PortName]*k8s.ServicePort{}
	for i := range 200 {
		sp := randomShape(rng, i, i).ServicePort()
		model[sp.Name] = sp
	}
	c.Update(model)

	cfg.LocalIPs = append(cfg.LocalIPs, addr("172.16.0.7")) // Services are compiled again
	full := cfg.withDefaults()
	if full.sameForServices(&c.cfg) {
		t.Fatal("Services do not depend on the node's addresses")
	}
	e := newEdit(c)
	c.reconfigure(e, full)
	common := len(c.common.flows) + len(c.common.shared)
	if n := len(e.flows) + len(e.groups); n > 2*common {
		t.Errorf("%d objects collected of %d Services with %d flows: there are %d common ones",
			n, len(model), c.Flows(), common)
	}
}
