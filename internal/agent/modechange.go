package agent

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nkp-proxy/nkp/fallback/iptables"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s/apiserver"
)

// modePeriod is how often nkp checks whether it would choose another data plane now.
const modePeriod = 10 * time.Second

// dropsPeriod is how often nkp runs iptables to find out whether it drops traffic that nftables cannot accept there.
const dropsPeriod = time.Minute

// HowToChange is the advice where another data plane would be chosen now.
const HowToChange = "; restart nkp to change over (no connection is lost)"

// watchMode looks whether another data plane would be chosen now, until the context ends.
func (a *Agent) watchMode(ctx context.Context) error {
	if a.mode == ModeNFTables {
		a.spawn(func(ctx context.Context) error { return a.watchDrops(ctx, serving.Everything) })
	}
	return a.lookForAnother(ctx, modePeriod, &a.modeChange, a.wantMode)
}

// watchDrops looks whether iptables would be chosen now for what nftables serves in a scope, until the context ends.
func (a *Agent) watchDrops(ctx context.Context, scope serving.Scope) error {
	what := "the node's own traffic by iptables now, which accepts it there"
	if scope == serving.Everything {
		what = "Services by iptables now, which accepts them there"
	}
	return a.lookForAnother(ctx, dropsPeriod, &a.dropsChange, func(ctx context.Context) string {
		drops, err := iptables.Drops(ctx, a.set.IPTablesOptions(scope))
		switch said := a.dropsChange.Load(); {
		case err != nil && said != nil: // the last answer stands
			return *said
		case err != nil || drops == "":
			return ""
		}
		return drops + "; nkp would serve " + what + HowToChange
	})
}

// lookForAnother calls want every period, which returns why another data plane would be chosen now. It stores the answer, and logs a new one.
func (a *Agent) lookForAnother(ctx context.Context, period time.Duration, said *atomic.Pointer[string], want func(context.Context) string) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		text := want(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if before := said.Swap(&text); text != "" && (before == nil || *before != text) {
			a.log.Warn(text)
			a.events.Node(apiserver.EventWarning, "OtherDataPlane", "Serve", text)
		}
	}
}

// modeChanges returns why other data planes would be chosen now.
func (a *Agent) modeChanges() (why []string) {
	for _, said := range []*atomic.Pointer[string]{&a.modeChange, &a.dropsChange} {
		if text := said.Load(); text != nil && *text != "" {
			why = append(why, *text)
		}
	}
	return why
}
