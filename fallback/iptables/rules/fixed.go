package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/serving"
)

// Fixed returns the chains and rules that do not depend on Services.
func (c *Compiler) Fixed() Fixed {
	f := Fixed{
		Chains: map[Table][]Chain{NAT: {c.markMasq(), c.postrouting()}},
		Shared: map[Table][]string{
			NAT:    {Services, NodePorts},
			Filter: {Services, ExternalServices, NodePorts, Firewall},
		},
		SharedRules: c.limitPings(),
		Hooks:       c.hooks(),
	}

	if c.Scope != serving.Own {
		f.Chains[Filter] = []Chain{c.forward()}
		f.Shared[Filter] = append(f.Shared[Filter], ClusterIPs)
		if len(c.Ranges) == 0 {
			f.Last = append(f.Last, SharedRule{
				Filter, Services,
				rule().comment("kubernetes cluster IPs without port").jump(ClusterIPs),
				true,
			})
		}
		for _, p := range c.Ranges {
			f.Last = append(f.Last,
				SharedRule{
					Filter, Services,
					rule().add("-d", p.String()).comment("kubernetes cluster IPs without service or port").
						jump(ClusterIPs),
					true,
				},
				SharedRule{
					Filter, ClusterIPs, rule().comment("no service has this cluster IP").jump("DROP"), true,
				})
		}
	}

	if c.Router.Loopback {
		// route_localnet lets packets to 127.0.0.0/8 in from the network; kubelet keeps the same rule for the
		// same reason.
		f.InForeignChains = append(f.InForeignChains, SharedRule{
			Table: Filter,
			Chain: LocalFirewall,
			Rule: rule().add("!", "-s", serving.Loopback4.String(), "-d", serving.Loopback4.String()).
				comment("block incoming localnet connections").
				add("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT").jump("DROP"),
		})
	}
	return f
}

// mark returns the mark as iptables-save prints it.
func (c *Compiler) mark() string { return fmt.Sprintf("%#x", uint32(1)<<c.MasqueradeBit) }

func (c *Compiler) markMasq() Chain {
	return Chain{MarkMasq, []Rule{rule().jump("MARK", "--set-xmark", c.mark()+"/"+c.mark())}}
}

// localhostComment marks the rule that counts connections to NodePorts at loopback addresses, all of which
// are masqueraded.
const localhostComment = "NodePorts at localhost"

// ParseLocalhost parses a line of `iptables -v -S` of chain Postrouting; ok is false for a rule that does not
// count connections to NodePorts at loopback addresses.
func ParseLocalhost(line string) (packets uint64, ok bool) {
	rule, _, packets, ok := parseCounted(line)
	return packets, ok && strings.Contains(rule, localhostComment)
}

// postrouting masquerades marked packets. It clears the mark, so that a packet which passes again (in a
// tunnel) is not masqueraded twice.
func (c *Compiler) postrouting() Chain {
	var random []string
	if c.RandomFully {
		random = []string{"--random-fully"}
	}
	const remark = "kubernetes service traffic requiring SNAT"
	list := []Rule{rule().add("-m", "mark", "!", "--mark", c.mark()+"/"+c.mark()).jump("RETURN")}
	if c.Router.Loopback {
		list = append(list, rule().
			add("-m", "conntrack", "--ctstate", "DNAT", "--ctorigdst", serving.Loopback4.String()).
			comment(localhostComment).none())
	}
	list = append(list, rule().jump("MARK", "--set-xmark", c.mark()+"/0x0"))
	if c.MasqueradeMax != 0 {
		ports := []string{"--to-ports", fmt.Sprintf("%d-%d", c.MasqueradeMin, c.MasqueradeMax)}
		for _, proto := range []string{"tcp", "udp", "sctp"} { // --to-ports requires a protocol
			list = append(list,
				rule().proto(proto).comment(remark).jump("MASQUERADE", append(ports, random...)...))
		}
	}
	return Chain{Postrouting, append(list, rule().comment(remark).jump("MASQUERADE", random...))}
}

// forward accepts packets forwarded for Services, even if the policy of FORWARD is DROP.
func (c *Compiler) forward() Chain {
	var list []Rule
	if !c.KeepInvalid {
		// The kernel does not translate back an answer in state INVALID: the client would reset its
		// connection.
		list = append(list,
			rule().add(c.outside()...).add("-m", "conntrack", "--ctstate", "INVALID").jump("DROP"))
	}
	return Chain{Forward, append(list,
		rule().comment("kubernetes forwarding rules").
			add("-m", "mark", "--mark", c.mark()+"/"+c.mark()).jump("ACCEPT"),
		rule().comment("kubernetes forwarding conntrack rule").
			add("-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED").jump("ACCEPT"),
	)}
}

