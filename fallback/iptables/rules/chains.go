package rules

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nkp-proxy/nkp/k8s"
)

// chains adds those of the Service port's own chains that are referenced, in the order in which a packet
// traverses them.
func (s *portBuilder) chains(u *uses) {
	if u.external != nil {
		s.externalChain(u)
	}
	if len(u.firewalled) > 0 {
		s.firewallChain(u.firewalled)
	}
	for _, set := range k8s.Sets {
		if u.sets[set] {
			s.spreadChain(set, u.internal)
		}
	}
	done := map[string]bool{}
	for _, set := range k8s.Sets {
		if !u.sets[set] {
			continue
		}
		for _, e := range s.Endpoints(set) {
			if name := s.endpointChain(e); !done[name] {
				done[name] = true
				s.endpoint(name, e)
			}
		}
	}
}

// externalChain adds the chain for traffic to external destinations, from outside or from this node.
func (s *portBuilder) externalChain(u *uses) {
	var list []Rule
	routes := s.Router.Routes(s.ServicePort, u.external)
	outside := routes[k8s.Outside]
	if outside.Masquerade {
		list = append(list,
			rule().comment("masquerade traffic for %s external destinations", s.name).jump(MarkMasq))
	}

	if r := routes[k8s.Pod]; r.Set != outside.Set && r.Empty == "" {
		for _, pods := range s.pods {
			list = append(list,
				rule().add(pods.local()...).comment("pod traffic for %s external destinations", s.name).
					jump(s.setChain(r.Set)))
		}
	}
	if r := routes[k8s.ThisNode]; r.Set != outside.Set && r.Empty == "" {
		// The node itself may use the load balancer's address as its source, which is useless on other nodes.
		list = append(list,
			rule().comment("masquerade LOCAL traffic for %s external destinations", s.name).
				local("src").jump(MarkMasq),
			rule().comment("route LOCAL traffic for %s external destinations", s.name).
				local("src").jump(s.setChain(r.Set)))
	}
	if outside.Empty == "" {
		list = append(list, rule().jump(s.setChain(outside.Set)))
	}

	s.chain(prefixExternal+s.hash, list...)
}

// firewallChain passes the allowed sources on to the external chain. Packets that reach its end are not
// translated: they keep the load balancer's address as their destination, and chain Firewall drops them.
func (s *portBuilder) firewallChain(frontends []*k8s.Frontend) {
	comment := s.name + " loadbalancer IP"
	var list []Rule
	for _, p := range frontends[0].SourceRanges {
		list = append(list, rule().from(p.Masked()).comment("%s", comment).jump(prefixExternal+s.hash))
	}
	for _, f := range frontends {
		for _, p := range s.Router.Clients(f)[len(f.SourceRanges):] { // its own address
			list = append(list, rule().from(p).comment("%s", comment).jump(prefixExternal+s.hash))
		}
	}
	s.chain(prefixFirewall+s.hash,
		append(list, rule().comment("other traffic to %s will be dropped by %s", s.name, Firewall).none())...)
}

// spreadChain adds the chain that picks an endpoint of a set: the one that session affinity remembers, else a
// random one, by weight. If ClusterIP traffic traverses the chain, it also marks packets to be masqueraded.
func (s *portBuilder) spreadChain(set k8s.Set, internal *k8s.Frontend) {
	endpoints := s.Endpoints(set)
	list := make([]Rule, 0, len(endpoints)*(1+min(s.AffinitySeconds, 1))+1)
	if internal != nil {
		routes := s.Router.Routes(s.ServicePort, internal)
		if routes[k8s.Outside].Set == set && routes[k8s.Outside].Masquerade {
			list = append(list, s.masquerade(internal, routes[k8s.Pod].Masquerade)...)
		}
	}
	if s.AffinitySeconds > 0 {
		for _, e := range endpoints {
			name := s.endpointChain(e)
			list = append(list, s.about(rule(), e).
				add("-m", "recent", "--rcheck", "--seconds", strconv.Itoa(s.AffinitySeconds), "--reap").
				add(s.recentOf(name)...).jump(name))
		}
	}

	weight := k8s.Endpoint.Weight
	if s.AffinitySeconds > 0 { // weights do not divide clients
		weight = func(k8s.Endpoint) int { return 1 }
	}
	left := 0 // the weight of the endpoints whose rules follow, and the rule's own
	for _, e := range endpoints {
		left += weight(e)
	}
	for _, e := range endpoints {
		r, w := s.about(rule(), e), weight(e)
		if left > w {
			r.add("-m", "statistic", "--mode", "random", "--probability", probability(w, left))
		}
		list = append(list, r.jump(s.endpointChain(e)))
		left -= w
	}
	s.chain(s.setChain(set), list...)
}

// masquerade returns the rules that masquerade clients of a ClusterIP: all, or those that are not pods. Of
// several ranges of pods each takes the mark away again, because no rule matches what is in none of them.
func (s *portBuilder) masquerade(f *k8s.Frontend, pods bool) (list []Rule) {
	of := func(match ...string) *line {
		r, bySource := rule(), slices.Contains(match, "-s")
		if bySource {
			r.add(match...)
		}
		if r.to(f.Address); !bySource { // iptables-save prints devices behind the destination
			r.add(match...)
		}
		return r.proto(s.proto).comment("%s cluster IP", s.name).port(s.proto, f.Port)
	}
	switch {
	case pods || len(s.pods) == 0:
		return []Rule{of().jump(MarkMasq)}
	case len(s.pods) == 1:
		return []Rule{of(s.pods[0].notLocal()...).jump(MarkMasq)}
	}
	list = []Rule{of().jump(MarkMasq)}
	for _, p := range s.pods {
		list = append(list, of(p.local()...).jump("MARK", "--set-xmark", "0x0/"+s.mark()))
	}
	return list
}

// endpoint adds the chain of one endpoint. An endpoint that is its own client is masqueraded, or it would
// answer itself.
func (s *portBuilder) endpoint(name string, e k8s.Endpoint) {
	ip := e.Addr.Addr()
	hairpin := rule().from(netip.PrefixFrom(ip, ip.BitLen()))
	dnat := rule().proto(s.proto)
	if !s.BriefEndpoints {
		hairpin.comment("%s", s.name)
		dnat.comment("%s", s.name)
	}
	if s.AffinitySeconds > 0 {
		dnat.add("-m", "recent", "--set").add(s.recentOf(name)...)
	}
	s.chain(name, hairpin.jump(MarkMasq),
		dnat.add("-m", s.proto).jump("DNAT", "--to-destination", e.Addr.String()))
}

func (s *portBuilder) endpointChain(e k8s.Endpoint) string {
	return endpointChain(s.out.Name, e.Addr.String())
}

// about adds the comment of a rule that jumps to an endpoint's chain.
func (s *portBuilder) about(r *line, e k8s.Endpoint) *line {
	if s.BriefEndpoints {
		return r
	}
	return r.comment("%s -> %s", s.name, e.Addr)
}

// recentOf returns the options that select the client list of an endpoint (xt_recent), with clients' full
// addresses.
func (s *portBuilder) recentOf(chain string) []string {
	mask := "255.255.255.255"
	if s.Family == k8s.IPv6 {
		mask = strings.TrimSuffix(strings.Repeat("ffff:", 8), ":")
	}
	return []string{"--name", chain, "--mask", mask, "--rsource"}
}
