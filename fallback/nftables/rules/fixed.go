package rules

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Chain is a chain with all its rules.
type Chain struct {
	Name  string
	Hook  Hook // of a base chain
	Rules []Rule
}

// Hook is where the kernel calls a base chain; the zero Hook: nowhere.
type Hook struct {
	Type     string // nat or filter
	Hook     string // prerouting, input, forward, output or postrouting
	Priority int
}

// The priorities of base chains. Those of type nat are the kernel's for translation (NF_IP_PRI_NAT_DST and
// _SRC), as iptables has.
const (
	priorityDNAT     = -100
	priorityRemember = priorityDNAT + 5 // after the translation, which ends a chain of type nat
	priorityFilter   = 0
	priorityFastPath = priorityFilter + 20 // behind iptables (0) and firewalld (10)
	prioritySNAT     = 100
)

// The chains that count packets which belong to no Service port, by rules with counters.
const (
	// CountsUnserved counts packets to unserved ports of ClusterIPs by its first counter, and packets to
	// unallocated ones by the others.
	CountsUnserved = "refuse-forwarded"
	// CountsInvalid counts packets in conntrack state INVALID.
	CountsInvalid = "filter-forward"
	// CountsPings counts pings of Services' addresses: those beyond the limit by its first counter, and those
	// that are let through to be answered by the second.
	CountsPings = "ping-limit"
)

// TableName is the name of nkp's tables, one in each family.
const TableName = "nkp"

// Chains for NodePorts at 127.0.0.0/8, which need the sysctl route_localnet.
const (
	LocalnetGuard = "localnet-guard" // drops packets to 127.0.0.0/8 from the network
)

// linkLocal6 are the addresses that each IPv6 interface has one of.
var linkLocal6 = netip.MustParsePrefix("fe80::/10")

// Fixed is what a table has whatever Services there are, besides Sets.
type Fixed struct {
	Chains   []Chain // base chains last
	Elements []Ref   // the node's addresses
}

// Fixed returns the chains that do not depend on Services.
func (c *Compiler) Fixed() Fixed {
	var f Fixed
	chain := func(name string, list ...Rule) { f.Chains = append(f.Chains, Chain{Name: name, Rules: list}) }
	base := func(name string, h Hook, list ...Rule) {
		f.Chains = append(f.Chains, Chain{Name: name, Hook: h, Rules: list})
	}
	mark := SetMark{Bit: c.MasqueradeBit, On: true}

	for _, isPorts := range []bool{false, true} {
		p, key := prefix(isPorts), fields(isPorts)
		set := func(s, ofPorts SetID) string {
			if isPorts {
				s = ofPorts
			}
			return Sets[s].Name
		}
		chain(p+"pick", Rule{Lookup{key, set(Affinity, NodePortAffinity)}},
			Rule{Lookup{key, set(Spread, NodePortSpread)}})
		chain(p+"pick-local", Rule{Lookup{key, set(AffinityLocal, NodePortAffinityLocal)}},
			Rule{Lookup{key, set(SpreadLocal, NodePortSpreadLocal)}})
		for _, set := range k8s.Sets {
			chain(p+"external"+suffix(set), c.external(set, func(r k8s.Route, last bool) (rule Rule) {
				if r.Masquerade {
					rule = Rule{mark}
				}
				if last {
					return append(rule, Goto{p + "pick" + suffix(r.Set)})
				}
				return append(rule, Jump{p + "pick" + suffix(r.Set)})
			})...)
		}
	}
	for _, set := range k8s.Sets {
		s := suffix(set)
		chain("cluster-ip"+s, append(c.masqueradeClients(mark), Rule{Goto{"pick" + s}})...)
		chain("firewall"+s,
			Rule{In{append(fields(false), Saddr), Sets[SourceRanges].Name}, Goto{"external" + s}})
	}
	nodePorts := Rule{Local{Daddr}}
	switch {
	case c.Family == k8s.IPv6:
		nodePorts = append(nodePorts, Prefix{Field: Daddr, Not: true, Prefix: serving.Loopback6})
	case !c.LocalhostNodePorts:
		nodePorts = append(nodePorts, Prefix{Field: Daddr, Not: true, Prefix: serving.Loopback4})
	}
	services := []Rule{
		{Lookup{fields(false), Sets[Services].Name}},
		append(slices.Clone(nodePorts), Lookup{fields(true), Sets[NodePorts].Name}),
	}
	chain("services", append(services, c.pingChains(chain)...)...)

	c.connectionChains(chain)

	chain(noEndpoint, Rule{Reject{}})
	chain(noLocalEndpoint, Rule{Drop{}})
	chain(sourceRange, Rule{Drop{}})
	refuse := []Rule{
		{Lookup{fields(false), Sets[Refused].Name}},
		append(slices.Clone(nodePorts), Lookup{fields(true), Sets[RefusedNodePorts].Name}),
	}
	chain("refuse", refuse...)
	chain(CountsUnserved, append(refuse, c.unserved()...)...)

	chain("masq", c.masquerade()...)

	for _, a := range c.Local {
		if k8s.FamilyOf(a) == c.Family {
			f.Elements = append(f.Elements, Ref{NodeIPs, string(key{}.addr(a))})
		}
	}
	c.bases(base)
	return f
}

