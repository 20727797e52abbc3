package rules

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nkp-proxy/nkp/k8s"
)

// Compiler turns Service ports of one family into rules. It is immutable: make a new one when the node or the configuration changes.
type Compiler struct {
	Config
	family     k8s.Family
	pods       detector       // distinguishes traffic of the node's pods (kube-proxy's LocalTrafficDetector)
	nodeIPs    []netip.Addr   // the addresses in the Node object's status, of the family
	localAddrs []netip.Addr   // the addresses of all of the node's interfaces
	cidrs      []netip.Prefix // Service ranges of the family
}

// NewCompiler returns a Compiler for the node that the model describes; the model itself is not kept.
func NewCompiler(c Config, f k8s.Family, m *k8s.Model) *Compiler {
	r := &Compiler{Config: c, family: f, pods: newDetector(m.Detector, f)}
	for _, ip := range m.Node.IPs {
		if k8s.FamilyOf(ip) == f {
			r.nodeIPs = append(r.nodeIPs, ip)
		}
	}
	r.localAddrs = m.Node.Local
	if c.Scope == Own {
		return r // only frontends at the node's own addresses are served: no Service range contains one
	}
	for _, p := range m.ServiceCIDRs {
		if k8s.FamilyOf(p.Addr()) == f {
			r.cidrs = append(r.cidrs, p.Masked())
		}
	}
	return r
}

// portBuilder collects the rules of one Service port.
type portBuilder struct {
	*Compiler
	*k8s.ServicePort
	name, proto, hash string

	out Service
}

// Service returns the rules of a Service port. Frontends whose address and port an older Service has claimed (ShadowedBy)
// are left out.
func (c *Compiler) Service(p *k8s.ServicePort) Service {
	s := &portBuilder{
		Compiler: c, ServicePort: p,
		name: p.Name.String(), proto: protocol(p.Name), hash: portHash(p.Name),
		out: Service{Name: p.Name},
	}
	served := len(p.ClusterEndpoints)+len(p.LocalEndpoints) > 0
	var u uses
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.ShadowedBy != "" || c.Scope == Own && !c.own(f) || f.Address.IsLoopback() && !c.localhost() {
			continue
		}
		if f.Type == k8s.ClusterIP {
			s.clusterIP(f)
			u.add(f.Policy, len(p.Endpoints(f.Policy)) > 0)
			u.internal = f
			continue
		}
		s.external(f, served)
		u.external = f
		u.add(k8s.Cluster, len(p.ClusterEndpoints) > 0) // also with policy Local: the node's own traffic goes to any endpoint
		u.add(f.Policy, len(p.Endpoints(f.Policy)) > 0)
		if f.Type == k8s.LoadBalancer && len(f.SourceRanges) > 0 {
			u.firewalled = append(u.firewalled, f)
		}
	}
	if served {
		s.chains(&u)
	}
	return s.out
}

// own reports whether a frontend is at addresses of the node itself.
func (c *Compiler) own(f *k8s.Frontend) bool {
	return f.Type == k8s.NodePort || f.Type != k8s.ClusterIP && slices.Contains(c.localAddrs, f.Address)
}

// uses records which chains the frontends of a Service port need.
type uses struct {
	cluster, local     bool
	internal, external *k8s.Frontend   // the ClusterIP; one of the others, which all have the same policy
	firewalled         []*k8s.Frontend // with source ranges
}

