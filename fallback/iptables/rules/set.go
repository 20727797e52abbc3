package rules

import "github.com/nkp-proxy/nkp/k8s"

// Chain is a chain with all its rules.
type Chain struct {
	Name  string
	Rules []Rule
}

// SharedRule is a rule in a chain that several Services share. The order within such a chain matters in one
// way only: those that are Last come after all others.
type SharedRule struct {
	Table Table
	Chain string
	Rule  Rule
	Last  bool
}

// Service holds the chains and rules of one Service port in one family.
type Service struct {
	Name k8s.PortName
	// Chains are its own, all in table nat.
	Chains []Chain
	// SharedRules jump to the chains, or refuse packets that are not to be served.
	SharedRules []SharedRule
}

// Hook is a rule in a base chain that jumps to one of nkp's chains. It is inserted at the top.
type Hook struct {
	Table  Table
	Parent string // PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING
	Rule   Rule
}

// Fixed are the chains and rules that do not depend on Services.
type Fixed struct {
	// Chains are those whose content nkp alone owns, by table.
	Chains map[Table][]Chain
	// Shared are the names of the chains whose rules are SharedRules, by table.
	Shared map[Table][]string
	// SharedRules are rules in shared chains that belong to no Service.
	SharedRules []SharedRule
	// Last are SharedRules that are added once all Services are installed.
	Last []SharedRule
	// InForeignChains are rules in chains that nkp shares with other programs.
	InForeignChains []SharedRule
	Hooks           []Hook
}
