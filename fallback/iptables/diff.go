package iptables

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/iptables/rules"
)

// tableContent is the content of a table.
type tableContent struct {
	chains map[string][]rules.Rule
	used   map[string]bool // Services' chains that packets can reach
}

func readTable(ctx context.Context, t tables, table rules.Table) (tableContent, error) {
	have := tableContent{map[string][]rules.Rule{}, map[string]bool{}}
	err := t.Save(ctx, string(table), func(chain, rule string) {
		if rule == "" {
			have.chains[chain] = []rules.Rule{}
			return
		}
		have.chains[chain] = append(have.chains[chain], rules.Rule(rule))
	})
	for name, list := range have.chains {
		if !rules.IsServiceChain(name) {
			have.markUsed(list)
		}
	}
	return have, err
}

// markUsed records the Services' chains that rules jump to, directly or through other such chains.
func (i *tableContent) markUsed(list []rules.Rule) {
	for _, r := range list {
		if t := r.Target(); rules.IsServiceChain(t) && !i.used[t] {
			i.used[t] = true
			i.markUsed(i.chains[t])
		}
	}
}

// diffTable returns how a table differs from its desired rules: "+" marks a missing line, "-" an extra one.
// Unreferenced chains of Services do not count: they are harmless and will be deleted.
func diffTable(want rules.TableRules, have tableContent) (lines []string) {
	line := func(sign, chain string, r rules.Rule) { lines = append(lines, sign+" -A "+chain+" "+string(r)) }
	wanted := map[string]bool{}
	for _, c := range want.Chains {
		wanted[c.Name] = true
		list, ok := have.chains[c.Name]
		if !ok {
			lines = append(lines, "+ -N "+c.Name)
		}
		if ordered(c.Name) && digest(list) != digest(c.Rules) ||
			!ordered(c.Name) && !sameRules(list, c.Rules) {
			missing, extra := without(c.Rules, list), without(list, c.Rules)
			if len(missing)+len(extra) == 0 { // the same rules in another order
				missing, extra = c.Rules, list
			}
			for _, r := range extra {
				line("-", c.Name, r)
			}
			for _, r := range missing {
				line("+", c.Name, r)
			}
		}
	}

	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if want.Table == rules.NAT && rules.IsServiceChain(name) && !wanted[name] && have.used[name] {
			for _, r := range have.chains[name] {
				line("-", name, r)
			}
		}
	}

	for _, g := range want.InForeignChains {
		if !hasRule(have.chains[g.Chain], g.Rule) {
			line("+", g.Chain, g.Rule)
		}
	}

	missing, extra := hookDiff(&rules.Fixed{Hooks: want.Hooks},
		&snapshot{rules: map[rules.Table]map[string][]rules.Rule{want.Table: have.chains}})
	for _, h := range extra {
		line("-", h.Parent, h.Rule)
	}
	for _, h := range missing {
		lines = append(lines, "+ -I "+h.Parent+" "+string(h.Rule))
	}
	return lines
}

// ordered reports whether the order of a chain's rules matters.
func ordered(chain string) bool {
	return rules.IsServiceChain(chain) || chain == rules.Postrouting || chain == rules.Forward
}

func sameRules(a, b []rules.Rule) bool {
	return len(a) == len(b) && len(without(a, b)) == 0 && len(without(b, a)) == 0
}

// without returns the rules of a that b does not have.
func without(a, b []rules.Rule) (list []rules.Rule) {
	have := map[string]bool{}
	for _, r := range b {
		have[r.Canonical()] = true
	}
	for _, r := range a {
		if !have[r.Canonical()] {
			list = append(list, r)
		}
	}
	return list
}

// diffFamily compares all tables of a family.
func diffFamily(ctx context.Context, t tables, want *rules.Ruleset) (string, error) {
	var b strings.Builder
	for _, tr := range want.Tables {
		have, err := readTable(ctx, t, tr.Table)
		if err != nil {
			return "", err
		}
		for _, l := range diffTable(tr, have) {
			b.WriteString(want.Family.String() + " " + string(tr.Table) + " " + l + "\n")
		}
	}
	return b.String(), nil
}
