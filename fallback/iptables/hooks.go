package iptables

import (
	"context"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// parents are the base chains that may jump to nkp's chains.
var parents = map[rules.Table][]string{
	rules.NAT:    {"PREROUTING", "OUTPUT", "POSTROUTING"},
	rules.Filter: {"INPUT", "FORWARD", "OUTPUT"},
}

// hookedChains are nkp's chains that the base chains jump to. LocalFirewall is not among them, because it is
// kubelet's: jumps to it are added, never deleted.
var hookedChains = []string{
	rules.Services, rules.ExternalServices, rules.NodePorts, rules.Postrouting, rules.Forward, rules.Firewall,
}

// hostPorts is the chain of the CNI plugin portmap that takes packets for ports of the node. nkp's hooks must
// precede the jumps to it. Its CNI-HOSTPORT-MASQ, which portmap inserts at the top of POSTROUTING,
// masquerades what hostPorts translated only, as flannel's FLANNEL-POSTRTG does what leaves the pod network.
const hostPorts = "CNI-HOSTPORT-DNAT"

// hookDiff returns the hooks that are missing or too late in their chain, and the jumps to nkp's chains that
// should not exist.
func hookDiff(fixed *rules.Fixed, s *snapshot) (missing, extra []rules.Hook) {
	for _, h := range fixed.Hooks {
		list := s.rules[h.Table][h.Parent]
		at := slices.IndexFunc(list, func(r rules.Rule) bool { return r.Canonical() == h.Rule.Canonical() })
		switch {
		case at < 0:
			missing = append(missing, h)
		case slices.ContainsFunc(list[:at], func(r rules.Rule) bool { return r.Target() == hostPorts }):
			missing = append(missing, h)
			extra = append(extra, rules.Hook{Table: h.Table, Parent: h.Parent, Rule: list[at]})
		}
	}

	for t, names := range parents {
		// Parents without a hook count, too, because an earlier run may have had other settings.
		for _, parent := range names {
			seen := map[string]bool{}
			for _, r := range s.rules[t][parent] {
				// No rule of nkp's is unprintable.
				if !slices.Contains(hookedChains, r.Target()) || restore.Unprintable(string(r)) {
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

func isHook(fixed *rules.Fixed, t rules.Table, parent string, r rules.Rule) bool {
	return slices.ContainsFunc(fixed.Hooks, func(h rules.Hook) bool {
		return h.Table == t && h.Parent == parent && h.Rule.Canonical() == r.Canonical()
	})
}

// hook installs the jumps from the base chains to nkp's, in table filter first: once a packet is translated,
// all rules are installed. Jumps that should not exist are deleted in the same transaction, the first of
// equal rules first.
func (w *worker) hook(ctx context.Context) error {
	s := &snapshot{rules: map[rules.Table]map[string][]rules.Rule{}}
	for t, names := range parents {
		s.rules[t] = map[string][]rules.Rule{}
		for _, parent := range names {
			list, _, err := rulesOf(ctx, w.tables, t, parent)
			if err != nil {
				return err
			}
			s.rules[t][parent] = list
		}
	}

	missing, extra := hookDiff(&w.want.fixed, s)
	for _, t := range []rules.Table{rules.Filter, rules.NAT} {
		in := newInput(t)
		for _, h := range extra { // before the new ones: -D deletes the first equal rule
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
		if err := w.restore(ctx, in); err != nil {
			return err
		}
	}

	if len(missing)+len(extra) > 0 {
		w.Log.Info("installed the jumps from the base chains to nkp's chains",
			"newRules", len(missing), "removedRules", len(extra))
	}
	w.have.hooked = true
	return nil
}
