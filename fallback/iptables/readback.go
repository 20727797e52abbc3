package iptables

import (
	"context"
	"fmt"
	"slices"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// snapshot is the installed state, read back.
type snapshot struct {
	// rules are those of all chains except Services' own: fixed chains, shared chains, base chains that jump
	// to nkp's.
	rules map[rules.Table]map[string][]rules.Rule
	// own are Services' chains in table nat with the digests of their rules; 0 if they were not read.
	own map[string]uint64
	// canaries are the tables that have one.
	canaries map[rules.Table]bool
}

// canaryTables have a canary: a chain that no rule uses, and that a flush of the table removes.
var canaryTables = []rules.Table{rules.Mangle, rules.Filter, rules.NAT}

// readBack reads back the installed rules.
func (w *worker) readBack(ctx context.Context) (*snapshot, error) {
	s := &snapshot{
		rules:    map[rules.Table]map[string][]rules.Rule{},
		own:      map[string]uint64{},
		canaries: map[rules.Table]bool{},
	}

	for _, t := range canaryTables {
		var err error
		if _, s.canaries[t], err = w.tables.Rules(ctx, string(t), rules.Canary); err != nil {
			return nil, err
		}
	}

	for _, t := range []rules.Table{rules.Filter, rules.NAT} {
		s.rules[t] = map[string][]rules.Rule{}
		names, err := w.tables.ChainNames(ctx, string(t))
		if err != nil {
			return nil, err
		}
		if len(names) <= w.limits.save {
			err = w.readTable(ctx, t, s)
		} else {
			err = w.readChains(ctx, t, names, s)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// chainsOf returns the chains of a table that nkp reads back, except Services' own.
func (w *worker) chainsOf(t rules.Table) []string {
	list := append(slices.Clone(w.want.fixed.Shared[t]), parents[t]...)
	for _, c := range w.want.fixed.Chains[t] {
		list = append(list, c.Name)
	}
	if t == rules.Filter && !slices.Contains(list, rules.ClusterIPs) {
		list = append(list, rules.ClusterIPs) // from an earlier run with another scope
	}
	for _, g := range w.want.fixed.InForeignChains {
		if g.Table == t {
			list = append(list, g.Chain)
		}
	}
	return list
}

// readTable reads every rule of a table.
func (w *worker) readTable(ctx context.Context, t rules.Table, s *snapshot) error {
	wanted := map[string]bool{}
	for _, name := range w.chainsOf(t) {
		wanted[name] = true
	}
	own := map[string][]rules.Rule{}
	err := w.tables.Save(ctx, string(t), func(chain, rule string) {
		list := s.rules[t]
		if t == rules.NAT && rules.IsServiceChain(chain) {
			list = own
		} else if !wanted[chain] {
			return
		}
		if rule == "" {
			list[chain] = []rules.Rule{}
		} else {
			list[chain] = append(list[chain], rules.Rule(rule))
		}
	})
	for name, list := range own {
		s.own[name] = digest(list)
	}
	return err
}

// readChains reads the chains of chainsOf one by one, and only the names of Services' own chains.
func (w *worker) readChains(ctx context.Context, t rules.Table, names []string, s *snapshot) error {
	for _, name := range names {
		if t == rules.NAT && rules.IsServiceChain(name) {
			s.own[name] = 0
		}
	}
	for _, name := range w.chainsOf(t) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		list, ok, err := rulesOf(ctx, w.tables, t, name)
		if err != nil {
			return err
		}
		if ok {
			s.rules[t][name] = list
		}
	}
	return nil
}

// drifted reads back the installed rules and returns how they differ from what this worker has installed; ""
// if they do not.
func (w *worker) drifted(ctx context.Context) (string, error) {
	s, err := w.readBack(ctx)
	if err != nil {
		return "", err
	}
	return w.compare(s), nil
}

// compare returns the first difference found between s and what this worker has installed; "" if there is
// none.
func (w *worker) compare(s *snapshot) string {
	for _, t := range canaryTables {
		if !s.canaries[t] {
			return fmt.Sprintf("table %s was flushed: chain %s is missing", t, rules.Canary)
		}
	}

	for t, list := range w.want.fixed.Chains {
		for _, c := range list {
			if have, ok := s.rules[t][c.Name]; !ok || digest(have) != digest(c.Rules) {
				return fmt.Sprintf("table %s, chain %s was changed or deleted", t, c.Name)
			}
		}
	}

	seen := ruleSet{}
	s.eachShared(w.want.fixed, func(l rules.SharedRule) {
		seen.addInstalled(l)
	})
	for k, l := range w.have.shared {
		if l.present && seen[k] == nil {
			return fmt.Sprintf("table %s, chain %s: rule is missing: %q", k.table, k.chain, l.Rule)
		}
	}
	for k, l := range seen {
		if have := w.have.shared[k]; have == nil || !have.present {
			return fmt.Sprintf("table %s, chain %s: unexpected rule: %q", k.table, k.chain, l.Rule)
		}
	}

	for name, known := range w.have.chains {
		have, ok := s.own[name]
		if !ok && known.used {
			return fmt.Sprintf("table nat: chain %s%s is missing", name, w.have.ownerText(name))
		}
		if known.used && have != 0 && known.digest != 0 && have != known.digest {
			return fmt.Sprintf("table nat, chain %s%s was changed", name, w.have.ownerText(name))
		}
	}

	if w.have.hooked {
		if missing, extra := hookDiff(&w.want.fixed, s); len(missing)+len(extra) > 0 {
			return fmt.Sprintf("jumps to nkp's chains: %d missing or too late in their chain, %d unexpected",
				len(missing), len(extra))
		}
	}

	for _, g := range w.want.fixed.InForeignChains {
		if !hasRule(s.rules[g.Table][g.Chain], g.Rule) {
			return fmt.Sprintf("table %s, chain %s: rule is missing: %q", g.Table, g.Chain, g.Rule)
		}
	}
	return ""
}

// eachShared calls f for each rule in a shared chain.
func (s *snapshot) eachShared(fixed rules.Fixed, f func(rules.SharedRule)) {
	for t, chains := range s.rules {
		for _, name := range append(slices.Clone(fixed.Shared[t]), spareChains[t]...) {
			for _, r := range chains[name] {
				f(rules.SharedRule{Table: t, Chain: name, Rule: r})
			}
		}
	}
}

// spareChains are shared chains that not every configuration has.
var spareChains = map[rules.Table][]string{rules.Filter: {rules.ClusterIPs}}

func hasRule(list []rules.Rule, r rules.Rule) bool {
	return slices.ContainsFunc(list, func(o rules.Rule) bool { return o.Canonical() == r.Canonical() })
}
