package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/k8s"
)

// Diff returns how the rules installed on this node differ from those that a model calls for: lines of the
// form "IPv4 nat + -A CHAIN RULE", where + marks a missing rule and - an extra one; "" if they do not differ.
// Of the options, it uses the rules' settings, Backend and Families.
func Diff(ctx context.Context, m *k8s.Model, o Options) (string, error) {
	o.KeepInvalid = o.KeepInvalid || fallback.IsLiberal()
	choice, err := restore.Choose(ctx, restore.Backend(o.Backend))
	if err != nil {
		return "", err
	}
	text := ""
	for _, f := range o.ToServe() {
		t, err := restore.Open(ctx, choice.Backend, f)
		if err != nil {
			if len(o.Families) == 0 && f == k8s.IPv6 {
				continue
			}
			return "", err
		}
		o.RandomFully = t.RandomFully
		part, err := diffFamily(ctx, t, rules.NewCompiler(o.Config, f, m).Ruleset(m))
		if err != nil {
			return "", err
		}
		text += part
	}
	return text, nil
}

// Cleanup removes everything that a Plane installs, from both back ends and families, and nothing else.
// Chains of kube-proxy's iptables mode have the same names and go too, unless a kube-proxy serves by them: it
// has added its own jumps to those that nkp has for the same chains, and only nkp's jumps are removed then.
// The rules that protect 127.0.0.0/8 from the network stay where kubelet needs them, and where route_localnet
// stays set because nkp has not set it or cannot unset it.
func Cleanup(ctx context.Context, o CleanupOptions) (Removed, error) {
	var n Removed
	var problems []error
	var all []*restore.Tables
	leave := false

	for _, f := range []k8s.Family{k8s.IPv4, k8s.IPv6} {
		for _, t := range restore.Find(ctx, f) {
			if !leave && t.InUse(string(rules.NAT)) {
				serves, err := kubeProxyServes(ctx, t)
				if err != nil {
					err = fmt.Errorf("iptables back end %s, %s: %w", t.Backend, f, err)
				}
				switch {
				case errors.Is(err, restore.ErrBusy):
					return n, err
				case err != nil: // the kernel lacks it, perhaps: the others are cleaned up
					problems = append(problems, err)
					continue
				}
				leave = serves
			}
			all = append(all, t)
		}
	}

	keepGuard := true
	if leave {
		fallback.RouteLocalnet{}.Disown()
	} else {
		var err error
		if keepGuard, err = fallback.ReleaseLocalnet(o.TakeLocalnet); err != nil {
			problems = append(problems, fmt.Errorf("%w; chain %s, which protects 127.0.0.0/8, stays",
				err, rules.LocalFirewall))
		}
	}

	for _, t := range all {
		limit := legacyLimits.chains
		if t.Backend == restore.NFT {
			limit = nftLimits.chains
		}
		part, err := removeAll(ctx, t, t.InUse, limit, keepGuard && t.Family == k8s.IPv4, leave)
		n.Chains += part.Chains
		n.Rules += part.Rules
		n.Left += part.Left
		if err != nil {
			problems = append(problems, fmt.Errorf("iptables back end %s, %s: %w", t.Backend, t.Family, err))
		}
	}

	if o.Log != nil && n.Chains+n.Rules > 0 {
		o.Log.Info("removed", "chains", n.Chains, "rulesInOtherChains", n.Rules)
	}
	return n, errors.Join(problems...)
}

// TakeLocalnet reports whether the back end serves and protects 127.0.0.0/8, so that route_localnet stays set
// for it.
func TakeLocalnet(ctx context.Context, backend string) (bool, error) {
	t, err := restore.Open(ctx, restore.Backend(backend), k8s.IPv4)
	if err != nil {
		return false, err
	}
	_, guarded, err := t.Rules(ctx, string(rules.Filter), rules.LocalFirewall)
	_, serves, err2 := t.Rules(ctx, string(rules.NAT), rules.Services)
	return guarded && serves, errors.Join(err, err2)
}
