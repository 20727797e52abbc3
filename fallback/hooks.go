package fallback

import (
	"context"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/rules"
)

// parents are the kernel's chains that may lead to ours.
var parents = map[rules.Table][]string{
	rules.NAT:    {"PREROUTING", "OUTPUT", "POSTROUTING"},
	rules.Filter: {"INPUT", "FORWARD", "OUTPUT"},
}

// hookedChains are those of ours that the kernel's chains lead to. LocalFirewall is kubelet's: rules that lead there
// are added, never taken away.
var hookedChains = []string{rules.Services, rules.ExternalServices, rules.NodePorts, rules.Postrouting, rules.Forward, rules.Firewall}

// hostPorts are chains of others that take packets for ports of the node, and which Services go before: the CNI
// plugin portmap's.
var hostPorts = []string{"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SNAT", "CNI-HOSTPORT-MASQ"}

// hookDiff returns which hooks are missing, or come too late, and which rules lead to nkp's chains that should not.
func hookDiff(fixed *rules.Fixed, s *sight) (missing, extra []rules.Hook) {
	for _, h := range fixed.Hooks {
		list := s.rules[h.Table][h.Parent]
		at := slices.IndexFunc(list, func(r rules.Rule) bool { return r.Canonical() == h.Rule.Canonical() })
		switch {
		case at < 0:
			missing = append(missing, h)
		case slices.ContainsFunc(list[:at], isHostPort):
			missing = append(missing, h)
			extra = append(extra, rules.Hook{Table: h.Table, Parent: h.Parent, Rule: list[at]})
		}
	}
	for t, names := range parents {
		for _, parent := range names { // those without a hook too: there may have been other settings
			seen := map[string]bool{}
			for _, r := range s.rules[t][parent] {
				if !slices.Contains(hookedChains, r.Target()) {
					continue
				}
				if !isHook(fixed, t, parent, r) || seen[r.Canonical()] {
					extra = append(extra, rules.Hook{Table: t, Parent: parent, Rule: r})
				}
				seen[r.Canonical()] = true
			}
		}
	}
	return missing, extra
}

func isHostPort(r rules.Rule) bool { return slices.Contains(hostPorts, r.Target()) }

func isHook(fixed *rules.Fixed, t rules.Table, parent string, r rules.Rule) bool {
	return slices.ContainsFunc(fixed.Hooks, func(h rules.Hook) bool {
		return h.Table == t && h.Parent == parent && h.Rule.Canonical() == r.Canonical()
	})
}

// hook leads the kernel's chains to ours, in table filter first: where a packet is translated, all is there. The rules
// that should not be there go in the same transaction; deleted by what they say, the last of several goes last.
func (w *worker) hook(ctx context.Context) error {
	s := &sight{rules: map[rules.Table]map[string][]rules.Rule{}}
	for t, names := range parents {
		s.rules[t] = map[string][]rules.Rule{}
		for _, parent := range names {
			list, _, err := w.kernel.tables.Rules(ctx, string(t), parent)
			if err != nil {
				return err
			}
			for _, r := range list {
				s.rules[t][parent] = append(s.rules[t][parent], rules.Rule(r))
			}
		}
	}
	missing, extra := hookDiff(&w.want.fixed, s)
	for _, t := range []rules.Table{rules.Filter, rules.NAT} {
		in := newInput(t)
		for _, h := range extra { // before the new ones: -D takes the first that says the same
			if h.Table == t {
				in.delete(h.Parent, h.Rule)
			}
		}
		for _, h := range missing {
			if h.Table == t {
				in.insert(h.Parent, h.Rule)
			}
		}
		if t == rules.Filter {
			keepGuardFirst(&w.want.fixed, in, s, missing)
		}
		if err := w.kernel.restore(ctx, in); err != nil {
			return err
		}
	}
	if len(missing)+len(extra) > 0 {
		w.log.Info("the kernel's chains lead to nkp's", "newRules", len(missing), "removedRules", len(extra))
	}
	w.have.hooked = true
	return nil
}
