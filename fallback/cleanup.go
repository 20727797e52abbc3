package fallback

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/rules"
)

// CleanupOptions say what Cleanup works with.
type CleanupOptions struct {
	Log *slog.Logger
}

// Removed counts what Cleanup has removed.
type Removed struct {
	Chains int // with all their rules
	Rules  int // in chains of others
}

// removeAll removes everything of nkp's, and of kube-proxy's, from one back end and family. Other chains are not touched.
// keepGuard, or a kubelet that needs it, keeps what holds others off 127.0.0.0/8.
func removeAll(ctx context.Context, t tables, inUse func(table string) bool, limit int, keepGuard bool) (n Removed, err error) {
	if !keepGuard && inUse("mangle") {
		if _, keepGuard, err = t.Rules(ctx, "mangle", "KUBE-KUBELET-CANARY"); err != nil {
			return n, err
		}
	}
	for _, table := range []rules.Table{rules.NAT, rules.Filter, rules.Mangle} {
		if !inUse(string(table)) {
			continue
		}
		names, err := t.ChainNames(ctx, string(table))
		if err != nil {
			return n, err
		}
		targets := removable(table, names, keepGuard)
		if len(targets) == 0 {
			continue
		}
		unhook := newInput(table)
		for _, parent := range parents[table] {
			if !slices.Contains(names, parent) {
				continue
			}
			list, _, err := t.Rules(ctx, string(table), parent)
			if err != nil {
				return n, err
			}
			for _, r := range list {
				if target := rules.Rule(r).Target(); slices.Contains(hookedChains, target) || target == rules.LocalFirewall && !keepGuard {
					unhook.delete(parent, rules.Rule(r))
					n.Rules++
				}
			}
		}
		if !unhook.empty() {
			if err := t.Restore(ctx, unhook.bytes()); err != nil {
				return n, fmt.Errorf("table %s, rules that lead to nkp's chains: %w", table, err)
			}
		}
		for chains := range slices.Chunk(targets, limit) {
			in := newInput(table)
			for _, c := range chains {
				in.chain(c)
			}
			for _, c := range chains {
				in.drop(c)
			}
			if err := t.Restore(ctx, in.bytes()); err != nil {
				return n, fmt.Errorf("table %s, nkp's chains: %w", table, err)
			}
			n.Chains += len(chains)
		}
	}
	return n, nil
}

// removable returns our chains among the names, each before those it leads to. keepGuard keeps the chain that holds others off
// 127.0.0.0/8.
func removable(t rules.Table, names []string, keepGuard bool) (list []string) {
	add := func(chains ...string) {
		for _, c := range chains {
			if slices.Contains(names, c) {
				list = append(list, c)
			}
		}
	}
	switch t {
	case rules.NAT:
		add(rules.Services, rules.NodePorts, rules.Postrouting)
		own := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !rules.IsServiceChain(n) })
		slices.SortFunc(own, rules.CompareServiceChains)
		list = append(list, own...)
		add(rules.MarkMasq)
	case rules.Filter:
		add(rules.Services, rules.ExternalServices, rules.NodePorts, rules.Forward, rules.Firewall, rules.ClusterIPs, rules.Localnet)
		if !keepGuard {
			add(rules.LocalFirewall)
		}
	}
	add(rules.Canary)
	return list
}
