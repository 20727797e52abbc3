package rules

import (
	"maps"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Ruleset is the desired state of one family. String returns it as input for iptables-restore --noflush.
type Ruleset struct {
	Family k8s.Family
	Tables []TableRules // table filter, then nat
}

// TableRules is the desired state of one table.
type TableRules struct {
	Table           Table
	Chains          []Chain      // with all their rules
	InForeignChains []SharedRule // rules in foreign chains
	Hooks           []Hook
}

// Ruleset returns the desired state for a model's Services, sorted by their names.
func (c *Compiler) Ruleset(m *k8s.Model) *Ruleset {
	fixed := c.Fixed()
	shared := slices.Clone(fixed.SharedRules)
	var own []Chain
	for _, p := range c.Ports(m, c.Family) {
		s := c.Service(p)
		shared = append(shared, s.SharedRules...)
		own = append(own, s.Chains...)
	}
	byName := func(a, b k8s.ServiceName) int { return strings.Compare(a.String(), b.String()) }
	for _, n := range slices.SortedFunc(maps.Keys(m.HealthChecks), byName) {
		shared = append(shared, c.HealthCheck(n, m.HealthChecks[n])...)
	}
	shared = append(shared, fixed.Last...)

	r := &Ruleset{Family: c.Family}
	for _, t := range []Table{Filter, NAT} {
		tr := TableRules{Table: t}
		for _, name := range fixed.Shared[t] {
			tr.Chains = append(tr.Chains, Chain{name, sharedRules(shared, t, name)})
		}
		tr.Chains = append(tr.Chains, fixed.Chains[t]...)
		if t == NAT {
			tr.Chains = append(tr.Chains, own...)
		}
		for _, g := range fixed.InForeignChains {
			if g.Table == t {
				tr.InForeignChains = append(tr.InForeignChains, g)
			}
		}
		for _, h := range fixed.Hooks {
			if h.Table == t {
				tr.Hooks = append(tr.Hooks, h)
			}
		}
		r.Tables = append(r.Tables, tr)
	}
	return r
}

// sharedRules returns the rules of a shared chain: each once, the last ones last.
func sharedRules(shared []SharedRule, t Table, chain string) []Rule {
	var first, last []Rule
	seen := map[string]bool{}
	for _, l := range shared {
		if l.Table != t || l.Chain != chain || seen[l.Rule.Canonical()] {
			continue
		}
		seen[l.Rule.Canonical()] = true
		if l.Last {
			last = append(last, l.Rule)
		} else {
			first = append(first, l.Rule)
		}
	}
	return append(first, last...)
}

// String returns the rules as input of iptables-restore --noflush.
func (r *Ruleset) String() string {
	var b strings.Builder
	for _, t := range r.Tables {
		b.WriteString("*" + string(t.Table) + "\n")
		for _, c := range t.Chains {
			b.WriteString(":" + c.Name + " - [0:0]\n")
		}
		for _, g := range t.InForeignChains {
			b.WriteString(":" + g.Chain + " - [0:0]\n")
		}
		for _, c := range t.Chains {
			for _, rule := range c.Rules {
				b.WriteString("-A " + c.Name + " " + string(rule) + "\n")
			}
		}
		for _, g := range t.InForeignChains {
			b.WriteString("-A " + g.Chain + " " + string(g.Rule) + "\n")
		}
		for _, h := range t.Hooks {
			b.WriteString("-I " + h.Parent + " " + string(h.Rule) + "\n")
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// Plan returns the rules of both families as nkp plan -o iptables prints them: IPv4, a line "# ip6tables",
// IPv6.
func Plan(m *k8s.Model, c serving.Config) string {
	return NewCompiler(c, k8s.IPv4, m).Ruleset(m).String() + "# ip6tables\n" +
		NewCompiler(c, k8s.IPv6, m).Ruleset(m).String()
}
