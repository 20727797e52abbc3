package rules

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// pingComment marks the rules about pings of Services' addresses.
const pingComment = "pings of addresses of Services"

// pings adds the rules that have the node answer pings of a frontend's address: they translate an echo
// request to the node's address.
func (s *portBuilder) pings(f *k8s.Frontend) {
	everyone, inside, from := s.Pings(s.ServicePort, f)
	add := func(r *line, match ...string) {
		r = s.echoRequest(r).add(match...)
		s.addShared(NAT, Services, r.jump("DNAT", "--to-destination", s.PingTarget().String()))
	}

	switch {
	case everyone && from == nil:
		from = []netip.Prefix{netip.PrefixFrom(s.Family.Unspecified(), 0)}
	case inside:
		for _, pods := range s.pods {
			if pods.option == "-s" {
				add(rule().add(pods.local()...).to(f.Address))
			} else { // iptables-save prints devices behind the destination
				add(rule().to(f.Address).add(pods.local()...))
			}
		}
		add(rule().to(f.Address), "-m", "addrtype", "--src-type", "LOCAL")
	}
	for _, p := range from {
		r := rule()
		if p.Bits() > 0 {
			r.from(p.Masked())
		}
		add(r.to(f.Address))
	}
}

// echoRequest adds the match for echo requests to a rule about addresses.
func (c *Compiler) echoRequest(r *line) *line {
	if c.Family == k8s.IPv6 {
		return r.proto("ipv6-icmp").comment(pingComment).add("-m", "icmp6", "--icmpv6-type", "128")
	}
	return r.proto("icmp").comment(pingComment).add("-m", "icmp", "--icmp-type", "8")
}

// limitPings returns the rules for table filter that limit the pings that are answered, and count them. Table
// nat sees only the first packet that a program sends. Echo requests that other programs translate to the
// node's address pass these rules, too.
func (c *Compiler) limitPings() []SharedRule {
	to := c.PingTarget()
	if !to.IsValid() {
		return nil
	}
	translated := func() *line {
		return c.echoRequest(rule().to(to)).add("-m", "conntrack", "--ctstate", "DNAT")
	}
	rate := strconv.Itoa(serving.PingRate)
	above := translated().add("-m", "hashlimit", "--hashlimit-above", rate+"/sec",
		"--hashlimit-burst", rate, "--hashlimit-name", "nkp-ping")
	return []SharedRule{
		{Table: Filter, Chain: NodePorts, Rule: above.jump("DROP")},
		{Table: Filter, Chain: NodePorts, Rule: translated().none(), Last: true},
	}
}

// ParsePings parses a line of `iptables -v -S` of chain NodePorts in table filter; ok is false for a rule
// that does not count pings. limited says that it drops them.
func ParsePings(line string) (packets uint64, limited, ok bool) {
	rule, target, packets, ok := parseCounted(line)
	return packets, target == "DROP", ok && strings.Contains(rule, pingComment)
}