// outside returns the match for packets that do not come from the bridge's pods, with Scope Host.
func (c *Compiler) outside() []string {
	switch {
	case c.Scope != serving.Host:
		return nil
	case c.PodDevice != "":
		return []string{"!", "-i", c.PodDevice}
	case len(c.pods) == 1: // no rule matches what is in none of several ranges
		return c.pods[0].notLocal()
	}
	return nil
}

// hooks returns the jumps from the base chains to nkp's. In OUTPUT and POSTROUTING, packets have no input
// device by which to distinguish them.
func (c *Compiler) hooks() []Hook {
	if c.Scope == serving.Own {
		return c.ownHooks()
	}

	var list []Hook
	hook := func(t Table, parent, chain, comment string, onlyNew bool) {
		r := rule()
		if parent != "OUTPUT" && parent != "POSTROUTING" && chain != Forward && chain != LocalFirewall {
			r.add(c.outside()...)
		}
		if onlyNew {
			r.add("-m", "conntrack", "--ctstate", "NEW")
		}
		if comment != "" {
			r.comment("%s", comment)
		}
		list = append(list, Hook{t, parent, r.jump(chain)})
	}

	hook(Filter, "INPUT", ExternalServices, "kubernetes externally-visible service portals", true)
	hook(Filter, "FORWARD", ExternalServices, "kubernetes externally-visible service portals", true)
	// See OfKubeProxy.
	hook(Filter, "OUTPUT", ExternalServices, "kubernetes externally-visible service portals", true)
	hook(Filter, "INPUT", NodePorts, "kubernetes health check service ports", false)
	hook(Filter, "FORWARD", Services, "kubernetes service portals", true)
	hook(Filter, "OUTPUT", Services, "kubernetes service portals", true)
	hook(Filter, "FORWARD", Forward, "kubernetes forwarding rules", false)
	for _, parent := range []string{"INPUT", "OUTPUT", "FORWARD"} {
		hook(Filter, parent, Firewall, "kubernetes load balancer firewall", true)
	}
	if c.Router.Loopback {
		hook(Filter, "INPUT", LocalFirewall, "", false)
		hook(Filter, "OUTPUT", LocalFirewall, "", false)
	}

	hook(NAT, "POSTROUTING", Postrouting, "kubernetes postrouting rules", false)
	hook(NAT, "OUTPUT", Services, "kubernetes service portals", false)
	hook(NAT, "PREROUTING", Services, "kubernetes service portals", false)
	return list
}

// OfKubeProxy reports whether a jump from a base chain is one that kube-proxy makes, too: those of nkp with
// Scope Everything, but for the one from OUTPUT to ExternalServices. kube-proxy does not delete what it does
// not make, and cannot delete a chain that such a jump leads to.
func OfKubeProxy(t Table, parent string, r Rule) bool {
	return !(t == Filter && parent == "OUTPUT" && r.Target() == ExternalServices) &&
		slices.ContainsFunc(new(Compiler).hooks(), func(h Hook) bool {
			return h.Table == t && h.Parent == parent && h.Rule.Canonical() == r.Canonical()
		})
}

// ownHooks returns the hooks of Scope Own, for traffic from the node to itself.
func (c *Compiler) ownHooks() []Hook {
	toItself := func() *line { return rule().local("dst") }
	onlyNew := func(l *line) *line { return l.add("-m", "conntrack", "--ctstate", "NEW") }
	list := []Hook{
		{
			Filter, "OUTPUT",
			onlyNew(toItself()).comment("kubernetes externally-visible service portals").
				jump(ExternalServices),
		},
		{Filter, "INPUT", rule().comment("kubernetes health check service ports").jump(NodePorts)},
		{Filter, "OUTPUT", onlyNew(toItself()).comment("kubernetes load balancer firewall").jump(Firewall)},
		{NAT, "POSTROUTING", rule().comment("kubernetes postrouting rules").jump(Postrouting)},
		{NAT, "OUTPUT", toItself().comment("kubernetes service portals").jump(Services)},
	}
	if c.Router.Loopback {
		list = append(list, Hook{Filter, "INPUT", rule().jump(LocalFirewall)},
			Hook{Filter, "OUTPUT", rule().jump(LocalFirewall)})
	}
	return list
}
