package iptables

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// NodePorts at 127.0.0.1 need the sysctl net.ipv4.conf.all.route_localnet. It also admits packets to 127.0.0.0/8 from the network
// (CVE-2020-8558). The guard is the rule in KUBE-FIREWALL that drops them.

// localnetGuard maintains route_localnet and the guard, which protects 127.0.0.0/8 while it is set. Only the worker's goroutine may
// use it.
type localnetGuard struct {
	fallback.Localnet
	worker *worker
	next   time.Time // when to check again
}

// guard installs and hooks the guard, and only then sets route_localnet. If nkp has set route_localnet and the guard is missing,
// it is unset until the guard is installed; one that another program has set is left alone. Without NodePorts at 127.0.0.1,
// guard unsets route_localnet if nkp has set it, and leaves the rules, which kubelet installs, too. It must be called before
// anything else is installed. After an error it is due again at once.
//
// known reports whether the guard was in force before.
func (g *localnetGuard) guard(ctx context.Context, fixed *rules.Fixed, known bool) (err error) {
	defer func() {
		if err == nil {
			g.next = time.Now().Add(g.worker.Opts.SyncPeriod)
		}
	}()
	if len(fixed.InForeignChains) == 0 {
		return g.unset(ctx)
	}
	in, err := g.missing(ctx, fixed)
	if err != nil {
		return err
	}
	if !in.empty() && known {
		g.worker.Log.Warn("another program removed the rules that protect 127.0.0.0/8 from the network: repairing", "chain", rules.LocalFirewall)
		g.worker.Report(func(s *fallback.FamilyStatus) { s.Repairing("those that protect 127.0.0.0/8 from the network") })
	}
	set, err := g.prepare(ctx, in)
	if err != nil {
		return err
	}
	if err := g.worker.restore(ctx, in); err != nil {
		return fmt.Errorf("table %s, the rules that protect 127.0.0.0/8 from the network: %w", in.table, err)
	}
	if set {
		if err := g.Set(true); err != nil {
			g.CannotSet(fallback.NoLocalhost, err)
		}
	}
	return nil
}

// keepGuard checks and repairs the guard of 127.0.0.0/8 if that is due.
func (w *worker) keepGuard(ctx context.Context) error {
	if time.Now().Before(w.localnet.next) {
		return nil
	}
	return w.localnet.guard(ctx, &w.want.fixed, w.due < fixedChains)
}

// missing returns input that adds the missing parts of the guard: its chain, its rule, and the jumps to it.
func (g *localnetGuard) missing(ctx context.Context, fixed *rules.Fixed) (*input, error) {
	in := newInput(rules.Filter)
	lists := map[string][]rules.Rule{}
	for _, chain := range append([]string{rules.LocalFirewall}, parents[rules.Filter]...) {
		list, ok, err := rulesOf(ctx, g.worker.tables, rules.Filter, chain)
		if err != nil {
			return nil, err
		}
		if !ok {
			in.chain(chain)
		}
		lists[chain] = list
	}
	for _, guest := range fixed.InForeignChains {
		if !hasRule(lists[guest.Chain], guest.Rule) {
			in.append(guest.Chain, guest.Rule)
		}
	}
	for _, h := range fixed.Hooks {
		if isGuard(h) && !hasRule(lists[h.Parent], h.Rule) {
			in.insert(h.Parent, h.Rule)
		}
	}
	return in, nil
}

func isGuard(h rules.Hook) bool { return h.Rule.Target() == rules.LocalFirewall }

// prepare reports whether to set route_localnet once in, which adds the missing parts of the guard, is committed. Before nkp
// sets it for the first time, prepare adds chain Localnet to in, which records that.
func (g *localnetGuard) prepare(ctx context.Context, in *input) (set bool, err error) {
	if g.Setting == nil {
		return false, nil
	}
	_, marked, err := g.worker.tables.Rules(ctx, string(rules.Filter), rules.Localnet)
	if err != nil {
		return false, err
	}
	g.IsSet = g.IsSet || marked
	on, _ := g.On() // if it cannot be read, the write below fails too
	if on && !g.IsSet {
		return false, nil
	}
	guarded := in.empty()
	if on && guarded {
		if !marked {
			in.chain(rules.Localnet)
		}
		return false, nil
	}
	if err := g.Set(false); err != nil { // if it is off already, this tests whether it can be written
		if on {
			g.CannotSet(fallback.Unguarded, err)
		} else {
			g.CannotSet(fallback.NoLocalhost, err)
		}
		return false, nil
	}
	g.IsSet = true
	if !marked {
		in.chain(rules.Localnet)
	}
	return true, nil
}

// unset unsets route_localnet if nkp has set it.
func (g *localnetGuard) unset(ctx context.Context) error {
	if g.Setting == nil {
		return nil
	}
	_, marked, err := g.worker.tables.Rules(ctx, string(rules.Filter), rules.Localnet)
	if err != nil || !marked && !g.IsSet {
		return err
	}
	if err := g.Set(false); err != nil {
		g.CannotSet(fallback.StaysSet, err)
		return nil
	}
	if g.IsSet = false; !marked {
		return nil
	}
	in := newInput(rules.Filter)
	in.chain(rules.Localnet)
	in.drop(rules.Localnet)
	return g.worker.restore(ctx, in)
}

// keepGuardFirst adds rules to the input of table filter that move the guard's jump ahead of the missing hooks. Hooks are inserted
// at the top of their chain, and one of them accepts packets, so that the guard behind it would be bypassed.
func keepGuardFirst(fixed *rules.Fixed, in *input, s *snapshot, missing []rules.Hook) {
	for _, h := range fixed.Hooks {
		behind := slices.ContainsFunc(missing, func(m rules.Hook) bool { return m.Table == h.Table && m.Parent == h.Parent && !isGuard(m) })
		if !isGuard(h) || !behind {
			continue
		}
		for _, r := range s.rules[h.Table][h.Parent] {
			if r.Canonical() == h.Rule.Canonical() {
				in.delete(h.Parent, r)
				in.insert(h.Parent, h.Rule)
				break
			}
		}
	}
}
