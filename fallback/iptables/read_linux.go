package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/nkp-proxy/nkp/fallback"
	"github.com/nkp-proxy/nkp/fallback/iptables/restore"
	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/k8s"
)

// Available returns an error if iptables cannot be used on this node because programs are not installed. It
// runs none.
func Available(backend string) error { return restore.Installed(restore.Backend(backend)) }

// Occupied reports whether chains of Services exist already: kube-proxy's, or nkp's own of an earlier run. An
// error means that the tables could not be read.
func Occupied(ctx context.Context) (bool, error) { return restore.Has(ctx, "nat", rules.Services) }

// listRules returns a lister of the rules of a family. It does not share Tables with the worker, which may be
// writing.
func listRules(ctx context.Context, backend string, f k8s.Family) (lister, error) {
	t, err := restore.Open(ctx, restore.Backend(backend), f)
	if err != nil {
		return nil, err
	}
	return func(table rules.Table, chain string) ([]string, error) {
		return t.Counters(ctx, string(table), chain)
	}, nil
}

// List is part of fallback.Kernel: the rules of Service ports' own chains, and those of shared chains that
// are theirs. It runs iptables-save once for each table.
func (kernel) List(
	ctx context.Context, m *k8s.Model, o fallback.Options, backend string, to *dataplane.Listing,
) error {
	for _, f := range o.Families {
		t, err := restore.Open(ctx, restore.Backend(backend), f)
		if err != nil {
			return err
		}

		c := rules.NewCompiler(o.Config, f, m)
		own := map[string]bool{} // chains of table nat, and rules of shared chains
		for n, sp := range m.Ports {
			if n.Family != f {
				continue
			}
			s := c.Service(sp)
			for _, ch := range s.Chains {
				own[ch.Name] = true
			}
			for _, r := range s.SharedRules {
				own[string(r.Table)+r.Chain+r.Rule.Canonical()] = true
			}
		}

		for _, table := range []rules.Table{rules.Filter, rules.NAT} {
			err := t.SaveCounted(ctx, string(table), func(chain, rule string, packets, bytes uint64) {
				if table == rules.NAT && own[chain] || own[string(table)+chain+rules.Rule(rule).Canonical()] {
					to.AddCounted("-t "+string(table)+" -A "+chain+" "+rule, packets, bytes)
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadRules returns the rules of a family that are installed now, of all owners: table -> chain -> rules in
// order, without "-A CHAIN". backend is nf_tables or legacy; "" is the one that the rest of the node uses.
func ReadRules(ctx context.Context, backend string, f k8s.Family) (map[string]map[string][]string, error) {
	choice, err := restore.Choose(ctx, restore.Backend(backend))
	if err != nil {
		return nil, err
	}
	t, err := restore.Open(ctx, choice.Backend, f)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string][]string{}
	for _, table := range []rules.Table{rules.NAT, rules.Filter} {
		if all[string(table)], err = t.Chains(ctx, string(table)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// LegacyRules returns which of the base chains of iptables (legacy) drops what none of its rules accepts, or
// that they cannot be read; "": neither. Otherwise it returns the rules of its tables, as ReadRules does.
func LegacyRules(
	ctx context.Context, f k8s.Family, chains ...string,
) (drops string, all map[string]map[string][]string, err error) {
	drops, err = restore.Drops(ctx, []restore.Backend{restore.Legacy}, []k8s.Family{f}, chains...)
	if err != nil || drops != "" {
		return drops, nil, err
	}
	all, err = restore.LegacyRules(ctx, f)
	if errors.Is(err, restore.ErrNoPrograms) {
		return err.Error(), nil, nil
	}
	return "", all, err
}

// LegacyDropsAll returns that a chain of table filter of iptables (legacy) drops all; "": a rule of it may
// accept something, it drops nothing, or that cannot be found out.
func LegacyDropsAll(ctx context.Context, f k8s.Family, chain string) (string, error) {
	return restore.LegacyDropsAll(ctx, f, chain)
}

// Drops returns which chain of iptables drops traffic that only iptables can accept, because an accept in
// another table does not overrule it; "": none. It runs iptables, whose lock another program may hold: an
// error means that the answer is not known.
func Drops(ctx context.Context, o Options) (string, error) {
	chains := []string{"INPUT", "FORWARD"}
	if o.Scope == serving.Own {
		chains = chains[:1]
	}
	drops, err := restore.Drops(ctx, []restore.Backend{restore.NFT, restore.Legacy}, o.ToServe(), chains...)
	if err != nil {
		return "", fmt.Errorf("cannot find out whether iptables drops what no rule accepts: %w", err)
	}
	return drops, nil
}
