package iptables

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// CleanupOptions configure Cleanup.
type CleanupOptions struct {
	Log *slog.Logger
	// TakeLocalnet reports whether nkp's nftables table protects 127.0.0.0/8: route_localnet then stays set
	// for it, so that NodePorts there are served without a gap.
	TakeLocalnet func() (bool, error)
}

// Removed counts what Cleanup has removed.
type Removed struct {
	Chains int // with all their rules
	Rules  int // in foreign chains
	Left   int // tables whose chains are left to kube-proxy, with route_localnet
}

// kubeProxyServes reports whether kube-proxy has added its jumps to nkp's, which removes them when it begins.
// With Scope Host nkp has others in PREROUTING, with Scope Own in OUTPUT alone. A jump of kube-proxy's kind
// without them may be nkp's, with Scope Everything.
func kubeProxyServes(ctx context.Context, t tables) (bool, error) {
	theirs, others := false, false
	for _, parent := range []string{"PREROUTING", "OUTPUT"} {
		list, _, err := rulesOf(ctx, t, rules.NAT, parent)
		if err != nil {
			return false, err
		}
		for _, r := range list {
			if r.Target() == rules.Services {
				is := rules.OfKubeProxy(rules.NAT, parent, r)
				theirs, others = theirs || is && parent == "PREROUTING", others || !is
			}
		}
	}
	return theirs && others, nil
}

// removeAll removes all chains and rules of nkp and kube-proxy from one back end and family. Other chains are
// not touched. With keepGuard, or if a kubelet needs them, the rules that protect 127.0.0.0/8 from the
// network stay.
func removeAll(
	ctx context.Context, t tables, inUse func(table string) bool, limit int,
	keepGuard, leaveKubeProxy bool,
) (n Removed, err error) {
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
			list, _, err := rulesOf(ctx, t, table, parent)
			if err != nil {
				return n, err
			}
			for _, r := range list {
				if leaveKubeProxy && rules.OfKubeProxy(table, parent, r) {
					continue
				}
				target := r.Target()
				if slices.Contains(hookedChains, target) || target == rules.LocalFirewall && !keepGuard {
					unhook.delete(parent, r)
					n.Rules++
				}
			}
		}

		if !unhook.empty() {
			if err := t.Restore(ctx, unhook.bytes()); err != nil {
				return n, fmt.Errorf("table %s, delete the jumps to nkp's chains: %w", table, err)
			}
		}

		if leaveKubeProxy {
			n.Left++
			if targets, err = unknownToKubeProxy(ctx, t, table, targets); err != nil {
				return n, err
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
				return n, fmt.Errorf("table %s, delete nkp's chains: %w", table, err)
			}
			n.Chains += len(chains)
		}
	}
	return n, nil
}

// unknownToKubeProxy returns those of nkp's chains that kube-proxy does not have, and its rules do not lead
// to.
func unknownToKubeProxy(
	ctx context.Context, t tables, table rules.Table, names []string,
) (list []string, err error) {
	for _, name := range names {
		if table != rules.Filter || name != rules.ClusterIPs {
			continue
		}
		jumps, _, err := t.Rules(ctx, string(table), rules.Services)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(jumps, func(r string) bool { return rules.Rule(r).Target() == name }) {
			list = append(list, name)
		}
	}
	return list, nil
}

// removable returns nkp's chains among the names, each before those it jumps to. With keepGuard, it leaves
// out the chain that protects 127.0.0.0/8 from the network.
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
		add(rules.Services, rules.ExternalServices, rules.NodePorts, rules.Forward, rules.Firewall,
			rules.ClusterIPs)
		if !keepGuard {
			add(rules.LocalFirewall)
		}
	}
	add(rules.Canary)
	return list
}
