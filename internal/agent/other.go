package agent

import (
	"context"
	"time"

	"github.com/nkp-proxy/nkp/k8s"
)

// otherPeriod is how often nkp looks whether another data plane would be chosen now.
const otherPeriod = 10 * time.Second

// watchOther looks whether another data plane would be chosen now, until the context ends.
func (a *Agent) watchOther(ctx context.Context) error {
	tick := time.NewTicker(otherPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		text := a.other(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if before := a.better.Swap(&text); text != "" && (before == nil || *before != text) {
			a.log.Warn(text)
			a.events.Node(k8s.EventWarning, "OtherDataPlane", "Serve", text)
		}
	}
}
