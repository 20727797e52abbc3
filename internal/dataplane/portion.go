package dataplane

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Portion is the cost of a Service beyond which its ports reach a plane one after the other, so that the change of another Service
// waits for one update of about that cost, or for one port, and not for a large Service.
const Portion = 10_000

// portions divides updates. It belongs to the Inbox, whose lock protects it.
type portions struct {
	taken  bool                              // the first update, which is not divided: a plane compares with all that is wanted
	large  map[k8s.PortName]*k8s.ServicePort // of large Services, as they were taken last
	waited bool                              // the last portion left all ports of large Services out
}

// split takes a portion from the ports of an update and returns it: all ports of small Services, and of large ones, the smallest first, up
// to Portion. If there are small ones, they do not wait for any large one, but the next portion has some of each. A port waits for no other
// whose former address it has.
func (p *portions) split(ports map[k8s.PortName]*k8s.ServicePort) (portion map[k8s.PortName]*k8s.ServicePort) {
	var large []k8s.PortName
	for n, sp := range ports {
		if sp != nil && sp.ServiceCost > Portion || p.large[n] != nil {
			large = append(large, n)
		}
	}
	if !p.taken || len(large) == 0 {
		return p.take(ports, slices.Collect(maps.Keys(ports)))
	}
	cost := func(n k8s.PortName) int {
		c := 1
		for _, sp := range []*k8s.ServicePort{ports[n], p.large[n]} {
			if sp != nil {
				c = max(c, sp.Cost)
			}
		}
		return c
	}
	slices.SortFunc(large, func(a, b k8s.PortName) int { return cmp.Or(cmp.Compare(cost(a), cost(b)), a.Compare(b)) })
	if p.waited = len(ports) > len(large) && !p.waited; !p.waited {
		sum := cost(large[0])
		large = large[1:]
		for len(large) > 0 && sum+cost(large[0]) <= Portion {
			sum, large = sum+cost(large[0]), large[1:]
		}
	}
	later := make(map[k8s.PortName]bool, len(large))
	for _, n := range large {
		later[n] = true
	}
	return p.take(ports, p.withPredecessors(ports, later))
}

// withPredecessors returns the ports but those that may come later: those that give no address to one of the returned ones.
func (p *portions) withPredecessors(ports map[k8s.PortName]*k8s.ServicePort, later map[k8s.PortName]bool) (names []k8s.PortName) {
	type frontend struct {
		netip.AddrPort
		k8s.Protocol
		k8s.Family
	}
	each := func(n k8s.PortName, sp *k8s.ServicePort, do func(frontend)) {
		for i := range sp.Frontends {
			if f := &sp.Frontends[i]; f.ShadowedBy == "" {
				do(frontend{netip.AddrPortFrom(f.Address, f.Port), n.Protocol, n.Family})
			}
		}
	}
	had := map[frontend]k8s.PortName{}
	for n := range later {
		if sp := p.large[n]; sp != nil {
			each(n, sp, func(f frontend) { had[f] = n })
		}
	}
	for n := range ports {
		if !later[n] {
			names = append(names, n)
		}
	}
	for i := 0; i < len(names); i++ {
		if sp := ports[names[i]]; sp != nil && len(had) > 0 {
			each(names[i], sp, func(f frontend) {
				if n, ok := had[f]; ok && later[n] {
					delete(later, n)
					names = append(names, n)
				}
			})
		}
	}
	return names
}

// take removes these ports from those of an update, and remembers those of large Services.
func (p *portions) take(ports map[k8s.PortName]*k8s.ServicePort, names []k8s.PortName) map[k8s.PortName]*k8s.ServicePort {
	p.taken = true
	taken := make(map[k8s.PortName]*k8s.ServicePort, len(names))
	for _, n := range names {
		sp := ports[n]
		taken[n] = sp
		delete(ports, n)
		if sp != nil && sp.ServiceCost > Portion {
			p.large[n] = sp
		} else {
			delete(p.large, n)
		}
	}
	return taken
}
