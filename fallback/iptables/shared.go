package iptables

import "github.com/nkp-proxy/nkp/fallback/iptables/rules"

// ruleKey identifies a rule of a shared chain by what it does.
type ruleKey struct {
	table rules.Table
	chain string
	rule  string // without its comment
}

func keyOf(l rules.SharedRule) ruleKey { return ruleKey{l.Table, l.Chain, l.Rule.Canonical()} }

// sharedRule is a rule of a shared chain.
type sharedRule struct {
	rules.SharedRule      // as it is installed, comment included; if it is not, as it should be
	present          bool // it is installed
	owners           int  // how many items, Service ports and health checks, call for it
}

// ruleSet holds the rules in shared chains, installed or to be installed.
type ruleSet map[ruleKey]*sharedRule

// addInstalled records a rule that is installed.
func (s ruleSet) addInstalled(l rules.SharedRule) {
	s[keyOf(l)] = &sharedRule{SharedRule: l, present: true}
}

// delta counts how many owners each shared rule gains or loses.
type delta map[ruleKey]*ruleDelta

type ruleDelta struct {
	rules.SharedRule
	n int
}

func (d delta) count(list []rules.SharedRule, n int) {
	for _, l := range list {
		k := keyOf(l)
		if d[k] == nil {
			d[k] = &ruleDelta{SharedRule: l}
		}
		d[k].n += n
	}
}