// connectionChains makes the chains that find the frontend of a translated connection by its original
// destination.
func (c *Compiler) connectionChains(chain func(name string, list ...Rule)) {
	original := []Field{OriginalDaddr, L4Proto, OriginalDport}
	atNode := In{original[:1], Sets[NodeIPs].Name}
	// NodePorts are served at loopback and link-local addresses, too, which no set lists. Nobody forwards
	// packets to these.
	unlisted := Prefix{Field: OriginalDaddr, Prefix: serving.Loopback4}
	if c.Family == k8s.IPv6 {
		unlisted.Prefix = linkLocal6
	}

	if c.CountTraffic {
		for _, name := range []string{"count-in", "count-out"} {
			sets := countChains[name]
			var count []Rule
			for _, p := range protocolNumbers {
				count = append(count, Rule{Protocol{p}, In{original, Sets[sets[0]].Name}, Return{}},
					Rule{Protocol{p}, atNode, In{original[1:], Sets[sets[1]].Name}, Return{}},
					Rule{Protocol{p}, unlisted, In{original[1:], Sets[sets[1]].Name}, Return{}})
			}
			chain(name, count...)
		}
	}

	// nft has the type of an original port only once the protocol is matched.
	lookup := func(frontends, ports SetID, protocols ...uint8) (list []Rule) {
		for _, p := range protocols {
			list = append(list, Rule{Protocol{p}, Lookup{original, Sets[frontends].Name}},
				Rule{Protocol{p}, atNode, Lookup{original[1:], Sets[ports].Name}},
				Rule{Protocol{p}, unlisted, Lookup{original[1:], Sets[ports].Name}})
		}
		return list
	}
	chain(notNodePort)
	chain("remember", lookup(Remember, NodePortRemember, protocolNumbers...)...)

	chain(reset, Rule{Reject{Reset: true}})
	chain(resetTranslated, Rule{Translated{}, Goto{reset}})
	chain("resets", lookup(Reset, ResetNodePorts, k8s.ProtocolNumbers[v1.ProtocolTCP])...)
}

// countChains are the chains that count packets of translated connections in both directions, with the sets
// that have the counters.
var countChains = map[string][2]SetID{
	"count-in":  {TrafficIn, NodePortTrafficIn},
	"count-out": {TrafficOut, NodePortTrafficOut},
}

// count returns the rules that have packets of translated connections counted, for the base chains behind the
// translation. What the node sends to itself is counted in hook output alone.
func (c *Compiler) count(prerouting bool) (list []Rule) {
	for _, answer := range []bool{false, true} {
		var r Rule
		if prerouting {
			r = Rule{Device{Name: "lo", Not: true}}
		}
		if c.CountTraffic {
			list = append(list,
				append(r, Translated{}, Answer{answer},
					Jump{map[bool]string{false: "count-in", true: "count-out"}[answer]}))
		}
	}
	return list
}

// external returns the rules of a chain for frontends other than ClusterIPs whose policy is about a set of
// endpoints: one for each kind of client with a route of its own, and the last for all others. to returns
// what a rule does; nil: there is no such rule.
func (c *Compiler) external(set k8s.Set, to func(r k8s.Route, last bool) Rule) (list []Rule) {
	route := func(from k8s.ClientKind) k8s.Route { return c.Router.Route(k8s.NodePort, set, c.Family, from) }
	add := func(r k8s.Route, last bool, match ...Statement) {
		if rule := to(r, last); rule != nil {
			list = append(list, append(match, rule...))
		}
	}
	others := route(k8s.Outside)
	if r := route(k8s.Pod); r != others {
		for _, pods := range c.pods {
			add(r, false, pods)
		}
	}
	if r := route(k8s.ThisNode); r != others {
		add(r, false, Local{Saddr}) // it may have the load balancer's address
	}
	add(others, true)
	return list
}

// masqueradeClients returns the rules that masquerade clients of ClusterIPs.
func (c *Compiler) masqueradeClients(mark Statement) []Rule {
	masquerades := func(from k8s.ClientKind) bool {
		return c.Router.Route(k8s.ClusterIP, k8s.Anywhere, c.Family, from).Masquerade
	}
	switch {
	case !masquerades(k8s.Outside):
		return nil
	case masquerades(k8s.Pod):
		return []Rule{{mark}}
	}
	return []Rule{append(slices.Clone(c.notPods), mark)}
}

