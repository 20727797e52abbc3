package rules

import (
	"net/netip"
	"strconv"

	"github.com/nkp-proxy/nkp/fallback/serving"
	"github.com/nkp-proxy/nkp/k8s"
)

// Compiler turns Service ports of one family into rules. It is immutable: make a new one when the node or the
// configuration changes.
type Compiler struct {
	serving.Config
	serving.Node
	pods []detector // distinguish traffic of the node's pods (kube-proxy's LocalTrafficDetector)
}

// NewCompiler returns a Compiler for the node that the model describes; the model itself is not kept.
func NewCompiler(c serving.Config, f k8s.Family, m *k8s.Model) *Compiler {
	return &Compiler{Config: c, Node: serving.NewNode(c, f, m), pods: newDetectors(m.Detector, f)}
}

// portBuilder collects the rules of one Service port.
type portBuilder struct {
	*Compiler
	*k8s.ServicePort
	name, proto, hash string

	out Service
}

// Service returns the rules of a Service port. Frontends that are not served (k8s.Router) are left out.
func (c *Compiler) Service(p *k8s.ServicePort) Service {
	s := &portBuilder{
		Compiler: c, ServicePort: p,
		name: p.Name.String(), proto: serving.Protocol(p.Name), hash: serving.PortHash(p.Name),
		out: Service{Name: p.Name},
	}

	served := len(p.ClusterEndpoints)+len(p.LocalEndpoints) > 0
	var u uses
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if !c.Router.Serves(f) {
			continue
		}
		s.pings(f)

		routes := c.Router.Routes(p, f)
		for _, set := range k8s.Sets {
			u.sets[set] = u.sets[set] || routes.Reach(set)
		}
		switch f.Type {
		case k8s.ClusterIP:
			s.clusterIP(f, routes[k8s.Outside])
			u.internal = f
			continue
		case k8s.Canary:
			s.addShared(NAT, Services,
				s.to(f.Address, f.Port, "%s", s.name).jump(s.setChain(k8s.Anywhere)))
			continue
		}
		s.external(f, routes[k8s.Outside], served)
		u.external = f
		if f.Type == k8s.LoadBalancer && len(f.SourceRanges) > 0 {
			u.firewalled = append(u.firewalled, f)
		}
	}

	if served {
		s.chains(&u)
	}
	return s.out
}

// uses records which chains the frontends of a Service port need.
type uses struct {
	sets               [len(k8s.Sets)]bool
	internal, external *k8s.Frontend   // the ClusterIP; one of the others, which all have the same routes
	firewalled         []*k8s.Frontend // with source ranges
}

func (s *portBuilder) addShared(t Table, chain string, r Rule) {
	s.out.SharedRules = append(s.out.SharedRules, SharedRule{Table: t, Chain: chain, Rule: r})
}

func (s *portBuilder) addSharedLast(t Table, chain string, r Rule) {
	s.out.SharedRules = append(s.out.SharedRules, SharedRule{Table: t, Chain: chain, Rule: r, Last: true})
}

func (s *portBuilder) chain(name string, rules ...Rule) {
	s.out.Chains = append(s.out.Chains, Chain{Name: name, Rules: rules})
}

// to begins a rule that matches an address and port of the Service.
func (s *portBuilder) to(a netip.Addr, port uint16, comment string, args ...any) *line {
	return rule().to(a).proto(s.proto).comment(comment, args...).port(s.proto, port)
}

func (s *portBuilder) clusterIP(f *k8s.Frontend, r k8s.Route) {
	if r.Empty == "" {
		s.addShared(NAT, Services, s.to(f.Address, f.Port, "%s cluster IP", s.name).jump(s.setChain(r.Set)))
	} else {
		s.refuse(Services, f, r)
	}
	s.reset(f, r)
	if !s.Partial && s.RefusesOtherPorts(f.Address) {
		s.addShared(Filter, ClusterIPs,
			rule().to(f.Address).comment("%s serves no such port", s.out.Name.ServiceName).
				jump("REJECT", s.rejectWith()...))
	}
}

// external adds the rules of a NodePort, an external IP or a load balancer's address.
func (s *portBuilder) external(f *k8s.Frontend, r k8s.Route, served bool) {
	if served {
		switch {
		case f.Type == k8s.NodePort:
			s.addShared(NAT, NodePorts,
				s.opens(f, rule().proto(s.proto).comment("%s", s.name).port(s.proto, f.Port)).
					jump(prefixExternal+s.hash))
			s.addSharedLast(NAT, Services, s.toNodePorts(f.Address))
		case f.Type == k8s.ExternalIP:
			s.addShared(NAT, Services,
				s.opens(f, s.to(f.Address, f.Port, "%s external IP", s.name)).jump(prefixExternal+s.hash))
		case len(f.SourceRanges) > 0:
			s.addShared(NAT, Services,
				s.opens(f, s.to(f.Address, f.Port, "%s loadbalancer IP", s.name)).jump(prefixFirewall+s.hash))
			drop := s.to(f.Address, f.Port, "%s traffic not accepted by %s", s.name, prefixFirewall+s.hash)
			if r.Empty != "" {
				s.unlessReset(drop)
			}
			s.addShared(Filter, Firewall, drop.jump("DROP"))
		default:
			s.addShared(NAT, Services,
				s.opens(f, s.to(f.Address, f.Port, "%s loadbalancer IP", s.name)).jump(prefixExternal+s.hash))
		}
	}
	if r.Empty != "" {
		s.refuse(ExternalServices, f, r)
	}
	s.reset(f, r)
}

