package bridge

import (
	"context"

	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// meterFirst puts the meter on a switch that nkp has just connected to, before anything is read or compared. After a
// restart of Open vSwitch its own scripts put back all flows of the bridge, everybody's, in one bundle, but no meters: one
// flow of nkp's that names a meter which is not there yet would fail them all. What goes wrong here is met again, and
// handled, when everything is brought in step.
func (p *Plane) meterFirst(ctx context.Context) {
	if p.compiler == nil {
		return // nothing is known to have been installed
	}
	if meters := p.compiler.Meters(); len(meters) > 0 {
		if _, err := p.conn.Commit(ctx, &flow.Delta{SetMeters: meters}); err != nil {
			p.log.Debug("the meter is not there yet", "error", err)
		}
	}
}
