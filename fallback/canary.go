package fallback

import (
	"context"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// newCanary returns what sends canaries through the rules of families.
func (p *Plane) newCanary(families []k8s.Family) *dataplane.Canary {
	return dataplane.NewCanary(p.Name(), p.Log, p.opts.Hooks.DataPath, families,
		func(_ context.Context, f k8s.Family, _ bool) dataplane.CanaryResult { return p.sendCanary(f) })
}

// Canary returns what the canaries have shown; nil: none are sent.
func (p *Plane) Canary() []dataplane.CanaryVerdict {
	if c := p.canary.Load(); c != nil {
		return c.Verdicts()
	}
	return nil
}
