package bridge

import (
	"context"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// maxSurplus is how many flows that should not be there one transaction deletes after a read-back. Open vSwitch deletes some
// 30,000 a second and does nothing else meanwhile, so that a change waits for less than a second behind them.
const maxSurplus = 20_000

// setAside leaves what d deletes beyond maxSurplus for later: the loop deletes it in portions, between other work.
func (p *Plane) setAside(d *flow.Delta) {
	clear(p.surplus)
	if len(d.DelFlows) <= maxSurplus {
		return
	}
	for _, f := range d.DelFlows[maxSurplus:] {
		p.surplus[f.Key] = f
	}
	d.DelFlows = d.DelFlows[:maxSurplus]
}

// deleteSurplus deletes one portion of the surplus.
func (p *Plane) deleteSurplus(ctx context.Context) {
	d := &flow.Delta{}
	for key, f := range p.surplus {
		if len(d.DelFlows) == maxSurplus {
			break
		}
		d.DelFlows = append(d.DelFlows, f)
		delete(p.surplus, key)
	}
	d.Sort()
	if p.commit(ctx, d) && p.gap.Empty() && !p.behind && len(p.surplus) == 0 {
		p.flows = p.compiler.Flows()
	}
}
