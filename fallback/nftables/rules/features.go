package rules

import "github.com/nkp-proxy/nkp/k8s"

// Feature is a part of nf_tables that the table needs, with the sets and chains by which a kernel shows that
// it has it. They need nothing of other Features.
type Feature struct {
	Name   string
	Since  string // the release of Linux that has it
	Sets   []Set
	Chains []Chain
	// Flowtable is whether the Chains use the flowtable.
	Flowtable bool
}

// Features returns what the table needs of the kernel. Since is from the history of Linux' net/netfilter.
func Features() []Feature {
	chain := func(name string, rules ...Rule) []Chain { return []Chain{{Name: name, Rules: rules}} }
	local := spread{4, k8s.OnNode, false}.chain()
	clients := Set{Name: "clients", Key: []Type{Addr}, Data: []Type{Addr, Port}, Timeout: 1, Limit: 1}
	nat := func(hook string, priority int) []Chain {
		return []Chain{{Name: hook, Hook: Hook{"nat", hook, priority}}}
	}

	return []Feature{
		{Name: "translation in prerouting", Since: "3.13", Chains: nat("prerouting", priorityDNAT)},
		{Name: "translation in output", Since: "3.13", Chains: nat("output", priorityDNAT)},
		{Name: "translation in postrouting", Since: "3.13", Chains: nat("postrouting", prioritySNAT)},
		{Name: "masquerading", Since: "3.18", Chains: chain("masq", Rule{Masquerade{}})},
		{Name: "rejection", Since: "3.18", Chains: chain("reject", Rule{Reject{}})},
		{
			Name:   "maps that rules fill",
			Since:  "4.3",
			Sets:   []Set{clients},
			Chains: chain("remember", Rule{RememberEndpoint{clients.Name}}),
		},
		{Name: "types of addresses (fib)", Since: "4.10", Chains: chain("fib", Rule{Local{Daddr}})},
		{
			Name:   "random numbers (numgen)",
			Since:  "4.10",
			Sets:   []Set{Sets[Endpoints]},
			Chains: []Chain{local},
		},
		{
			Name:   "addresses of a connection's first packet (ct original)",
			Since:  "4.17",
			Sets:   []Set{Sets[NodeIPs]},
			Chains: chain("original", Rule{Protocol{6}, In{[]Field{OriginalDaddr}, Sets[NodeIPs].Name}}),
		},
		{Name: "ranges in concatenated keys", Since: "5.6", Sets: []Set{Sets[SourceRanges]}},
		{Name: "counters of map elements", Since: "5.7", Sets: []Set{Sets[Services]}},
	}
}