// unserved returns the rules that refuse the other ports of ClusterIPs, and drop packets to unallocated ones.
func (c *Compiler) unserved() (list []Rule) {
	if c.Scope == serving.Own {
		return nil
	}
	list = append(list, Rule{In{[]Field{Daddr}, Sets[ClusterIPs].Name}, Counter{}, Reject{}})
	for _, p := range c.Ranges {
		list = append(list, Rule{Prefix{Field: Daddr, Prefix: p}, Counter{}, Drop{}})
	}
	return list
}

// masquerade returns the rules that masquerade a packet. They clear the mark, so that a packet which passes
// again (in a tunnel) is not masqueraded twice.
func (c *Compiler) masquerade() (list []Rule) {
	list = append(list, Rule{SetMark{Bit: c.MasqueradeBit}})
	if c.MasqueradeMax != 0 {
		for _, p := range protocolNumbers { // ports require a protocol
			list = append(list, Rule{Protocol{p}, Masquerade{c.MasqueradeMin, c.MasqueradeMax}})
		}
	}
	return append(list, Rule{Masquerade{}})
}

// bases adds the base chains. In hooks output and postrouting, packets have no input device by which to tell
// pods of a bridge.
func (c *Compiler) bases(base func(string, Hook, ...Rule)) {
	isNew := State{New}
	unknown := Rule{isNew, Protocol{k8s.ProtocolNumbers[v1.ProtocolTCP]}, NoSYN{}, Jump{"resets"}}
	base("postrouting", Hook{"nat", "postrouting", prioritySNAT},
		Rule{Marked{c.MasqueradeBit}, Goto{"masq"}},
		Rule{Translated{}, In{[]Field{Saddr, Daddr}, Sets[Hairpin].Name}, Goto{"masq"}})

	if c.Router.Loopback {
		// route_localnet admits packets to 127.0.0.0/8 from the network.
		base(LocalnetGuard, Hook{"filter", "input", priorityFilter},
			Rule{Prefix{Field: Daddr, Not: true, Prefix: serving.Loopback4}, Return{}},
			Rule{Prefix{Field: Saddr, Prefix: serving.Loopback4}, Return{}},
			Rule{State{Established | Related}, Return{}},
			Rule{Translated{}, Return{}},
			Rule{Drop{}})
	}

	if c.Scope == serving.Own { // traffic from the node to itself
		base("filter-output", Hook{"filter", "output", priorityFilter}, unknown,
			Rule{isNew, Local{Daddr}, Jump{"refuse"}})
		base("remember-output", Hook{"filter", "output", priorityRemember},
			append(c.count(false), Rule{isNew, Translated{}, Jump{"remember"}})...)
		base("output", Hook{"nat", "output", priorityDNAT}, Rule{Local{Daddr}, Jump{"services"}})
		return
	}

	served := func(r ...Statement) Rule { return append(c.outside(), r...) }
	base("filter-input", Hook{"filter", "input", priorityFilter},
		append(c.limitPings(), served(unknown...), served(isNew, Jump{"refuse"}))...)

	forward := []Rule{served(unknown...), served(isNew, Jump{CountsUnserved})}
	if !c.KeepInvalid {
		// The kernel does not translate back an answer in state INVALID: the client would reset its
		// connection.
		forward = append(forward, served(State{Invalid}, Counter{}, Drop{}))
	}
	base(CountsInvalid, Hook{"filter", "forward", priorityFilter}, forward...)
	if len(c.FlowtableDevices) > 0 {
		ch := fastPath(served())
		base(ch.Name, ch.Hook, ch.Rules...)
	}

	base("filter-output", Hook{"filter", "output", priorityFilter}, unknown,
		Rule{isNew, Jump{CountsUnserved}})
	base("remember-prerouting", Hook{"filter", "prerouting", priorityRemember},
		append(c.count(true), Rule{isNew, Translated{}, Jump{"remember"}})...)
	base("remember-output", Hook{"filter", "output", priorityRemember},
		append(c.count(false), Rule{isNew, Translated{}, Jump{"remember"}})...)
	base("prerouting", Hook{"nat", "prerouting", priorityDNAT}, served(Jump{"services"}))
	base("output", Hook{"nat", "output", priorityDNAT}, Rule{Jump{"services"}})
}

// outside returns the match for packets that do not come from the bridge's pods, with Scope Host.
func (c *Compiler) outside() Rule {
	switch {
	case c.Scope != serving.Host:
		return nil
	case c.PodDevice != "":
		return Rule{Device{Name: c.PodDevice, Not: true}}
	case c.notPods != nil:
		return slices.Clone(c.notPods)
	}
	return nil
}
