package rules

import "github.com/nkp-proxy/nkp/k8s"

// Chain is a chain with all its rules.
type Chain struct {
	Name  string
	Rules []Rule
}

// SharedRule is a rule in a chain that several Services share. The order within such a chain matters in one way only:
// those that are Last come after all others.
type SharedRule struct {
	Table Table
	Chain string
	Rule  Rule
	Last  bool
}

// Service is what serves one Service port in one family.
type Service struct {
	Name k8s.PortName
	// Chains are its own, all in table nat.
	Chains []Chain
	// SharedRules jump to the chains, or reject what is not to be served.
	SharedRules []SharedRule
}

// Hook is a rule in one of the kernel's own chains that leads to one of ours. It is put first there.
type Hook struct {
	Table  Table
	Parent string // PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING
	Rule   Rule
}

// Fixed are the chains and rules that do not depend on Services.
type Fixed struct {
	// Chains are wholly ours, by table.
	Chains map[Table][]Chain
	// Shared are the names of the chains whose rules are SharedRules, by table.
	Shared map[Table][]string
	// SharedRules are rules in shared chains that no Service calls for.
	SharedRules []SharedRule
	// Last are SharedRules that are added once all Services are installed.
	Last []SharedRule
	// Guests are rules in chains that are not ours alone.
	Guests []SharedRule
	Hooks  []Hook
}
