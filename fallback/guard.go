package fallback

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nkp-proxy/nkp/fallback/rules"
)

// NodePorts at 127.0.0.1 need the kernel setting route_localnet, which lets packets to 127.0.0.0/8 in from the network, too
// (CVE-2020-8558). A rule in KUBE-FIREWALL drops these: the guard.

// setting is a kernel setting that is on or off.
type setting interface {
	on() (bool, error)
	set(on bool) error
}

// guard hooks the guard, and only then sets route_localnet. Where the guard is missing and route_localnet is set already,
// route_localnet is off until the guard is there. Without NodePorts at 127.0.0.1, guard takes back what nkp has set and leaves
// the rules, which kubelet installs, too. It must be called before anything else is installed.
func (w *worker) guard(ctx context.Context) error {
	defer func() { w.guardAt = time.Now().Add(w.opts.SyncPeriod) }()
	if len(w.fixed.Guests) == 0 {
		return w.unsetLocalnet(ctx)
	}
	in, err := w.missingGuard(ctx)
	if err != nil {
		return err
	}
	if !in.empty() && w.must < ground {
		w.log.Warn("the rules that keep others off 127.0.0.0/8 were removed: repairing", "chain", rules.LocalFirewall)
		w.report(func(s *FamilyStatus) { s.Repairs++ })
	}
	set := w.prepareLocalnet(ctx, in)
	if err := w.restore(ctx, in); err != nil {
		return fmt.Errorf("table %s, what keeps others off 127.0.0.0/8: %w", in.table, err)
	}
	if set {
		if err := w.localnet.set(true); err != nil {
			w.cannotSetLocalnet(noLocalhost, err)
		}
	}
	return nil
}

// What it means that route_localnet cannot be written.
const (
	noLocalhost = "NodePorts do not work at 127.0.0.1; pass --iptables-localhost-nodeports=false if no client needs that"
	unguarded   = "the network reaches what listens at 127.0.0.0/8 until the rules against that are in force"
	staysSet    = "route_localnet stays set, and so do the rules that keep others off 127.0.0.0/8"
)

// cannotSetLocalnet logs that route_localnet cannot be written; once for each text in a row.
func (w *worker) cannotSetLocalnet(text string, err error) {
	if w.said != text {
		w.log.Warn(text, "error", err)
	}
	w.said = text
}

// keepGuard is guard when it is time to look again.
func (w *worker) keepGuard(ctx context.Context) error {
	if time.Now().Before(w.guardAt) {
		return nil
	}
	return w.guard(ctx)
}

// missingGuard returns what is missing of the guard: its chain, its rule, and the rules that lead there.
func (w *worker) missingGuard(ctx context.Context) (*input, error) {
	in := newInput(rules.Filter)
	lists := map[string][]rules.Rule{}
	for _, chain := range append([]string{rules.LocalFirewall}, parents[rules.Filter]...) {
		list, ok, err := w.tables.Rules(ctx, string(rules.Filter), chain)
		if err != nil {
			return nil, err
		}
		if !ok {
			in.chain(chain)
		}
		for _, r := range list {
			lists[chain] = append(lists[chain], rules.Rule(r))
		}
	}
	for _, g := range w.fixed.Guests {
		if !hasRule(lists[g.Chain], g.Rule) {
			in.append(g.Chain, g.Rule)
		}
	}
	for _, h := range w.fixed.Hooks {
		if isGuard(h) && !hasRule(lists[h.Parent], h.Rule) {
			in.insert(h.Parent, h.Rule)
		}
	}
	return in, nil
}

func isGuard(h rules.Hook) bool { return h.Rule.Target() == rules.LocalFirewall }

// prepareLocalnet reports whether route_localnet is to be set once in, what is missing of the guard, is in force. It adds the
// mark of nkp's to in before nkp sets it the first time.
func (w *worker) prepareLocalnet(ctx context.Context, in *input) (set bool) {
	if w.localnet == nil {
		return false
	}
	on, err := w.localnet.on()
	guarded := in.empty()
	if err == nil && on && !guarded || !on {
		err = w.localnet.set(false) // where it is off, this finds out whether it can be written
	}
	switch {
	case err != nil && on:
		w.cannotSetLocalnet(unguarded, err)
		return false
	case err != nil:
		w.cannotSetLocalnet(noLocalhost, err)
		return false
	}
	w.setLocalnet = w.setLocalnet || !on
	if !w.setLocalnet {
		return !guarded
	}
	_, marked, err := w.tables.Rules(ctx, string(rules.Filter), rules.Localnet)
	if err == nil && !marked {
		in.chain(rules.Localnet)
	}
	return !on || !guarded
}

// unsetLocalnet unsets route_localnet if nkp has set it.
func (w *worker) unsetLocalnet(ctx context.Context) error {
	if w.localnet == nil {
		return nil
	}
	if _, marked, err := w.tables.Rules(ctx, string(rules.Filter), rules.Localnet); err != nil || !marked {
		return err
	}
	if err := w.localnet.set(false); err != nil {
		w.cannotSetLocalnet(staysSet, err)
		return nil
	}
	in := newInput(rules.Filter)
	in.chain(rules.Localnet)
	in.drop(rules.Localnet)
	return w.restore(ctx, in)
}

// keepGuardFirst adds to the input of table filter what puts the guard before the rules that missing puts first: one of those
// accepts packets.
func (w *worker) keepGuardFirst(in *input, s *sight, missing []rules.Hook) {
	for _, h := range w.fixed.Hooks {
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
