package agent

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// modePeriod is how often nkp checks whether it would choose another data plane now.
const modePeriod = 10 * time.Second

// watchMode looks whether another data plane would be chosen now, until the context ends.
func (a *Agent) watchMode(ctx context.Context) error {
	tick := time.NewTicker(modePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		text := a.wantMode(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if before := a.modeChange.Swap(&text); text != "" && (before == nil || *before != text) {
			a.log.Warn(text)
			a.events.Node(apiserver.EventWarning, "OtherDataPlane", "Serve", text)
		}
	}
}