// resetComment marks the rules that reset unknown connections.
const resetComment = "ends connections to removed endpoints"

// reset adds the rule that answers packets of unknown connections to a frontend with a reset, if connections
// to removed endpoints end: their conntrack entries are deleted (fallback.StaleForgetter), and no other
// endpoint may get their packets. It finds the frontend by the destination that the client sent.
func (s *portBuilder) reset(f *k8s.Frontend, route k8s.Route) {
	if s.Removed == nil {
		return
	}
	r := rule()
	comment := func() { r.proto(s.proto).comment("%s "+resetComment, s.name) }
	switch {
	case !s.resetsUntranslated(f):
		comment()
		r.add("-m", "conntrack")
		if len(f.SourceRanges) > 0 && route.Empty == "" {
			r.add("--ctstate", "DNAT") // what passed the source ranges
		}
		r.add("--ctorigdst", f.Address.String(), "--ctorigdstport", strconv.Itoa(int(f.Port)), "-m", s.proto)
	case f.Address.IsValid():
		r.to(f.Address)
		comment()
		r.port(s.proto, f.Port)
	default:
		s.notAtLoopback(r)
		comment()
		r.local("dst").port(s.proto, f.Port)
	}
	chain := ExternalServices
	if f.Type == k8s.ClusterIP && route.Empty != "" {
		chain = Services // at its end, which comes first, other ports of the address are refused
	}
	s.addShared(Filter, chain,
		r.add("!", "--tcp-flags", "SYN", "SYN").jump("REJECT", "--reject-with", "tcp-reset"))
}

// resetsUntranslated reports whether packets of unknown connections to a frontend are left untranslated where
// they are reset. Conntrack has no match for an address that is one of the node's, and with Scope Own only
// packets to the node reach the rule.
func (s *portBuilder) resetsUntranslated(f *k8s.Frontend) bool {
	return s.Removed != nil && (f.Type == k8s.NodePort || s.Scope == serving.Own)
}

// opens restricts a rule that leads to a frontend's endpoints to packets that open a connection, if others
// are reset untranslated.
func (s *portBuilder) opens(f *k8s.Frontend, r *line) *line {
	if s.resetsUntranslated(f) {
		s.unlessReset(r)
	}
	return r
}

// unlessReset restricts a rule that refuses or drops packets to those that are not reset, so that it does not
// matter which rule comes first.
func (s *portBuilder) unlessReset(r *line) {
	if s.Removed != nil {
		r.add("--tcp-flags", "SYN", "SYN")
	}
}

// refuse adds the rule that rejects or drops new connections to a frontend whose route has no endpoint.
func (s *portBuilder) refuse(chain string, f *k8s.Frontend, route k8s.Route) {
	what, jump := "no endpoints", append([]string{"REJECT"}, s.rejectWith()...)
	if route.Empty == k8s.Drop {
		what, jump = "no local endpoints", []string{"DROP"}
	}
	r := rule()
	if f.Address.IsValid() {
		r.to(f.Address).proto(s.proto).comment("%s has %s", s.name, what)
	} else {
		s.notAtLoopback(r)
		r.proto(s.proto).comment("%s has %s", s.name, what).local("dst")
	}
	s.unlessReset(r.port(s.proto, f.Port))
	s.addShared(Filter, chain, r.jump(jump[0], jump[1:]...))
}

// toNodePorts returns the rule that jumps to the chain of NodePorts: for one address of the node, or for all
// of them.
func (c *Compiler) toNodePorts(a netip.Addr) Rule {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	r := rule()
	if a.IsValid() {
		return r.to(a).comment(comment).jump(NodePorts)
	}
	c.notAtLoopback(r)
	return r.comment(comment).local("dst").jump(NodePorts)
}

// notAtLoopback leaves out the loopback addresses at which no NodePort is served.
func (c *Compiler) notAtLoopback(r *line) {
	switch {
	case c.Family == k8s.IPv6:
		r.add("!", "-d", serving.Loopback6.String())
	case !c.LocalhostNodePorts:
		r.add("!", "-d", serving.Loopback4.String())
	}
}

func (c *Compiler) rejectWith() []string {
	if c.Family == k8s.IPv6 {
		return []string{"--reject-with", "icmp6-port-unreachable"}
	}
	return []string{"--reject-with", "icmp-port-unreachable"}
}

func (s *portBuilder) setChain(of k8s.Set) string {
	if of == k8s.OnNode {
		return prefixLocal + s.hash
	}
	return prefixCluster + s.hash
}

// HealthCheck returns the rule that accepts connections of load balancers to a Service's healthCheckNodePort;
// none if the Service is not served in the family (its number of local endpoints is negative).
func (c *Compiler) HealthCheck(n k8s.ServiceName, h k8s.HealthCheck) []SharedRule {
	if c.Family == k8s.IPv4 && h.Local4 < 0 || c.Family == k8s.IPv6 && h.Local6 < 0 {
		return nil
	}
	return []SharedRule{{
		Table: Filter,
		Chain: NodePorts,
		Rule: Rule("-p tcp -m comment --comment \"" + n.String() +
			" health check node port\" -m tcp --dport " + strconv.Itoa(int(h.Port)) + " -j ACCEPT"),
	}}
}
