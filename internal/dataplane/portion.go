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
// Service. A plane may set a smaller one (Inbox.SetPortion).
const Portion = 10_000

// portions divides updates. It belongs to the Inbox, whose lock protects it.
type portions struct {
	most int // Portion, or a plane's own
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
	// numbers are the port numbers of the frontends of Service ports that were compared.
	numbers map[*k8s.ServicePort][]uint16
}

func newPortions() portions {
	return portions{
		most: Portion, taken: map[k8s.PortName]*k8s.ServicePort{}, passed: map[k8s.PortName]int{},
		returned: map[k8s.PortName]bool{}, partial: map[k8s.PortName]bool{},
		numbers: map[*k8s.ServicePort][]uint16{},
	}
}

// split takes a portion from the ports of an update and returns it: all ports of small Services, and of large
// ones, up to p.most, those that were left most often, then the smallest. If there are small ones, they do
// not wait for any large one, but the next portion has some of each. Ports between which an address moves
// come together: no address has two owners, and none is without one in between.
func (p *portions) split(
	ports map[k8s.PortName]*k8s.ServicePort,
) (portion map[k8s.PortName]*k8s.ServicePort) {
	isLarge := func(sp *k8s.ServicePort) bool { return sp != nil && sp.ServiceCost > p.most }
	var large []k8s.PortName
	for n, sp := range ports {
		if isLarge(sp) || isLarge(p.taken[n]) || p.returned[n] {
			large = append(large, n)
		}
	}

	if len(p.numbers) > 4*len(ports) { // most are of ports that have changed since
		clear(p.numbers)
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
		for len(large) > 0 && sum+cost(large[0]) <= p.most {
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
// returned ones, and get none of one. It compares frontends only where two ports have one port number.
func (p *portions) withoutLater(
	ports map[k8s.PortName]*k8s.ServicePort,
	later map[k8s.PortName]bool,
) (names []k8s.PortName) {
	var had, gets frontends // what the returned ports had, and what they get
	for n := range ports {
		if !later[n] {
			names = append(names, n)
			had.add(n, p.taken[n], p.numbersOf(p.taken[n]))
			gets.add(n, ports[n], p.numbersOf(ports[n]))
		}
	}

	moves := false
	for n := range later {
		moves = moves || had.hasAny(n, ports[n], p.numbersOf(ports[n])) ||
			gets.hasAny(n, p.taken[n], p.numbersOf(p.taken[n]))
	}
	if !moves {
		return names
	}

	// Others may follow those that come, in a long row: who is next is looked up by frontend.
	getBy, hadBy := map[frontend]k8s.PortName{}, map[frontend]k8s.PortName{}
	for n := range later {
		for f := range frontendsOf(n, ports[n]) {
			getBy[f] = n
		}
		for f := range frontendsOf(n, p.taken[n]) {
			hadBy[f] = n
		}
	}
	follow := func(f frontend, by map[frontend]k8s.PortName) {
		if n, found := by[f]; found && later[n] {
			delete(later, n)
			names = append(names, n)
		}
	}
	for i := 0; i < len(names); i++ {
		n := names[i]
		for f := range frontendsOf(n, p.taken[n]) {
			follow(f, getBy)
		}
		for f := range frontendsOf(n, ports[n]) {
			follow(f, hadBy)
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

// numbersOf returns the port numbers of a port's frontends; sp may be nil.
func (p *portions) numbersOf(sp *k8s.ServicePort) []uint16 {
	list, known := p.numbers[sp]
	if !known && sp != nil {
		for f := range frontendsOf(sp.Name, sp) {
			if !slices.Contains(list, f.Port()) {
				list = append(list, f.Port())
			}
		}
		p.numbers[sp] = list
	}
	return list
}

// frontends is the set of those of some ports, which are added before it is asked. It has the frontends
// themselves only of port numbers that another port was found to have.
type frontends struct {
	of  map[uint16][]owner
	all map[uint16]map[frontend]bool
}

type owner struct {
	name k8s.PortName
	port *k8s.ServicePort
}

func (s *frontends) add(n k8s.PortName, sp *k8s.ServicePort, numbers []uint16) {
	if s.of == nil {
		s.of, s.all = map[uint16][]owner{}, map[uint16]map[frontend]bool{}
	}
	for _, number := range numbers {
		s.of[number] = append(s.of[number], owner{n, sp})
	}
}

func (s *frontends) hasAny(n k8s.PortName, sp *k8s.ServicePort, numbers []uint16) bool {
	for _, number := range numbers {
		owners := s.of[number]
		if len(owners) == 0 {
			continue
		}
		if s.all[number] == nil {
			s.all[number] = map[frontend]bool{}
			for _, o := range owners {
				for f := range frontendsOf(o.name, o.port) {
					s.all[number][f] = true
				}
			}
		}
		for f := range frontendsOf(n, sp) {
			if s.all[number][f] {
				return true
			}
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