func (u *uses) add(p k8s.Policy, hasEndpoints bool) {
	switch {
	case !hasEndpoints:
	case p == k8s.Local:
		u.local = true
	default:
		u.cluster = true
	}
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

func (s *portBuilder) clusterIP(f *k8s.Frontend) {
	if len(s.Endpoints(f.Policy)) > 0 {
		s.addShared(NAT, Services, s.to(f.Address, f.Port, "%s cluster IP", s.name).jump(s.policyChain(f.Policy)))
	} else {
		s.refuse(Services, f)
	}
	if len(s.cidrs) == 0 || slices.ContainsFunc(s.cidrs, func(r netip.Prefix) bool { return r.Contains(f.Address) }) {
		s.addShared(Filter, ClusterIPs, rule().to(f.Address).comment("%s serves no such port", s.out.Name.ServiceName).
			jump("REJECT", s.rejectWith()...))
	}
}

// external adds the rules of a NodePort, an external IP or a load balancer's address.
func (s *portBuilder) external(f *k8s.Frontend, served bool) {
	if served {
		switch {
		case f.Type == k8s.NodePort:
			s.addShared(NAT, NodePorts, rule().proto(s.proto).comment("%s", s.name).port(s.proto, f.Port).jump(prefixExternal+s.hash))
			s.addSharedLast(NAT, Services, s.toNodePorts(f.Address))
		case f.Type == k8s.ExternalIP:
			s.addShared(NAT, Services, s.to(f.Address, f.Port, "%s external IP", s.name).jump(prefixExternal+s.hash))
		case len(f.SourceRanges) > 0:
			s.addShared(NAT, Services, s.to(f.Address, f.Port, "%s loadbalancer IP", s.name).jump(prefixFirewall+s.hash))
			s.addShared(Filter, Firewall, s.to(f.Address, f.Port, "%s traffic not accepted by %s", s.name, prefixFirewall+s.hash).jump("DROP"))
		default:
			s.addShared(NAT, Services, s.to(f.Address, f.Port, "%s loadbalancer IP", s.name).jump(prefixExternal+s.hash))
		}
	}
	if len(s.Endpoints(f.Policy)) == 0 {
		s.refuse(ExternalServices, f)
	}
}

// refuse adds the rule that rejects or drops new connections to a frontend without an endpoint in force.
func (s *portBuilder) refuse(chain string, f *k8s.Frontend) {
	r := rule()
	if f.Address.IsValid() {
		r.to(f.Address)
	}
	r.proto(s.proto)
	if f.WhenEmpty == k8s.Drop {
		r.comment("%s has no local endpoints", s.name)
	} else {
		r.comment("%s has no endpoints", s.name)
	}
	if !f.Address.IsValid() {
		r.local("dst")
	}
	r.port(s.proto, f.Port)
	if f.WhenEmpty == k8s.Drop {
		s.addShared(Filter, chain, r.jump("DROP"))
	} else {
		s.addShared(Filter, chain, r.jump("REJECT", s.rejectWith()...))
	}
}

// toNodePorts returns the rule that jumps to the chain of NodePorts: for one address of the node, or for all of them.
func (c *Compiler) toNodePorts(a netip.Addr) Rule {
	const comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
	r := rule()
	switch {
	case a.IsValid():
		return r.to(a).comment(comment).jump(NodePorts)
	case c.family == k8s.IPv6:
		r.add("!", "-d", loopback6.String())
	case !c.LocalhostNodePorts:
		r.add("!", "-d", loopback4.String())
	}
	return r.comment(comment).local("dst").jump(NodePorts)
}

func (c *Compiler) rejectWith() []string {
	if c.family == k8s.IPv6 {
		return []string{"--reject-with", "icmp6-port-unreachable"}
	}
	return []string{"--reject-with", "icmp-port-unreachable"}
}

func (s *portBuilder) policyChain(p k8s.Policy) string {
	if p == k8s.Local {
		return prefixLocal + s.hash
	}
	return prefixCluster + s.hash
}

// HealthCheck returns the rule that accepts connections of load balancers to a Service's healthCheckNodePort; none if the Service is not
// served in the family (its number of local endpoints is negative).
func (c *Compiler) HealthCheck(n k8s.ServiceName, h k8s.HealthCheck) []SharedRule {
	if c.family == k8s.IPv4 && h.Local4 < 0 || c.family == k8s.IPv6 && h.Local6 < 0 {
		return nil
	}
	return []SharedRule{{Table: Filter, Chain: NodePorts, Rule: Rule("-p tcp -m comment --comment \"" + n.String() +
		" health check node port\" -m tcp --dport " + strconv.Itoa(int(h.Port)) + " -j ACCEPT")}}
}
