package pipeline

import (
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// The canaries' flows and groups come with Config.Canary and go with it, belong to no Service port, and match the ingress port that only
// packet-outs have.
func TestCanary(t *testing.T) {
	cfg := Config{Layout: DefaultLayout(), Counters: true}
	c, err := NewCompiler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	flows, groups := c.Flows(), c.Groups()
	cfg.Canary = true
	d, err := c.Reconfigure(cfg)
	if err != nil || len(d.SetFlows) != 4 || len(d.SetGroups) != 2 || c.Flows() != flows+4 || c.Groups() != groups+2 {
		t.Fatalf("%v: %d flows, %d groups", err, len(d.SetFlows), len(d.SetGroups))
	}
	seen := map[uint64]int{}
	for _, f := range d.SetFlows {
		seen[f.Cookie]++
		id, own := cfg.Layout.PortOfCookie(f.Cookie)
		if _, owned := c.Owner(f.Cookie); f.Match.InPort != flow.PortController || id != 0 || !own || owned {
			t.Errorf("%s", f)
		}
	}
	for _, f := range families {
		if seen[cfg.Layout.CanaryCookie(f)] != 2 {
			t.Errorf("%s: %v", f, seen)
		}
	}
	for _, g := range d.SetGroups {
		if name, owned := c.GroupOwner(g.ID); owned || name != (k8s.PortName{}) || g.Method != flow.DPHash || len(g.Buckets) != 2 {
			t.Errorf("%s", g)
		}
	}
	cfg.Canary = false
	if d, err = c.Reconfigure(cfg); err != nil || len(d.DelFlows) != 4 || len(d.DelGroups) != 2 || c.Flows() != flows {
		t.Errorf("%v: %d flows, %d groups", err, len(d.DelFlows), len(d.DelGroups))
	}
}
