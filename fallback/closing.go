package fallback

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nkp-proxy/nkp/k8s"
)

// closing are the TCP Service ports with connections to removed endpoints that are to be deleted.
//
// An entry of the kernel's does not tell whose it is. As long as nkp runs it knows which endpoints a Service
// port had, and only entries to these are deleted. At the start it does not: then all entries of the port's
// frontends are to be deleted that lead to an endpoint which it does not have.
type closing struct {
	ports   map[k8s.PortName]*closingPort
	unknown map[k8s.PortName]bool // k8s.Removed.Unknown since the start
	started bool                  // all of the first update was taken
}

func newClosing() closing {
	return closing{ports: map[k8s.PortName]*closingPort{}, unknown: map[k8s.PortName]bool{}}
}

// closingPort is what is to be deleted of a Service port.
type closingPort struct {
	frontends []netip.AddrPort // a NodePort has no address
	stay      []netip.AddrPort // endpoints whose connections stay, sorted
	// gone are the endpoints that were removed, maxGone at most; nil: all that are not in stay.
	gone map[netip.AddrPort]bool
}

// maxGone bounds the removed endpoints of a Service port that wait for their connections to be deleted. They
// become many only while deletion fails; connections to further ones stay.
const maxGone = 4096

// removed reports whether connections to an endpoint are to be deleted.
func (p *closingPort) removed(e netip.AddrPort) bool {
	if _, stays := slices.BinarySearchFunc(p.stay, e, netip.AddrPort.Compare); stays {
		return false
	}
	return p.gone == nil || p.gone[e]
}

// note records what is to be deleted when a Service port changes.
func (c *closing) note(n k8s.PortName, before, after *k8s.ServicePort) {
	if after == nil || after.Removed == nil {
		delete(c.ports, n)
		delete(c.unknown, n)
		return
	}
	if after.Removed.Unknown {
		c.unknown[n] = c.unknown[n] || before == nil && !c.started
		return
	}

	p := c.ports[n]
	if p == nil && len(c.ports) >= maxStale {
		return
	}
	switch {
	case before == nil && !c.started, c.unknown[n]:
		delete(c.unknown, n)
		p = &closingPort{frontends: frontendsOf(after)}
	case before == nil || before.Removed == nil:
		return
	case p == nil:
		p = &closingPort{frontends: frontendsOf(before), gone: map[netip.AddrPort]bool{}}
	}

	// Connections to a frontend that the port has only now may be another's.
	p.frontends, p.stay = common(p.frontends, frontendsOf(after)), after.Serving
	if p.gone != nil {
		for _, e := range before.Serving {
			if len(p.gone) < maxGone {
				p.gone[e] = true
			}
		}
		maps.DeleteFunc(p.gone, func(e netip.AddrPort, _ bool) bool {
			_, stays := slices.BinarySearchFunc(p.stay, e, netip.AddrPort.Compare)
			return stays
		})
	}
	if c.ports[n] = p; p.gone != nil && len(p.gone) == 0 {
		delete(c.ports, n)
	}
}

// frontendsOf returns the frontends of a Service port that are in force.
func frontendsOf(sp *k8s.ServicePort) (list []netip.AddrPort) {
	for _, f := range sp.Frontends {
		if f.ShadowedBy == "" {
			list = append(list, netip.AddrPortFrom(f.Address, f.Port))
		}
	}
	return list
}

func common(a, b []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(a, func(at netip.AddrPort) bool { return !slices.Contains(b, at) })
}

// closingSet has the Service port to close connections of by frontend.
type closingSet map[netip.AddrPort]*closingPort

func newClosingSet(ports map[k8s.PortName]*closingPort) closingSet {
	s := closingSet{}
	for _, p := range ports {
		for _, f := range p.frontends {
			s[f] = p
		}
	}
	return s
}
