package dataplane

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// Portion is the cost of a Service beyond which its ports reach a plane one after the other, so that the
// change of another Service waits for one update of about that cost, or for one port, and not for a large
// Service.
const Portion = 10_000

// portions divides updates. It belongs to the Inbox, whose lock protects it.
type portions struct {
	// begun: the first update was taken. It is not divided, because a plane compares with all that is wanted.
	begun bool
	taken map[k8s.PortName]*k8s.ServicePort // what the plane has
	// passed is how often a large Service's port was left for those that cost less.
	passed map[k8s.PortName]int
	waited bool // the last portion left all ports of large Services out
	// returned are ports that the plane has given back, and does not have. They come like those of large
	// Services.
	returned map[k8s.PortName]bool
	// partial are ports that the plane has as Partial.
	partial map[k8s.PortName]bool
}

func newPortions() portions {
	return portions{
		taken: map[k8s.PortName]*k8s.ServicePort{}, passed: map[k8s.PortName]int{},
		returned: map[k8s.PortName]bool{}, partial: map[k8s.PortName]bool{},
	}
}

// split takes a portion from the ports of an update and returns it: all ports of small Services, and of large
// ones, up to Portion, those that were left most often, then the smallest. If there are small ones, they do
// not wait for any large one, but the next portion has some of each. Ports between which an address moves
// come together: no address has two owners, and none is without one in between.
func (p *portions) split(
	ports map[k8s.PortName]*k8s.ServicePort,
) (portion map[k8s.PortName]*k8s.ServicePort) {
	isLarge := func(sp *k8s.ServicePort) bool { return sp != nil && sp.ServiceCost > Portion }
	var large []k8s.PortName
	for n, sp := range ports {
		if isLarge(sp) || isLarge(p.taken[n]) || p.returned[n] {
			large = append(large, n)
		}
	}

	if !p.begun || len(large) == 0 {
		return p.take(ports, slices.Collect(maps.Keys(ports)))
	}

	cost := func(n k8s.PortName) int {
		c := 1
		for _, sp := range []*k8s.ServicePort{ports[n], p.taken[n]} {
			if sp != nil {
				c = max(c, sp.Cost)
			}
		}
		return c
	}

	slices.SortFunc(large, func(a, b k8s.PortName) int {
		return cmp.Or(cmp.Compare(p.passed[b], p.passed[a]), cmp.Compare(cost(a), cost(b)), a.Compare(b))
	})

	if p.waited = len(ports) > len(large) && !p.waited; !p.waited {
		sum := cost(large[0])
		large = large[1:]
		for len(large) > 0 && sum+cost(large[0]) <= Portion {
			sum, large = sum+cost(large[0]), large[1:]
		}
		for _, n := range large {
			p.passed[n]++
		}
	}

	later := make(map[k8s.PortName]bool, len(large))
	for _, n := range large {
		later[n] = true
	}
	return p.take(ports, p.withoutLater(ports, later))
}

// withoutLater returns the ports but those that may come later: those that give no address to one of the
// returned ones, and get none of one. It adds to a set only what the returned ports have, which is little:
// a large Service's frontends are looked at for each portion.
func (p *portions) withoutLater(
	ports map[k8s.PortName]*k8s.ServicePort,
	later map[k8s.PortName]bool,
) (names []k8s.PortName) {
	had, gets := newFrontends(), newFrontends() // what the returned ports had, and what they get
	add := func(n k8s.PortName) {
		names = append(names, n)
		for f := range frontendsOf(n, p.taken[n]) {
			had.add(f)
		}
		for f := range frontendsOf(n, ports[n]) {
			gets.add(f)
		}
	}
	for n := range ports {
		if !later[n] {
			add(n)
		}
	}

	for more := true; more; {
		more = false
		for n := range later {
			if had.hasAny(frontendsOf(n, ports[n])) || gets.hasAny(frontendsOf(n, p.taken[n])) {
				delete(later, n)
				add(n)
				more = true
			}
		}
	}
	return names
}

// frontend is what only one Service port can have.
type frontend struct {
	netip.AddrPort
	k8s.Protocol
	k8s.Family
}

// frontendsOf returns the frontends that a port takes from others; sp may be nil.
func frontendsOf(n k8s.PortName, sp *k8s.ServicePort) iter.Seq[frontend] {
	return func(yield func(frontend) bool) {
		if sp == nil {
			return
		}
		for i := range sp.Frontends {
			f := &sp.Frontends[i]
			at := netip.AddrPortFrom(f.Address, f.Port)
			if f.ShadowedBy == "" && !yield(frontend{at, n.Protocol, n.Family}) {
				return
			}
		}
		if c := sp.Consistent; c != nil {
			for _, e := range c.Serving() {
				at := netip.AddrPortFrom(e.Addr.Addr(), c.Relay)
				if !yield(frontend{at, n.Protocol, n.Family}) {
					return
				}
			}
		}
	}
}

// frontends is a set. Most questions end at the port, without a look into the map.
type frontends struct {
	ports [1 << 16 / 64]uint64 // a bit for each port that one has
	all   map[frontend]bool
}

func newFrontends() *frontends { return &frontends{all: map[frontend]bool{}} }

func (s *frontends) add(f frontend) {
	s.ports[f.Port()/64] |= 1 << (f.Port() % 64)
	s.all[f] = true
}

func (s *frontends) hasAny(of iter.Seq[frontend]) bool {
	for f := range of {
		if s.ports[f.Port()/64]&(1<<(f.Port()%64)) != 0 && s.all[f] {
			return true
		}
	}
	return false
}

// take removes these ports from those of an update, and remembers them. A new port is Partial while others of
// its Service wait. It comes once more after the last of them.
func (p *portions) take(
	ports map[k8s.PortName]*k8s.ServicePort,
	names []k8s.PortName,
) map[k8s.PortName]*k8s.ServicePort {
	p.begun = true
	taken := make(map[k8s.PortName]*k8s.ServicePort, len(names))
	isNew := map[k8s.PortName]bool{}
	for _, n := range names {
		sp := ports[n]
		isNew[n] = sp != nil && (p.taken[n] == nil || p.partial[n])
		taken[n] = sp
		delete(ports, n)
		delete(p.passed, n)
		delete(p.returned, n)
		delete(p.partial, n)
		if p.taken[n] = sp; sp == nil {
			delete(p.taken, n)
		}
	}

	waits := map[k8s.ServiceName]bool{} // for new ports
	for n, sp := range ports {
		if sp != nil && p.taken[n] == nil {
			waits[n.ServiceName] = true
		}
	}
	for n, sp := range taken {
		if isNew[n] && waits[n.ServiceName] {
			incomplete := *sp
			incomplete.Partial = true
			taken[n], p.partial[n] = &incomplete, true
		}
	}
	for n := range p.partial {
		if _, comes := ports[n]; !comes && !waits[n.ServiceName] {
			ports[n] = p.taken[n]
		}
	}
	return taken
}
