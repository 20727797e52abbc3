package iptables

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// keepGuard installs and hooks the rules that protect 127.0.0.0/8 from the network, if that is due, and sets
// route_localnet once they are in force. Without NodePorts at 127.0.0.1 they stay, because kubelet installs
// them, too. It must be called before anything else is installed. After an error it is due again at once.
func (w *worker) keepGuard(ctx context.Context) error {
	if time.Now().Before(w.guardAt) {
		return nil
	}

	in := newInput(rules.Filter)
	wanted := len(w.want.fixed.InForeignChains) > 0
	if wanted {
		if err := w.addGuard(ctx, in); err != nil {
			return err
		}
	}
	if !in.empty() && w.due < fixedChains {
		w.Log.Warn("another program removed the rules that protect 127.0.0.0/8 from the network: repairing",
			"chain", rules.LocalFirewall)
		w.Report(func(s *fallback.FamilyStatus) {
			s.Repairing("those that protect 127.0.0.0/8 from the network")
		})
	}

	w.Localnet.Close(wanted, in.empty())
	if err := w.restore(ctx, in); err != nil {
		return fmt.Errorf("table %s, the rules that protect 127.0.0.0/8 from the network: %w", in.table, err)
	}
	if wanted {
		w.Localnet.Open()
	}
	w.guardAt = time.Now().Add(w.Opts.SyncPeriod)
	return nil
}

// addGuard adds the missing parts of the guard to the input: its chain, its rule, and the jumps to it.
func (w *worker) addGuard(ctx context.Context, in *input) error {
	lists := map[string][]rules.Rule{}
	for _, chain := range append([]string{rules.LocalFirewall}, parents[rules.Filter]...) {
		list, ok, err := rulesOf(ctx, w.tables, rules.Filter, chain)
		if err != nil {
			return err
		}
		if !ok {
			in.chain(chain)
		}
		lists[chain] = list
	}
	for _, guest := range w.want.fixed.InForeignChains {
		if !hasRule(lists[guest.Chain], guest.Rule) {
			in.append(guest.Chain, guest.Rule)
		}
	}
	for _, h := range w.want.fixed.Hooks {
		if isGuard(h) && !hasRule(lists[h.Parent], h.Rule) {
			in.insert(h.Parent, h.Rule)
		}
	}
	return nil
}

func isGuard(h rules.Hook) bool { return h.Rule.Target() == rules.LocalFirewall }

// keepGuardFirst adds rules to the input of table filter that move the guard's jump ahead of the missing
// hooks. Hooks are inserted at the top of their chain, and one of them accepts packets, so that the guard
// behind it would be bypassed.
func keepGuardFirst(fixed *rules.Fixed, in *input, s *snapshot, missing []rules.Hook) {
	for _, h := range fixed.Hooks {
		behind := slices.ContainsFunc(missing, func(m rules.Hook) bool {
			return m.Table == h.Table && m.Parent == h.Parent && !isGuard(m)
		})
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
